"""Results of a size that models can take: a long report comes in parts.

Clients cut what is longer, at 25,000 tokens and less, in the middle of the JSON. So we cut it
first, between two blocks, and say where the rest is.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.json_values import Object, as_list, as_object

if TYPE_CHECKING:
    from gemini_cli_mcp.research.markdown_parts import Parts

LARGEST = 20_000
"""Tokens of one result, roughly."""
LARGEST_METADATA = 6_000
"""Tokens of these that the metadata may take from a long report."""

_DENSE = re.compile(r"https?://[^\s\"]+|[0-9]{3,}")


def page(payload: Object, job_id: str, offset: int) -> Object:
    """A finished result from `offset` on: whole, or a part of it and where the next begins."""
    told: Object = {**payload, "status": "done", "job_id": job_id}
    if not payload["success"]:
        return told
    report: str = payload["result"]
    if offset > len(report):
        raise InvalidInput(f"`offset` is {offset}, but the report has {len(report)} characters.")
    if offset:
        del told["metadata"]  # it came with the first part
    else:
        room = max(LARGEST_METADATA, LARGEST - tokens(report))
        told["metadata"] = _bounded(as_object(payload["metadata"]), room, job_id)
    told["result"] = ""
    room = max(LARGEST - tokens(told), LARGEST / 4)
    if not offset and tokens(report) <= room:
        return {**told, "result": report}
    from gemini_cli_mcp.research.markdown_parts import Parts  # late: it parses Markdown

    parts = Parts(report)
    end = _end(report, parts, offset, room)
    told["result"] = parts.part(offset, end)
    if end < len(report):
        told["next_offset"] = end
        told["note"] = (
            f"Characters {offset} to {end} of {len(report)}. For the rest call deep_search_result "
            f'with job_id "{job_id}" and offset {end}.'
        )
    return told


def _bounded(metadata: Object, room: float, job_id: str) -> Object:
    """The metadata; if it is too much, less and less of what is said twice or at length."""
    for shorten in _ways_to_shorten():
        if tokens(metadata) <= room:
            break
        metadata = {
            **shorten(metadata),
            "shortened": f"This is not all: report://{job_id}/metadata is.",
        }
    return metadata


def _ways_to_shorten() -> Iterator[Callable[[Object], Object]]:
    def lists(*names: str, longest: int) -> Callable[[Object], Object]:
        return lambda told: {
            name: value[:longest] if name in names else value for name, value in told.items()
        }

    def rounds(shorten: Callable[[Object], Object]) -> Callable[[Object], Object]:
        return lambda metadata: {
            **metadata,
            "rounds": [shorten(as_object(item)) for item in as_list(metadata.get("rounds"))],
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


def _end(report: str, parts: "Parts", start: int, room: float) -> int:
    """Where a part that begins at `start` ends."""
    low, high = start + 1, min(len(report), start + int(room * 4) + 1)
    if high == len(report) and tokens(report[start:]) <= room:
        return high
    while low < high:  # the longest part that is not too long
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens(report[start:middle]) <= room else (low, middle - 1)
    return parts.cut_before(start, low)


def tokens(value: object) -> float:
    """Roughly, and rather too many: four Latin characters each, two of an address, else one."""
    text = json.dumps(value, ensure_ascii=False)
    latin = len(text.encode("ascii", "ignore"))
    dense = sum(map(len, _DENSE.findall(text)))
    return (latin - dense) / 3.5 + dense / 2 + (len(text) - latin)
