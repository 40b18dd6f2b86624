"""Split a long report into parts that render the same alone as in the whole.

A part ends between two blocks. If a block is too long for that, the part ends between two lines of
code, table rows or list items, and the open block is closed and reopened in the next part. A part
that starts or ends anywhere else is rewritten, so that code cut in half does not become a link.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

from gemini_cli_mcp.research.citation_gate import UNVERIFIED_MARK
from gemini_cli_mcp.research.markdown_parser import BlockNode, block_parser, block_tree
from gemini_cli_mcp.research.markdown_writer import rewrite_links

_LINE = re.compile(r"\r\n?|\n")


@dataclass(frozen=True)
class _Block:
    """A top-level block; positions are character offsets in the report."""

    start: int
    end: int
    cut_points: frozenset[int]
    """Offsets where the block can be cut."""
    opening: str
    """Prepended to a part that starts inside the block."""
    closing: str
    """Appended to a part that ends inside the block."""


@dataclass
class _LinkCollector:
    """Keeps all links, and records them."""

    links: set[str] = field(default_factory=set[str])

    def allowed_url(self, address: str) -> str | None:
        self.links.add(address)
        return address

    def allows_host(self, name: str) -> bool:
        return False


@dataclass(frozen=True)
class _ReportLinkPolicy:
    """Keeps only the links that the whole report contains."""

    report: str

    @cached_property
    def _links(self) -> set[str]:
        collector = _LinkCollector()
        rewrite_links(self.report, collector, UNVERIFIED_MARK)
        return collector.links

    def allowed_url(self, address: str) -> str | None:
        return address if address in self._links else None

    def allows_host(self, name: str) -> bool:
        return False


class MarkdownSplitter:
    """A report, and the offsets where it can be cut."""

    def __init__(self, report: str) -> None:
        self._report = report
        self._link_policy = _ReportLinkPolicy(report)
        self._line_starts = [0, *(match.end() for match in _LINE.finditer(report))]
        self._blocks = [
            self._make_block(node)
            for node in block_tree(block_parser().parse(report, {}))
            if node.token.map
        ]
        self._block_starts = {block.start for block in self._blocks} | {0, len(report)}

    def find_cut(self, start: int, end: int) -> int:
        """Return where a part that starts at `start` and may extend to `end` should end."""
        middle = start + (end - start) // 2
        inner_cuts = {offset for block in self._blocks for offset in block.cut_points}
        for candidates in (self._block_starts, inner_cuts):
            if best := max((offset for offset in candidates if middle < offset <= end), default=0):
                return best
        for separator in ("\n", " "):
            offset = self._report.rfind(separator, middle, end)
            if offset > start:
                return offset + 1
        return end

    def extract(self, start: int, end: int) -> str:
        """Return the characters from `start` to `end` as a standalone document."""
        first_block, last_block = self._block_at(start), self._block_at(end)
        text = self._report[start:end]
        if first_block:
            text = first_block.opening + text
        if last_block:
            text = text.rstrip("\n") + last_block.closing if last_block.closing else text
        is_clean = all(
            block is None or offset in block.cut_points
            for block, offset in ((first_block, start), (last_block, end))
        )
        return text if is_clean else rewrite_links(text, self._link_policy, UNVERIFIED_MARK)

    def _block_at(self, offset: int) -> _Block | None:
        """Return the block that a cut at this offset would split."""
        return next((block for block in self._blocks if block.start < offset < block.end), None)

    def _make_block(self, node: BlockNode) -> _Block:
        start, stop = node.token.map or [0, 0]
        while stop > start + 1 and not self._line_text(stop - 1).strip():
            stop -= 1
        opening = closing = ""
        cut_lines: list[int] = []
        if node.kind == "fence":
            cut_lines = list(range(start + 1, stop))
            opening = self._line_text(start)
            closing = f"\n{node.token.markup}\n"
        elif node.kind == "table":
            cut_lines = list(range(start + 3, stop))
            opening = self._line_text(start) + self._line_text(start + 1)
        elif node.kind.endswith("_list"):
            cut_lines = [item.token.map[0] for item in node.children[1:] if item.token.map]
        cut_points = frozenset(map(self._line_offset, cut_lines))
        return _Block(
            self._line_offset(start), self._line_offset(stop), cut_points, opening, closing
        )

    def _line_offset(self, line: int) -> int:
        return self._line_starts[line] if line < len(self._line_starts) else len(self._report)

    def _line_text(self, line: int) -> str:
        return self._report[self._line_offset(line) : self._line_offset(line + 1)]
