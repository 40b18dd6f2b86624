"""Results of a size that models can take: a long report comes in parts.

Clients cut what is longer, at 25,000 tokens and less, in the middle of the JSON. So we cut it
first, between two blocks, and say where the rest is.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

if TYPE_CHECKING:
    from gemini_cli_mcp.research.markdown_splitter import MarkdownParts

MAX_RESULT_TOKENS = 20_000
"""Tokens of one result, roughly."""
MAX_METADATA_TOKENS = 6_000
"""Tokens of these that the metadata may take from a long report."""

_DENSE = re.compile(r"https?://[^\s\"]+|[0-9]{3,}")


def paginate(payload: JsonObject, job_id: str, offset: int) -> JsonObject:
    """A finished result from `offset` on: whole, or a part of it and where the next begins."""
    page: JsonObject = {**payload, "status": "done", "job_id": job_id}
    if not payload["success"]:
        return page
    report: str = payload["result"]
    if offset > len(report):
        raise InvalidInput(f"`offset` is {offset}, but the report has {len(report)} characters.")
    if offset:
        del page["metadata"]  # it came with the first part
    else:
        room = max(MAX_METADATA_TOKENS, MAX_RESULT_TOKENS - estimate_tokens(report))
        page["metadata"] = _shorten_metadata(object_or_empty(payload["metadata"]), room, job_id)
    page["result"] = ""
    room = max(MAX_RESULT_TOKENS - estimate_tokens(page), MAX_RESULT_TOKENS / 4)
    if not offset and estimate_tokens(report) <= room:
        return {**page, "result": report}
    from gemini_cli_mcp.research.markdown_splitter import MarkdownParts

    parts = MarkdownParts(report)
    end = _part_end(report, parts, offset, room)
    page["result"] = parts.part(offset, end)
    if end < len(report):
        page["next_offset"] = end
        page["note"] = (
            f"Characters {offset} to {end} of {len(report)}. For the rest call deep_search_result "
            f'with job_id "{job_id}" and offset {end}.'
        )
    return page


def _shorten_metadata(metadata: JsonObject, room: float, job_id: str) -> JsonObject:
    """The metadata; if it is too much, less and less of what is said twice or at length."""
    for shorten in _shortening_steps():
        if estimate_tokens(metadata) <= room:
            break
        metadata = {
            **shorten(metadata),
            "shortened": f"This is not all: report://{job_id}/metadata is.",
        }
    return metadata


def _shortening_steps() -> Iterator[Callable[[JsonObject], JsonObject]]:
    def lists(*names: str, longest: int) -> Callable[[JsonObject], JsonObject]:
        return lambda told: {
            name: value[:longest] if name in names else value for name, value in told.items()
        }

    def rounds(shorten: Callable[[JsonObject], JsonObject]) -> Callable[[JsonObject], JsonObject]:
        return lambda metadata: {
            **metadata,
            "rounds": [
                shorten(object_or_empty(item)) for item in list_or_empty(metadata.get("rounds"))
            ],
        }

    # What the rounds list is in the totals too.
    for longest in (10, 0):
        yield rounds(lists("sources_visited", longest=longest))
    for longest in (100, 50, 20, 5):
        yield lists("sources_visited", longest=longest)
    yield rounds(lists("search_queries", longest=0))
    yield lists("search_queries_used", longest=20)
    yield rounds(
        lambda told: {**told, "error": {"code": told["error"]["code"]}} if "error" in told else told
    )
    yield rounds(lists("intermediate_result_summary", longest=40))
    yield lists("query", "note", longest=500)


def _part_end(report: str, parts: "MarkdownParts", start: int, room: float) -> int:
    """Where a part that begins at `start` ends."""
    low, high = start + 1, min(len(report), start + int(room * 4) + 1)
    if high == len(report) and estimate_tokens(report[start:]) <= room:
        return high
    while low < high:  # the longest part that is not too long
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if estimate_tokens(report[start:middle]) <= room else (low, middle - 1)
        )
    return parts.find_cut(start, low)


def estimate_tokens(value: object) -> float:
    """Roughly, and rather too many: four Latin characters each, two of an address, else one."""
    text = json.dumps(value, ensure_ascii=False)
    latin = len(text.encode("ascii", "ignore"))
    dense = sum(map(len, _DENSE.findall(text)))
    return (latin - dense) / 3.5 + dense / 2 + (len(text) - latin)
