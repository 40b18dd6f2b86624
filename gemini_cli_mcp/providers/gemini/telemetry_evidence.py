"""Derive from the telemetry of one session what its searches and fetches returned."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape

from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL
from gemini_cli_mcp.providers.gemini.fetch_urls import requested_urls
from gemini_cli_mcp.providers.gemini.telemetry_events import (
    ApiError,
    ApiRequest,
    ApiResponse,
    TelemetryEvent,
    ToolCall,
)
from gemini_cli_mcp.providers.grounding_metadata import GroundedCandidate
from gemini_cli_mcp.types import Findings, RecordedFetch, RecordedSearch, Source, Usage

_PAGE_PROMPT_START = (
    "Follow the user's instructions below using the provided webpage content.\n\n"
    "<user_instructions>\n"
)
_PAGE_HEADER = re.compile(r'^<source url="([^"]*)">\n(?!Error: )', re.MULTILINE)


@dataclass(frozen=True)
class Telemetry:
    """The evidence in one session's telemetry."""

    searches: tuple[RecordedSearch, ...]
    fetches: tuple[RecordedFetch, ...]
    tool_calls: int
    model: str | None
    """The model that wrote the answer."""
    usage: Usage
    """Total of all API calls, including those of the helpers."""
    was_blocked: bool = False
    """Whether the model's last answer was blocked by the safety filter."""


@dataclass(frozen=True)
class _HelperCall:
    """A request that a tool sent to the API, and the answer."""

    request: str
    candidate: GroundedCandidate | None

    @property
    def urls(self) -> list[str]:
        sources = self.candidate.sources.values() if self.candidate else ()
        return [source.url for source in sources]


def summarize(
    events: Sequence[TelemetryEvent],
    recorded: Sequence[RecordedSearch] = (),
    *,
    is_cut_off: bool = False,
) -> Telemetry | None:
    """Return the evidence in the events of one session; None if they are incomplete.

    `is_cut_off`: the run was stopped, so searches may have been answered whose calls, which end
    together with the other calls of their turn, have not.
    """
    responses = [event for event in events if isinstance(event, ApiResponse)]
    calls = [event for event in events if isinstance(event, ToolCall)]
    helper_calls = list(_pair_helper_calls(events)) if responses else []
    if not responses or not _is_complete(calls, helper_calls):
        return None
    main_responses = [response for response in responses if response.role == "main"]
    usage = sum((response.usage for response in responses), start=Usage(tool_calls=len(calls)))
    return Telemetry(
        tuple(_match_searches(calls, helper_calls, recorded, is_cut_off=is_cut_off)),
        tuple(_collect_fetches(calls, helper_calls)),
        len(calls),
        main_responses[-1].model if main_responses else None,
        usage,
        bool(main_responses) and main_responses[-1].was_blocked,
    )


def found_so_far(events: Sequence[TelemetryEvent]) -> Findings:
    """Return what a run has found and used, however incomplete its events are."""
    responses = [event for event in events if isinstance(event, ApiResponse)]
    candidates = [response.candidate for response in responses if response.candidate]
    return Findings(
        tuple(source.url for item in candidates for source in item.sources.values()),
        sum(response.usage.total_tokens for response in responses),
    )


def _is_complete(calls: Sequence[ToolCall], helper_calls: Sequence[_HelperCall]) -> bool:
    """Whether every successful search has an API response.

    If not, the end of the file is missing, or this CLI version uses another format.
    """
    response_count = sum(1 for helper_call in helper_calls if helper_call.candidate)
    searches = [call for call in calls if call.tool_name == SEARCH_TOOL and call.error is None]
    return response_count >= len(searches)


def _match_searches(
    calls: Sequence[ToolCall],
    helper_calls: Sequence[_HelperCall],
    recorded: Sequence[RecordedSearch],
    *,
    is_cut_off: bool,
) -> Iterator[RecordedSearch]:
    """Yield one search per tool call, with the sources of its API response.

    A response is matched to a call by the session record if that lists the same sources,
    otherwise by its request.
    """
    unassigned = list(helper_calls)
    recorded_urls: dict[str, list[list[str]]] = {}
    for search in recorded:
        if search.sources:
            recorded_urls.setdefault(search.query, []).append(
                [source.url for source in search.sources]
            )
    for call in calls:
        if call.tool_name != SEARCH_TOOL:
            continue
        query = call.arguments.query
        if call.error is not None:
            yield RecordedSearch(query, error=call.error)
            continue
        match = next(
            (item for item in unassigned if item.urls in recorded_urls.get(query, [])), None
        )
        if match is None:  # no match in the session record
            other_urls = [
                urls for name in recorded_urls if name != query for urls in recorded_urls[name]
            ]
            candidates = [item for item in unassigned if item.urls not in other_urls]
            match = next((item for item in candidates if item.request == query), None)
        if match:
            unassigned.remove(match)
        candidate = match.candidate if match else None
        yield candidate.recorded_search(query) if candidate else RecordedSearch(query)
    for item in unassigned if is_cut_off else ():
        if item.candidate and not is_fetch_request(item.request):
            yield item.candidate.recorded_search(item.request)


def _collect_fetches(
    calls: Sequence[ToolCall], helper_calls: Sequence[_HelperCall]
) -> Iterator[RecordedFetch]:
    fetch_calls = [call for call in calls if call.tool_name == FETCH_TOOL]
    queries = {call.arguments.query for call in calls if call.tool_name == SEARCH_TOOL}
    for call in fetch_calls:
        if call.error is not None:
            yield RecordedFetch(error=call.error)
    for helper_call in helper_calls:
        request, candidate = helper_call.request, helper_call.candidate
        yield from candidate.fetches if candidate else ()
        # If the API cannot read a page, the CLI fetches it and passes it to its helper.
        for call in fetch_calls:
            is_page_prompt = request not in queries and _is_page_prompt_for(request, call)
            if call.error is not None or not is_page_prompt:
                continue
            requested = requested_urls(call.arguments.fetch_prompt)
            read_urls = [unescape(match[1]) for match in _PAGE_HEADER.finditer(request)]
            if pages := tuple(Source(url, "") for url in read_urls if url in requested):
                yield RecordedFetch(pages=pages)


def is_fetch_request(request: str) -> bool:
    """Whether a tool's request asks for pages; a search's request is its query."""
    return "<authorized_urls>" in request or request.startswith(_PAGE_PROMPT_START)


def _is_page_prompt_for(request: str, call: ToolCall) -> bool:
    """Whether the request passes the pages that the CLI fetched for this call to its helper."""
    instructions = escape(call.arguments.prompt).replace("&#x27;", "&apos;")
    return request.startswith(f"{_PAGE_PROMPT_START}{instructions}\n</user_instructions>\n")


def _pair_helper_calls(events: Sequence[TelemetryEvent]) -> Iterator[_HelperCall]:
    """Yield the request and the answer of each API call made by a tool.

    Requests and responses are linked only by time: a response, or an error, started when its
    request was sent, which is its timestamp minus its duration. Both are sorted by that time.
    """
    requests = sorted(
        (event for event in events if isinstance(event, ApiRequest) and event.is_for_tool),
        key=lambda request: request.sent_ms,
    )
    completions = sorted(
        (
            event
            for event in events
            if isinstance(event, ApiError | ApiResponse) and event.is_for_tool
        ),
        key=lambda completion: completion.sent_ms,
    )
    if not requests:
        return
    if len(requests) != len(completions):  # some are missing: match the nearest in time
        requests = _nearest_requests(requests, [item.sent_ms for item in completions])
    for request, completion in zip(requests, completions, strict=True):
        if isinstance(completion, ApiResponse):
            yield _HelperCall(request.text, completion.candidate)


def _nearest_requests(requests: list[ApiRequest], times_ms: Sequence[float]) -> list[ApiRequest]:
    """Return the request sent nearest to each time, each only once as long as there are others."""
    unmatched = requests
    nearest_requests: list[ApiRequest] = []
    for time_ms in times_ms:
        distances = [abs(request.sent_ms - time_ms) for request in unmatched]
        nearest = unmatched[distances.index(min(distances))]
        nearest_requests.append(nearest)
        unmatched = [request for request in unmatched if request is not nearest] or [nearest]
    return nearest_requests
