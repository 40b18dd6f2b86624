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

from gemini_cli_mcp.json_values import Object, as_list, as_object
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, UNFINISHED, pages_asked
from gemini_cli_mcp.types import REDIRECTS, Fetch, Search, Source

logger = logging.getLogger(__name__)

_SOURCES = "\n\nSources:\n"
_SOURCE = re.compile(r"\[(\d+)\] (.*) \((\S+|No URI)\)")
_DECEPTIVE = re.compile(r"[\r\n]|Sources:")
_MARK = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Record:
    """What one session's record proves."""

    model: str | None
    finished: bool
    """Whether the model had the last word, and not in the middle of it."""
    searches: tuple[Search, ...]
    fetches: tuple[Fetch, ...]


def read_and_delete_record(home: Path, session_id: str, *, official: bool = False) -> Record | None:
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


def _read(path: Path, *, official: bool) -> Record:
    model: str | None = None
    calls: dict[str, Object] = {}
    said: dict[str, Object] = {}
    for message in _messages(path):
        if message.get("type") in ("user", "gemini"):
            said[str(message.get("id"))] = message
        if message.get("type") == "gemini":
            model = str(message.get("model") or "") or model
            # A call is written again when its result is there: the last word counts.
            for call in map(as_object, as_list(message.get("toolCalls"))):
                calls[str(call.get("id"))] = call
    searches = [_search(call) for call in calls.values() if call.get("name") == SEARCH_TOOL]
    if official:
        searches = [search if _is_googles(search) else Search(search.query) for search in searches]
    last = list(said.values())[-1] if said else {}
    return Record(
        model,
        last.get("type") == "gemini" and bool(str(last.get("content") or "").strip()),
        tuple(searches),
        tuple(_fetch(call) for call in calls.values() if call.get("name") == FETCH_TOOL),
    )


def _messages(path: Path) -> Iterator[Object]:
    # Not splitlines(): the pages quoted in here may hold other line separators.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            yield as_object(json.loads(line))
        except (ValueError, RecursionError):
            continue  # the last line of a killed run may be cut off


def _search(call: Object) -> Search:
    query = str(as_object(call.get("args")).get("query", ""))
    error, output = _outcome(call)
    heading = f'Web search results for "{query}":\n\n'
    # Whatever stands in the query stands in the output too, and must not pass for its end.
    if error or not output.startswith(heading) or _DECEPTIVE.search(query):
        return Search(query, error)
    said, sources = _listed(output.removeprefix(heading))
    # The marks count all sources; those without an address are left out of the list.
    kept = {number: source for number, source in sources.items() if source.url.startswith("http")}
    numbers = {number: str(place) for place, number in enumerate(kept, 1)}
    text = _MARK.sub(lambda mark: f"[{numbers[mark[1]]}]" if mark[1] in numbers else "", said)
    return Search(query, None, tuple(kept.values()), text.strip() if kept else "")


def _is_googles(search: Search) -> bool:
    return all(source.url.startswith(f"https://{REDIRECTS}/") for source in search.sources)


def _fetch(call: Object) -> Fetch:
    """Pages that were asked for and read: a list of sources can confirm them, never add any."""
    asked = pages_asked(as_object(call.get("args")))
    error, output = _outcome(call)
    if error:
        return Fetch(error)
    _, listed = _listed(output)
    confirmed = {source.url for source in listed.values()}
    read = asked if len(asked) == 1 else [url for url in asked if url in confirmed]
    return Fetch(pages=tuple(Source(url, "") for url in dict.fromkeys(read)))


def _outcome(call: Object) -> tuple[str | None, str]:
    """Why a call failed, if it did, and its output."""
    output = ""
    for part in map(as_object, as_list(call.get("result"))):
        response = as_object(as_object(part.get("functionResponse")).get("response"))
        output += str(response.get("output") or response.get("error") or "")
    return (None if call.get("status") == "success" else output or UNFINISHED), output


def _listed(output: str) -> tuple[str, dict[str, Source]]:
    """The text before the one list of sources at the very end, and the list by its numbers."""
    said, *lists = output.split(_SOURCES)
    lines = lists[0].split("\n") if len(lists) == 1 else []
    matches = [_SOURCE.fullmatch(line) for line in lines]
    found = {match[1]: Source(match[3], match[2]) for match in matches if match}
    in_order = list(found) == [str(number) for number in range(1, len(lines) + 1)]
    return (said, found) if found and in_order else (output, {})
