"""Run the demo in a pseudo-terminal and render its output as docs/demo.svg."""

import os
import pty
import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
COLUMNS = 92
# Rich's default template loads a web font, which a README must not do.
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    question = "What is the Model Context Protocol, and who uses it?"
    output = run_in_terminal(
        [sys.executable, "-m", "gemini_cli_mcp", "deep-search", question],
        {
            **os.environ,
            "GEMINI_MCP_CLI_PATH": str(ROOT / "scripts/stub-gemini"),
            "STUB_GEMINI_SCENARIO": "deep",
            "COLUMNS": str(COLUMNS),
            "TERM": "xterm-256color",
        },
    )
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f'$ gemini-cli-mcp deep-search "{question}"\n'))
    console.print(Text.from_ansi("\n".join(final_screen(output)).strip("\n")))
    svg = console.export_svg(title="gemini-cli-mcp", code_format=TEMPLATE, unique_id="demo")
    (ROOT / "docs/demo.svg").write_text(svg, encoding="utf-8")


def final_screen(output: str) -> list[str]:
    """Return the final lines; handles only rich's cursor movements (up, erase line)."""
    lines = [""]
    row = 0
    for part in re.split(r"(\r?\n|\x1b\[1A|\x1b\[2K|\r)", output):
        if part in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part != "\r":
            lines[row] += part
    return lines


def run_in_terminal(command: list[str], environ: dict[str, str]) -> str:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environ)
    output = b""
    try:
        while chunk := os.read(terminal, 4096):
            output += chunk
    except OSError:  # the child has closed the terminal
        pass
    os.waitpid(pid, 0)
    return output.decode()


if __name__ == "__main__":
    main()
