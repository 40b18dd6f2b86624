"""JSON that came from elsewhere: typed access to values that may be anything."""

from typing import Any, cast

JsonObject = dict[str, Any]
"""A JSON object."""


def object_or_empty(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one: foreign data may be anything."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def list_or_empty(value: object) -> list[object]:
    """The value if it is a JSON array, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def int_or_zero(value: object) -> int:
    """The value if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0
