"""What `agy` says while it runs: events whose payload lies under the event's own name."""

import json
import re
from dataclasses import dataclass, field

from gemini_cli_mcp.json_values import Object, as_count, as_object
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.sanitize import one_line
from gemini_cli_mcp.types import Fetch, Progress, Search, Source, Usage

SEARCH_TOOL = "search_web"
FETCH_TOOL = "read_url_content"
LONGEST = 80
"""Characters of a query or page in the progress."""

_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\((https?://(?:[^\s()]|\([^\s()]*\))+)\)")


@dataclass
class Session:
    """One run's stdout, understood line by line as it comes."""

    progress: Progress
    result: Object | None = None
    """The last event of a turn."""
    has_begun: bool = False
    _model: str | None = None
    _searches: dict[str, Search] = field(default_factory=dict[str, Search])
    _fetches: dict[str, Fetch] = field(default_factory=dict[str, Fetch])
    _writing: bool = False

    def feed(self, line: bytes) -> None:
        """Take the next line; what is no event is passed over."""
        try:
            # Not strict: older ones put raw line breaks into strings.
            event = as_object(json.loads(line.decode("utf-8", "replace"), strict=False))
        except (ValueError, RecursionError):
            return
        name = event.get("event")
        payload = as_object(event.get(str(name)))
        if name == "init":
            self.has_begun = True
            self._model = str(payload.get("model") or "") or None
            self.progress("asking the model")
        elif name == "step_update":
            self._step(payload)
        elif name == "result":
            self.result = payload

    @property
    def text(self) -> str:
        return str(as_object(self.result).get("response") or "")

    def reply(self) -> Reply:
        """What it answered and what its steps show."""
        usage = as_object(as_object(self.result).get("usage"))

        counts = Usage(
            as_count(usage.get("input_tokens")),
            as_count(usage.get("output_tokens")),
            as_count(usage.get("cache_read_tokens")),
            as_count(usage.get("total_tokens")),
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

    def _step(self, step: Object) -> None:
        info = as_object(step.get("tool_info"))
        tool = step.get("tool_name") or info.get("name")
        index = f"{step.get('conversation_id')} {step.get('step_index')}"
        state = "ERROR" if info.get("error") else step.get("state")
        given = as_object(info.get("parameters"))
        problem = str(as_object(info.get("error")).get("message") or "it failed")
        if tool == SEARCH_TOOL:
            query = str(given.get("query") or "")
            if index not in self._searches:
                self.progress(f"searching “{one_line(query, LONGEST)}”")
            known = self._searches.get(index, Search(query, "it did not finish"))
            query = query or known.query
            if state != "DONE" and known.error is None:
                return  # it is done already
            if state == "DONE":
                output = str(info.get("output") or "")
                links = {url: Source(url, title) for title, url in _LINK.findall(output)}
                self._searches[index] = Search(query, None, tuple(links.values()), output.strip())
            else:
                error = problem if state == "ERROR" else known.error
                self._searches[index] = Search(query, error)
        elif tool == FETCH_TOOL:
            url = str(given.get("Url") or given.get("url") or "")
            if index not in self._fetches:
                self.progress(f"reading {one_line(url, LONGEST)}")
            done = state == "DONE" and url
            self._fetches[index] = Fetch(pages=(Source(url, ""),)) if done else Fetch(problem)
        elif step.get("text_delta") and not self._writing:
            self._writing = True
            self.progress("writing the answer")
