"""The official CLI's own telemetry: what its searches and fetches really returned.

The CLI writes the API's answers into a private file of ours, grounding metadata and retrieved
addresses as structured data. No query, page or model text can forge that: they are strings in it.
The file is a row of JSON objects; it is complete when the process has ended well, and up to five
seconds late in one that goes on (measured on 0.61, not configurable).
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
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, fetched_urls
from gemini_cli_mcp.providers.grounding_metadata import (
    first_candidate,
    recorded_fetches,
    recorded_search,
)
from gemini_cli_mcp.types import RecordedFetch, RecordedSearch, Source, Usage

MAX_FILE_BYTES = 256 << 20
"""Bytes of it that are read; a run has some hundred thousand, one of fifty turns many millions:
every request holds the whole conversation."""
READ_BYTES = 4 << 20
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
"""Into our file and nowhere else, whatever a linked .env says."""
DISABLED_ENVIRONMENT = {
    **ENABLED_ENVIRONMENT,
    "GEMINI_TELEMETRY_ENABLED": "false",
    "GEMINI_TELEMETRY_OUTFILE": "",
}

_HELPER_ROLE = "utility_tool"
_END_EVENTS = ("api_response", "api_error")
_PAGE_PROMPT_START = (
    "Follow the user's instructions below using the provided webpage content.\n\n"
    "<user_instructions>\n"
)
_PAGE = re.compile(r'^<source url="([^"]*)">\n(?!Error: )', re.MULTILINE)


@dataclass(frozen=True)
class Telemetry:
    """What the telemetry of one session proves."""

    searches: tuple[RecordedSearch, ...]
    fetches: tuple[RecordedFetch, ...]
    tool_calls: int
    model: str | None
    """That wrote the answer."""
    usage: Usage
    """Of every call to the API, the helpers' included."""


class TelemetryFile:
    """A file that the CLI writes to, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unparsed = ""
        self._events: dict[str, list[JsonObject]] = {}

    def expect(self, session_id: str) -> None:
        """Keep what is written of this session from now on."""
        self._events.setdefault(session_id, [])

    def session(self, session_id: str, recorded: Sequence[RecordedSearch] = ()) -> Telemetry | None:
        """What is known of an expected session by now; None if there is no answer of the API yet.

        `known` are the searches of its record, which tell whose answer is whose.
        """
        for event in self._new_events():
            if (events := self._events.get(str(event.get("session.id")))) is not None:
                events.append(event)
        return summarize(self._events.get(session_id, []), recorded)

    def forget(self, session_id: str) -> None:
        """Drop what is kept of a session."""
        self._events.pop(session_id, None)

    def clear(self) -> None:
        """Drop everything that was written so far: it holds whole conversations."""
        try:
            os.truncate(self._path, 0)
        except OSError:
            return  # there is none, or it goes with its folder
        self._position, self._unparsed = 0, ""
        self._decoder.reset()

    def _new_events(self) -> Iterator[JsonObject]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while self._position < MAX_FILE_BYTES and (read := file.read(READ_BYTES)):
                    self._position += len(read)
                    events, self._unparsed = _parse_events(
                        self._unparsed + self._decoder.decode(read)
                    )
                    yield from events
                    if len(self._unparsed) > MAX_EVENT_CHARS:
                        self._position = MAX_FILE_BYTES  # this is no such file
        except OSError:
            return


def read_telemetry(
    path: Path, session_id: str, recorded: Sequence[RecordedSearch] = ()
) -> Telemetry | None:
    """What the file of a process that has ended proves of its session; None if nothing."""
    file = TelemetryFile(path)
    file.expect(session_id)
    return file.session(session_id, recorded)


def summarize(
    events: Sequence[JsonObject], recorded: Sequence[RecordedSearch] = ()
) -> Telemetry | None:
    """What these events of one session prove."""
    responses = [event for event in events if _name(event) == "api_response"]
    calls = [event for event in events if _name(event) == "tool_call"]
    answers = list(_helper_answers(events)) if responses else []
    if not responses or not _is_complete(calls, answers):
        return None
    models = [str(event.get("model")) for event in responses if event.get("role") == "main"]
    return Telemetry(
        tuple(_searches(calls, answers, recorded)),
        tuple(_fetches(calls, answers)),
        len(calls),
        models[-1] if models else None,
        _usage(responses, len(calls)),
    )


def _is_complete(
    calls: Sequence[JsonObject], helper_answers: Sequence[tuple[str, JsonObject]]
) -> bool:
    """Whether every search that succeeded has an answer of the API: else the end is missing, or
    it is the file of a CLI that writes it in another way."""
    answers = sum(1 for _, candidate in helper_answers if candidate)
    return answers >= sum(1 for call in calls if _is_search(call) and _succeeded(call))


def _is_search(call: JsonObject) -> bool:
    return call.get("function_name") == SEARCH_TOOL


def _query(call: JsonObject) -> str:
    return str(_arguments(call).get("query", ""))


def _searches(
    calls: Sequence[JsonObject],
    helper_answers: Sequence[tuple[str, JsonObject]],
    recorded: Sequence[RecordedSearch],
) -> Iterator[RecordedSearch]:
    """One for each call of the tool. Its sources are those of an answer of the API; which answer
    is its own, the session record tells where it has the same sources, else the request."""
    unassigned = list(helper_answers)
    recorded_urls: dict[str, list[list[str]]] = {}
    for search in recorded:
        if search.sources:
            recorded_urls.setdefault(search.query, []).append(
                [source.url for source in search.sources]
            )
    for call in calls:
        if not _is_search(call):
            continue
        query = _query(call)
        if not _succeeded(call):
            yield RecordedSearch(query, error=_error(call))
            continue
        match = next(
            (item for item in unassigned if _urls(item[1]) in recorded_urls.get(query, [])), None
        )
        if match is None:  # the record does not tell
            others = [
                urls for name in recorded_urls if name != query for urls in recorded_urls[name]
            ]
            free = [item for item in unassigned if _urls(item[1]) not in others]
            match = next((item for item in free if item[0] == query), None)
        if match:
            unassigned.remove(match)
        yield recorded_search(match[1], query) if match else RecordedSearch(query)


def _urls(candidate: JsonObject) -> list[str]:
    return [source.url for source in recorded_search(candidate).sources]


def _fetches(
    calls: Sequence[JsonObject], helper_answers: Sequence[tuple[str, JsonObject]]
) -> Iterator[RecordedFetch]:
    fetch_calls = [call for call in calls if call.get("function_name") == FETCH_TOOL]
    queries = {_query(call) for call in calls if _is_search(call)}
    for call in fetch_calls:
        if not _succeeded(call):
            yield RecordedFetch(error=_error(call))
    for request, candidate in helper_answers:
        yield from recorded_fetches(candidate)
        # The CLI reads a page itself where the API cannot, and hands it to its helper.
        for call in fetch_calls:
            if request in queries or not _succeeded(call) or not _passes_pages_of(request, call):
                continue
            requested = fetched_urls(_arguments(call))
            read = [unescape(url) for url in _PAGE.findall(request)]
            if pages := tuple(Source(url, "") for url in read if url in requested):
                yield RecordedFetch(pages=pages)


def _passes_pages_of(request: str, call: JsonObject) -> bool:
    """Whether this is how the CLI gives the pages that it has read for a fetch to its helper."""
    instructions = escape(str(_arguments(call).get("prompt", ""))).replace("&#x27;", "&apos;")
    return request.startswith(f"{_PAGE_PROMPT_START}{instructions}\n</user_instructions>\n")


def _helper_answers(events: Sequence[JsonObject]) -> Iterator[tuple[str, JsonObject]]:
    """What the tools' own calls to the API were asked and answered.

    Nothing but time connects the two: an answer, or an error, began when its request was made,
    which is its own time less its duration. So they are put in order by that.
    """
    helpers = [event for event in events if event.get("role") == _HELPER_ROLE]
    requests = sorted(
        (event for event in helpers if _name(event) == "api_request"), key=_milliseconds
    )
    ends = sorted((event for event in helpers if _name(event) in _END_EVENTS), key=_started_at)
    if not requests:
        return
    if len(requests) != len(ends):  # some are missing: by the nearest
        waiting, requests = requests, list[JsonObject]()
        for end in ends:
            began = _started_at(end)
            nearest = min(waiting, key=lambda request: abs(_milliseconds(request) - began))
            requests.append(nearest)
            waiting = [request for request in waiting if request is not nearest] or [nearest]
    for request, end in zip(requests, ends, strict=True):
        if _name(end) == "api_response":
            yield (
                _request_text(request),
                first_candidate(object_or_empty(_json(end.get("response_text")))),
            )


def _started_at(end: JsonObject) -> float:
    return _milliseconds(end) - int_or_zero(end.get("duration_ms"))


def _request_text(request: JsonObject) -> str:
    """The text of a helper's one message."""
    message = object_or_empty(next(iter(list_or_empty(_json(request.get("request_text")))), None))
    return "".join(
        str(object_or_empty(part).get("text") or "") for part in list_or_empty(message.get("parts"))
    )


def _usage(responses: Sequence[JsonObject], tool_calls: int) -> Usage:
    def total(name: str) -> int:
        return sum(int_or_zero(event.get(f"{name}_token_count")) for event in responses)

    return Usage(
        total("input"), total("output"), total("cached_content"), total("total"), tool_calls
    )


def _succeeded(call: JsonObject) -> bool:
    return call.get("success") is True


def _error(call: JsonObject) -> str:
    return str(call.get("error.message") or call.get("error") or "it failed")


def _arguments(call: JsonObject) -> JsonObject:
    return object_or_empty(_json(call.get("function_args")))


def _milliseconds(event: JsonObject) -> float:
    try:
        written = str(event.get("event.timestamp")).replace("Z", "+00:00")
        return datetime.fromisoformat(written).timestamp() * 1000
    except ValueError:
        return 0.0


def _name(event: JsonObject) -> str:
    return str(event.get("event.name")).removeprefix("gemini_cli.")


def _json(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _parse_events(text: str) -> tuple[list[JsonObject], str]:
    """The attributes of all objects that are complete, and what is left."""
    decoder = json.JSONDecoder()
    events: list[JsonObject] = []
    at = 0
    while (at := _skip_blanks(text, at)) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break  # the rest of it is still to come
        attributes = object_or_empty(object_or_empty(value).get("attributes"))
        if _name(attributes) in (*_END_EVENTS, "tool_call") or (
            _name(attributes) == "api_request" and attributes.get("role") == _HELPER_ROLE
        ):
            events.append(attributes)
    return events, text[at:]


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
