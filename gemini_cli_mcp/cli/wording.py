"""Numbers, durations and arguments in the words of a terminal."""

import re

from gemini_cli_mcp.cli.options import Options

PROGRAM = "gemini-cli-mcp"

_ARGUMENT = re.compile(r"`(\w+)`")


def pluralize(count: int, noun: str, plural: str) -> str:
    """Return "1 search", "2 searches"."""
    return f"{count} {noun}{'' if count == 1 else plural}"


def format_duration(seconds: float) -> str:
    """Return "12 s", "3 min 5 s" or "2 h 4 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_tokens(count: int) -> str:
    """Return "950 tokens", "41k tokens" or "1.2M tokens"."""
    if count < 1000:
        return pluralize(count, "token", "s")
    return f"{count / 1000:.0f}k tokens" if count < 999_500 else f"{count / 1e6:.1f}M tokens"


def name_arguments(message: str) -> str:
    """Replace the names of a tool's arguments by those of a command: `count` by --count."""

    def replace_name(match: re.Match[str]) -> str:
        name = match[1]
        if name == "query":
            return "QUERY"
        return f"--{name.replace('_', '-')}" if hasattr(Options, name) else match[0]

    return _ARGUMENT.sub(replace_name, message)
