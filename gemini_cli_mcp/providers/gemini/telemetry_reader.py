"""Read the official CLI's telemetry, which proves what its searches and fetches returned.

The CLI writes the API's responses to a private file of ours, with grounding metadata and retrieved
URLs as structured data. Queries, pages and model text cannot forge these, because they appear only
inside JSON strings. The file is a sequence of JSON objects; it is complete once the process has
exited normally, and up to five seconds late while it runs (measured on 0.61, not configurable).
"""

import codecs
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape, unescape
from pathlib import Path

from gemini_cli_mcp.json_values import JsonObject, int_or_zero, list_or_empty, object_or_empty
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, requested_urls
from gemini_cli_mcp.providers.grounding_metadata import (
    first_candidate,
    recorded_fetches,
    recorded_search,
)
from gemini_cli_mcp.types import RecordedFetch, RecordedSearch, Source, Usage

MAX_FILE_BYTES = 256 << 20
"""Maximum bytes read from a file. A run writes a few hundred thousand, one with fifty turns many
millions, because every request contains the whole conversation."""
READ_CHUNK_BYTES = 4 << 20
MAX_EVENT_CHARS = 16 << 20
ENABLED_ENVIRONMENT = {
    "GEMINI_TELEMETRY_ENABLED": "true",
    "GEMINI_TELEMETRY_TARGET": "local",
    "GEMINI_TELEMETRY_LOG_PROMPTS": "true",
    "GEMINI_TELEMETRY_TRACES_ENABLED": "false",
    "GEMINI_TELEMETRY_USE_COLLECTOR": "false",
    "GEMINI_TELEMETRY_USE_CLI_AUTH": "false",
    "GEMINI_TELEMETRY_OTLP_ENDPOINT": "",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "",
}
"""Send telemetry only to our file, regardless of a linked .env."""
DISABLED_ENVIRONMENT = {
    **ENABLED_ENVIRONMENT,
    "GEMINI_TELEMETRY_ENABLED": "false",
    "GEMINI_TELEMETRY_OUTFILE": "",
}

_HELPER_ROLE = "utility_tool"
_COMPLETION_EVENTS = ("api_response", "api_error")
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


class TelemetryFile:
    """A telemetry file, read incrementally while the CLI writes to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unparsed = ""
        self._events: dict[str, list[JsonObject]] = {}

    def track(self, session_id: str) -> None:
        """Start collecting the events of this session."""
        self._events.setdefault(session_id, [])

    def summarize_session(
        self, session_id: str, recorded: Sequence[RecordedSearch] = ()
    ) -> Telemetry | None:
        """Return the evidence collected so far; None if there is no complete API response yet.

        `recorded` holds the searches of the session record, used to match responses to searches.
        """
        for event in self._new_events():
            if (events := self._events.get(str(event.get("session.id")))) is not None:
                events.append(event)
        return summarize(self._events.get(session_id, []), recorded)

    def untrack(self, session_id: str) -> None:
        """Discard the events of this session."""
        self._events.pop(session_id, None)

    def clear(self) -> None:
        """Truncate the file, because it contains whole conversations."""
        try:
            os.truncate(self._path, 0)
        except OSError:
            return  # it does not exist, or is deleted with its folder
        self._position, self._unparsed = 0, ""
        self._decoder.reset()

    def _new_events(self) -> Iterator[JsonObject]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while self._position < MAX_FILE_BYTES and (chunk := file.read(READ_CHUNK_BYTES)):
                    self._position += len(chunk)
                    events, self._unparsed = _parse_events(
                        self._unparsed + self._decoder.decode(chunk)
                    )
                    yield from events
                    if len(self._unparsed) > MAX_EVENT_CHARS:
                        self._position = MAX_FILE_BYTES  # not a telemetry file
        except OSError:
            return


def read_telemetry(
    path: Path, session_id: str, recorded: Sequence[RecordedSearch] = ()
) -> Telemetry | None:
    """Return the evidence in the file of an exited process; None if it is incomplete."""
    file = TelemetryFile(path)
    file.track(session_id)
    return file.summarize_session(session_id, recorded)


def summarize(
    events: Sequence[JsonObject], recorded: Sequence[RecordedSearch] = ()
) -> Telemetry | None:
    """Return the evidence in the events of one session; None if they are incomplete."""
    responses = [event for event in events if _event_name(event) == "api_response"]
    calls = [event for event in events if _event_name(event) == "tool_call"]
    helper_responses = list(_pair_helper_calls(events)) if responses else []
    if not responses or not _is_complete(calls, helper_responses):
        return None
    models = [str(event.get("model")) for event in responses if event.get("role") == "main"]
    return Telemetry(
        tuple(_match_searches(calls, helper_responses, recorded)),
        tuple(_collect_fetches(calls, helper_responses)),
        len(calls),
        models[-1] if models else None,
        _total_usage(responses, len(calls)),
    )


def _is_complete(
    calls: Sequence[JsonObject], helper_responses: Sequence[tuple[str, JsonObject]]
) -> bool:
    """Whether every successful search has an API response.

    If not, the end of the file is missing, or this CLI version uses another format.
    """
    response_count = sum(1 for _, candidate in helper_responses if candidate)
    return response_count >= sum(1 for call in calls if _is_search_call(call) and _succeeded(call))


def _is_search_call(call: JsonObject) -> bool:
    return call.get("function_name") == SEARCH_TOOL


def _query(call: JsonObject) -> str:
    return str(_arguments(call).get("query", ""))


def _match_searches(
    calls: Sequence[JsonObject],
    helper_responses: Sequence[tuple[str, JsonObject]],
    recorded: Sequence[RecordedSearch],
) -> Iterator[RecordedSearch]:
    """Yield one search per tool call, with the sources of its API response.

    A response is matched to a call by the session record if that lists the same sources,
    otherwise by its request.
    """
    unassigned = list(helper_responses)
    recorded_urls: dict[str, list[list[str]]] = {}
    for search in recorded:
        if search.sources:
            recorded_urls.setdefault(search.query, []).append(
                [source.url for source in search.sources]
            )
    for call in calls:
        if not _is_search_call(call):
            continue
        query = _query(call)
        if not _succeeded(call):
            yield RecordedSearch(query, error=_error_message(call))
            continue
        match = next(
            (item for item in unassigned if _urls(item[1]) in recorded_urls.get(query, [])), None
        )
        if match is None:  # no match in the session record
            other_urls = [
                urls for name in recorded_urls if name != query for urls in recorded_urls[name]
            ]
            candidates = [item for item in unassigned if _urls(item[1]) not in other_urls]
            match = next((item for item in candidates if item[0] == query), None)
        if match:
            unassigned.remove(match)
        yield recorded_search(match[1], query) if match else RecordedSearch(query)


def _urls(candidate: JsonObject) -> list[str]:
    return [source.url for source in recorded_search(candidate).sources]


def _collect_fetches(
    calls: Sequence[JsonObject], helper_responses: Sequence[tuple[str, JsonObject]]
) -> Iterator[RecordedFetch]:
    fetch_calls = [call for call in calls if call.get("function_name") == FETCH_TOOL]
    queries = {_query(call) for call in calls if _is_search_call(call)}
    for call in fetch_calls:
        if not _succeeded(call):
            yield RecordedFetch(error=_error_message(call))
    for request, candidate in helper_responses:
        yield from recorded_fetches(candidate)
        # If the API cannot read a page, the CLI fetches it and passes it to its helper.
        for call in fetch_calls:
            if request in queries or not _succeeded(call) or not _is_page_prompt_for(request, call):
                continue
            requested = requested_urls(_arguments(call))
            read_urls = [unescape(url) for url in _PAGE_HEADER.findall(request)]
            if pages := tuple(Source(url, "") for url in read_urls if url in requested):
                yield RecordedFetch(pages=pages)


def _is_page_prompt_for(request: str, call: JsonObject) -> bool:
    """Whether the request passes the pages that the CLI fetched for this call to its helper."""
    instructions = escape(str(_arguments(call).get("prompt", ""))).replace("&#x27;", "&apos;")
    return request.startswith(f"{_PAGE_PROMPT_START}{instructions}\n</user_instructions>\n")


def _pair_helper_calls(events: Sequence[JsonObject]) -> Iterator[tuple[str, JsonObject]]:
    """Yield the request text and the response candidate of each API call made by a tool.

    Requests and responses are linked only by time: a response, or an error, started when its
    request was sent, which is its timestamp minus its duration. Both are sorted by that time.
    """
    helpers = [event for event in events if event.get("role") == _HELPER_ROLE]
    requests = sorted(
        (event for event in helpers if _event_name(event) == "api_request"), key=_timestamp_ms
    )
    completions = sorted(
        (event for event in helpers if _event_name(event) in _COMPLETION_EVENTS), key=_start_ms
    )
    if not requests:
        return
    if len(requests) != len(completions):  # some are missing: match the nearest in time
        unmatched, requests = requests, list[JsonObject]()
        for completion in completions:
            start_ms = _start_ms(completion)
            nearest = min(unmatched, key=lambda request: abs(_timestamp_ms(request) - start_ms))
            requests.append(nearest)
            unmatched = [request for request in unmatched if request is not nearest] or [nearest]
    for request, completion in zip(requests, completions, strict=True):
        if _event_name(completion) == "api_response":
            yield (
                _request_text(request),
                first_candidate(object_or_empty(_parse_json(completion.get("response_text")))),
            )


def _start_ms(completion: JsonObject) -> float:
    return _timestamp_ms(completion) - int_or_zero(completion.get("duration_ms"))


def _request_text(request: JsonObject) -> str:
    """Return the text of a helper request, which has a single message."""
    message = object_or_empty(
        next(iter(list_or_empty(_parse_json(request.get("request_text")))), None)
    )
    return "".join(
        str(object_or_empty(part).get("text") or "") for part in list_or_empty(message.get("parts"))
    )


def _total_usage(responses: Sequence[JsonObject], tool_calls: int) -> Usage:
    def total(name: str) -> int:
        return sum(int_or_zero(event.get(f"{name}_token_count")) for event in responses)

    return Usage(
        total("input"), total("output"), total("cached_content"), total("total"), tool_calls
    )


def _succeeded(call: JsonObject) -> bool:
    return call.get("success") is True


def _error_message(call: JsonObject) -> str:
    return str(call.get("error.message") or call.get("error") or "unknown error")


def _arguments(call: JsonObject) -> JsonObject:
    return object_or_empty(_parse_json(call.get("function_args")))


def _timestamp_ms(event: JsonObject) -> float:
    try:
        timestamp = str(event.get("event.timestamp")).replace("Z", "+00:00")
        return datetime.fromisoformat(timestamp).timestamp() * 1000
    except ValueError:
        return 0.0


def _event_name(event: JsonObject) -> str:
    return str(event.get("event.name")).removeprefix("gemini_cli.")


def _parse_json(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _parse_events(text: str) -> tuple[list[JsonObject], str]:
    """Return the attributes of all complete events, and the unparsed rest."""
    decoder = json.JSONDecoder()
    events: list[JsonObject] = []
    offset = 0
    while (offset := _skip_whitespace(text, offset)) < len(text):
        try:
            value, offset = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError):
            break  # the object is not complete yet
        attributes = object_or_empty(object_or_empty(value).get("attributes"))
        if _event_name(attributes) in (*_COMPLETION_EVENTS, "tool_call") or (
            _event_name(attributes) == "api_request" and attributes.get("role") == _HELPER_ROLE
        ):
            events.append(attributes)
    return events, text[offset:]


def _skip_whitespace(text: str, offset: int) -> int:
    while offset < len(text) and text[offset].isspace():
        offset += 1
    return offset
