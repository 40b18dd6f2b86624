"""Find the answer's JSON object in a model's output.

Runs in linear time on any text, because a model's answer is as untrusted as the pages it read.
Duplicate keys, NaN, infinite numbers, excessive nesting and lone surrogates never reach the
result.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.research.json_scanner import (
    MAX_DEPTH,
    STRING_OR_BRACKET,
    find_answer_spans,
    find_objects,
)
from gemini_cli_mcp.sanitize import sanitize_json

T = TypeVar("T")
ParseAnswer = Callable[[JsonObject], T | None]
"""Returns the typed answer, or None if the object is not an answer."""

MIN_OBJECT_CHARS = 16
"""Characters of `{"success":true}`; anything shorter cannot be an answer."""
MAX_REPAIR_CHARS = 256 << 10
"""Maximum characters to repair: json-repair is not linear on hostile text."""
MAX_REPAIR_COST = 25_000_000
"""Maximum number of quotes, escapes and parentheses times characters: json-repair is quadratic
in these. 50 kB of `{"a" ` took 80 s; this limit takes about 2 s."""
MIN_KEPT_RATIO = 0.8
"""Minimum share of the text that a repair must keep: json-repair drops what it cannot place."""

_CLOSING_FENCE = re.compile(r"```[\w-]*\s*\Z")
_COSTLY_CHAR = re.compile(r"""["'\\(\u201c\u201d]""")
_KEY = re.compile(r"""(?<!\\)["'](\w+)["']\s*+:""")


@dataclass(frozen=True)
class FoundAnswer(Generic[T]):
    """An answer and how it was obtained."""

    answer: T
    repaired: bool = False
    truncated: bool = False
    """Whether the repair had to close an unterminated string."""


def find_answer(
    text: str, parse_answer: ParseAnswer[T], keys: frozenset[str]
) -> FoundAnswer[T] | None:
    """Return the last answer in `text`, repaired locally if necessary.

    `keys` are the keys an answer may have; a brace followed by one of them starts an answer.
    Objects nested inside an answer are never returned, even if the answer itself is beyond
    repair: they may be quoted from a page.
    """
    answer_spans = find_answer_spans(text, keys)
    answer_starts = [start for start, _ in answer_spans]
    for start, end in reversed(find_objects(text)):
        enclosing = bisect_left(answer_starts, start) - 1
        if enclosing >= 0 and start < answer_spans[enclosing][1]:
            continue
        if end - start >= MIN_OBJECT_CHARS and (answer := _load(text[start:end], parse_answer)):
            return FoundAnswer(answer)
    for start in reversed(answer_starts[-2:]):
        for region in _repair_candidates(text[start:]):
            if match := _repair(region, parse_answer, keys):
                return match
    return None


def _load(candidate: str, parse_answer: ParseAnswer[T], *, strict: bool = True) -> T | None:
    try:
        value = cast(
            "object",
            json.loads(
                candidate,
                strict=strict,
                object_pairs_hook=_reject_duplicates,
                parse_constant=_reject_constant,
                parse_float=_parse_finite,
            ),
        )
    except (ValueError, RecursionError):
        return None
    json_object = object_or_empty(sanitize_json(value, ()))
    return parse_answer(json_object) if json_object else None


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
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


def _repair_candidates(text: str) -> Iterator[str]:
    """Yield what may be the broken object at the start of the text."""
    region = _CLOSING_FENCE.sub("", text.rstrip()).rstrip()
    yield region
    to_last_brace = region[: region.rfind("}") + 1]
    if to_last_brace and to_last_brace != region:
        yield to_last_brace


def _repair(
    region: str, parse_answer: ParseAnswer[T], keys: frozenset[str]
) -> FoundAnswer[T] | None:
    closed = _close_unterminated(region)
    if closed is None:
        return None
    text, truncated = closed
    if answer := _load(text, parse_answer, strict=False):
        return FoundAnswer(answer, repaired=True, truncated=truncated)
    if len(region) > MAX_REPAIR_CHARS:
        return None
    if len(_COSTLY_CHAR.findall(region)) * len(region) > MAX_REPAIR_COST:
        return None
    import json_repair  # deferred: only broken answers need it

    try:
        value = json_repair.repair_json(region, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not keys.issuperset(value):
        return None
    repaired = json.dumps(value, ensure_ascii=False)
    # json-repair drops what it cannot place, and keeps only the last of duplicate keys.
    if len(repaired) < MIN_KEPT_RATIO * len(region) or _count_keys(repaired) < _count_keys(region):
        return None
    answer = _load(repaired, parse_answer)
    return FoundAnswer(answer, repaired=True, truncated=truncated) if answer else None


def _close_unterminated(region: str) -> tuple[str, bool] | None:
    """Remove trailing commas and close open strings and brackets, in linear time.

    Return the text and whether a string had to be closed; None if it is nested too deeply.
    """
    open_brackets: list[str] = []
    pieces: list[str] = []
    offset = 0
    for token in STRING_OR_BRACKET.finditer(region):
        bracket, unterminated = token[2], token[3]
        if unterminated:  # the quote that opens an unterminated string
            tail = (region[offset:-1] if _ends_in_escape(region) else region[offset:]) + '"'
            return "".join((*pieces, tail, *reversed(open_brackets))), True
        between = region[offset : token.start()]
        if bracket in ("}", "]"):
            between = between.rstrip().removesuffix(",")
            if open_brackets:
                open_brackets.pop()
        elif bracket:
            open_brackets.append("}" if bracket == "{" else "]")
            if len(open_brackets) > MAX_DEPTH:
                return None
        pieces += (between, token[0])
        offset = token.end()
        if bracket and not open_brackets:
            return "".join(pieces), False  # anything after the object is prose
    tail = region[offset:].rstrip().removesuffix(",")
    return "".join((*pieces, tail, *reversed(open_brackets))), False


def _ends_in_escape(region: str) -> bool:
    """Whether the text ends in a lone backslash, which would escape the closing quote."""
    return (len(region) - len(region.rstrip("\\"))) % 2 == 1


def _count_keys(text: str) -> int:
    return len(_KEY.findall(text))
