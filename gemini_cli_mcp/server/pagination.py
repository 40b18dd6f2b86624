"""Limit results to a size that models can read: long reports are returned in parts.

Clients truncate longer results, at 25,000 tokens or less, in the middle of the JSON. So we split
them first, between two blocks, and say where the rest is.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

if TYPE_CHECKING:
    from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter

MAX_RESULT_TOKENS = 20_000
"""Maximum estimated tokens of one result."""
MAX_METADATA_TOKENS = 6_000
"""Maximum tokens of a result that the metadata may use if the report is long."""

_DENSE = re.compile(r"https?://[^\s\"]+|[0-9]{3,}")


def paginate(payload: JsonObject, job_id: str, offset: int) -> JsonObject:
    """Return a finished result from `offset` on: all of it, or a part and the next offset."""
    page: JsonObject = {**payload, "status": "done", "job_id": job_id}
    if not payload["success"]:
        return page
    report: str = payload["result"]
    if offset > len(report):
        raise InvalidInput(f"`offset` is {offset}, but the report has {len(report)} characters.")
    if offset:
        del page["metadata"]  # sent with the first part
    else:
        budget = max(MAX_METADATA_TOKENS, MAX_RESULT_TOKENS - estimate_tokens(report))
        page["metadata"] = _shorten_metadata(object_or_empty(payload["metadata"]), budget, job_id)
    page["result"] = ""
    budget = max(MAX_RESULT_TOKENS - estimate_tokens(page), MAX_RESULT_TOKENS / 4)
    if not offset and estimate_tokens(report) <= budget:
        return {**page, "result": report}
    from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter

    parts = MarkdownSplitter(report)
    end = _part_end(report, parts, offset, budget)
    page["result"] = parts.extract(offset, end)
    if end < len(report):
        page["next_offset"] = end
        page["note"] = (
            f"Characters {offset} to {end} of {len(report)}. For the rest, call deep_search_result "
            f'with job_id "{job_id}" and offset {end}.'
        )
    return page


def _shorten_metadata(metadata: JsonObject, budget: float, job_id: str) -> JsonObject:
    """Return the metadata, dropping repeated and long values step by step until it fits."""
    for shorten in _shortening_steps():
        if estimate_tokens(metadata) <= budget:
            break
        metadata = {
            **shorten(metadata),
            "shortened": f"The complete metadata is at report://{job_id}/metadata.",
        }
    return metadata


def _shortening_steps() -> Iterator[Callable[[JsonObject], JsonObject]]:
    def truncate(*names: str, max_length: int) -> Callable[[JsonObject], JsonObject]:
        return lambda values: {
            name: value[:max_length] if name in names else value for name, value in values.items()
        }

    def in_rounds(
        shorten: Callable[[JsonObject], JsonObject],
    ) -> Callable[[JsonObject], JsonObject]:
        return lambda metadata: {
            **metadata,
            "rounds": [
                shorten(object_or_empty(round_data))
                for round_data in list_or_empty(metadata.get("rounds"))
            ],
        }

    # Everything listed by the rounds is also in the totals.
    for max_length in (10, 0):
        yield in_rounds(truncate("sources_visited", max_length=max_length))
    for max_length in (100, 50, 20, 5):
        yield truncate("sources_visited", max_length=max_length)
    yield in_rounds(truncate("search_queries", max_length=0))
    yield truncate("search_queries_used", max_length=20)
    yield in_rounds(
        lambda values: (
            {**values, "error": {"code": values["error"]["code"]}} if "error" in values else values
        )
    )
    yield in_rounds(truncate("intermediate_result_summary", max_length=40))
    yield truncate("query", "note", max_length=500)


def _part_end(report: str, parts: "MarkdownSplitter", start: int, budget: float) -> int:
    """Return the end of the part that starts at `start`."""
    low, high = start + 1, min(len(report), start + int(budget * 4) + 1)
    if high == len(report) and estimate_tokens(report[start:]) <= budget:
        return high
    while low < high:  # search for the longest part that fits
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if estimate_tokens(report[start:middle]) <= budget else (low, middle - 1)
        )
    return parts.find_cut(start, low)


def estimate_tokens(value: object) -> float:
    """Estimate on the high side: 3.5 ASCII characters per token, 2 of a URL or number, else 1."""
    text = json.dumps(value, ensure_ascii=False)
    ascii_chars = len(text.encode("ascii", "ignore"))
    dense_chars = sum(map(len, _DENSE.findall(text)))
    return (ascii_chars - dense_chars) / 3.5 + dense_chars / 2 + (len(text) - ascii_chars)
