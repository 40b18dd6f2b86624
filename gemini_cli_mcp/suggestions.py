"""Find the name that was probably meant by an unknown one."""

from collections.abc import Collection
from difflib import get_close_matches


def closest_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that an abbreviation or misspelling stands for, if any."""
    lower = name.lower().replace("-", "_")
    names = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    if lower:
        for key, candidate in names.items():
            if key.startswith(lower) or lower.startswith(key):
                return candidate
    matches = get_close_matches(lower, list(names), n=1)
    return names[matches[0]] if matches else None
