"""Parse a response of the Gemini API into a reply, with citations inserted into its text."""

import json
from dataclasses import replace

from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.providers.grounding_metadata import (
    GroundedCandidate,
    insert_marks,
    number_marks,
    parse_candidate,
)
from gemini_cli_mcp.sanitize import markdown_link
from gemini_cli_mcp.types import Usage


def parse_reply(response: JsonValue, model: str, *, links: bool) -> Reply:
    """Parse the response's text and grounding metadata."""
    candidate = parse_candidate(response) or GroundedCandidate()
    if not candidate.text.strip():
        reason = _block_reason(response) or candidate.finish_reason or "no reason given"
        raise ExecutionFailed(f"The Gemini API returned an empty answer ({reason}).")
    text = _with_citations(candidate, links=links)
    search = replace(candidate.recorded_search(), text=text)
    searches = (search,) if search.sources or search.google_queries else ()
    match response:
        case {"modelVersion": str(version)} if version:
            model = version
        case _:
            pass
    return Reply(
        text,
        model,
        "ledger",
        searches,
        candidate.fetches,
        _parse_usage(response, len(search.google_queries) or len(searches)),
        candidate.thoughts or None,
        search_suggestions_html=candidate.search_suggestions_html,
    )


def _block_reason(response: JsonValue) -> str:
    match response:
        case {"promptFeedback": {"blockReason": str(reason)}}:
            return reason
        case _:
            return ""


def _with_citations(candidate: GroundedCandidate, *, links: bool) -> str:
    """Insert a mark such as [1], or links, after each supported passage.

    With `links` the text is JSON: the links are escaped for JSON strings, and an insertion that
    would make the JSON invalid is skipped.
    """
    text = candidate.text
    if not links:
        return insert_marks(text, number_marks(candidate))
    marks = {
        end: json.dumps(
            "".join(f" ({markdown_link(source.title, source.url)})" for source in cited.values())
        )[1:-1]
        for end, cited in candidate.citations().items()
    }
    return insert_marks(text, marks, _is_json if _is_json(text) else None)


def _is_json(text: str) -> bool:
    start, end = text.find("{"), text.rfind("}")
    try:
        json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return False
    return True


def _parse_usage(response: JsonValue, searches: int) -> Usage:
    match response:
        case {"usageMetadata": {**counts}}:
            pass
        case _:
            counts = {}
    names = ("prompt", "candidates", "cachedContent", "total")
    values = (counts.get(f"{name}TokenCount") for name in names)
    tokens = (value if isinstance(value, int) else 0 for value in values)
    return Usage(*tokens, tool_calls=searches)
