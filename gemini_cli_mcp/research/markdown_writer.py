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

from gemini_cli_mcp.research.inline_markdown import Inline, LinkJudge, is_plain

_NOTE = re.compile(r"<|\S+(?:\s*\Z|\s+[\"'(])")
"""A footnote that renderers without footnotes would take for the definition of a link."""
_DEFINITION = re.compile(r"\[(?:[^\[\]\\]|\\.)+\]:", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9][\w-]{0,30}", re.ASCII)
_INFO = re.compile(r"[\w+#.-]*")
_BLOCK_START = re.compile(
    r"(?P<number>\d{1,9})(?=[.)](?:\s|\Z))"
    r"|(?=#{1,6}(?:\s|\Z)|[-+*](?:\s|\Z)|>|~~~|=+\s*\Z|(?:[-*_]\s*){3,}\Z|[\s|:]*-[\s|:-]*\Z)"
)
_ALIGNMENTS = {"text-align:left": ":---", "text-align:right": "---:", "text-align:center": ":---:"}


@cache
def parser() -> MarkdownIt:
    """Blocks alone: what stands in them is parsed one by one, unless it is too much."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.use(footnote_plugin, inline=False)
    markdown.core.ruler.disable(["inline", "text_join", "footnote_tail"])
    markdown.validateLink = lambda url: True  # whatever some renderer takes is ours to judge
    return markdown


def rewrite(report: str, judge: LinkJudge, mark: str) -> str:
    """The report with only those links that the judge lets stay; `mark` stands for the others."""
    report = report.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    environment: dict[str, Any] = {}
    tokens = parser().parse(report, environment)
    return _Document(report.split("\n"), tokens, environment, judge, mark).write()


@dataclass
class Node:
    """A block and the blocks inside it."""

    token: Token
    children: "list[Node]" = field(default_factory=list["Node"])

    @property
    def kind(self) -> str:
        return self.token.type.removesuffix("_open")


def tree(tokens: Sequence[Token]) -> list[Node]:
    """The blocks of a document."""
    root: list[Node] = []
    inside: list[list[Node]] = [root]
    for token in tokens:
        if token.nesting < 0:
            inside.pop()
            continue
        node = Node(token)
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


class _Document:
    """One report while it is written."""

    def __init__(
        self,
        lines: list[str],
        tokens: Sequence[Token],
        environment: dict[str, Any],
        judge: LinkJudge,
        mark: str,
    ) -> None:
        self._lines = lines
        self._blocks = tree(tokens)
        self._notes = dict(_notes(self._blocks))
        """The footnotes by their labels; of two the first counts."""
        labels = _labels([label for label, node in self._notes.items() if not _is_empty(node)])
        self._labels = labels
        self._inline = Inline(parser(), environment, judge, mark, labels)

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
        return "\n".join([*written, *self._lines[_end(self._lines, 0, len(self._lines)) :]])

    def _top_level(self, node: Node, before: "_Block | None") -> "_Block":
        start, stop = node.token.map or (0, 0)
        stop = _end(self._lines, start, stop)
        source = self._lines[start:stop]
        # Behind a list that was written anew an indented block would belong to its last item.
        after_list = before is not None and before.is_list and not before.copied
        moved = after_list and source[0][:1].isspace()
        copied = not moved and is_plain("\n".join(source), self._inline.judge)
        lines = source if copied else self._block(node)
        return _Block(start, stop, lines, copied, node.kind.endswith("_list"))

    def _between(self, before: "_Block | None", block: "_Block") -> list[str]:
        """The blank lines before a block: as they were, and one where they are needed."""
        between = self._lines[before.stop if before else 0 : block.start]
        blank = not any(map(str.strip, between))
        if before is None:
            return between if blank and block.copied else []
        if blank and (between or (before.copied and block.copied)):
            return between
        return [""]

    def _blocks_of(self, nodes: Sequence[Node], *, tight: bool = False) -> list[str]:
        lines: list[str] = []
        for node in nodes:
            block = self._block(node)
            if block and lines and not tight:
                lines.append("")
            lines += block
        return lines

    def _block(self, node: Node) -> list[str]:
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
                return [f"> {line}" if line else ">" for line in self._blocks_of(node.children)]
            case "bullet_list" | "ordered_list":
                return self._list(node)
            case "table":
                return self._table(node)
            case _:
                return []  # footnotes have a place of their own

    def _paragraph(self, content: str) -> list[str]:
        text = _without_definition(self._inline.write(content).strip())
        lines = [line.strip() for line in text.split("\n")]
        return [_guarded(line) for line in lines if line]

    def _heading(self, node: Node) -> str:
        text = " ".join(self._inline.write(node.children[0].token.content).split("\n")).strip()
        closing = re.sub(r"(#+)\Z", r"\\\1", text)
        return f"{'#' * int(node.token.tag[1])} {closing}".rstrip()

    def _list(self, node: Node) -> list[str]:
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
            first, *rest = self._blocks_of(item.children, tight=tight) or [""]
            if lines and not tight:
                lines.append("")
            indent = " " * (len(marker) + 1)
            lines.append(f"{marker} {first}".rstrip() if not first else f"{marker} {first}")
            lines += [indent + line if line else "" for line in rest]
        return lines

    def _table(self, node: Node) -> list[str]:
        rows = [row for part in node.children for row in part.children]
        lines = [self._row(row) for row in rows]
        aligned = [
            _ALIGNMENTS.get(str(cell.token.attrs.get("style", "")), "---")
            for cell in rows[0].children
        ]
        return [lines[0], f"| {' | '.join(aligned)} |", *lines[1:]]

    def _row(self, row: Node) -> str:
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
            text = _without_definition(" ".join(self._words_of(node.children)))
            if _NOTE.match(text):
                text = f"See here: {text}"
            lines += [*([""] if lines or separate else []), f"[^{self._labels[label]}]: {text}"]
        return lines

    def _words_of(self, nodes: Sequence[Node]) -> Iterator[str]:
        """What blocks say, in one line."""
        for node in nodes:
            if node.kind == "inline":
                yield " ".join(self._inline.write(node.token.content).split())
            elif node.kind in ("fence", "code_block"):
                yield self._inline.code(" ".join(node.token.content.split()))
            elif node.kind != "footnote_reference":
                yield from self._words_of(node.children)


def _notes(nodes: Sequence[Node]) -> Iterator[tuple[str, Node]]:
    for node in reversed(nodes):  # the first of two with one label is told last, and counts
        yield from _notes(node.children)
        if node.kind == "footnote_reference":
            yield str(node.token.meta.get("label")), node


def _is_empty(node: Node) -> bool:
    return not node.token.content.strip() and all(map(_is_empty, node.children))


def _labels(labels: Sequence[str]) -> dict[str, str]:
    """Names of footnotes that are no more than names, each its own."""
    plain = {label for label in labels if _LABEL.fullmatch(label)}
    names = (f"note-{number}" for number in range(1, len(labels) + len(plain) + 2))
    free = (name for name in names if name not in plain)
    return {label: label if label in plain else next(free) for label in reversed(labels)}


def _fence(token: Token) -> list[str]:
    content = token.content.removesuffix("\n")
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    ticks = "`" * max(3, longest + 1)
    info = _INFO.match(token.info.strip()) if token.type == "fence" else None
    return [ticks + (info[0] if info else ""), *content.split("\n"), ticks]


def _end(lines: list[str], start: int, stop: int) -> int:
    """The end of a block without the blank lines behind it."""
    stop = min(stop, len(lines))
    while stop > start and not lines[stop - 1].strip():
        stop -= 1
    return stop


def _without_definition(text: str) -> str:
    """Text that does not begin like the definition of a link: all of those were resolved."""
    return f"\\{text}" if _DEFINITION.match(text) else text


def _guarded(line: str) -> str:
    """A line of a paragraph that cannot begin another block."""
    begins = _BLOCK_START.match(line)
    if not begins:
        return line
    number = begins["number"] or ""
    return f"{number}\\{line[len(number) :]}"
