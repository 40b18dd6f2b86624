"""Parse the CLI's stdout: stream-json events, or plain text if it does not emit any."""

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
UNFINISHED = "the call did not finish"
MAX_PROGRESS_CHARS = 80
"""Maximum characters of a query or URL in a progress message."""

_SAFE_IN_PATH = "!$%&'()*+,-./:;=@[]_|~"
_SAFE_IN_QUERY = "!$%&()*+,-./:;=?@[]_`{|}~^\\"
"""Characters that a browser does not percent-encode in a path and in a query."""


@dataclass
class EventLog:
    """The stdout of one run, parsed line by line as it arrives."""

    progress: ProgressCallback
    limits: Limits
    secrets: Sequence[str] = ()
    """Values that must not appear in progress messages, not even in part."""
    session_id: str | None = None
    result: JsonObject | None = None
    """The final event; None if the run was cut off."""
    error: str | None = None
    """Message of the last `error` event."""
    _plain_lines: list[str] = field(default_factory=list[str])
    _answer_parts: list[str] = field(default_factory=list[str])
    _searches: dict[str, RecordedSearch] = field(default_factory=dict[str, RecordedSearch])

    def feed_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").removeprefix("\N{BOM}")
        event = _parse_event(text)
        if event and (self.is_stream or (event["type"] == "init" and "session_id" in event)):
            self.add_event(event)
        elif not self.is_stream:
            self._plain_lines.append(text)

    @property
    def is_stream(self) -> bool:
        """Whether the output is an event stream, which starts with an `init` event."""
        return self.session_id is not None

    @property
    def text(self) -> str:
        """The answer: the assistant's messages, or all of stdout if it is plain text."""
        return "".join(self._answer_parts) if self.is_stream else "\n".join(self._plain_lines)

    @property
    def searches(self) -> tuple[RecordedSearch, ...]:
        return tuple(self._searches.values())

    @property
    def is_searching(self) -> bool:
        """Whether a search has started and not yet returned."""
        return any(search.error == UNFINISHED for search in self._searches.values())

    @property
    def idle_limit(self) -> float:
        """Maximum seconds until the next output."""
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
        """The model with the most tokens: main turns use more than the router and search helper."""
        models = object_or_empty(self._stats().get("models"))
        tokens = {
            name: int_or_zero(object_or_empty(stats).get("total_tokens"))
            for name, stats in models.items()
        }
        return max(tokens, key=lambda name: tokens[name], default=None)

    def helper_model(self, main_model: str | None) -> str | None:
        """Return the search helper's model: the first one that is not the main model, if any."""
        models = object_or_empty(self._stats().get("models"))
        return next((name for name in models if name != main_model), main_model)

    def _stats(self) -> JsonObject:
        return object_or_empty(object_or_empty(self.result).get("stats"))

    def add_event(self, event: JsonObject) -> None:
        match event["type"]:
            case "init":
                self.session_id = str(event["session_id"])
                self.progress("asking the model")
            case "message" if event.get("role") == "assistant":
                if not self._answer_parts:
                    self.progress("writing the answer")
                self._answer_parts.append(str(event.get("content") or ""))
            case "tool_use":
                self._handle_tool_start(event)
            case "tool_result":
                self._handle_tool_end(event)
            case "error":
                self.error = str(event.get("message", ""))
            case "result":
                self.result = event
            case _:
                pass

    def _handle_tool_start(self, event: JsonObject) -> None:
        if self._answer_parts:
            self._answer_parts.append("\n")  # text after a tool call starts a new sentence
        parameters = object_or_empty(event.get("parameters"))
        if event.get("tool_name") == SEARCH_TOOL:
            query = str(parameters.get("query", ""))
            self._searches[str(event.get("tool_id"))] = RecordedSearch(query, error=UNFINISHED)
            excerpt = truncate_line(redact_known(query, self.secrets), MAX_PROGRESS_CHARS)
            self.progress(
                f"searching \N{LEFT DOUBLE QUOTATION MARK}{excerpt}\N{RIGHT DOUBLE QUOTATION MARK}"
            )
        elif event.get("tool_name") == FETCH_TOOL:
            pages = ", ".join(requested_urls(parameters)) or "a page"
            self.progress(
                f"reading {truncate_line(redact_known(pages, self.secrets), MAX_PROGRESS_CHARS)}"
            )

    def _handle_tool_end(self, event: JsonObject) -> None:
        tool_id = str(event.get("tool_id"))
        search = self._searches.get(tool_id)
        if search:
            error = None if event.get("status") == "success" else _error_message(event)
            self._searches[tool_id] = RecordedSearch(search.query, error)


def requested_urls(parameters: JsonObject) -> list[str]:
    """Return the URLs that a fetch call requests, parsed from its prompt as the CLI does.

    A URL is any word that contains `://` and is an HTTP(S) URL from its first character on.
    """
    words = str(parameters.get("prompt") or parameters.get("url") or "").split()
    return [url for word in words if "://" in word and (url := _normalize_url(word))]


def _normalize_url(word: str) -> str | None:
    """Return the URL as a browser normalizes it; None if the word is not an HTTP(S) URL."""
    try:
        parts = urlsplit(word)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            return None
        port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else parts.port
    except ValueError:
        return None
    url = f"{parts.scheme}://{host}{f':{port}' if port else ''}"
    url += quote(parts.path, safe=_SAFE_IN_PATH) or "/"
    query, fragment = (quote(part, safe=_SAFE_IN_QUERY) for part in (parts.query, parts.fragment))
    return url + (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")


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
    return str(error.get("message") or event.get("output") or "unknown error")
