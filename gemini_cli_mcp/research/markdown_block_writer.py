"""Write the blocks of a Markdown report in the one form that all renderers read the same way.

Code is in fences longer than any inside, lists and quotes have uniform indentation.
`markdown_inline` writes the content of the blocks.
"""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from gemini_cli_mcp.research.markdown_inline import InlineWriter
from gemini_cli_mcp.research.markdown_parser import WHITESPACE, BlockNode

_LINK_DEFINITION = re.compile(r"(?:\[[ xX]\]\s+)?(\[)(?:[^\[\]\\]|\\.)+(?:\]:|\Z)")
"""Including one whose label continues on the next line, and one after a task checkbox."""
_INFO_STRING = re.compile(r"[\w+#.-]*")
_BLOCK_START = re.compile(
    r"(?P<number>\d{1,9})(?=[.)](?:\s|\Z))"
    r"|(?=#{1,6}(?:\s|\Z)|[-+*](?:\s|\Z)|>|~~~|=+\s*\Z|(?:[-*_]\s*){3,}\Z|[\s|:]*-[\s|:-]*\Z)"
)
_ALIGNMENTS = {"text-align:left": ":---", "text-align:right": "---:", "text-align:center": ":---:"}


class BlockWriter:
    """Writes the blocks of one document."""

    def __init__(self, inline: InlineWriter) -> None:
        self._inline = inline

    def write(self, node: BlockNode) -> list[str]:
        """Return the lines of a block; none for a footnote."""
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

    def _write_blocks(self, nodes: Sequence[BlockNode], *, tight: bool = False) -> list[str]:
        lines: list[str] = []
        previous: BlockNode | None = None
        for node in nodes:
            block_lines = self.write(node)
            if not block_lines:
                continue
            # Only the text of a list item may be adjacent to another block.
            is_adjacent = previous is not None and (previous.token.hidden or node.token.hidden)
            if lines and not (tight and is_adjacent):
                lines.append("")
            lines += block_lines
            previous = node
        return lines

    def _write_paragraph(self, content: str) -> list[str]:
        text = self._inline.write(content).strip(WHITESPACE + "\n")
        lines = [line.strip(WHITESPACE) for line in text.split("\n")]
        return [escape_line_start(line) for line in lines if line]

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


def _write_fence(token: Token) -> list[str]:
    content = token.content.removesuffix("\n")
    longest_run = max((len(match[0]) for match in re.finditer("`+", content)), default=0)
    delimiter = "`" * max(3, longest_run + 1)
    info = _INFO_STRING.match(token.info.strip()) if token.type == "fence" else None
    return [delimiter + (info[0] if info else ""), *content.split("\n"), delimiter]


def escape_line_start(line: str) -> str:
    """Escape a line of a paragraph so that it cannot start another block or define a link."""
    if definition := _LINK_DEFINITION.match(line):  # all real ones were resolved
        return f"{line[: definition.start(1)]}\\{line[definition.start(1) :]}"
    block_start = _BLOCK_START.match(line)
    if not block_start:
        return line
    number = block_start["number"] or ""
    return f"{number}\\{line[len(number) :]}"
