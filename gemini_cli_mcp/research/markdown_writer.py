"""Markdown read once and written anew, so that every renderer finds the same links in it.

Blocks: code in fences longer than anything inside, lists and quotes with one way to indent,
footnotes on one line each. `inline_markdown` writes what stands in them. A top-level block in which
nothing can be a link is copied as it is.
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

_DEFINITION_LIKE_NOTE = re.compile(r"<|\S+(?:\s*\Z|\s+[\"'(])")
"""A footnote that renderers without footnotes would take for the definition of a link."""
_DEFINITION = re.compile(r"(?:\[[ xX]\]\s+)?(\[)(?:[^\[\]\\]|\\.)+(?:\]:|\Z)")
"""Also one whose label goes on in the next line, and one behind a task box."""
WHITESPACE = " \t"
MAX_NESTING = 60
"""Of blocks in blocks; deeper ones are lost to the parser."""
_MARKER = r"[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))"
_TOO_MANY_MARKERS = re.compile(rf"^((?:{_MARKER}){{20}})(?:{_MARKER})+", re.MULTILINE)
"""More markers in a row than anybody can mean."""
MAX_TABLE_CELLS = 20_000
_LABEL = re.compile(r"[A-Za-z0-9][\w-]{0,30}", re.ASCII)
_INFO = re.compile(r"[\w+#.-]*")
_BLOCK_START = re.compile(
    r"(?P<number>\d{1,9})(?=[.)](?:\s|\Z))"
    r"|(?=#{1,6}(?:\s|\Z)|[-+*](?:\s|\Z)|>|~~~|=+\s*\Z|(?:[-*_]\s*){3,}\Z|[\s|:]*-[\s|:-]*\Z)"
)
_ALIGNMENTS = {"text-align:left": ":---", "text-align:right": "---:", "text-align:center": ":---:"}


@cache
def block_parser(*, tables: bool = True) -> MarkdownIt:
    """Blocks alone: what stands in them is parsed one by one, unless it is too much."""
    options = {"html": False, "maxNesting": MAX_NESTING}
    markdown = MarkdownIt("commonmark", options).enable("strikethrough")
    if tables:
        markdown.enable("table")
    markdown.use(footnote_plugin, inline=False)
    markdown.core.ruler.disable(["inline", "text_join", "footnote_tail"])
    markdown.validateLink = lambda url: True  # whatever some renderer takes is ours to judge
    return markdown


def rewrite_links(report: str, policy: LinkPolicy, mark: str) -> str:
    """The report with only those links that the judge lets stay; `mark` stands for the others."""
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
    """The lines with fewer markers where there are too many; code stays."""
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
    """The blocks of a document."""
    root: list[BlockNode] = []
    inside: list[list[BlockNode]] = [root]
    for token in tokens:
        if token.nesting < 0:
            inside.pop()
            continue
        node = BlockNode(token)
        inside[-1].append(node)
        if token.nesting > 0:
            inside.append(node.children)
    return root


@dataclass(frozen=True)
class _Block:
    """A top-level block: where it stood, and what is written for it."""

    start: int
    stop: int
    lines: list[str]
    copied: bool
    is_list: bool
    markup: str
    """The marker of a list."""


class _DocumentWriter:
    """One report while it is written."""

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
        self._notes: dict[str, BlockNode] = {}
        """The footnotes by their labels; of two the first counts."""
        for label, node in _footnotes(self._blocks):
            self._notes.setdefault(label, node)
        labels = _unique_labels(
            [label for label, node in self._notes.items() if not _is_empty(node)]
        )
        self._labels = labels
        self._inline = InlineWriter(block_parser(), environment, policy, mark, labels)

    def write(self) -> str:
        written: list[str] = []
        before: _Block | None = None
        for node in self._blocks:
            if node.kind == "footnote_reference":
                continue
            block = self._top_level(node, before)
            if block.lines:
                written += [*self._between(before, block), *block.lines]
                before = block
        written += self._footnotes(separate=bool(written))
        # Blank lines at the end stay, as many as there are.
        return "\n".join([*written, *self._lines[_content_end(self._lines, 0, len(self._lines)) :]])

    def _top_level(self, node: BlockNode, before: "_Block | None") -> "_Block":
        start, stop = node.token.map or (0, 0)
        stop = _content_end(self._lines, start, stop)
        source = self._lines[start:stop]
        # Behind a list that was written anew an indented block would belong to its last item.
        between = self._lines[before.stop : start] if before else []
        after_list = before is not None and before.is_list
        changed = before is not None and (not before.copied or any(map(_has_text, between)))
        moved = after_list and changed and source[0][:1].isspace()
        # Two lists that a definition kept apart are told apart by their markers.
        if before and before.is_list and before.markup == node.token.markup != "" and changed:
            node = _with_other_marker(node)
            moved = True
        copied = not moved and is_link_free("\n".join(source), self._inline.policy)
        lines = source if copied else self._write_block(node)
        is_list = node.kind.endswith("_list")
        return _Block(start, stop, lines, copied, is_list, node.token.markup if is_list else "")

    def _between(self, before: "_Block | None", block: "_Block") -> list[str]:
        """The blank lines before a block: as they were, and one where they are needed."""
        between = self._lines[before.stop if before else 0 : block.start]
        blank = not any(map(_has_text, between))
        if before is None:
            return between if blank and block.copied else []
        if blank and (between or (before.copied and block.copied)):
            return between
        return [""]

    def _write_blocks(self, nodes: Sequence[BlockNode], *, tight: bool = False) -> list[str]:
        lines: list[str] = []
        before: BlockNode | None = None
        for node in nodes:
            block = self._write_block(node)
            if not block:
                continue
            # Only the words of an item can stand right beside something else.
            beside = before is not None and (before.token.hidden or node.token.hidden)
            if lines and not (tight and beside):
                lines.append("")
            lines += block
            before = node
        return lines

    def _write_block(self, node: BlockNode) -> list[str]:
        match node.kind:
            case "paragraph":
                return self._paragraph(node.children[0].token.content)
            case "heading":
                return [self._heading(node)]
            case "fence" | "code_block":
                return _fence(node.token)
            case "hr":
                return ["___"]
            case "blockquote":
                return [f"> {line}" if line else ">" for line in self._write_blocks(node.children)]
            case "bullet_list" | "ordered_list":
                return self._list(node)
            case "table":
                return self._table(node)
            case _:
                return []  # footnotes have a place of their own

    def _paragraph(self, content: str) -> list[str]:
        text = self._inline.write(content).strip(WHITESPACE + "\n")
        lines = [line.strip(WHITESPACE) for line in text.split("\n")]
        return [_escape_line_start(line) for line in lines if line]

    def _heading(self, node: BlockNode) -> str:
        text = " ".join(self._inline.write(node.children[0].token.content).split("\n")).strip()
        closing = re.sub(r"(?<!\S)(#+)\Z", r"\\\1", text)  # else it would be the heading's end
        return f"{'#' * int(node.token.tag[1])} {closing}".rstrip()

    def _list(self, node: BlockNode) -> list[str]:
        number = int(node.token.attrs.get("start", 1))
        tight = not any(
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
            first, *rest = self._write_blocks(item.children, tight=tight) or [""]
            if lines and not tight:
                lines.append("")
            indent = " " * (len(marker) + 1)
            lines.append(f"{marker} {first}".rstrip() if not first else f"{marker} {first}")
            lines += [indent + line if line else "" for line in rest]
        return lines

    def _table(self, node: BlockNode) -> list[str]:
        rows = [row for part in node.children for row in part.children]
        lines = [self._row(row) for row in rows]
        aligned = [
            _ALIGNMENTS.get(str(cell.token.attrs.get("style", "")), "---")
            for cell in rows[0].children
        ]
        return [lines[0], f"| {' | '.join(aligned)} |", *lines[1:]]

    def _row(self, row: BlockNode) -> str:
        cells = [
            self._inline.write(cell.children[0].token.content if cell.children else "", cell=True)
            for cell in row.children
        ]
        return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"

    def _footnotes(self, *, separate: bool) -> list[str]:
        """All of them, each on a line of its own: continuations are read in different ways."""
        lines: list[str] = []
        for label, node in self._notes.items():
            if label not in self._labels:
                continue
            text = _escape_line_start(" ".join(self._inline_texts(node.children)).strip())
            if _DEFINITION_LIKE_NOTE.match(text):
                text = f"See here: {text}"
            lines += [*([""] if lines or separate else []), f"[^{self._labels[label]}]: {text}"]
        return lines

    def _inline_texts(self, nodes: Sequence[BlockNode]) -> Iterator[str]:
        """What blocks say, in one line."""
        for node in nodes:
            if node.kind == "inline":
                yield " ".join(self._inline.write(node.token.content).split())
            elif node.kind in ("fence", "code_block"):
                yield self._inline.code(" ".join(node.token.content.split()))
            elif node.kind != "footnote_reference":
                yield from self._inline_texts(node.children)


def _has_too_many_cells(report: str) -> bool:
    """Whether rows would be filled up with many more cells than there are characters."""
    cells = columns = 0
    for line in report.split("\n"):
        if "|" in line and "-" in line and not line.strip("-:|> \t"):
            columns = line.count("|") + 1
        elif not _has_text(line):
            columns = 0
        cells += columns
    return cells > max(MAX_TABLE_CELLS, len(report))


def _footnotes(nodes: Sequence[BlockNode]) -> Iterator[tuple[str, BlockNode]]:
    for node in nodes:
        if node.kind == "footnote_reference":
            yield str(node.token.meta.get("label")), node
        yield from _footnotes(node.children)


def _is_empty(node: BlockNode) -> bool:
    return not node.token.content.strip() and all(map(_is_empty, node.children))


def _unique_labels(labels: Sequence[str]) -> dict[str, str]:
    """Names of footnotes that are no more than names, each its own."""
    plain = {label for label in labels if _LABEL.fullmatch(label)}
    names = (f"note-{number}" for number in range(1, len(labels) + len(plain) + 2))
    free = (name for name in names if name not in plain)
    return {label: label if label in plain else next(free) for label in labels}


def _fence(token: Token) -> list[str]:
    content = token.content.removesuffix("\n")
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    ticks = "`" * max(3, longest + 1)
    info = _INFO.match(token.info.strip()) if token.type == "fence" else None
    return [ticks + (info[0] if info else ""), *content.split("\n"), ticks]


def _content_end(lines: list[str], start: int, stop: int) -> int:
    """The end of a block without the blank lines behind it."""
    stop = min(stop, len(lines))
    while stop > start and not _has_text(lines[stop - 1]):
        stop -= 1
    return stop


def _has_text(line: str) -> bool:
    """Whether a line is not blank; to Markdown, other blanks than these two are text."""
    return bool(line.strip(WHITESPACE))


def _with_other_marker(node: BlockNode) -> BlockNode:
    """The same list with the other marker."""
    other = {"-": "*", "*": "-", "+": "-", ".": ")", ")": "."}[node.token.markup]
    items = [BlockNode(item.token.copy(markup=other), item.children) for item in node.children]
    return BlockNode(node.token.copy(markup=other), items)


def _escape_line_start(line: str) -> str:
    """A line of a paragraph that cannot begin another block, nor define a link."""
    if defines := _DEFINITION.match(line):  # all of those were resolved
        return f"{line[: defines.start(1)]}\\{line[defines.start(1) :]}"
    begins = _BLOCK_START.match(line)
    if not begins:
        return line
    number = begins["number"] or ""
    return f"{number}\\{line[len(number) :]}"
