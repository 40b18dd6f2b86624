"""Find the one JSON object that matters in whatever a model wrote around it.

Time is linear in the size of the text, whatever the text is: a model's answer is as
untrusted as the pages it read. Duplicate keys, NaN, numbers without end, nesting without
end and lone surrogates do not get through.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.redaction import sanitize_json

MatchSchema = Callable[[JsonObject], JsonObject | None]
"""Gives the object back in its final form if it is the one that is looked for."""

MAX_DEPTH = 64
MIN_OBJECT_CHARS = 16
"""Characters of `{"success":true}`; anything shorter is no candidate."""
MAX_REPAIR_CHARS = 256 << 10
"""Characters. Bounded because json-repair is not linear on hostile text."""
MAX_REPAIR_COST = 25_000_000
"""Quotes, escapes and parentheses times characters: what json-repair is quadratic in. 50 kB of
`{"a" ` took it 80 s; this much takes it about two."""
MIN_KEPT_RATIO = 0.8
"""Part of the text that a repair must keep: json-repair drops what it cannot place."""

_START = re.compile(r'\{\s*+"')
_TOKEN = re.compile(r'\s*+(?:("(?>[^"\\]++|\\.)*+")|([{}\[\]:,])|([-+.\w]++))', re.DOTALL)
_FENCE = re.compile(r"```[\w-]*\s*\Z")
_COSTLY = re.compile(r"""["'\\(\u201c\u201d]""")
_KEY = re.compile(r"""(?<!\\)["'](\w+)["']\s*+:""")
_PIECE = re.compile(r'("(?>[^"\\]++|\\.)*+")|([{}\[\]])|(")', re.DOTALL)

Span = tuple[int, int]


@dataclass(frozen=True)
class FoundObject:
    """The object, and what had to be done to get it."""

    object: JsonObject
    repaired: bool = False
    truncated: bool = False
    """The repair had to close a string that the text left open."""


def find_object(text: str, match_schema: MatchSchema, keys: frozenset[str]) -> FoundObject | None:
    """The last object in `text` that fits, if need be after a local repair.

    `keys` are those that the object may have: where they stand, it begins. What lies inside
    such an object is never the answer, not even if the object itself is beyond repair: it may
    be a quotation from a page.
    """
    outermost = _outermost_answers(text, keys)
    begins = [begin for begin, _ in outermost]
    for start, end in reversed(_find_objects(text)):
        around = bisect_left(begins, start) - 1
        if around >= 0 and start < outermost[around][1]:
            continue
        if end - start >= MIN_OBJECT_CHARS and (fitting := _load(text[start:end], match_schema)):
            return FoundObject(fitting)
    for begin in reversed(begins[-2:]):
        for region in _repair_candidates(text[begin:]):
            if match := _repair(region, match_schema, keys):
                return match
    return None


def _load(candidate: str, match_schema: MatchSchema, *, strict: bool = True) -> JsonObject | None:
    try:
        value: object = json.loads(
            candidate,
            strict=strict,
            object_pairs_hook=_reject_duplicates,
            parse_constant=_reject_constant,
            parse_float=_parse_finite,
        )
    except (ValueError, RecursionError):
        return None
    value_object = object_or_empty(sanitize_json(value, ()))
    return match_schema(value_object) if value_object else None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> JsonObject:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("number out of range")
    return number


def _find_objects(text: str) -> list[Span]:
    """All outermost objects that are lexically whole, in order, wherever they stand."""
    spans: list[Span] = []
    at = 0
    while start := _START.search(text, at):
        inner, at = _scan_object(text, start.start())
        spans += inner
    return spans


def _scan_object(text: str, start: int) -> tuple[list[Span], int]:
    """Follow one object from its brace; what it gave, and where to look on.

    If it breaks off, the whole objects inside it count. No text is followed twice but the
    last string: its quotes may have been prose, and the next object may begin with them.
    """
    stack: list[tuple[str, int, int]] = []
    inner: list[Span] = []
    expected = "value"
    opened = False  # the last token opened something, so it may be closed at once
    at = again = start
    while token := _TOKEN.match(text, at):
        string, mark, scalar = token.groups()
        if string and expected == "key":
            expected = ":"
        elif (string or scalar) and expected == "value":
            expected = ","
        elif mark == ":" and expected == ":":
            expected = "value"
        elif mark == "," and expected == ",":
            expected = "key" if stack[-1][0] == "{" else "value"
        elif mark in ("{", "[") and expected == "value" and len(stack) < MAX_DEPTH:
            stack.append((mark, token.start(2), len(inner)))
            expected = "key" if mark == "{" else "value"
        elif mark in ("}", "]") and (opened or expected == ",") and _closes(mark, stack[-1][0]):
            kind, began, before = stack.pop()
            if kind == "{":
                inner[before:] = [(began, token.end())]
            if not stack:
                return inner, token.end()
            expected = ","
        else:
            break
        opened = mark in ("{", "[")
        at = token.end()
        again = token.start(1) + 1 if string else at
    return inner, max(again, start + 1)


def _closes(mark: str, opening: str) -> bool:
    return (opening, mark) in (("{", "}"), ("[", "]"))


def _outermost_answers(text: str, keys: frozenset[str]) -> list[Span]:
    """Where an object with one of the keys begins, whole or not, that lies in no other."""
    begin = re.compile(r"\{\s*+[\"'\u201c]?(?:" + "|".join(sorted(keys)) + r")\b")
    spans: list[Span] = []
    at = 0
    while start := begin.search(text, at):
        at = _object_end(text, start.start())
        spans.append((start.start(), at))
    return spans


def _object_end(text: str, start: int) -> int:
    """Where the object that begins here is closed; if it is not, where the text ends."""
    depth = 0
    for piece in _PIECE.finditer(text, start):
        bracket, quote = piece[2], piece[3]
        if quote:
            break
        if bracket:
            depth += 1 if bracket in "{[" else -1
            if depth <= 0:
                return piece.end()
    return len(text)


def _repair_candidates(text: str) -> Iterator[str]:
    """What may be the broken object that the text begins with."""
    region = _FENCE.sub("", text.rstrip()).rstrip()
    yield region
    whole = region[: region.rfind("}") + 1]
    if whole and whole != region:
        yield whole


def _repair(region: str, match_schema: MatchSchema, keys: frozenset[str]) -> FoundObject | None:
    closed = _close_open_parts(region)
    if closed is None:
        return None
    text, truncated = closed
    if match := _load(text, match_schema, strict=False):
        return FoundObject(match, repaired=True, truncated=truncated)
    if len(region) > MAX_REPAIR_CHARS:
        return None
    if len(_COSTLY.findall(region)) * len(region) > MAX_REPAIR_COST:
        return None
    import json_repair  # late: only broken answers need it

    try:
        value = json_repair.repair_json(region, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not keys.issuperset(value):
        return None
    repaired = json.dumps(value, ensure_ascii=False)
    # It drops what it cannot place, and of two equal keys it takes the last.
    if len(repaired) < MIN_KEPT_RATIO * len(region) or _count_keys(repaired) < _count_keys(region):
        return None
    match = _load(repaired, match_schema)
    return FoundObject(match, repaired=True, truncated=truncated) if match else None


def _close_open_parts(region: str) -> tuple[str, bool] | None:
    """The region with commas too many left out and all that is open closed, in linear time.

    Also whether it was a string that had to be closed. None if it is nested too deeply.
    """
    open_brackets: list[str] = []
    pieces: list[str] = []
    at = 0
    for piece in _PIECE.finditer(region):
        bracket, quote = piece[2], piece[3]
        if quote:  # of a string without an end
            tail = (region[at:-1] if _ends_escaped(region) else region[at:]) + '"'
            return "".join((*pieces, tail, *reversed(open_brackets))), True
        between = region[at : piece.start()]
        if bracket in ("}", "]"):
            between = between.rstrip().removesuffix(",")
            if open_brackets:
                open_brackets.pop()
        elif bracket:
            open_brackets.append("}" if bracket == "{" else "]")
            if len(open_brackets) > MAX_DEPTH:
                return None
        pieces += (between, piece[0])
        at = piece.end()
        if bracket and not open_brackets:
            return "".join(pieces), False  # what follows the object is prose
    tail = region[at:].rstrip().removesuffix(",")
    return "".join((*pieces, tail, *reversed(open_brackets))), False


def _ends_escaped(region: str) -> bool:
    """Whether the last character is a lone backslash, which would escape the closing quote."""
    return (len(region) - len(region.rstrip("\\"))) % 2 == 1


def _count_keys(text: str) -> int:
    return len(_KEY.findall(text))
