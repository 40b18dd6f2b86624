"""JSON that came from elsewhere: typed access to values that may be anything."""

from typing import Any, cast

Object = dict[str, Any]
"""A JSON object."""


def as_object(value: object) -> Object:
    """The value if it is a JSON object, else an empty one: foreign data may be anything."""
    return cast("Object", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a JSON array, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_count(value: object) -> int:
    """The value if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0
