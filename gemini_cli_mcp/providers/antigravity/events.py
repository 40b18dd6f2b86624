"""Parse the event stream of `agy`; each event holds its payload under a key of its own name."""

import json
import re
from dataclasses import dataclass, field

from gemini_cli_mcp.json_values import JsonObject, int_or_zero, object_or_empty
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.sanitize import truncate_line
from gemini_cli_mcp.types import ProgressCallback, RecordedFetch, RecordedSearch, Source, Usage

SEARCH_TOOL = "search_web"
FETCH_TOOL = "read_url_content"
MAX_PROGRESS_CHARS = 80
"""Maximum length of a query or URL in progress messages."""

_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\((https?://(?:[^\s()]|\([^\s()]*\))+)\)")


@dataclass
class AgyEventLog:
    """Parses the stdout of one run, line by line."""

    progress: ProgressCallback
    result: JsonObject | None = None
    """Payload of the event that ends a turn."""
    has_started: bool = False
    _model: str | None = None
    _searches: dict[str, RecordedSearch] = field(default_factory=dict[str, RecordedSearch])
    _fetches: dict[str, RecordedFetch] = field(default_factory=dict[str, RecordedFetch])
    _is_writing: bool = False

    def feed_line(self, line: bytes) -> None:
        """Process the next line; lines that are not events are ignored."""
        try:
            # Not strict: older versions write raw line breaks inside strings.
            event = object_or_empty(json.loads(line.decode("utf-8", "replace"), strict=False))
        except (ValueError, RecursionError):
            return
        name = event.get("event")
        payload = object_or_empty(event.get(str(name)))
        if name == "init":
            self.has_started = True
            self._model = str(payload.get("model") or "") or None
            self.progress("asking the model")
        elif name == "step_update":
            self._handle_step(payload)
        elif name == "result":
            self.result = payload

    @property
    def text(self) -> str:
        return str(object_or_empty(self.result).get("response") or "")

    def reply(self) -> Reply:
        """Return the answer with the searches and fetches of the run."""
        usage = object_or_empty(object_or_empty(self.result).get("usage"))
        counts = Usage(
            int_or_zero(usage.get("input_tokens")),
            int_or_zero(usage.get("output_tokens")),
            int_or_zero(usage.get("cache_read_tokens")),
            int_or_zero(usage.get("total_tokens")),
            len(self._searches) + len(self._fetches),
        )
        return Reply(
            self.text,
            self._model,
            "ledger",
            tuple(self._searches.values()),
            tuple(self._fetches.values()),
            counts if usage else None,
        )

    def _handle_step(self, step: JsonObject) -> None:
        info = object_or_empty(step.get("tool_info"))
        tool = step.get("tool_name") or info.get("name")
        step_id = f"{step.get('conversation_id')} {step.get('step_index')}"
        state = "ERROR" if info.get("error") else step.get("state")
        parameters = object_or_empty(info.get("parameters"))
        error_message = str(object_or_empty(info.get("error")).get("message") or "unknown error")
        if tool == SEARCH_TOOL:
            query = str(parameters.get("query") or "")
            if step_id not in self._searches:
                self.progress(f"searching “{truncate_line(query, MAX_PROGRESS_CHARS)}”")
            search = self._searches.get(step_id, RecordedSearch(query, "the call did not finish"))
            query = query or search.query
            if state != "DONE" and search.error is None:
                return  # a later update of a search that has already succeeded
            if state == "DONE":
                output = str(info.get("output") or "")
                links = {url: Source(url, title) for title, url in _LINK.findall(output)}
                self._searches[step_id] = RecordedSearch(
                    query, None, tuple(links.values()), output.strip()
                )
            else:
                error = error_message if state == "ERROR" else search.error
                self._searches[step_id] = RecordedSearch(query, error)
        elif tool == FETCH_TOOL:
            url = str(parameters.get("Url") or parameters.get("url") or "")
            if step_id not in self._fetches:
                self.progress(f"reading {truncate_line(url, MAX_PROGRESS_CHARS)}")
            is_done = state == "DONE" and url
            self._fetches[step_id] = (
                RecordedFetch(pages=(Source(url, ""),)) if is_done else RecordedFetch(error_message)
            )
        elif step.get("text_delta") and not self._is_writing:
            self._is_writing = True
            self.progress("writing the answer")
