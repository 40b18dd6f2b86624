"""JSON with comments and trailing commas: read it, and edit one member without touching the rest.

Only the text of that member changes; comments, formatting and line ends around it are preserved.
Everything here takes time linear in the length of the text, and nothing is recursive except
`json.loads`, which refuses deep nesting by itself.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

# Unclosed strings and comments extend to the end of the text, so that matching is linear.
_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*+(?:"|\Z))'
    r"|(?P<comment>//[^\r\n]*+|/\*(?:.*?\*/|.*+))"
    r"|(?P<punctuation>[{}\[\],:])"
    r'|(?P<space>\s++)|(?P<literal>(?:[^\s"{}\[\],:/]|/(?![/*]))++)',
    re.DOTALL,
)
_NEWLINE = re.compile(r"\r\n|\n|\r")


def strip_comments(text: str) -> str:
    """Remove comments and trailing commas; strings and line numbers are preserved."""
    parts: list[str] = []
    previous = ""
    trailing_comma: int | None = None
    """Index of a comma after a value, if no other value has followed yet."""
    for token in _TOKEN.finditer(text):
        symbol = token[0]
        if token.lastgroup == "comment":
            symbol = " " + "\n" * len(_NEWLINE.findall(symbol))
        elif token.lastgroup != "space":
            if symbol in ("}", "]") and trailing_comma is not None:
                parts[trailing_comma] = " "
            is_after_value = symbol == "," and previous not in ("{", "[", ",")
            trailing_comma = len(parts) if is_after_value else None
            previous = symbol
        parts.append(symbol)
    return "".join(parts)


def loads(text: str) -> object:
    """Parse the text; ValueError or RecursionError if it is invalid."""

    def reject_constant(name: str) -> object:
        raise ValueError(f"{name} is not JSON")

    return cast("object", json.loads(strip_comments(text), parse_constant=reject_constant))


class DuplicateKey(ValueError):
    """An object has the same key twice, so that it is unclear which one counts."""


@dataclass(frozen=True)
class _Member:
    """Where a member of an object is in the text."""

    key: str
    start: int
    value_start: int
    value_end: int
    comma: int | None
    """Position of the comma after the value."""


@dataclass(frozen=True)
class _Object:
    """An object in the text: its members, and the positions of its braces."""

    start: int
    end: int
    members: Sequence[_Member]

    def find(self, key: str) -> _Member | None:
        matches = [member for member in self.members if member.key == key]
        if len(matches) > 1:
            raise DuplicateKey(f"it contains {json.dumps(key)} twice")
        return matches[0] if matches else None


def set_member(text: str, path: Sequence[str], value: object) -> str:
    """Return the text with the member at `path` set; missing objects on the way are created.

    The text must be valid, and each existing value on the way an object or null.
    """
    target = _top_object(text)
    for depth, key in enumerate(path):
        rest = path[depth + 1 :]
        member = target.find(key)
        if member is None:
            return _insert(text, target, key, _nest(rest, value), depth + 1)
        if not rest or text[member.value_start] != "{":
            start, end = member.value_start, member.value_end
            return text[:start] + _dumps(text, _nest(rest, value), depth + 1) + text[end:]
        target = _parse_object(text, member.value_start)
    raise ValueError("the path is empty")


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at `path`; unchanged if there is none."""
    target = _top_object(text)
    for key in path[:-1]:
        member = target.find(key)
        if member is None or text[member.value_start] != "{":
            return text
        target = _parse_object(text, member.value_start)
    member = target.find(path[-1])
    if member is None:
        return text
    last, rest = _last_token(text, target, member.start), text[member.value_end :]
    if member.comma is not None:
        before_comma = text[member.value_end : member.comma]  # keep a comment there
        rest = (before_comma if before_comma.strip() else "") + text[member.comma + 1 :]
    if last[0].startswith("//") and not _NEWLINE.match(rest.lstrip(" \t")):
        rest = _newline(text) + rest  # what follows must not become part of the comment
    text = text[: last.end()] + rest
    index = target.members.index(member)
    previous_comma = target.members[index - 1].comma if index else None
    if member.comma is None and previous_comma is not None:
        text = text[:previous_comma] + text[previous_comma + 1 :]
    remaining = _parse_object(text, target.start)
    inside = text[remaining.start + 1 : remaining.end]
    if inside.isspace():
        text = text[: remaining.start + 1] + text[remaining.end :]
    return text


def _last_token(text: str, target: _Object, end: int) -> "re.Match[str]":
    """Return the last token or comment of the object before this position, or its brace."""
    *_, last = (t for t in _TOKEN.finditer(text, target.start, end) if t.lastgroup != "space")
    return last


def _nest(keys: Sequence[str], value: object) -> object:
    for key in reversed(keys):
        value = {key: value}
    return value


def _insert(text: str, target: _Object, key: str, value: object, depth: int) -> str:
    """Add a member at the end of an object, in the style of the others."""
    member = f"{json.dumps(key, ensure_ascii=False)}: {_dumps(text, value, depth)}"
    newline, indent = _newline(text), _indent(text)
    last = target.members[-1] if target.members else None
    inside = text[target.start + 1 : target.end]
    content_end = _last_token(text, target, target.end).end()
    if (last and not _NEWLINE.search(inside)) or _is_compact(text):
        separator = ", " if last and last.comma is None else " " if last else ""
        trailing_comma = "," if last and last.comma is not None else ""
        return f"{text[:content_end]}{separator}{member}{trailing_comma}{text[content_end:]}"
    member = f"{newline}{indent * depth}{member}"
    rest = text[content_end:]
    if not _NEWLINE.search(text[content_end : target.end]):
        rest = f"{newline}{indent * (depth - 1)}{rest.lstrip()}"
    if last is None:
        return f"{text[:content_end]}{member}{rest}"
    if last.comma is not None:
        return f"{text[:content_end]}{member},{rest}"
    return f"{text[: last.value_end]},{text[last.value_end : content_end]}{member}{rest}"


def _dumps(text: str, value: object, depth: int) -> str:
    """Format a value like the rest of the text, for a member at this depth."""
    if _is_compact(text):
        return json.dumps(value, ensure_ascii=False)
    indent = _indent(text)
    lines = json.dumps(value, ensure_ascii=False, indent=indent).split("\n")
    return f"{_newline(text)}{indent * depth}".join(lines)


def _is_compact(text: str) -> bool:
    """Return whether the text is a single line with content."""
    return not _NEWLINE.search(text.strip()) and bool(_top_object(text).members)


def _newline(text: str) -> str:
    match = _NEWLINE.search(text)
    return match[0] if match else "\n"


def _indent(text: str) -> str:
    """Return the indentation of the first member; two spaces if it cannot be seen."""
    members = _top_object(text).members
    start = members[0].start if members else 0
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    indent = text[line_start:start] if line_start else ""
    return indent if indent and indent.isspace() else "  "


def _top_object(text: str) -> _Object:
    return _parse_object(text, next(token.start() for token in _tokens(text, 0)))


def _tokens(text: str, start: int) -> Iterator["re.Match[str]"]:
    """Yield the tokens other than spaces and comments, from this position on."""
    start += text.startswith("\N{ZERO WIDTH NO-BREAK SPACE}", start)
    for token in _TOKEN.finditer(text, start):
        if token.lastgroup not in ("space", "comment"):
            yield token


def _parse_object(text: str, start: int) -> _Object:
    """Locate the members of the object that starts here; the text must be valid."""
    members: list[_Member] = []
    depth = 0
    key: re.Match[str] | None = None
    value_start = value_end = -1

    def add(comma: int | None) -> None:
        if key is not None:
            name = str(cast("object", json.loads(key[0])))
            members.append(_Member(name, key.start(), value_start, value_end, comma))

    for token in _tokens(text, start):
        symbol = token[0]
        is_close = symbol in ("}", "]")
        depth -= is_close
        if depth == 0 and is_close:
            add(None)
            return _Object(start, token.start(), members)
        if depth == 1 and symbol == ",":
            add(token.start())
            key, value_start = None, -1
        elif depth == 1 and key is None:
            key = token
        elif depth == 1 and symbol != ":":
            value_start = token.start() if value_start < 0 else value_start
            value_end = token.end()
        depth += symbol in ("{", "[")
    raise ValueError("the object is not closed")
