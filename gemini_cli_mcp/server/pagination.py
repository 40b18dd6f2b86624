"""Limit results to a size that models can read: long reports are returned in parts.

Clients truncate longer results, at 25,000 tokens or less, in the middle of the JSON. So we split
them first, between two blocks, and say where the rest is.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter
from gemini_cli_mcp.research.result_json import metadata_json, to_json
from gemini_cli_mcp.research.results import DeepSearchResult, Report, RoundSummary, SearchResult

MAX_RESULT_TOKENS = 20_000
"""Maximum estimated tokens of one result."""
MAX_METADATA_TOKENS = 6_000
"""Maximum tokens of a result that the metadata may use if the report is long."""

_DENSE = re.compile(r"https?://[^\s\"]+|[0-9]{3,}")

ShortenReport = Callable[[Report], Report]


def paginate(report: Report, job_id: str, offset: int) -> JsonObject:
    """Return a finished report from `offset` on: all of it, or a part and the next offset."""
    text = report.report
    if offset > len(text):
        raise InvalidInput(f"`offset` is {offset}, but the report has {len(text)} characters.")
    if not offset:
        budget = max(MAX_METADATA_TOKENS, MAX_RESULT_TOKENS - estimate_tokens(text))
        report = _shorten_metadata(report, budget, job_id)
    page = {**to_json(report), "result": "", "status": "done", "job_id": job_id}
    if offset:
        del page["metadata"]  # sent with the first part
    budget = max(MAX_RESULT_TOKENS - estimate_tokens(page), MAX_RESULT_TOKENS / 4)
    if not offset and estimate_tokens(text) <= budget:
        return {**page, "result": text}
    parts = MarkdownSplitter(text)
    end = _part_end(text, parts, offset, budget)
    page["result"] = parts.extract(offset, end)
    if end < len(text):
        page["next_offset"] = end
        page["note"] = (
            f"Characters {offset} to {end} of {len(text)}. For the rest, call deep_search_result "
            f'with job_id "{job_id}" and offset {end}.'
        )
    return page


def is_too_long(report: Report) -> bool:
    """Whether a report must be returned in parts."""
    return estimate_tokens(to_json(report)) > MAX_RESULT_TOKENS


def _shorten_metadata(report: Report, budget: float, job_id: str) -> Report:
    """Return the report with repeated and long metadata dropped step by step until it fits."""
    for shorten in _shortening_steps():
        if estimate_tokens(metadata_json(report)) <= budget:
            break
        shortened = f"The complete metadata is at report://{job_id}/metadata."
        report = shorten(report)
        report = replace(report, metadata=replace(report.metadata, shortened=shortened))
    return report


def _shortening_steps() -> Iterator[ShortenReport]:
    # Everything listed by the rounds is also in the totals.
    for max_length in (10, 0):
        yield _in_rounds(lambda item, n=max_length: replace(item, sources=item.sources[:n]))
    for max_length in (100, 50, 20, 5):
        yield lambda report, n=max_length: replace(
            report, metadata=replace(report.metadata, sources=report.metadata.sources[:n])
        )
    yield _in_rounds(lambda item: replace(item, queries=()))
    yield lambda report: replace(
        report, metadata=replace(report.metadata, queries=report.metadata.queries[:20])
    )
    yield _in_rounds(lambda item: replace(item, error=item.error and item.error.without_text()))
    yield _in_rounds(lambda item: replace(item, summary=item.summary[:40]))
    yield lambda report: replace(
        report,
        metadata=replace(
            report.metadata,
            question=report.metadata.question[:500],
            note=report.metadata.note[:500],
        ),
    )


def _in_rounds(shorten: Callable[[RoundSummary], RoundSummary]) -> ShortenReport:
    def shorten_rounds(report: Report) -> Report:
        match report:
            case SearchResult():
                return report
            case DeepSearchResult():
                return replace(report, rounds=tuple(map(shorten, report.rounds)))

    return shorten_rounds


def _part_end(report: str, parts: MarkdownSplitter, start: int, budget: float) -> int:
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
