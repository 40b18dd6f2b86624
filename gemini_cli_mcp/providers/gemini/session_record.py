"""Read the CLI's session record, which shows what its searches returned.

The event stream only shows that a search happened; the record also has its sources and the model
that wrote the answer. It quotes queries and the search helper's text, so it is weaker evidence
than an official CLI's telemetry and is parsed strictly. It is stored in the CLI home under the
first eight characters of the session ID, contains the whole conversation, and is deleted once read.
"""

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.platforms import files
from gemini_cli_mcp.providers.gemini.event_types import ToolArguments
from gemini_cli_mcp.providers.gemini.events import (
    FETCH_TOOL,
    SEARCH_TOOL,
    UNFINISHED,
    parse_tool_arguments,
)
from gemini_cli_mcp.providers.gemini.fetch_urls import requested_urls
from gemini_cli_mcp.types import GOOGLE_REDIRECT_HOST, RecordedFetch, RecordedSearch, Source

logger = logging.getLogger(__name__)

_SOURCES_HEADING = "\n\nSources:\n"
_SOURCE_LINE = re.compile(r"\[(\d+)\] (.*) \((\S+|No URI)\)")
_AMBIGUOUS_QUERY = re.compile(r"[\r\n]|Sources:")
LINES_BEFORE_PROMPT = 2
"""Lines that the CLI writes when it starts."""
_CITATION = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class SessionRecord:
    """The evidence in one session record."""

    model: str | None
    is_finished: bool
    """Whether the last message is a non-empty one from the model."""
    searches: tuple[RecordedSearch, ...]
    fetches: tuple[RecordedFetch, ...]


@dataclass(frozen=True)
class _ToolCall:
    """A tool call in the record."""

    call_id: str
    tool_name: str
    arguments: ToolArguments
    output: str
    error: str | None
    """Why it failed or did not finish; None if it succeeded."""


@dataclass(frozen=True)
class _Message:
    """A message in the record."""

    message_id: str
    sender: Literal["user", "gemini"]
    model: str | None
    has_content: bool
    tool_calls: tuple[_ToolCall, ...]


def delete_unused_records(home: Path, min_age: float) -> None:
    """Delete the records that are at least this old and have no prompt: a header, the context."""
    with suppress(OSError):
        for path in (home / ".gemini" / "tmp").glob("*/chats/session-*.jsonl"):
            if (
                time.time() - path.stat().st_mtime >= min_age
                and path.read_bytes().count(b"\n") <= LINES_BEFORE_PROMPT
            ):
                files.delete(path)


def read_and_delete_record(
    home: Path, session_id: str, *, official: bool = False
) -> SessionRecord | None:
    """Read and delete the record of a session; None if it does not exist.

    Searches of an official CLI always return Google redirect URLs. A source list with any other
    URL was written by the model at the end of an answer that is not based on a search.
    """
    name = f"session-*-{re.sub(r'[^0-9A-Za-z]', '', session_id[:8])}.jsonl"
    try:
        paths = list((home / ".gemini" / "tmp").glob(f"*/chats/{name}"))
        record = _read_record(paths[0], official=official) if paths else None
    except OSError as error:
        logger.warning("Cannot read session record: %s", error.strerror)
        return None
    try:
        for path in paths:
            files.delete(path)
    except OSError as error:  # it is deleted with its home
        logger.warning("Cannot delete session record: %s", error.strerror)
    return record


def _read_record(path: Path, *, official: bool) -> SessionRecord:
    model: str | None = None
    calls: dict[str, _ToolCall] = {}
    messages: dict[str, _Message] = {}
    for message in _read_messages(path):
        messages[message.message_id] = message
        model = message.model or model
        # A call is written again once it has a result, so the last entry wins.
        calls |= {call.call_id: call for call in message.tool_calls}
    searches = [_parse_search(call) for call in calls.values() if call.tool_name == SEARCH_TOOL]
    if official:
        searches = [
            search if _has_google_redirects_only(search) else RecordedSearch(search.query)
            for search in searches
        ]
    last_message = next(reversed(messages.values()), None)
    return SessionRecord(
        model,
        last_message is not None and last_message.sender == "gemini" and last_message.has_content,
        tuple(searches),
        tuple(_parse_fetch(call) for call in calls.values() if call.tool_name == FETCH_TOOL),
    )


def _read_messages(path: Path) -> Iterator[_Message]:
    # Not splitlines(): quoted pages may contain other line separators.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            message = _parse_message(cast("JsonValue", json.loads(line)))
        except (ValueError, RecursionError):
            continue  # the last line of a killed run may be cut off
        if message:
            yield message


def _parse_message(value: JsonValue) -> _Message | None:
    match value:
        case {"type": "user", **fields}:
            return _Message(str(fields.get("id")), "user", None, has_content=True, tool_calls=())
        case {"type": "gemini", **fields}:
            model, content, calls = (fields.get(key) for key in ("model", "content", "toolCalls"))
            return _Message(
                str(fields.get("id")),
                "gemini",
                model if isinstance(model, str) and model else None,
                # The content is a text, or a list of parts.
                bool(content.strip() if isinstance(content, str) else content),
                tuple(map(_parse_call, calls)) if isinstance(calls, list) else (),
            )
        case _:
            return None


def _parse_call(value: JsonValue) -> _ToolCall:
    call = value if isinstance(value, dict) else {}
    parts = call.get("result")
    output = "".join(map(_part_output, parts)) if isinstance(parts, list) else ""
    return _ToolCall(
        str(call.get("id")),
        str(call.get("name")),
        parse_tool_arguments(call.get("args")),
        output,
        None if call.get("status") == "success" else output or UNFINISHED,
    )


def _part_output(part: JsonValue) -> str:
    match part:
        case {"functionResponse": {"response": {**response}}}:
            return str(response.get("output") or response.get("error") or "")
        case _:
            return ""


def _parse_search(call: _ToolCall) -> RecordedSearch:
    query, output = call.arguments.query, call.output
    heading = f'Web search results for "{query}":\n\n'
    # The output repeats the query, which must not be mistaken for the end of the output.
    if call.error or not output.startswith(heading) or _AMBIGUOUS_QUERY.search(query):
        return RecordedSearch(query, call.error)
    answer, sources = _split_sources(output.removeprefix(heading))
    # Citation numbers count all sources; sources without a URL are dropped, so renumber.
    usable = {number: source for number, source in sources.items() if source.url.startswith("http")}
    new_numbers = {number: str(position) for position, number in enumerate(usable, 1)}
    text = _CITATION.sub(
        lambda match: f"[{new_numbers[match[1]]}]" if match[1] in new_numbers else "", answer
    )
    return RecordedSearch(query, None, tuple(usable.values()), text.strip() if usable else "")


def _has_google_redirects_only(search: RecordedSearch) -> bool:
    return all(
        source.url.startswith(f"https://{GOOGLE_REDIRECT_HOST}/") for source in search.sources
    )


def _parse_fetch(call: _ToolCall) -> RecordedFetch:
    """Return the requested pages that were read; the source list can confirm but not add pages."""
    requested = requested_urls(call.arguments.fetch_prompt)
    if call.error:
        return RecordedFetch(call.error)
    _, sources = _split_sources(call.output)
    confirmed = {source.url for source in sources.values()}
    read_urls = requested if len(requested) == 1 else [url for url in requested if url in confirmed]
    return RecordedFetch(pages=tuple(Source(url, "") for url in dict.fromkeys(read_urls)))


def _split_sources(output: str) -> tuple[str, dict[str, Source]]:
    """Split off a single source list at the very end; return the text and sources by number."""
    text, *lists = output.split(_SOURCES_HEADING)
    lines = lists[0].split("\n") if len(lists) == 1 else []
    matches = [_SOURCE_LINE.fullmatch(line) for line in lines]
    sources = {match[1]: Source(match[3], match[2]) for match in matches if match}
    is_numbered = list(sources) == [str(number) for number in range(1, len(lines) + 1)]
    return (text, sources) if sources and is_numbered else (output, {})
