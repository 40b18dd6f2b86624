"""Parts of a long report that mean the same alone as they do in the whole.

A part ends between two blocks. Where one block is too long for that, it ends between two lines of
code, rows of a table or items of a list, and what was open is closed and opened again. A part that
begins or ends elsewhere is written anew, so that code which was cut in two is no link.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

from gemini_cli_mcp.research.citation_gate import MARK
from gemini_cli_mcp.research.markdown_writer import Node, parser, rewrite, tree

_LINE = re.compile(r"\r\n?|\n")


@dataclass(frozen=True)
class _Block:
    """A top-level block, in characters of the report."""

    start: int
    end: int
    inner: frozenset[int]
    """Where it can be cut."""
    opening: str
    """What stands before a part that begins in it."""
    closing: str
    """What stands behind a part that ends in it."""


@dataclass
class _Every:
    """Lets all links stay, and remembers them."""

    links: set[str] = field(default_factory=set[str])

    def link(self, address: str) -> str | None:
        self.links.add(address)
        return address

    def knows(self, name: str) -> bool:
        return False


@dataclass(frozen=True)
class _Known:
    """Lets those links stay that a report has."""

    report: str

    @cached_property
    def _links(self) -> set[str]:
        every = _Every()
        rewrite(self.report, every, MARK)
        return every.links

    def link(self, address: str) -> str | None:
        return address if address in self._links else None

    def knows(self, name: str) -> bool:
        return False


class Parts:
    """A report, and where it can be cut."""

    def __init__(self, report: str) -> None:
        self._report = report
        self._known = _Known(report)
        self._lines = [0, *(match.end() for match in _LINE.finditer(report))]
        self._blocks = [
            self._block(node) for node in tree(parser().parse(report, {})) if node.token.map
        ]
        self._edges = {block.start for block in self._blocks} | {0, len(report)}

    def cut_before(self, start: int, end: int) -> int:
        """Where a part that begins at `start` and may reach `end` should end."""
        middle = start + (end - start) // 2
        inner = {place for block in self._blocks for place in block.inner}
        for places in (self._edges, inner):
            if best := max((place for place in places if middle < place <= end), default=0):
                return best
        for separator in ("\n", " "):
            at = self._report.rfind(separator, middle, end)
            if at > start:
                return at + 1
        return end

    def part(self, start: int, end: int) -> str:
        """The characters from `start` to `end`, as a document of their own."""
        first, last = self._inside(start), self._inside(end)
        text = self._report[start:end]
        if first:
            text = first.opening + text
        if last:
            text = text.rstrip("\n") + last.closing if last.closing else text
        clean = all(
            block is None or place in block.inner for block, place in ((first, start), (last, end))
        )
        return text if clean else rewrite(text, self._known, MARK)

    def _inside(self, place: int) -> _Block | None:
        """The block that a cut at this place would cut in two."""
        return next((block for block in self._blocks if block.start < place < block.end), None)

    def _block(self, node: Node) -> _Block:
        first, stop = node.token.map or [0, 0]
        while stop > first + 1 and not self._line(stop - 1).strip():
            stop -= 1
        opening = closing = ""
        lines: list[int] = []
        if node.kind == "fence":
            lines = list(range(first + 1, stop))
            opening = self._line(first)
            closing = f"\n{node.token.markup}\n"
        elif node.kind == "table":
            lines = list(range(first + 3, stop))
            opening = self._line(first) + self._line(first + 1)
        elif node.kind.endswith("_list"):
            lines = [item.token.map[0] for item in node.children[1:] if item.token.map]
        places = frozenset(map(self._place, lines))
        return _Block(self._place(first), self._place(stop), places, opening, closing)

    def _place(self, line: int) -> int:
        return self._lines[line] if line < len(self._lines) else len(self._report)

    def _line(self, line: int) -> str:
        return self._report[self._place(line) : self._place(line + 1)]
