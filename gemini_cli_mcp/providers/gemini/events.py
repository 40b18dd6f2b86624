"""Parse the CLI's stdout: stream-json events, or plain text if it does not emit any."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.event_types import (
    ErrorEvent,
    Event,
    InitEvent,
    MessageEvent,
    ResultEvent,
    RunStats,
    ToolArguments,
    ToolResultEvent,
    ToolUseEvent,
)
from gemini_cli_mcp.providers.gemini.fetch_urls import requested_urls
from gemini_cli_mcp.sanitize import redact_known, truncate_line
from gemini_cli_mcp.types import ProgressCallback, RecordedSearch, Usage

SEARCH_TOOL = "google_web_search"
FETCH_TOOL = "web_fetch"
UNFINISHED = "the call did not finish"
MAX_PROGRESS_CHARS = 80
"""Maximum characters of a query or URL in a progress message."""


@dataclass
class EventLog:
    """The events of one run, collected as they arrive."""

    progress: ProgressCallback
    limits: Limits
    secrets: Sequence[str] = ()
    """Values that must not appear in progress messages, not even in part."""
    session_id: str | None = None
    result: ResultEvent | None = None
    """The final event; None if the run was cut off."""
    error: str | None = None
    """Message of the last `error` event."""
    _plain_lines: list[str] = field(default_factory=list[str])
    _answer_parts: list[str] = field(default_factory=list[str])
    _searches: dict[str, RecordedSearch] = field(default_factory=dict[str, RecordedSearch])

    def feed_line(self, line: bytes) -> None:
        """Process the next line of stdout."""
        text = line.decode("utf-8", "replace").removeprefix("\N{BOM}")
        event = parse_event(text)
        if event and (self.is_stream or isinstance(event, InitEvent)):
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
    def has_answered(self) -> bool:
        """Whether the model has answered anything, so there is a connection to it."""
        return bool(self._answer_parts or self._searches)

    @property
    def idle_limit(self) -> float:
        """Maximum seconds until the next output; a search may take as long as the call."""
        return math.inf if self.is_searching else self.limits.idle_timeout

    @property
    def usage(self) -> Usage | None:
        stats = self.result.stats if self.result else None
        return stats.usage if stats else None

    @property
    def busiest_model(self) -> str | None:
        """The model with the most tokens: main turns use more than the router and search helper."""
        tokens = self._tokens_by_model
        return max(tokens, key=lambda name: tokens[name], default=None)

    def helper_model(self, main_model: str | None) -> str | None:
        """Return the search helper's model: the first one that is not the main model, if any."""
        return next((name for name in self._tokens_by_model if name != main_model), main_model)

    @property
    def _tokens_by_model(self) -> Mapping[str, int]:
        stats = self.result.stats if self.result else None
        return stats.tokens_by_model if stats else {}

    def add_event(self, event: Event) -> None:
        """Process the next event."""
        match event:
            case InitEvent(session_id):
                self.session_id = session_id
                self.progress("asking the model")
            case MessageEvent(text):
                if not self._answer_parts:
                    self.progress("writing the answer")
                self._answer_parts.append(text)
            case ToolUseEvent():
                self._handle_tool_start(event)
            case ToolResultEvent(tool_id, error):
                if search := self._searches.get(tool_id):
                    self._searches[tool_id] = RecordedSearch(search.query, error)
            case ErrorEvent(message):
                self.error = message
            case ResultEvent():
                self.result = event

    def _handle_tool_start(self, event: ToolUseEvent) -> None:
        if self._answer_parts:
            self._answer_parts.append("\n")  # text after a tool call starts a new sentence
        if event.tool_name == SEARCH_TOOL:
            query = event.arguments.query
            self._searches[event.tool_id] = RecordedSearch(query, error=UNFINISHED)
            excerpt = truncate_line(redact_known(query, self.secrets), MAX_PROGRESS_CHARS)
            self.progress(
                f"searching \N{LEFT DOUBLE QUOTATION MARK}{excerpt}\N{RIGHT DOUBLE QUOTATION MARK}"
            )
        elif event.tool_name == FETCH_TOOL:
            pages = ", ".join(requested_urls(event.arguments.fetch_prompt)) or "a page"
            self.progress(
                f"reading {truncate_line(redact_known(pages, self.secrets), MAX_PROGRESS_CHARS)}"
            )


def parse_event(line: str) -> Event | None:
    """Parse a line of stream-json; None if it is not an event, or of no interest."""
    if not line.startswith("{"):
        return None
    try:
        value = cast("JsonValue", json.loads(line))
    except (ValueError, RecursionError):
        return None
    match value:
        case {"type": "init", "session_id": str(session_id)}:
            return InitEvent(session_id)
        case {"type": "message", "role": "assistant", **fields}:
            return MessageEvent(_string(fields.get("content")))
        case {"type": "tool_use", **fields}:
            tool_id, tool_name = _string(fields.get("tool_id")), _string(fields.get("tool_name"))
            return ToolUseEvent(tool_id, tool_name, parse_tool_arguments(fields.get("parameters")))
        case {"type": "tool_result", **fields}:
            succeeded = fields.get("status") == "success"
            error = _error_message(fields.get("error")) or _string(fields.get("output"))
            tool_id = _string(fields.get("tool_id"))
            return ToolResultEvent(tool_id, None if succeeded else error or "unknown error")
        case {"type": "error", **fields}:
            return ErrorEvent(_string(fields.get("message")))
        case {"type": "result", **fields}:
            error = _error_message(fields.get("error"))
            return ResultEvent(
                fields.get("status") == "error", error, _parse_stats(fields.get("stats"))
            )
        case _:
            return None


def parse_tool_arguments(value: JsonValue) -> ToolArguments:
    """Parse the arguments of a call to a search or fetch tool."""
    match value:
        case {**fields}:
            names = ("query", "prompt", "url")
            return ToolArguments(*(_string(fields.get(name)) for name in names))
        case _:
            return ToolArguments()


def _parse_stats(value: JsonValue) -> RunStats | None:
    match value:
        case {**stats} if stats:
            names = ("input_tokens", "output_tokens", "cached", "total_tokens", "tool_calls")
            usage = Usage(*(_count(stats.get(name)) for name in names))
        case _:
            return None
    match stats.get("models"):
        case {**models}:
            return RunStats(usage, {name: _total(counts) for name, counts in models.items()})
        case _:
            return RunStats(usage, {})


def _total(counts: JsonValue) -> int:
    match counts:
        case {"total_tokens": int(total)}:
            return total
        case _:
            return 0


def _error_message(error: JsonValue) -> str:
    match error:
        case {"message": str(message)}:
            return message
        case _:
            return ""


def _string(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _count(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0
