"""Convert invalid output to JSON with a run that can read that output and nothing else."""

import re

from gemini_cli_mcp import prompts
from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.providers.base import Provider, Reply
from gemini_cli_mcp.workspace import Workspace

# The gemini CLI truncates a file it reads to 2,000 lines and each line to 2,000 UTF-16 units.
MAX_LINE_CHARS = 990
MAX_LINES = 1900
LINE_BREAK = "\N{RETURN SYMBOL}"

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")


async def correct(
    provider: Provider, workspace: Workspace, invalid_output: str, context: CallContext
) -> Reply:
    """Ask the provider to correct invalid output, which it receives in full."""
    with workspace.invalid_output_file(wrap_for_cli(invalid_output)) as file:
        prompt = prompts.render(
            "correction-prompt", path=str(file), name=file.name, line_length=str(MAX_LINE_CHARS)
        )
        return await provider.ask(prompt, context, file)


def wrap_for_cli(text: str) -> str:
    """Rewrap the text so that the CLI reads all of it, however long or many its lines are."""
    lines = [
        line[start : start + MAX_LINE_CHARS]
        for line in text.replace("\r\n", "\n").split("\n")
        for start in range(0, len(line) or 1, MAX_LINE_CHARS)
    ]
    if len(lines) > MAX_LINES:
        lines = _join_short_lines(lines)
    if len(lines) > MAX_LINES:
        raise ExecutionFailed(f"The output is too long to correct ({len(text)} characters).")
    return "\n".join(lines)


def _join_short_lines(lines: list[str]) -> list[str]:
    """Join short lines, with a symbol in place of each removed line break."""
    joined: list[str] = [lines[0]]
    for line in lines[1:]:
        if len(joined[-1]) + len(LINE_BREAK) + len(line) <= MAX_LINE_CHARS:
            joined[-1] += LINE_BREAK + line
        else:
            joined.append(line)
    return joined


def word_overlap(report: str, invalid_output: str) -> float:
    """Return the share of the report's words that occur in the invalid output, from 0.0 to 1.0."""
    output_words = set(_words(_ESCAPE.sub(_unescape, invalid_output)))
    words = _words(report)
    return sum(word in output_words for word in words) / len(words) if words else 1.0


def _words(text: str) -> list[str]:
    return [match[0].casefold() for match in _WORD.finditer(text)]


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else " "
