"""Parse the event stream of `agy`; each event holds its payload under a key of its own name."""

import json
import re
from dataclasses import dataclass, field
from typing import cast

from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.sanitize import truncate_line
from gemini_cli_mcp.types import ProgressCallback, RecordedFetch, RecordedSearch, Source, Usage

SEARCH_TOOL = "search_web"
FETCH_TOOL = "read_url_content"
UNFINISHED = "the call did not finish"
MAX_PROGRESS_CHARS = 80
"""Maximum length of a query or URL in progress messages."""

_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\((https?://(?:[^\s()]|\([^\s()]*\))+)\)")


@dataclass(frozen=True)
class InitEvent:
    """The run started."""

    model: str | None


@dataclass(frozen=True)
class ToolStep:
    """The state of a search or fetch; there are several for each call."""

    step_id: str
    tool_name: str
    query: str
    url: str
    state: str
    """`DONE`, `ERROR`, or a state before the end."""
    output: str
    error: str


@dataclass(frozen=True)
class TextStep:
    """The model writes its answer."""


@dataclass(frozen=True)
class ResultEvent:
    """A turn ended."""

    status: str
    error: str
    response: str
    usage: Usage | None
    """Token counts, without the number of tool calls."""


AgyEvent = InitEvent | ToolStep | TextStep | ResultEvent


@dataclass
class AgyEventLog:
    """The events of one run, collected as they arrive."""

    progress: ProgressCallback
    result: ResultEvent | None = None
    has_started: bool = False
    _model: str | None = None
    _searches: dict[str, RecordedSearch] = field(default_factory=dict[str, RecordedSearch])
    _fetches: dict[str, RecordedFetch] = field(default_factory=dict[str, RecordedFetch])
    _is_writing: bool = False

    def feed_line(self, line: bytes) -> None:
        """Process the next line; lines that are not events are ignored."""
        match parse_event(line):
            case InitEvent(model):
                self.has_started = True
                self._model = model
                self.progress("asking the model")
            case ToolStep(tool_name=tool_name) as step:
                if tool_name == SEARCH_TOOL:
                    self._handle_search(step)
                else:
                    self._handle_fetch(step)
            case TextStep():
                if not self._is_writing:
                    self._is_writing = True
                    self.progress("writing the answer")
            case ResultEvent() as result:
                self.result = result
            case None:
                pass

    @property
    def text(self) -> str:
        return self.result.response if self.result else ""

    def reply(self) -> Reply:
        """Return the answer with the searches and fetches of the run."""
        usage = self.result.usage if self.result else None
        tool_calls = Usage(tool_calls=len(self._searches) + len(self._fetches))
        return Reply(
            self.text,
            self._model,
            "ledger",
            tuple(self._searches.values()),
            tuple(self._fetches.values()),
            usage + tool_calls if usage else None,
        )

    def _handle_search(self, step: ToolStep) -> None:
        if step.step_id not in self._searches:
            self.progress(f"searching “{truncate_line(step.query, MAX_PROGRESS_CHARS)}”")
        search = self._searches.get(step.step_id, RecordedSearch(step.query, UNFINISHED))
        query = step.query or search.query
        if step.state == "DONE":
            matches = _LINK.finditer(step.output)
            links = {match[2]: Source(match[2], match[1]) for match in matches}
            self._searches[step.step_id] = RecordedSearch(
                query, None, tuple(links.values()), step.output.strip()
            )
        elif search.error is not None:  # otherwise it has already succeeded
            error = step.error if step.state == "ERROR" else search.error
            self._searches[step.step_id] = RecordedSearch(query, error)

    def _handle_fetch(self, step: ToolStep) -> None:
        fetch = self._fetches.get(step.step_id)
        if fetch is None:
            self.progress(f"reading {truncate_line(step.url, MAX_PROGRESS_CHARS)}")
        if step.state == "DONE" and step.url:
            self._fetches[step.step_id] = RecordedFetch(pages=(Source(step.url, ""),))
        elif fetch is None or fetch.error is not None:  # otherwise it has already succeeded
            self._fetches[step.step_id] = RecordedFetch(step.error)


def parse_event(line: bytes) -> AgyEvent | None:
    """Parse a line of output; None if it is not an event, or of no interest."""
    try:
        # Not strict: older versions write raw line breaks inside strings.
        value = cast("JsonValue", json.loads(line.decode("utf-8", "replace"), strict=False))
    except (ValueError, RecursionError):
        return None
    match value:
        case {"event": "init", **fields}:
            return InitEvent(_string(_object(fields.get("init")).get("model")) or None)
        case {"event": "step_update", "step_update": {**step}}:
            return _parse_step(step)
        case {"event": "result", **fields}:
            return _parse_result(_object(fields.get("result")))
        case _:
            return None


def _parse_step(step: dict[str, JsonValue]) -> ToolStep | TextStep | None:
    info = _object(step.get("tool_info"))
    tool_name = step.get("tool_name") or info.get("name")
    if tool_name not in (SEARCH_TOOL, FETCH_TOOL):
        return TextStep() if step.get("text_delta") else None
    parameters, error = _object(info.get("parameters")), info.get("error")
    return ToolStep(
        f"{step.get('conversation_id')} {step.get('step_index')}",
        str(tool_name),
        _string(parameters.get("query")),
        _string(parameters.get("Url")) or _string(parameters.get("url")),
        "ERROR" if error else _string(step.get("state")),
        _string(info.get("output")),
        _string(_object(error).get("message")) or "unknown error",
    )


def _parse_result(fields: dict[str, JsonValue]) -> ResultEvent:
    counts = _object(fields.get("usage"))
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "total_tokens")
    values = (counts.get(name) for name in names)
    usage = Usage(*(value if isinstance(value, int) else 0 for value in values))
    return ResultEvent(
        _string(fields.get("status")),
        str(fields.get("error") or ""),
        _string(fields.get("response")),
        usage if counts else None,
    )


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _string(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
