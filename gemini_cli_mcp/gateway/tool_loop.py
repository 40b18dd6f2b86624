"""Tool loop for chat completions: call the upstream and run its searches until it answers."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx2

from gemini_cli_mcp.gateway.search_runner import SearchRunner, tool_result_json
from gemini_cli_mcp.gateway.sse import DONE, parse_events
from gemini_cli_mcp.gateway.tool_calls import ToolCall, ToolCallAssembler
from gemini_cli_mcp.gateway.tool_injection import build_turn_request
from gemini_cli_mcp.gateway.upstream_client import (
    Headers,
    UpstreamClient,
    UpstreamUnavailable,
    error_object,
    metadata_headers,
)
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.engines_file import Engines

CHAT_PATH = "/chat/completions"
MAX_JSON_VALUES = 1_000_000
"""Maximum commas in one JSON text; parsing more would block all other requests."""


@dataclass
class UpstreamTurn:
    """The upstream's answer in one turn."""

    message: JsonObject = field(default_factory=lambda: {"role": "assistant", "content": None})
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    finish_reason: str | None = None

    @property
    def client_calls(self) -> list[ToolCall]:
        return [call for call in self.calls if not call.is_web_search]

    @property
    def searches(self) -> list[ToolCall]:
        return [call for call in self.calls if call.is_web_search]


class TurnListener(Protocol):
    """Receives the events of a tool loop and passes them on to the client."""

    async def turn_started(self, headers: Headers) -> None:
        """The upstream has answered; these headers are for the client."""
        ...

    async def chunk_received(self, chunk: JsonObject, delta: JsonObject) -> None:
        """A chunk or complete answer, and its delta without our calls, as the client may see it.

        The chunk is empty if the delta holds calls deferred to the end of the turn.
        """
        ...

    async def searches_started(self, calls: Sequence[ToolCall]) -> None:
        """These searches are about to run."""
        ...

    async def searches_finished(
        self, calls: Sequence[ToolCall], results: Sequence[JsonObject]
    ) -> None:
        """These searches have finished."""
        ...


class ChatToolLoop:
    """Runs the turns of one request."""

    def __init__(
        self,
        upstream: UpstreamClient,
        request: JsonObject,
        engines: Engines | None,
        runner: SearchRunner,
        listener: TurnListener,
    ) -> None:
        self._upstream = upstream
        self._request = request
        self._engines = engines
        self._runner = runner
        self._listener = listener
        self.usage: JsonObject = {}
        self.hidden_messages: list[JsonObject] = []
        """Messages of earlier turns, which the client does not see."""

    async def run(self) -> UpstreamTurn:
        """Return the last turn: an answer, or calls of the client's own tools."""
        run_turn = (
            self._run_streaming_turn if self._request.get("stream") else self._run_complete_turn
        )
        while True:
            engines = self._engines if self._runner.has_budget else None
            turn = await run_turn(build_turn_request(self._request, engines, self.hidden_messages))
            if not turn.searches or not engines:
                return turn
            await self._run_searches(turn)
            if turn.client_calls:
                return turn

    async def _run_searches(self, turn: UpstreamTurn) -> None:
        await self._listener.searches_started(turn.searches)
        results = await self._runner.run(turn.searches)
        await self._listener.searches_finished(turn.searches, results)
        calls = [call.as_message() for call in turn.calls]
        self.hidden_messages.append({**turn.message, "role": "assistant", "tool_calls": calls})
        for call, result in zip(turn.searches, results, strict=True):
            tool_message = {
                "role": "tool",
                "tool_call_id": call.id,
                "content": tool_result_json(result),
            }
            self.hidden_messages.append(tool_message)

    async def _run_complete_turn(self, body: JsonObject) -> UpstreamTurn:
        async with self._upstream.post_json(CHAT_PATH, body) as response:
            completion = _parse_completion(await self._upstream.read_all(response))
            await self._listener.turn_started(metadata_headers(response))
        return await self._handle_complete(completion)

    async def _handle_complete(self, completion: JsonObject) -> UpstreamTurn:
        self.usage = sum_usage(self.usage, object_or_empty(completion.get("usage")))
        message = object_or_empty(first_choice(completion).get("message"))
        max_calls = self._upstream.limits.max_upstream_tool_calls
        assembler = ToolCallAssembler(max_calls, search_injected=self._engines is not None)
        delta = {name: value for name, value in message.items() if name != "tool_calls"}
        visible_calls = assembler.add_deltas(message.get("tool_calls")) + assembler.flush()
        choice = {
            name: value for name, value in first_choice(completion).items() if name != "message"
        }
        other_fields = {**completion, "choices": [choice]}
        await self._listener.chunk_received(
            other_fields, {**delta, "tool_calls": visible_calls} if visible_calls else delta
        )
        return UpstreamTurn(message, assembler.calls, first_choice(completion).get("finish_reason"))

    async def _run_streaming_turn(self, body: JsonObject) -> UpstreamTurn:
        stream = _StreamedTurn(self._upstream.limits, search_injected=self._engines is not None)
        async with self._upstream.post_json(CHAT_PATH, body) as response:
            content_type = response.headers.get("content-type", "").lower()
            if content_type.startswith("application/json"):  # no streaming, or an error
                rejection = await self._upstream.read_rejection(response)
                if not first_choice(parse_json(rejection.body)):
                    raise rejection
                await self._listener.turn_started(metadata_headers(response))
                return await self._handle_complete(parse_json(rejection.body))
            await self._listener.turn_started(metadata_headers(response))
            async for chunk in stream.chunks(response):
                await self._listener.chunk_received(chunk, stream.visible_delta(chunk))
        self.usage = sum_usage(self.usage, stream.usage)
        if held_calls := stream.assembler.flush():
            await self._listener.chunk_received({}, {"tool_calls": held_calls})
        return stream.turn()


class _StreamedTurn:
    """One turn received as a stream."""

    def __init__(self, limits: Limits, *, search_injected: bool) -> None:
        self.assembler = ToolCallAssembler(
            limits.max_upstream_tool_calls, search_injected=search_injected
        )
        self.usage: JsonObject = {}
        self._limits = limits
        self._texts: dict[str, list[str]] = {}
        """Pieces of the message's text, by field."""
        self._lists: dict[str, list[object]] = {}
        self._finish_reason: str | None = None
        self._done = False

    async def chunks(self, response: httpx2.Response) -> AsyncIterator[JsonObject]:
        """Yield all chunks; raise UpstreamUnavailable if the stream ends prematurely."""
        async for data in parse_events(response.aiter_bytes(), self._limits):
            if data == DONE:
                self._done = True
                break
            chunk = parse_json(data)
            if chunk.get("error") or chunk.get("object") == "error":
                raise UpstreamUnavailable(
                    "The upstream failed.", error_object(chunk.get("error") or chunk)
                )
            yield chunk
        is_complete = (
            self._done
            and self.assembler.calls
            and all(call.is_complete for call in self.assembler.calls)
        )
        if self._finish_reason is None and not is_complete:
            raise UpstreamUnavailable("The upstream's answer ended prematurely.")

    def visible_delta(self, chunk: JsonObject) -> JsonObject:
        """Add a chunk; return its delta without our calls, as the client sees it."""
        self.usage = object_or_empty(chunk.get("usage")) or self.usage
        choice = first_choice(chunk)
        delta = object_or_empty(choice.get("delta"))
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        visible = {name: value for name, value in delta.items() if name != "tool_calls"}
        for name, value in visible.items():
            if isinstance(value, str) and name != "role":
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):  # reasoning parts that some upstreams need back
                self._lists.setdefault(name, []).extend(list_or_empty(delta[name]))
        if calls := self.assembler.add_deltas(delta.get("tool_calls")):
            visible["tool_calls"] = calls
        return visible

    def turn(self) -> UpstreamTurn:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message = {**UpstreamTurn().message, **self._lists, **texts}
        return UpstreamTurn(message, self.assembler.calls, self._finish_reason)


def sum_usage(total: JsonObject, usage: JsonObject) -> JsonObject:
    """Return the sum of two usage objects."""
    combined = dict(total)
    for name, value in usage.items():
        previous = combined.get(name)
        if value is None:
            combined.setdefault(name, None)
        elif isinstance(value, dict):
            combined[name] = sum_usage(object_or_empty(previous), object_or_empty(usage[name]))
        elif isinstance(value, int | float) and isinstance(previous, int | float):
            combined[name] = previous + value
        else:
            combined[name] = value
    return combined


def parse_json(data: str | bytes) -> JsonObject:
    """Parse an upstream's JSON object; raise UpstreamUnavailable if it is not valid JSON."""
    text = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    if text.count(b",") > MAX_JSON_VALUES:
        raise UpstreamUnavailable(f"The upstream sent more than {MAX_JSON_VALUES:,} values.")
    try:
        return object_or_empty(json.loads(data))
    except (ValueError, RecursionError):
        raise UpstreamUnavailable("The upstream sent invalid JSON.") from None


def first_choice(completion: JsonObject) -> JsonObject:
    return object_or_empty(next(iter(list_or_empty(completion.get("choices"))), None))


def _parse_completion(content: bytes) -> JsonObject:
    completion = parse_json(content)
    if not first_choice(completion):
        raise UpstreamUnavailable(
            "The upstream sent no answer.", error_object(completion.get("error"))
        )
    return completion
