"""Have output that is no JSON put into form by a run that can read it and do nothing else."""

import re

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.providers.base import Provider, Reply
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace

# The gemini CLI cuts a file it reads at 2,000 lines and each line at 2,000 UTF-16 units.
MAX_LINE_CHARS = 990
MAX_LINES = 1900
LINE_BREAK = "\N{RETURN SYMBOL}"

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")


async def correct(
    provider: Provider, workspace: Workspace, invalid: str, progress: ProgressCallback
) -> Reply:
    """What the provider makes of invalid output, which reaches it whole."""
    with workspace.invalid_output_file(wrap_for_cli(invalid)) as file:
        prompt = prompts.render(
            "correction-prompt", path=str(file), name=file.name, line_length=str(MAX_LINE_CHARS)
        )
        return await provider.ask(prompt, progress, file)


def wrap_for_cli(text: str) -> str:
    """The text in lines that a CLI reads to their end, however long or many they were."""
    lines = [
        line[start : start + MAX_LINE_CHARS]
        for line in text.replace("\r\n", "\n").split("\n")
        for start in range(0, len(line) or 1, MAX_LINE_CHARS)
    ]
    if len(lines) > MAX_LINES:
        lines = _join_short_lines(lines)
    if len(lines) > MAX_LINES:
        raise ExecutionFailed(f"The output is too long to be corrected ({len(text)} characters).")
    return "\n".join(lines)


def _join_short_lines(lines: list[str]) -> list[str]:
    """Fewer lines: short ones joined, with a sign where the line break was."""
    packed: list[str] = [lines[0]]
    for line in lines[1:]:
        if len(packed[-1]) + len(LINE_BREAK) + len(line) <= MAX_LINE_CHARS:
            packed[-1] += LINE_BREAK + line
        else:
            packed.append(line)
    return packed


def word_overlap(report: str, invalid: str) -> float:
    """Which part of the report's words stands in the invalid output: 1.0 is all of them."""
    known_words = set(_words(_ESCAPE.sub(_unescape, invalid)))
    words = _words(report)
    return sum(word in known_words for word in words) / len(words) if words else 1.0


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else " "
