"""One turn of a Responses upstream: what of it the client sees, and our searches in it."""

from collections.abc import Iterator

from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.events import SearchStarted
from gemini_cli_mcp.gateway.responses.events import (
    CompleteItemReceived,
    ItemFinished,
    ItemStarted,
    ResponsesEvent,
    ResponseStarted,
    UpstreamEvent,
)
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.responses.upstream_items import TurnResponse, UpstreamItem
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.gateway.upstream_client import UpstreamUnavailable, parse_json
from gemini_cli_mcp.json_values import int_or_zero, object_or_empty

_START_EVENTS = ("response.created", "response.in_progress", "response.queued")
_END_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class NativeTurn:
    """One turn, received as a stream or complete.

    The events are returned one by one, so that those before a failure still reach the client.
    """

    def __init__(self, request: ResponsesRequest, max_items: int, *, show_searches: bool) -> None:
        """`max_items` limits the items of the turn; exceeding it is an upstream failure."""
        self.has_ended = False
        self.response = TurnResponse({})
        """The upstream's final response, once the turn has ended."""
        self.status = "completed"
        self.items: list[UpstreamItem] = []
        self.searches: list[ToolCall] = []
        """Our searches, which have not run yet."""
        self._request = request
        self._max_items = max_items
        self._show_searches = show_searches
        self._started = False
        self._visible_indices: set[int] = set()
        """Output indices of the items that the client knows."""
        self._hidden_indices: set[int] = set()
        """Output indices of our searches."""

    @property
    def client_call_ids(self) -> tuple[str, ...]:
        """Ids of the calls that the client has to handle next."""
        return tuple(item.call_id for item in self.items if item.needs_client)

    @property
    def has_message(self) -> bool:
        return any(item.type == "message" for item in self.items)

    def replayable_items(self) -> list[object]:
        """Return the items as input for the next turn, without what the upstream did not store."""
        if self._request.is_stored:
            return [item.fields for item in self.items]
        return [item.without_id().fields for item in self.items if item.is_replayable]

    def add_answer(self, answer: TurnResponse) -> Iterator[ResponsesEvent]:
        """Add a complete response."""
        if not answer.fields.get("id") or "output" not in answer.fields:
            raise UpstreamUnavailable("The upstream sent no response.", answer.error)
        yield ResponseStarted(answer.for_client(self._request))
        self._end(answer, answer.status)
        for item in answer.items:
            yield from self._add_complete_item(item)

    def add_event(self, event: UpstreamEvent) -> Iterator[ResponsesEvent]:
        """Add an event of a stream."""
        response = TurnResponse(object_or_empty(event.fields.get("response")))
        index = event.upstream_index or 0
        if not self._started:
            self._started = True
            yield ResponseStarted(response.for_client(self._request) if response.fields else None)
        if event.type in _END_EVENTS:
            yield from self._finish(event.type, response)
        elif event.type == "response.output_item.added":
            yield from self._start_item(index, UpstreamItem.parse(event.fields.get("item")))
        elif event.type.startswith("response.output_item."):
            yield from self._finish_item(index, UpstreamItem.parse(event.fields.get("item")))
        elif event.type not in _START_EVENTS and self._is_visible(event):
            yield event

    def _is_visible(self, event: UpstreamEvent) -> bool:
        """Whether an event belongs to an item that the client knows, or to none."""
        if (event.upstream_index or 0) in self._hidden_indices:
            return False
        return event.upstream_index is None or event.upstream_index in self._visible_indices

    def _finish(self, kind: str, response: TurnResponse) -> Iterator[ResponsesEvent]:
        if kind == "response.failed" and not object_or_empty(response.fields.get("error")):
            raise UpstreamUnavailable("The upstream failed.")
        self._end(response, kind.removeprefix("response."))
        if self.status == "failed":
            return
        seen_ids = {item.id for item in self.items}
        for item in response.items:
            if item.id not in seen_ids:  # some upstreams send only the final event
                yield from self._add_complete_item(item)

    def _end(self, response: TurnResponse, status: str) -> None:
        self.has_ended = True
        self.response = response
        self.status = status

    def _add_complete_item(self, item: UpstreamItem) -> Iterator[ResponsesEvent]:
        self._store_item(item)
        if item.is_web_search:
            yield from self._add_search(item)
        else:
            yield CompleteItemReceived(item)

    def _start_item(self, index: int, item: UpstreamItem) -> Iterator[ResponsesEvent]:
        if len(self._visible_indices) + len(self._hidden_indices) >= self._max_items:
            raise self._too_many_items()
        if item.is_web_search:
            self._hidden_indices.add(index)
        else:
            self._visible_indices.add(index)
            yield ItemStarted(index, item)

    def _finish_item(self, index: int, item: UpstreamItem) -> Iterator[ResponsesEvent]:
        self._store_item(item)
        if item.is_web_search:
            yield from self._add_search(item)
            return
        if index not in self._visible_indices:
            self._visible_indices.add(index)
            yield ItemStarted(index, item)
        yield ItemFinished(index, item)

    def _add_search(self, item: UpstreamItem) -> Iterator[ResponsesEvent]:
        call = item.as_search()
        self.searches.append(call)
        if self._show_searches:
            yield SearchStarted(call)

    def _store_item(self, item: UpstreamItem) -> None:
        if len(self.items) == self._max_items:
            raise self._too_many_items()
        self.items.append(item)

    def _too_many_items(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"The upstream sent more than {self._max_items:,} items.")


def parse_event(data: str) -> UpstreamEvent:
    """Parse an event of a stream; raise UpstreamUnavailable if it is an error."""
    event = parse_json(data)
    if event.get("type") == "error" or (event.get("error") and "type" not in event):
        error_fields = {name: event.get(name) for name in ("code", "message", "param")}
        error = ApiError.parse(event.get("error")) or ApiError(error_fields)
        raise UpstreamUnavailable("The upstream failed.", error)
    fields = {name: event[name] for name in event if name not in ("type", "sequence_number")}
    upstream_index = int_or_zero(fields["output_index"]) if "output_index" in fields else None
    return UpstreamEvent(str(event.get("type")), fields, upstream_index)
