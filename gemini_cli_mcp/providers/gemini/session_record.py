"""The CLI's session record: what its searches really returned.

The event stream tells that a search happened, the record also which sources came back
and which model wrote. It quotes queries and what the search's helper said, so it proves less than
the telemetry of an official CLI, and is parsed strictly. It lies in the home under the first
eight characters of the session's id, holds the whole conversation, and is deleted once read.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, UNFINISHED, fetched_urls
from gemini_cli_mcp.types import GOOGLE_REDIRECT_HOST, RecordedFetch, RecordedSearch, Source

logger = logging.getLogger(__name__)

_SOURCES = "\n\nSources:\n"
_SOURCE = re.compile(r"\[(\d+)\] (.*) \((\S+|No URI)\)")
_DECEPTIVE = re.compile(r"[\r\n]|Sources:")
_MARK = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class SessionRecord:
    """What one session's record proves."""

    model: str | None
    is_finished: bool
    """Whether the model had the last word, and not in the middle of it."""
    searches: tuple[RecordedSearch, ...]
    fetches: tuple[RecordedFetch, ...]


def read_and_delete_record(
    home: Path, session_id: str, *, official: bool = False
) -> SessionRecord | None:
    """Read and delete the record of a session; None if there is none.

    Of an official CLI it is known that searches return Google's redirects. A list with anything
    else in it was written by the model, at the end of an answer without any search behind it.
    """
    name = f"session-*-{re.sub(r'[^0-9A-Za-z]', '', session_id[:8])}.jsonl"
    try:
        paths = list((home / ".gemini" / "tmp").glob(f"*/chats/{name}"))
        record = _read(paths[0], official=official) if paths else None
        for path in paths:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("A session record could not be read or deleted: %s", error.strerror)
        return None
    return record


def _read(path: Path, *, official: bool) -> SessionRecord:
    model: str | None = None
    calls: dict[str, JsonObject] = {}
    messages: dict[str, JsonObject] = {}
    for message in _messages(path):
        if message.get("type") in ("user", "gemini"):
            messages[str(message.get("id"))] = message
        if message.get("type") == "gemini":
            model = str(message.get("model") or "") or model
            # A call is written again when its result is there: the last word counts.
            for call in map(object_or_empty, list_or_empty(message.get("toolCalls"))):
                calls[str(call.get("id"))] = call
    searches = [_parse_search(call) for call in calls.values() if call.get("name") == SEARCH_TOOL]
    if official:
        searches = [
            search if _has_google_redirects_only(search) else RecordedSearch(search.query)
            for search in searches
        ]
    last = list(messages.values())[-1] if messages else {}
    return SessionRecord(
        model,
        last.get("type") == "gemini" and bool(str(last.get("content") or "").strip()),
        tuple(searches),
        tuple(_parse_fetch(call) for call in calls.values() if call.get("name") == FETCH_TOOL),
    )


def _messages(path: Path) -> Iterator[JsonObject]:
    # Not splitlines(): the pages quoted in here may hold other line separators.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            yield object_or_empty(json.loads(line))
        except (ValueError, RecursionError):
            continue  # the last line of a killed run may be cut off


def _parse_search(call: JsonObject) -> RecordedSearch:
    query = str(object_or_empty(call.get("args")).get("query", ""))
    error, output = _outcome(call)
    heading = f'Web search results for "{query}":\n\n'
    # Whatever stands in the query stands in the output too, and must not pass for its end.
    if error or not output.startswith(heading) or _DECEPTIVE.search(query):
        return RecordedSearch(query, error)
    answer, sources = _split_sources(output.removeprefix(heading))
    # The marks count all sources; those without an address are left out of the list.
    usable = {number: source for number, source in sources.items() if source.url.startswith("http")}
    numbers = {number: str(place) for place, number in enumerate(usable, 1)}
    text = _MARK.sub(lambda mark: f"[{numbers[mark[1]]}]" if mark[1] in numbers else "", answer)
    return RecordedSearch(query, None, tuple(usable.values()), text.strip() if usable else "")


def _has_google_redirects_only(search: RecordedSearch) -> bool:
    return all(
        source.url.startswith(f"https://{GOOGLE_REDIRECT_HOST}/") for source in search.sources
    )


def _parse_fetch(call: JsonObject) -> RecordedFetch:
    """Pages that were asked for and read: a list of sources can confirm them, never add any."""
    requested = fetched_urls(object_or_empty(call.get("args")))
    error, output = _outcome(call)
    if error:
        return RecordedFetch(error)
    _, listed = _split_sources(output)
    confirmed = {source.url for source in listed.values()}
    read = requested if len(requested) == 1 else [url for url in requested if url in confirmed]
    return RecordedFetch(pages=tuple(Source(url, "") for url in dict.fromkeys(read)))


def _outcome(call: JsonObject) -> tuple[str | None, str]:
    """Why a call failed, if it did, and its output."""
    output = ""
    for part in map(object_or_empty, list_or_empty(call.get("result"))):
        response = object_or_empty(object_or_empty(part.get("functionResponse")).get("response"))
        output += str(response.get("output") or response.get("error") or "")
    return (None if call.get("status") == "success" else output or UNFINISHED), output


def _split_sources(output: str) -> tuple[str, dict[str, Source]]:
    """The text before the one list of sources at the very end, and the list by its numbers."""
    text, *lists = output.split(_SOURCES)
    lines = lists[0].split("\n") if len(lists) == 1 else []
    matches = [_SOURCE.fullmatch(line) for line in lines]
    sources = {match[1]: Source(match[3], match[2]) for match in matches if match}
    in_order = list(sources) == [str(number) for number in range(1, len(lines) + 1)]
    return (text, sources) if sources and in_order else (output, {})
