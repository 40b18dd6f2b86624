"""Parts of a long report that mean the same alone as they do in the whole.

A part ends between two blocks. Where one block is too long for that, it ends between two lines of
code, rows of a table or items of a list, and what was open is closed and opened again. A part that
begins or ends elsewhere is written anew, so that code which was cut in two is no link.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

from gemini_cli_mcp.research.citation_gate import UNVERIFIED_MARK
from gemini_cli_mcp.research.markdown_writer import (
    BlockNode,
    block_parser,
    block_tree,
    rewrite_links,
)

_LINE = re.compile(r"\r\n?|\n")


@dataclass(frozen=True)
class _Block:
    """A top-level block, in characters of the report."""

    start: int
    end: int
    cut_points: frozenset[int]
    """Where it can be cut."""
    opening: str
    """What stands before a part that begins in it."""
    closing: str
    """What stands behind a part that ends in it."""


@dataclass
class _CollectLinks:
    """Lets all links stay, and remembers them."""

    links: set[str] = field(default_factory=set[str])

    def allowed_url(self, address: str) -> str | None:
        self.links.add(address)
        return address

    def allows_host(self, name: str) -> bool:
        return False


@dataclass(frozen=True)
class _LinksOfReport:
    """Lets those links stay that a report has."""

    report: str

    @cached_property
    def _links(self) -> set[str]:
        collector = _CollectLinks()
        rewrite_links(self.report, collector, UNVERIFIED_MARK)
        return collector.links

    def allowed_url(self, address: str) -> str | None:
        return address if address in self._links else None

    def allows_host(self, name: str) -> bool:
        return False


class MarkdownParts:
    """A report, and where it can be cut."""

    def __init__(self, report: str) -> None:
        self._report = report
        self._links_of_report = _LinksOfReport(report)
        self._line_starts = [0, *(match.end() for match in _LINE.finditer(report))]
        self._blocks = [
            self._block(node)
            for node in block_tree(block_parser().parse(report, {}))
            if node.token.map
        ]
        self._block_starts = {block.start for block in self._blocks} | {0, len(report)}

    def find_cut(self, start: int, end: int) -> int:
        """Where a part that begins at `start` and may reach `end` should end."""
        middle = start + (end - start) // 2
        inner = {place for block in self._blocks for place in block.cut_points}
        for places in (self._block_starts, inner):
            if best := max((place for place in places if middle < place <= end), default=0):
                return best
        for separator in ("\n", " "):
            at = self._report.rfind(separator, middle, end)
            if at > start:
                return at + 1
        return end

    def part(self, start: int, end: int) -> str:
        """The characters from `start` to `end`, as a document of their own."""
        first, last = self._block_at(start), self._block_at(end)
        text = self._report[start:end]
        if first:
            text = first.opening + text
        if last:
            text = text.rstrip("\n") + last.closing if last.closing else text
        clean = all(
            block is None or place in block.cut_points
            for block, place in ((first, start), (last, end))
        )
        return text if clean else rewrite_links(text, self._links_of_report, UNVERIFIED_MARK)

    def _block_at(self, offset: int) -> _Block | None:
        """The block that a cut at this place would cut in two."""
        return next((block for block in self._blocks if block.start < offset < block.end), None)

    def _block(self, node: BlockNode) -> _Block:
        first, stop = node.token.map or [0, 0]
        while stop > first + 1 and not self._line_text(stop - 1).strip():
            stop -= 1
        opening = closing = ""
        lines: list[int] = []
        if node.kind == "fence":
            lines = list(range(first + 1, stop))
            opening = self._line_text(first)
            closing = f"\n{node.token.markup}\n"
        elif node.kind == "table":
            lines = list(range(first + 3, stop))
            opening = self._line_text(first) + self._line_text(first + 1)
        elif node.kind.endswith("_list"):
            lines = [item.token.map[0] for item in node.children[1:] if item.token.map]
        places = frozenset(map(self._line_offset, lines))
        return _Block(self._line_offset(first), self._line_offset(stop), places, opening, closing)

    def _line_offset(self, line: int) -> int:
        return self._line_starts[line] if line < len(self._line_starts) else len(self._report)

    def _line_text(self, line: int) -> str:
        return self._report[self._line_offset(line) : self._line_offset(line + 1)]
