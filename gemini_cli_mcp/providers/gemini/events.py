"""What the CLI says while it runs: its stream-json events, or plain text if it has none."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from gemini_cli_mcp.json_values import JsonObject, int_or_zero, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.redaction import redact_known
from gemini_cli_mcp.sanitize import truncate_line
from gemini_cli_mcp.types import ProgressCallback, RecordedSearch, Usage

SEARCH_TOOL = "google_web_search"
FETCH_TOOL = "web_fetch"
UNFINISHED = "it did not finish"
MAX_PROGRESS_CHARS = 80
"""Characters of a query or page in the progress."""

_SAFE_IN_PATH = "!$%&'()*+,-./:;=@[]_|~"
_SAFE_IN_QUERY = "!$%&()*+,-./:;=?@[]_`{|}~^\\"
"""What a browser does not encode in a path, and in a query."""


@dataclass
class EventLog:
    """One run's stdout, understood line by line as it comes."""

    progress: ProgressCallback
    limits: Limits
    secrets: Sequence[str] = ()
    """What progress must not tell, not even a part of it."""
    session_id: str | None = None
    result: JsonObject | None = None
    """The last event of a run that was not cut off."""
    error: str | None = None
    """What the CLI's own `error` events say."""
    _plain: list[str] = field(default_factory=list[str])
    _answer: list[str] = field(default_factory=list[str])
    _searches: dict[str, RecordedSearch] = field(default_factory=dict[str, RecordedSearch])

    def feed_line(self, line: bytes) -> None:
        """Take the next line."""
        text = line.decode("utf-8", "replace").removeprefix("\N{BOM}")
        event = _parse_event(text)
        if event and (self.is_stream or (event["type"] == "init" and "session_id" in event)):
            self.add_event(event)
        elif not self.is_stream:
            self._plain.append(text)

    @property
    def is_stream(self) -> bool:
        """Whether this is an event stream at all: one begins with `init`."""
        return self.session_id is not None

    @property
    def text(self) -> str:
        """The answer: what the assistant wrote, or all of stdout of a plain-text CLI."""
        return "".join(self._answer) if self.is_stream else "\n".join(self._plain)

    @property
    def searches(self) -> tuple[RecordedSearch, ...]:
        return tuple(self._searches.values())

    @property
    def is_searching(self) -> bool:
        """Whether a search was begun and has not come back."""
        return any(search.error == UNFINISHED for search in self._searches.values())

    @property
    def idle_limit(self) -> float:
        """Seconds that the next word may take."""
        return self.limits.search_idle_timeout if self.is_searching else self.limits.idle_timeout

    @property
    def usage(self) -> Usage | None:
        stats = self._stats()
        if not stats:
            return None
        return Usage(
            input_tokens=int_or_zero(stats.get("input_tokens")),
            output_tokens=int_or_zero(stats.get("output_tokens")),
            cached_tokens=int_or_zero(stats.get("cached")),
            total_tokens=int_or_zero(stats.get("total_tokens")),
            tool_calls=int_or_zero(stats.get("tool_calls")),
        )

    @property
    def busiest_model(self) -> str | None:
        """The model with the most tokens: main turns outweigh the router and the search helper."""
        models = object_or_empty(self._stats().get("models"))
        tokens = {
            name: int_or_zero(object_or_empty(stats).get("total_tokens"))
            for name, stats in models.items()
        }
        return max(tokens, key=lambda name: tokens[name], default=None)

    def other_model(self, model: str | None) -> str | None:
        """The search helper's model, if it is not the one that wrote."""
        models = object_or_empty(self._stats().get("models"))
        return next((name for name in models if name != model), model)

    def _stats(self) -> JsonObject:
        return object_or_empty(object_or_empty(self.result).get("stats"))

    def add_event(self, event: JsonObject) -> None:
        """Take the next event."""
        match event["type"]:
            case "init":
                self.session_id = str(event["session_id"])
                self.progress("asking the model")
            case "message" if event.get("role") == "assistant":
                if not self._answer:
                    self.progress("writing the answer")
                self._answer.append(str(event.get("content") or ""))
            case "tool_use":
                self._tool_started(event)
            case "tool_result":
                self._tool_ended(event)
            case "error":
                self.error = str(event.get("message", ""))
            case "result":
                self.result = event
            case _:
                pass

    def _tool_started(self, event: JsonObject) -> None:
        if self._answer:
            self._answer.append("\n")  # what came before a tool call is not the same sentence
        parameters = object_or_empty(event.get("parameters"))
        if event.get("tool_name") == SEARCH_TOOL:
            query = str(parameters.get("query", ""))
            self._searches[str(event.get("tool_id"))] = RecordedSearch(query, error=UNFINISHED)
            shown = truncate_line(redact_known(query, self.secrets), MAX_PROGRESS_CHARS)
            self.progress(
                f"searching \N{LEFT DOUBLE QUOTATION MARK}{shown}\N{RIGHT DOUBLE QUOTATION MARK}"
            )
        elif event.get("tool_name") == FETCH_TOOL:
            pages = ", ".join(fetched_urls(parameters)) or "a page"
            self.progress(
                f"reading {truncate_line(redact_known(pages, self.secrets), MAX_PROGRESS_CHARS)}"
            )

    def _tool_ended(self, event: JsonObject) -> None:
        tool_id = str(event.get("tool_id"))
        started = self._searches.get(tool_id)
        if started:
            error = None if event.get("status") == "success" else _error_message(event)
            self._searches[tool_id] = RecordedSearch(started.query, error)


def fetched_urls(parameters: JsonObject) -> list[str]:
    """The pages that a fetch is told to read; it is told in prose, which is read as the CLI does.

    Every word with `://` in it that is an address of the web from its first character on.
    """
    words = str(parameters.get("prompt") or parameters.get("url") or "").split()
    return [url for word in words if "://" in word and (url := _normalize_url(word))]


def _normalize_url(word: str) -> str | None:
    """An address as a browser writes it; None if the word is none."""
    try:
        parts = urlsplit(word)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            return None
        port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else parts.port
    except ValueError:
        return None
    address = f"{parts.scheme}://{host}{f':{port}' if port else ''}"
    address += quote(parts.path, safe=_SAFE_IN_PATH) or "/"
    query, fragment = (quote(part, safe=_SAFE_IN_QUERY) for part in (parts.query, parts.fragment))
    return address + (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")


def _parse_event(line: str) -> JsonObject | None:
    if not line.startswith("{"):
        return None
    try:
        value = object_or_empty(json.loads(line))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value.get("type"), str) else None


def _error_message(event: JsonObject) -> str:
    error = object_or_empty(event.get("error"))
    return str(error.get("message") or event.get("output") or "it failed")
