"""Parse and rewrite Markdown so that every renderer finds the same links in it.

This module writes the document: a top-level block that cannot contain a link is copied unchanged,
`markdown_block_writer` writes the others, and the footnotes follow at the end, on one line each.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemini_cli_mcp.research.markdown_block_writer import BlockWriter, escape_line_start
from gemini_cli_mcp.research.markdown_inline import InlineWriter
from gemini_cli_mcp.research.markdown_parser import (
    BlockNode,
    ParsedReport,
    block_parser,
    has_text,
    parse_report,
)
from gemini_cli_mcp.research.markdown_text import LinkPolicy, is_link_free

_DEFINITION_LIKE_FOOTNOTE = re.compile(r"<|\S+(?:\s*\Z|\s+[\"'(])")
"""A footnote that renderers without footnotes would read as a link definition."""
_PLAIN_LABEL = re.compile(r"[A-Za-z0-9][\w-]{0,30}", re.ASCII)


def rewrite_links(report: str, policy: LinkPolicy, mark: str) -> str:
    """Return the report with only the links that `policy` allows; `mark` replaces the others."""
    return _DocumentWriter(parse_report(report), policy, mark).write()


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

    def __init__(self, report: ParsedReport, policy: LinkPolicy, mark: str) -> None:
        self._lines = report.lines
        self._blocks = report.blocks
        self._footnote_nodes: dict[str, BlockNode] = {}
        """The footnotes by label; the first of several with the same label counts."""
        for label, node in _find_footnotes(self._blocks):
            self._footnote_nodes.setdefault(label, node)
        labels = _unique_labels(
            [label for label, node in self._footnote_nodes.items() if not _is_empty(node)]
        )
        self._labels = labels
        self._inline = InlineWriter(block_parser(), report.environment, policy, mark, labels)
        self._block_writer = BlockWriter(self._inline)

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
        changed = previous is not None and (not previous.is_copied or any(map(has_text, between)))
        must_rewrite = after_list and changed and source[0][:1].isspace()
        # Two lists that were separated by a definition get different markers.
        if previous and previous.is_list and previous.markup == node.token.markup != "" and changed:
            node = _change_list_marker(node)
            must_rewrite = True
        is_copied = not must_rewrite and is_link_free("\n".join(source), self._inline.policy)
        lines = source if is_copied else self._block_writer.write(node)
        is_list = node.kind.endswith("_list")
        return _Block(start, stop, lines, is_copied, is_list, node.token.markup if is_list else "")

    def _blank_lines_before(self, previous: "_Block | None", block: "_Block") -> list[str]:
        """Return the blank lines before a block: as they were, or one where it is needed."""
        between = self._lines[previous.stop if previous else 0 : block.start]
        is_blank = not any(map(has_text, between))
        if previous is None:
            return between if is_blank and block.is_copied else []
        if is_blank and (between or (previous.is_copied and block.is_copied)):
            return between
        return [""]

    def _write_footnotes(self, *, separate: bool) -> list[str]:
        """Write each footnote on one line: renderers read continuation lines differently."""
        lines: list[str] = []
        for label, node in self._footnote_nodes.items():
            if label not in self._labels:
                continue
            text = escape_line_start(" ".join(self._inline_texts(node.children)).strip())
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


def _content_end(lines: list[str], start: int, stop: int) -> int:
    """Return the end of a block without its trailing blank lines."""
    stop = min(stop, len(lines))
    while stop > start and not has_text(lines[stop - 1]):
        stop -= 1
    return stop


def _change_list_marker(node: BlockNode) -> BlockNode:
    """Return the same list with a different marker."""
    marker = {"-": "*", "*": "-", "+": "-", ".": ")", ")": "."}[node.token.markup]
    items = [BlockNode(item.token.copy(markup=marker), item.children) for item in node.children]
    return BlockNode(node.token.copy(markup=marker), items)
