"""Find misspelt environment variables, which would otherwise be ignored silently."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from gemini_cli_mcp.settings.env import Settings

SECRET_VARIABLES = ("GEMINI_MCP_HTTP_TOKENS", "GEMINI_MCP_UPSTREAM_KEY")
"""Variables of this program that are not part of `Settings`."""
OWN_PREFIXES = ("GEMINI_MCP_", "DEEP_SEARCH_")
"""Names with these prefixes are ours; other `GEMINI_…` names may be the CLI's."""
SIGN_IN_VARIABLES = ("GEMINI_API_KEY",)
"""Variables of the CLI whose misspellings are worth finding."""
_NAME_STARTS = ("GE", "GM", "DEEP")
"""How misspellings of our prefixes start; comparing every variable would slow down the start."""
_MIN_SIMILARITY = 0.9
"""Similarity at which a name without our prefix counts as a misspelling of ours."""
_MIN_SIMILARITY_AFTER_PREFIX = 0.65
"""Same for the rest of a name with our prefix, which cannot be anything else."""


def known_variables() -> list[str]:
    """Return the names of the variables that this program reads."""
    titles = [field.title for field in Settings.model_fields.values() if field.title]
    return [*titles, *SECRET_VARIABLES]


def find_misspelt(names: Iterable[str], key_variables: Collection[str] = ()) -> dict[str, str]:
    """Return a message for each name that looks like a variable of ours but is not one.

    `key_variables` are named by the engines file, so they may have any name.
    """
    known = [*known_variables(), *SIGN_IN_VARIABLES]
    messages: dict[str, str] = {}
    for name in names:
        upper = name.upper()
        if name in known or name in key_variables or not upper.startswith(_NAME_STARTS):
            continue
        if suggestion := _suggest(upper, known):
            messages[name] = f"unknown variable; did you mean {suggestion}?"
        elif upper.startswith(OWN_PREFIXES):
            messages[name] = "unknown variable"
    return messages


def _suggest(name: str, known: Sequence[str]) -> str | None:
    """Return the variable that was probably meant."""
    prefix = next((prefix for prefix in OWN_PREFIXES if name.startswith(prefix)), "")
    rests = [variable.removeprefix(prefix) for variable in known if variable.startswith(prefix)]
    similarity = _MIN_SIMILARITY_AFTER_PREFIX if prefix else _MIN_SIMILARITY
    matches = get_close_matches(name.removeprefix(prefix), rests, n=1, cutoff=similarity)
    if not matches or re.fullmatch(re.escape(matches[0]) + r"(?:_.*|\d+)", name):
        return None  # GEMINI_API_KEY_2 is another key
    return prefix + matches[0]
