"""Typed access to untrusted JSON, whose values may be of any type."""

from typing import TypeAlias, cast

JsonObject = dict[str, object]
"""A JSON object. Its values are unchecked: narrow them before use."""

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""Parsed JSON inside the function that turns it into typed data, mostly with `match`."""


def object_or_empty(value: object) -> JsonObject:
    """Return the value if it is a JSON object, else an empty object."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def list_or_empty(value: object) -> list[object]:
    """Return the value if it is a JSON array, else an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def int_or_zero(value: object) -> int:
    """Return the value if it is an integer, else 0."""
    return value if isinstance(value, int) else 0
