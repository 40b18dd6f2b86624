"""Find misspelt environment variables, which would otherwise be ignored silently."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from gemini_cli_mcp.settings.env import Settings

SECRET_VARIABLES = ("GEMINI_MCP_HTTP_TOKENS", "GEMINI_MCP_UPSTREAM_KEY")
"""Variables of this program that are not part of `Settings`."""
OWN_PREFIXES = ("GEMINI_MCP_", "DEEP_SEARCH_")
"""Names with these prefixes are ours; other `GEMINI_…` names may be the CLI's."""
SIGN_IN_VARIABLES = ("GEMINI_API_KEY",)
"""Variables of the CLI whose misspellings are worth finding."""
_MIN_SIMILARITY = 0.9
"""Similarity at which a name without our prefix counts as a misspelling of ours."""


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
        if name in known or name in key_variables or not upper.startswith(("GEMINI", "DEEP_")):
            continue
        similarity = 0.6 if upper.startswith(OWN_PREFIXES) else _MIN_SIMILARITY
        matches = get_close_matches(upper, known, n=1, cutoff=similarity)
        if matches and not upper.startswith(f"{matches[0]}_"):  # GEMINI_API_KEY_2 is another key
            messages[name] = f"unknown variable; did you mean {matches[0]}?"
        elif upper.startswith(OWN_PREFIXES):
            messages[name] = "unknown variable"
    return messages
