"""Parse and rewrite Markdown so that every renderer finds the same links in it.

This module writes the blocks: code in fences longer than any inside, lists and quotes with uniform
indentation, footnotes on one line each. `markdown_inline` writes their content. A top-level block
that cannot contain a link is copied unchanged.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.footnote import footnote_plugin

from gemini_cli_mcp.research.markdown_inline import InlineWriter, LinkPolicy, is_link_free

_DEFINITION_LIKE_FOOTNOTE = re.compile(r"<|\S+(?:\s*\Z|\s+[\"'(])")
"""A footnote that renderers without footnotes would read as a link definition."""
_LINK_DEFINITION = re.compile(r"(?:\[[ xX]\]\s+)?(\[)(?:[^\[\]\\]|\\.)+(?:\]:|\Z)")
"""Including one whose label continues on the next line, and one after a task checkbox."""
WHITESPACE = " \t"
MAX_NESTING = 60
"""Maximum depth of nested blocks; the parser drops deeper ones."""
_MARKER = r"[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))"
_TOO_MANY_MARKERS = re.compile(rf"^((?:{_MARKER}){{20}})(?:{_MARKER})+", re.MULTILINE)
"""More consecutive markers than any real document has."""
MAX_TABLE_CELLS = 20_000
_PLAIN_LABEL = re.compile(r"[A-Za-z0-9][\w-]{0,30}", re.ASCII)
_INFO_STRING = re.compile(r"[\w+#.-]*")
_BLOCK_START = re.compile(
    r"(?P<number>\d{1,9})(?=[.)](?:\s|\Z))"
    r"|(?=#{1,6}(?:\s|\Z)|[-+*](?:\s|\Z)|>|~~~|=+\s*\Z|(?:[-*_]\s*){3,}\Z|[\s|:]*-[\s|:-]*\Z)"
)
_ALIGNMENTS = {"text-align:left": ":---", "text-align:right": "---:", "text-align:center": ":---:"}


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


def rewrite_links(report: str, policy: LinkPolicy, mark: str) -> str:
    """Return the report with only the links that `policy` allows; `mark` replaces the others."""
    report = report.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    lines = report.split("\n")
    markdown = block_parser(tables=not _has_too_many_cells(report))
    environment: dict[str, Any] = {}
    tokens = markdown.parse(report, environment)
    if _TOO_MANY_MARKERS.search(report):
        lines = _flatten_markers(lines, tokens)
        environment = {}
        tokens = markdown.parse("\n".join(lines), environment)
    return _DocumentWriter(lines, tokens, environment, policy, mark).write()


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


@dataclass
class BlockNode:
    """A block and the blocks inside it."""

    token: Token
    children: "list[BlockNode]" = field(default_factory=list["BlockNode"])

    @property
    def kind(self) -> str:
        return self.token.type.removesuffix("_open")


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


@dataclass(frozen=True)
class _Block:
    """A top-level block: its range of source lines, and the lines written for it."""

    start: int
    stop: int
    lines: list[str]
    is_copied: bool
    is_list: bool
    markup: str
    """The marker of a list; empty for other blocks."""


class _DocumentWriter:
    """Writes one report."""

    def __init__(
        self,
        lines: list[str],
        tokens: Sequence[Token],
        environment: dict[str, Any],
        policy: LinkPolicy,
        mark: str,
    ) -> None:
        self._lines = lines
        self._blocks = block_tree(tokens)
        self._footnote_nodes: dict[str, BlockNode] = {}
        """The footnotes by label; the first of several with the same label counts."""
        for label, node in _find_footnotes(self._blocks):
            self._footnote_nodes.setdefault(label, node)
        labels = _unique_labels(
            [label for label, node in self._footnote_nodes.items() if not _is_empty(node)]
        )
        self._labels = labels
        self._inline = InlineWriter(block_parser(), environment, policy, mark, labels)

    def write(self) -> str:
        output: list[str] = []
        previous: _Block | None = None
        for node in self._blocks:
            if node.kind == "footnote_reference":
                continue
            block = self._write_top_level(node, previous)
            if block.lines:
                output += [*self._blank_lines_before(previous, block), *block.lines]
                previous = block
        output += self._write_footnotes(separate=bool(output))
        # Keep all blank lines at the end.
        return "\n".join([*output, *self._lines[_content_end(self._lines, 0, len(self._lines)) :]])

    def _write_top_level(self, node: BlockNode, previous: "_Block | None") -> "_Block":
        start, stop = node.token.map or (0, 0)
        stop = _content_end(self._lines, start, stop)
        source = self._lines[start:stop]
        # After a rewritten list, an indented block would belong to its last item.
        between = self._lines[previous.stop : start] if previous else []
        after_list = previous is not None and previous.is_list
        changed = previous is not None and (not previous.is_copied or any(map(_has_text, between)))
        must_rewrite = after_list and changed and source[0][:1].isspace()
        # Two lists that were separated by a definition get different markers.
        if previous and previous.is_list and previous.markup == node.token.markup != "" and changed:
            node = _change_list_marker(node)
            must_rewrite = True
        is_copied = not must_rewrite and is_link_free("\n".join(source), self._inline.policy)
        lines = source if is_copied else self._write_block(node)
        is_list = node.kind.endswith("_list")
        return _Block(start, stop, lines, is_copied, is_list, node.token.markup if is_list else "")

    def _blank_lines_before(self, previous: "_Block | None", block: "_Block") -> list[str]:
        """Return the blank lines before a block: as they were, or one where it is needed."""
        between = self._lines[previous.stop if previous else 0 : block.start]
        is_blank = not any(map(_has_text, between))
        if previous is None:
            return between if is_blank and block.is_copied else []
        if is_blank and (between or (previous.is_copied and block.is_copied)):
            return between
        return [""]

    def _write_blocks(self, nodes: Sequence[BlockNode], *, tight: bool = False) -> list[str]:
        lines: list[str] = []
        previous: BlockNode | None = None
        for node in nodes:
            block_lines = self._write_block(node)
            if not block_lines:
                continue
            # Only the text of a list item may be adjacent to another block.
            is_adjacent = previous is not None and (previous.token.hidden or node.token.hidden)
            if lines and not (tight and is_adjacent):
                lines.append("")
            lines += block_lines
            previous = node
        return lines

    def _write_block(self, node: BlockNode) -> list[str]:
        match node.kind:
            case "paragraph":
                return self._write_paragraph(node.children[0].token.content)
            case "heading":
                return [self._write_heading(node)]
            case "fence" | "code_block":
                return _write_fence(node.token)
            case "hr":
                return ["___"]
            case "blockquote":
                return [f"> {line}" if line else ">" for line in self._write_blocks(node.children)]
            case "bullet_list" | "ordered_list":
                return self._write_list(node)
            case "table":
                return self._write_table(node)
            case _:
                return []  # footnotes are written at the end

    def _write_paragraph(self, content: str) -> list[str]:
        text = self._inline.write(content).strip(WHITESPACE + "\n")
        lines = [line.strip(WHITESPACE) for line in text.split("\n")]
        return [_escape_line_start(line) for line in lines if line]

    def _write_heading(self, node: BlockNode) -> str:
        text = " ".join(self._inline.write(node.children[0].token.content).split("\n")).strip()
        escaped = re.sub(r"(?<!\S)(#+)\Z", r"\\\1", text)  # otherwise it would close the heading
        return f"{'#' * int(node.token.tag[1])} {escaped}".rstrip()

    def _write_list(self, node: BlockNode) -> list[str]:
        number = int(node.token.attrs.get("start", 1))
        is_tight = not any(
            child.kind == "paragraph" and not child.token.hidden
            for item in node.children
            for child in item.children
        )
        lines: list[str] = []
        for item in node.children:
            marker = node.token.markup or item.token.markup or "-"
            if node.kind == "ordered_list":
                marker = f"{number}{item.token.markup or '.'}"
                number += 1
            first, *rest = self._write_blocks(item.children, tight=is_tight) or [""]
            if lines and not is_tight:
                lines.append("")
            indent = " " * (len(marker) + 1)
            lines.append(f"{marker} {first}".rstrip() if not first else f"{marker} {first}")
            lines += [indent + line if line else "" for line in rest]
        return lines

    def _write_table(self, node: BlockNode) -> list[str]:
        rows = [row for section in node.children for row in section.children]
        lines = [self._write_row(row) for row in rows]
        alignments = [
            _ALIGNMENTS.get(str(cell.token.attrs.get("style", "")), "---")
            for cell in rows[0].children
        ]
        return [lines[0], f"| {' | '.join(alignments)} |", *lines[1:]]

    def _write_row(self, row: BlockNode) -> str:
        cells = [
            self._inline.write(
                cell.children[0].token.content if cell.children else "", in_cell=True
            )
            for cell in row.children
        ]
        return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"

    def _write_footnotes(self, *, separate: bool) -> list[str]:
        """Write each footnote on one line: renderers read continuation lines differently."""
        lines: list[str] = []
        for label, node in self._footnote_nodes.items():
            if label not in self._labels:
                continue
            text = _escape_line_start(" ".join(self._inline_texts(node.children)).strip())
            if _DEFINITION_LIKE_FOOTNOTE.match(text):
                text = f"See here: {text}"
            lines += [*([""] if lines or separate else []), f"[^{self._labels[label]}]: {text}"]
        return lines

    def _inline_texts(self, nodes: Sequence[BlockNode]) -> Iterator[str]:
        """Yield the text of each block as one line."""
        for node in nodes:
            if node.kind == "inline":
                yield " ".join(self._inline.write(node.token.content).split())
            elif node.kind in ("fence", "code_block"):
                yield self._inline.write_code(" ".join(node.token.content.split()))
            elif node.kind != "footnote_reference":
                yield from self._inline_texts(node.children)


def _has_too_many_cells(report: str) -> bool:
    """Return whether padding the rows would add many more cells than there are characters."""
    cells = columns = 0
    for line in report.split("\n"):
        if "|" in line and "-" in line and not line.strip("-:|> \t"):
            columns = line.count("|") + 1
        elif not _has_text(line):
            columns = 0
        cells += columns
    return cells > max(MAX_TABLE_CELLS, len(report))


def _find_footnotes(nodes: Sequence[BlockNode]) -> Iterator[tuple[str, BlockNode]]:
    for node in nodes:
        if node.kind == "footnote_reference":
            yield str(node.token.meta.get("label")), node
        yield from _find_footnotes(node.children)


def _is_empty(node: BlockNode) -> bool:
    return not node.token.content.strip() and all(map(_is_empty, node.children))


def _unique_labels(labels: Sequence[str]) -> dict[str, str]:
    """Map each footnote label to a unique name that contains no markup."""
    plain_labels = {label for label in labels if _PLAIN_LABEL.fullmatch(label)}
    candidates = (f"note-{number}" for number in range(1, len(labels) + len(plain_labels) + 2))
    unused = (name for name in candidates if name not in plain_labels)
    return {label: label if label in plain_labels else next(unused) for label in labels}


def _write_fence(token: Token) -> list[str]:
    content = token.content.removesuffix("\n")
    longest_run = max((len(ticks) for ticks in re.findall("`+", content)), default=0)
    delimiter = "`" * max(3, longest_run + 1)
    info = _INFO_STRING.match(token.info.strip()) if token.type == "fence" else None
    return [delimiter + (info[0] if info else ""), *content.split("\n"), delimiter]


def _content_end(lines: list[str], start: int, stop: int) -> int:
    """Return the end of a block without its trailing blank lines."""
    stop = min(stop, len(lines))
    while stop > start and not _has_text(lines[stop - 1]):
        stop -= 1
    return stop


def _has_text(line: str) -> bool:
    """Return whether a line is not blank; to Markdown, all but these two characters are text."""
    return bool(line.strip(WHITESPACE))


def _change_list_marker(node: BlockNode) -> BlockNode:
    """Return the same list with a different marker."""
    marker = {"-": "*", "*": "-", "+": "-", ".": ")", ")": "."}[node.token.markup]
    items = [BlockNode(item.token.copy(markup=marker), item.children) for item in node.children]
    return BlockNode(node.token.copy(markup=marker), items)


def _escape_line_start(line: str) -> str:
    """Escape a line of a paragraph so that it cannot start another block or define a link."""
    if definition := _LINK_DEFINITION.match(line):  # all real ones were resolved
        return f"{line[: definition.start(1)]}\\{line[definition.start(1) :]}"
    block_start = _BLOCK_START.match(line)
    if not block_start:
        return line
    number = block_start["number"] or ""
    return f"{number}\\{line[len(number) :]}"
