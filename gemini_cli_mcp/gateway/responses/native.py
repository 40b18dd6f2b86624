"""Tool loop for the Responses API, with all turns merged into one response for the client."""

from collections import Counter
from collections.abc import AsyncIterator

import httpx2

from gemini_cli_mcp.gateway.continuations import UpstreamContinuation, output_item
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.responses.builder import ResponseBuilder, with_annotations
from gemini_cli_mcp.gateway.search_runner import NO_SEARCHES_LEFT, SearchRunner
from gemini_cli_mcp.gateway.sse import DONE, parse_events
from gemini_cli_mcp.gateway.tool_calls import WEB_SEARCH_NAME, ToolCall
from gemini_cli_mcp.gateway.tool_injection import build_turn_request, is_hosted_search_tool
from gemini_cli_mcp.gateway.tool_loop import parse_json, sum_usage
from gemini_cli_mcp.gateway.upstream_client import (
    Headers,
    UpstreamClient,
    UpstreamUnavailable,
    error_object,
    metadata_headers,
)
from gemini_cli_mcp.json_values import JsonObject, int_or_zero, list_or_empty, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.engines_file import Engines

RESPONSES_PATH = "/responses"
_START_EVENTS = ("response.created", "response.in_progress", "response.queued")
_END_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_FIRST_TURN_FIELDS = ("id", "object", "created_at", "output", "previous_response_id")
"""Fields that a response keeps from its first turn."""


class NativeLoop:
    """Runs the turns of one request."""

    def __init__(
        self,
        upstream: UpstreamClient,
        request: JsonObject,
        engines: Engines | None,
        runner: SearchRunner,
        builder: ResponseBuilder,
        writer: ResponseWriter | None = None,
    ) -> None:
        self.headers: Headers = []
        self.client_call_ids: list[str] = []
        """Ids of the calls that the client has to handle next."""
        self.continuation: UpstreamContinuation | None = None
        """Set if the upstream's response id differs from the client's, or outputs are pending."""
        self._upstream = upstream
        self._request = request
        self._engines = engines
        self._runner = runner
        self._builder = builder
        self._writer = writer
        self._usage: JsonObject = {}

    async def run(self) -> JsonObject:
        """Return the complete response."""
        new_items: list[JsonObject] = []
        while True:
            engines = self._engines if self._runner.has_budget else None
            max_items = self._upstream.limits.max_upstream_tool_calls
            turn = _NativeTurn(
                self._builder, self._runner, max_items, show_searches=engines is not None
            )
            # The conversation already holds the input.
            is_stored = self._request.get("conversation") is not None and new_items
            request: JsonObject = {**self._request, "input": []} if is_stored else self._request
            await self._run_turn(turn, build_turn_request(request, engines, new_items))
            self._usage = sum_usage(self._usage, object_or_empty(turn.response.get("usage")))
            results: list[JsonObject] = [{"error": NO_SEARCHES_LEFT}] * len(turn.calls)
            may_continue = engines is not None and turn.status == "completed"
            if may_continue and turn.calls:
                results = await self._runner.run(turn.calls)
            if engines:
                await self._builder.searches_finished(turn.calls, results)
            pairs = zip(turn.calls, results, strict=True)
            outputs = [output_item(call, result) for call, result in pairs]
            if not outputs or not may_continue or turn.client_call_ids:
                return await self._end(turn, outputs)
            if self._request.get("conversation") is not None:
                new_items = outputs
            else:
                new_items += [*self._replayable_items(turn.items), *outputs]

    async def _run_turn(self, turn: "_NativeTurn", body: JsonObject) -> None:
        async with self._upstream.post_json(RESPONSES_PATH, body) as response:
            if not self._request.get("stream"):
                answer = parse_json(await self._upstream.read_all(response))
                self.headers = metadata_headers(response)
                await turn.add_complete(answer, self._as_client_response(answer))
                return
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                # No streaming, or an error.
                rejection = await self._upstream.read_rejection(response)
                answer = parse_json(rejection.body)
                if "output" not in answer:
                    raise rejection
                if self._writer:
                    await self._writer.open_stream(metadata_headers(response))
                await turn.add_complete(answer, self._as_client_response(answer))
                return
            if self._writer:
                await self._writer.open_stream(metadata_headers(response))
            async for event in _parse_json_events(response, self._upstream.limits):
                response_fields = object_or_empty(event.get("response"))
                await turn.add_event(event, self._as_client_response(response_fields))
            if not turn.response:
                raise UpstreamUnavailable("The upstream's answer ended prematurely.")

    async def _end(self, last_turn: "_NativeTurn", outputs: list[JsonObject]) -> JsonObject:
        client_id, upstream_id = self._builder.response.get("id"), last_turn.response.get("id")
        if client_id != upstream_id or outputs:
            self.continuation = UpstreamContinuation(str(upstream_id), outputs)
        self.client_call_ids = last_turn.client_call_ids
        if last_turn.calls and not last_turn.client_call_ids and not last_turn.has_text:
            await self._builder.add_message(self._runner.fallback_answer(), self._runner.hits)
        fields = {
            name: value
            for name, value in self._as_client_response(last_turn.response).items()
            if name not in _FIRST_TURN_FIELDS
        }
        if self._usage:
            fields["usage"] = self._usage
        fields["status"] = last_turn.status
        return await self._builder.end(**fields)

    def _as_client_response(self, response: JsonObject) -> JsonObject:
        """Return an upstream response as the answer to the client's own request."""
        if not response:
            return response
        upstream_tools = [object_or_empty(tool) for tool in list_or_empty(response.get("tools"))]
        client_tools = [tool for tool in upstream_tools if tool.get("name") != WEB_SEARCH_NAME]
        hosted_tools = [
            tool
            for tool in list_or_empty(self._request.get("tools"))
            if is_hosted_search_tool(tool)
        ]
        overrides = {"tools": [*client_tools, *hosted_tools]}
        if "tool_choice" in self._request:
            overrides["tool_choice"] = self._request["tool_choice"]
        return {**response, **overrides}

    def _replayable_items(self, items: list[JsonObject]) -> list[JsonObject]:
        """Return a turn's items for an upstream that may not have stored them."""
        if self._request.get("store") is not False:
            return items
        return [
            {name: value for name, value in item.items() if name != "id"}
            for item in items
            if item.get("type") != "reasoning" or item.get("encrypted_content")
        ]


class _NativeTurn:
    """One turn: the items that the client sees, and our searches."""

    def __init__(
        self, builder: ResponseBuilder, runner: SearchRunner, max_items: int, *, show_searches: bool
    ) -> None:
        """`max_items` limits the items of the turn; exceeding it is an upstream failure."""
        self._max_items = max_items
        self.response: JsonObject = {}
        """The upstream's final response."""
        self.items: list[JsonObject] = []
        self.calls: list[ToolCall] = []
        self._builder = builder
        self._runner = runner
        self._show_searches = show_searches
        self.status = "completed"
        self._client_indices: dict[int, int] = {}
        self._hidden_indices: set[int] = set()
        self._upstream_annotations: Counter[tuple[int, int]] = Counter()

    @property
    def client_call_ids(self) -> list[str]:
        """Ids of the calls that the client has to handle next."""
        return [
            str(item.get("call_id") or item.get("id"))
            for item in self.items
            if not _is_web_search(item) and _needs_client(item)
        ]

    @property
    def has_text(self) -> bool:
        return any(item.get("type") == "message" for item in self.items)

    async def add_complete(self, answer: JsonObject, client_response: JsonObject) -> None:
        if not answer.get("id") or "output" not in answer:
            raise UpstreamUnavailable(
                "The upstream sent no response.", error_object(answer.get("error"))
            )
        if not self._builder.response:
            await self._builder.start(client_response)
        self.response = answer
        self.status = str(answer.get("status") or "completed")
        for item in map(object_or_empty, list_or_empty(answer.get("output"))):
            await self._add_complete_item(item)

    async def _add_complete_item(self, item: JsonObject) -> None:
        if _is_web_search(item):
            await self._add_search(item)
        else:
            self._store_item(item)
            await self._builder.add_complete_item(item, self._runner.hits)

    async def add_event(self, event: JsonObject, client_response: JsonObject) -> None:
        """Handle one stream event and forward it as part of the merged response."""
        kind = str(event.get("type"))
        if kind == "error" or (event.get("error") and "type" not in event):
            raise UpstreamUnavailable("The upstream failed.", _event_error(event))
        if not self._builder.response:
            await self._builder.start(client_response or self._builder.initial)
        if kind in _END_EVENTS:
            await self._finish(kind, object_or_empty(event.get("response")))
        elif kind.startswith("response.output_item."):
            await self._add_item_event(kind, event)
        elif (
            kind not in _START_EVENTS
            and int_or_zero(event.get("output_index")) not in self._hidden_indices
        ):
            await self._forward_event(kind, event)

    async def _finish(self, kind: str, response: JsonObject) -> None:
        if kind == "response.failed" and not object_or_empty(response.get("error")):
            raise UpstreamUnavailable("The upstream failed.")
        self.response = response or {"status": kind}
        self.status = kind.removeprefix("response.")
        if self.status == "failed":
            return
        seen_ids = {str(item.get("id")) for item in self.items}
        for item in map(object_or_empty, list_or_empty(response.get("output"))):
            if str(item.get("id")) not in seen_ids:  # some upstreams send only the final event
                await self._add_complete_item(item)

    async def _add_item_event(self, kind: str, event: JsonObject) -> None:
        item, index = object_or_empty(event.get("item")), int_or_zero(event.get("output_index"))
        if kind == "response.output_item.added":
            if len(self._client_indices) + len(self._hidden_indices) >= self._max_items:
                raise UpstreamUnavailable(f"The upstream sent more than {self._max_items:,} items.")
            if _is_web_search(item):
                self._hidden_indices.add(index)
            else:
                self._client_indices[index] = await self._builder.add_item(item)
        elif _is_web_search(item):
            await self._add_search(item)
        else:
            self._store_item(item)
            if index not in self._client_indices:
                self._client_indices[index] = await self._builder.add_item(item)
            await self._builder.finish_item(
                self._client_indices[index], self._with_annotations(item)
            )

    async def _add_search(self, item: JsonObject) -> None:
        call = ToolCall(str(item.get("call_id")), WEB_SEARCH_NAME, str(item.get("arguments") or ""))
        self.calls.append(call)
        self._store_item(item)
        if self._show_searches:
            await self._builder.searches_started([call])

    def _store_item(self, item: JsonObject) -> None:
        if len(self.items) == self._max_items:
            raise UpstreamUnavailable(f"The upstream sent more than {self._max_items:,} items.")
        self.items.append(item)

    async def _forward_event(self, kind: str, event: JsonObject) -> None:
        fields = {name: event[name] for name in event if name not in ("type", "sequence_number")}
        if "output_index" in fields:
            index = self._client_indices.get(int_or_zero(fields["output_index"]))
            if index is None:
                return  # the item was never announced
            fields["output_index"] = index
        if kind == "response.output_text.annotation.added":
            self._upstream_annotations[_part_key(fields)] += 1
        if kind == "response.output_text.done":
            await self._emit_annotations(fields)
        if kind == "response.content_part.done":
            fields["part"] = with_annotations(
                object_or_empty(fields.get("part")), self._runner.hits
            )
        await self._builder.emit(kind, **fields)

    async def _emit_annotations(self, fields: JsonObject) -> None:
        part = with_annotations(
            {"type": "output_text", "text": fields.get("text")}, self._runner.hits
        )
        names = ("item_id", "output_index", "content_index")
        first_index = self._upstream_annotations[_part_key(fields)]
        await self._builder.emit_annotations(
            part, first_index, **{name: fields.get(name) for name in names}
        )

    def _with_annotations(self, item: JsonObject) -> JsonObject:
        if item.get("type") != "message":
            return item
        parts = [object_or_empty(part) for part in list_or_empty(item.get("content"))]
        return {**item, "content": [with_annotations(part, self._runner.hits) for part in parts]}


_SERVER_SIDE_CALLS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    "mcp_call",
)


def _part_key(fields: JsonObject) -> tuple[int, int]:
    return int_or_zero(fields.get("output_index")), int_or_zero(fields.get("content_index"))


def _needs_client(item: JsonObject) -> bool:
    """Whether an item requires action by the client."""
    kind = str(item.get("type"))
    if kind == "tool_search_call":
        return item.get("execution") != "server"
    is_call = kind.endswith("_call") or kind == "mcp_approval_request"
    return is_call and kind not in _SERVER_SIDE_CALLS


def _is_web_search(item: JsonObject) -> bool:
    return item.get("type") == "function_call" and item.get("name") == WEB_SEARCH_NAME


def _event_error(event: JsonObject) -> JsonObject:
    return error_object(event.get("error")) or {
        name: event.get(name) for name in ("code", "message", "param")
    }


async def _parse_json_events(
    response: httpx2.Response, limits: Limits
) -> AsyncIterator[JsonObject]:
    async for data in parse_events(response.aiter_bytes(), limits):
        if data == DONE:
            return
        yield parse_json(data)
