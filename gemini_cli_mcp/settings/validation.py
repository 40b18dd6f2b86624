"""Describe in our own words what pydantic found wrong with a setting."""

import re
from collections.abc import Mapping
from typing import cast

from pydantic_core import ErrorDetails

from gemini_cli_mcp.suggestions import closest_name

_EXPECTATIONS = {
    "missing": "is missing",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "finite_number": "should be a finite number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "string_type": "should be a string",
    "list_type": "should be a list",
    "dict_type": "should be an object",
    "model_type": "should be an object",
    "greater_than": "should be greater than {gt:g}",
    "greater_than_equal": "should be at least {ge:g}",
    "less_than_equal": "should be at most {le:g}",
    "too_short": "should have at least {min_length} entry",
    "string_too_long": "should have at most {max_length} characters",
}
_PATTERNS = {
    "^https?": "should be a URL that starts with http:// or https://, without ? and #",
    "^[A-Za-z_]": "should be the name of an environment variable",
}
"""What a regular expression that starts so expects."""


def describe_problem(problem: ErrorDetails, noun: str = "value") -> str:
    """Return what is wrong, as the end of a sentence about a `noun`."""
    kind = problem["type"]
    context: Mapping[str, object] = problem.get("ctx", {})
    match kind:
        case "value_error":
            return problem["msg"].removeprefix("Value error, ")
        case "literal_error":
            known = re.findall(r"'([^']*)'", str(context.get("expected", "")))
            value = str(cast("object", problem["input"]))
            names = ", ".join(known)
            suggestion = closest_name(value, known)
            hint = f" (did you mean {suggestion}?)" if suggestion else ""
            return f"unknown {noun} {value!r}; known: {names}{hint}"
        case "json_invalid":
            return f"is not valid JSON: {context.get('error', 'cannot be parsed')}"
        case "extra_forbidden":
            return "is not a known field"
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern", ""))
            for start, words in _PATTERNS.items():
                if pattern.startswith(start):
                    return words
            return "should have at most 64 letters, digits, dots, colons, dashes or underscores"
        case _:
            return _EXPECTATIONS.get(kind, "is not valid").format(**context)
