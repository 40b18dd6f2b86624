"""Parse the blocks of a Markdown report into a tree, within limits that hostile text cannot exceed.

The content of the blocks is not parsed here: `markdown_inline` does that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.footnote import footnote_plugin

WHITESPACE = " \t"
MAX_NESTING = 60
"""Maximum depth of nested blocks; the parser drops deeper ones."""
MAX_TABLE_CELLS = 20_000

_MARKER = r"[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))"
_TOO_MANY_MARKERS = re.compile(rf"^((?:{_MARKER}){{20}})(?:{_MARKER})+", re.MULTILINE)
"""More consecutive markers than any real document has."""


@dataclass
class BlockNode:
    """A block and the blocks inside it."""

    token: Token
    children: "list[BlockNode]" = field(default_factory=list["BlockNode"])

    @property
    def kind(self) -> str:
        return self.token.type.removesuffix("_open")


@dataclass(frozen=True)
class ParsedReport:
    """A report with its blocks; positions in the blocks' tokens are line numbers in `lines`."""

    lines: list[str]
    blocks: list[BlockNode]
    environment: dict[str, object]
    """What the parser needs for the content of the blocks: the definitions of references."""


def parse_report(report: str) -> ParsedReport:
    """Parse the blocks of a report, within limits on nesting and table cells."""
    report = report.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    lines = report.split("\n")
    markdown = block_parser(tables=not _has_too_many_cells(report))
    environment: dict[str, object] = {}
    tokens = markdown.parse(report, environment)
    if _TOO_MANY_MARKERS.search(report):
        lines = _flatten_markers(lines, tokens)
        environment = {}
        tokens = markdown.parse("\n".join(lines), environment)
    return ParsedReport(lines, block_tree(tokens), environment)


@cache
def block_parser(*, tables: bool = True) -> MarkdownIt:
    """Return a parser for blocks only: their content is parsed one by one, up to a limit."""
    options = {"html": False, "maxNesting": MAX_NESTING}
    markdown = MarkdownIt("commonmark", options).enable("strikethrough")
    if tables:
        markdown.enable("table")
    markdown.use(footnote_plugin, inline=False)
    markdown.core.ruler.disable(["inline", "text_join", "footnote_tail"])
    # Some renderers accept any URL; the policy decides.
    markdown.validateLink = lambda url: True
    return markdown


def block_tree(tokens: Sequence[Token]) -> list[BlockNode]:
    """Build the tree of blocks from the tokens of a document."""
    root: list[BlockNode] = []
    stack: list[list[BlockNode]] = [root]
    for token in tokens:
        if token.nesting < 0:
            stack.pop()
            continue
        node = BlockNode(token)
        stack[-1].append(node)
        if token.nesting > 0:
            stack.append(node.children)
    return root


def _flatten_markers(lines: list[str], tokens: Sequence[Token]) -> list[str]:
    """Remove markers from lines that have too many; code is not changed."""
    code = {
        line
        for token in tokens
        if token.map and token.type in ("fence", "code_block")
        for line in range(*token.map)
    }
    return [
        line if number in code else _TOO_MANY_MARKERS.sub(lambda match: match[1], line)
        for number, line in enumerate(lines)
    ]


def _has_too_many_cells(report: str) -> bool:
    """Return whether padding the rows would add many more cells than there are characters."""
    cells = columns = 0
    for line in report.split("\n"):
        if "|" in line and "-" in line and not line.strip("-:|> \t"):
            columns = line.count("|") + 1
        elif not has_text(line):
            columns = 0
        cells += columns
    return cells > max(MAX_TABLE_CELLS, len(report))


def has_text(line: str) -> bool:
    """Return whether a line is not blank; to Markdown, all but these two characters are text."""
    return bool(line.strip(WHITESPACE))
