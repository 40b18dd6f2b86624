"""Build one Responses API response from several turns: items, events, sequence numbers.

Does no I/O: each event that is applied returns the client's events for it.
"""

import time
from collections import Counter
from dataclasses import dataclass, field, replace

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.events import SearchFinished, SearchStarted, TurnStarted
from gemini_cli_mcp.gateway.responses.error_codes import response_error
from gemini_cli_mcp.gateway.responses.events import (
    CompleteItemReceived,
    ItemFinished,
    ItemStarted,
    ResponseFinished,
    ResponsesEvent,
    ResponseStarted,
    TextItemFinished,
    TextItemStarted,
    TextReceived,
    UpstreamEvent,
)
from gemini_cli_mcp.gateway.responses.initial_response import initial_response
from gemini_cli_mcp.gateway.responses.item_events import (
    annotation_events,
    complete_item_events,
    part_started,
    text_finished,
    text_received,
)
from gemini_cli_mcp.gateway.responses.items import (
    FunctionCallItem,
    MessageItem,
    TextItem,
    WebSearchItem,
    citations_json,
    item_json,
)
from gemini_cli_mcp.gateway.responses.output import ResponseOutput, WireEvent
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.responses.upstream_items import TurnResponse, UpstreamItem, UpstreamPart
from gemini_cli_mcp.gateway.search_runner import SearchFailure, search_query
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.json_values import JsonObject, int_or_zero
from gemini_cli_mcp.types import Hit

END_EVENTS = {"completed": "response.completed", "incomplete": "response.incomplete"}


@dataclass
class _OpenTextItem:
    """An item of our own whose text is still arriving."""

    output_index: int
    item: TextItem
    pieces: list[str] = field(default_factory=list[str])

    def with_text(self) -> TextItem:
        """Return the item with the text received so far."""
        return replace(self.item, text="".join(self.pieces))


@dataclass
class _UpstreamTurn:
    """How the upstream's current turn maps to the client's response."""

    output_indices: dict[int, int] = field(default_factory=dict[int, int])
    """The client's output indices, by those of the upstream."""
    annotation_counts: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    """Annotations that the upstream sent, by its output index and content index."""


class ResponseBuilder:
    """The client's response as built so far."""

    def __init__(self, request: ResponsesRequest, previous_response_id: object = None) -> None:
        """`previous_response_id` is the response that the client continues, if any."""
        self.response: JsonObject = {}
        """Empty until the response has started."""
        self.finished_searches: dict[str, SearchFinished] = {}
        """Each finished search, by item id."""
        self._initial = initial_response(request)
        self._includes_sources = request.includes_sources
        self._previous_response_id = previous_response_id
        self._output = ResponseOutput()
        self._hits: list[Hit] = []
        self._turn = _UpstreamTurn()
        self._open_items: dict[str, _OpenTextItem] = {}
        self._running_searches: dict[str, list[tuple[int, WebSearchItem]]] = {}
        """Output index and item of each search, by the id of its call, which may occur twice."""

    def apply(self, event: ResponsesEvent) -> list[WireEvent]:
        """Add an event to the response; return what the client has to be sent."""
        match event:
            case TurnStarted():
                self._turn = _UpstreamTurn()
                return []
            case ResponseStarted():
                return self._start(event.response)
            case ResponseFinished():
                return [self._end(event.status, **event.fields)]
            case SearchStarted():
                return self._start_search(event.call)
            case SearchFinished():
                return self._finish_search(event)
            case TextItemStarted() | TextReceived() | TextItemFinished():
                return self._apply_own(event)
            case _:
                return self._apply_upstream(event)

    def fail(self, error: ApiError) -> list[WireEvent]:
        """End the response with an error, with all text received so far."""
        for open_item in self._open_items.values():
            item = item_json(open_item.with_text(), "in_progress")
            self._output.update(open_item.output_index, item)
        return [*self._start(), self._end("failed", error=response_error(error))]

    def _start(self, response: TurnResponse | None = None) -> list[WireEvent]:
        """Start the response unless it has started: all later turns become part of it."""
        if self.response:
            return []
        self.response = {
            **(response.fields if response else self._initial),
            "status": "in_progress",
            "output": [],
            "previous_response_id": self._previous_response_id,
        }
        return [
            self._output.event(kind, response=self.response)
            for kind in ("response.created", "response.in_progress")
        ]

    def _end(self, status: str, /, **fields: object) -> WireEvent:
        if "completed_at" in self.response:
            completed_at = int(time.time()) if status == "completed" else None
            fields.setdefault("completed_at", completed_at)
        self.response = {**self.response, "output": self._output.items, "status": status, **fields}
        return self._output.event(END_EVENTS.get(status, "response.failed"), response=self.response)

    # Items of our own

    def _apply_own(
        self, event: TextItemStarted | TextReceived | TextItemFinished
    ) -> list[WireEvent]:
        match event:
            case TextItemStarted(item):
                return self._start_text_item(item)
            case TextReceived(item_id, text):
                open_item = self._open_items[item_id]
                open_item.pieces.append(text)
                received = text_received(open_item.item, text)
                return self._output.item_events(item_id, open_item.output_index, [received])
            case TextItemFinished(item_id):
                return self._finish_text_item(self._open_items.pop(item_id))

    def _start_text_item(self, item: TextItem) -> list[WireEvent]:
        open_item = _OpenTextItem(self._output.next_index, item)
        self._open_items[item.id] = open_item
        added = self._output.add(item_json(item, "in_progress"))
        events = part_started(item)
        return [added, *self._output.item_events(item.id, open_item.output_index, events)]

    def _finish_text_item(self, open_item: _OpenTextItem) -> list[WireEvent]:
        item = open_item.with_text()
        if isinstance(item, MessageItem):
            item = replace(item, citations=tuple(url_citations(item.text or "", self._hits)))
        elif isinstance(item, FunctionCallItem):
            item = replace(item, text=item.text or "{}")  # clients parse it as JSON
        events = self._output.item_events(item.id, open_item.output_index, text_finished(item))
        finished = self._output.finish(open_item.output_index, item_json(item, "completed"))
        return [*events, finished]

    def _start_search(self, call: ToolCall) -> list[WireEvent]:
        item, index = WebSearchItem(search_query(call)), self._output.next_index
        self._running_searches.setdefault(call.id, []).append((index, item))
        return [
            self._output.add(item_json(item, "in_progress")),
            self._search_event("in_progress", index, item),
            self._search_event("searching", index, item),
        ]

    def _finish_search(self, search: SearchFinished) -> list[WireEvent]:
        index, item = self._running_searches[search.call.id].pop(0)
        self.finished_searches[item.id] = search
        failed = isinstance(search.outcome, SearchFailure)
        hits = () if isinstance(search.outcome, SearchFailure) else search.outcome.hits
        self._hits += hits
        if self._includes_sources:
            item = replace(item, source_urls=tuple(hit.url for hit in hits))
        if failed:
            return [self._output.finish(index, item_json(item, "failed"))]
        completed = self._search_event("completed", index, item)
        return [completed, self._output.finish(index, item_json(item, "completed"))]

    def _search_event(self, state: str, index: int, item: WebSearchItem) -> WireEvent:
        return self._output.event(
            f"response.web_search_call.{state}", output_index=index, item_id=item.id
        )

    # Items and events of a Responses upstream

    def _apply_upstream(
        self, event: ItemStarted | ItemFinished | CompleteItemReceived | UpstreamEvent
    ) -> list[WireEvent]:
        match event:
            case ItemStarted(upstream_index, item):
                self._turn.output_indices[upstream_index] = self._output.next_index
                return [self._output.add(item.fields)]
            case ItemFinished(upstream_index, item):
                index = self._turn.output_indices[upstream_index]
                return [self._output.finish(index, item.with_citations(self._hits).fields)]
            case CompleteItemReceived(item):
                return self._add_complete_item(item.with_citations(self._hits))
            case UpstreamEvent():
                return self._pass_on(event)

    def _add_complete_item(self, item: UpstreamItem) -> list[WireEvent]:
        index = self._output.next_index
        added = self._output.add(item.as_started().fields)
        events = self._output.item_events(item.fields.get("id"), index, complete_item_events(item))
        return [added, *events, self._output.finish(index, item.fields)]

    def _pass_on(self, event: UpstreamEvent) -> list[WireEvent]:
        """Pass on an event with our index of its item, and with our citations."""
        fields = dict(event.fields)
        if event.upstream_index is not None:
            fields["output_index"] = self._turn.output_indices[event.upstream_index]
        content_index = fields.get("content_index")
        part_key = event.upstream_index or 0, int_or_zero(content_index)
        citation_events: list[WireEvent] = []
        if event.type == "response.output_text.annotation.added":
            self._turn.annotation_counts[part_key] += 1
        elif event.type == "response.output_text.done":
            citations = url_citations(str(fields.get("text") or ""), self._hits)
            citation_events = self._output.item_events(
                fields.get("item_id"),
                fields.get("output_index"),
                annotation_events(
                    citations_json(citations),
                    content_index,
                    self._turn.annotation_counts[part_key],
                ),
            )
        elif event.type == "response.content_part.done":
            part = UpstreamPart.parse(fields.get("part"))
            fields["part"] = part.with_citations(self._hits).fields
        return [*citation_events, self._output.event(event.type, **fields)]
