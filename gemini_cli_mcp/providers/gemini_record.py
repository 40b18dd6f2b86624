"""The CLI's session record: what its searches really returned.

The event stream tells that a search happened, the record also which sources came back
and which model wrote. It lies in the home under the first eight characters of the
session's id, holds the whole conversation, and is deleted once read.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemini_cli_mcp.models import Object, Search, Source, as_list, as_object
from gemini_cli_mcp.providers.gemini_stream import SEARCH_TOOL

logger = logging.getLogger(__name__)

_SOURCE = re.compile(r"^\[\d+\] (.*) \((\S+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Record:
    """What one session's record proves."""

    model: str | None
    searches: tuple[Search, ...]


def take(home: Path, session_id: str) -> Record | None:
    """Read and delete the record of a session; None if there is none."""
    name = f"session-*-{re.sub(r'[^0-9A-Za-z]', '', session_id[:8])}.jsonl"
    paths = list((home / ".gemini" / "tmp").glob(f"*/chats/{name}"))
    try:
        record = _read(paths[0]) if paths else None
        for path in paths:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("A session record could not be read or deleted: %s", error.strerror)
        return None
    return record


def _read(path: Path) -> Record:
    model: str | None = None
    searches: dict[str, Search] = {}
    for message in _messages(path):
        if message.get("type") != "gemini":
            continue
        model = str(message.get("model") or "") or model
        for call in map(as_object, as_list(message.get("toolCalls"))):
            if call.get("name") == SEARCH_TOOL:
                # A call is written again when its result is there: the last word counts.
                searches[str(call.get("id"))] = _search(call)
    return Record(model, tuple(searches.values()))


def _messages(path: Path) -> Iterator[Object]:
    # Not splitlines(): the pages quoted in here may hold other line separators.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            yield as_object(json.loads(line))
        except (ValueError, RecursionError):
            continue  # the last line of a killed run may be cut off


def _search(call: Object) -> Search:
    query = str(as_object(call.get("args")).get("query", ""))
    output = ""
    for part in map(as_object, as_list(call.get("result"))):
        response = as_object(as_object(part.get("functionResponse")).get("response"))
        output += str(response.get("output") or response.get("error") or "")
    if call.get("status") != "success":
        return Search(query, error=output or "it did not finish")
    _, heading, listed = output.rpartition("\n\nSources:\n")
    sources = _SOURCE.findall(listed) if heading else []
    return Search(query, sources=tuple(Source(url, title) for title, url in sources))
