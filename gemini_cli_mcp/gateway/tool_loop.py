"""Rounds with an upstream of chat completions: ask, search, ask again, until there is an answer."""

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
"""Commas of one JSON text; parsing more of them would stop everybody else."""


@dataclass
class UpstreamTurn:
    """One answer of the upstream."""

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
    """Who passes the rounds on to the client."""

    async def turn_started(self, headers: Headers) -> None:
        """An upstream answers; these headers of it are the client's."""
        ...

    async def chunk_received(self, chunk: JsonObject, delta: JsonObject) -> None:
        """A chunk, or a whole answer, and what of it the client may see: all but our calls.

        The chunk is empty where calls were held until the end.
        """
        ...

    async def searches_started(self, calls: Sequence[ToolCall]) -> None:
        """These are about to be made."""
        ...

    async def searches_finished(
        self, calls: Sequence[ToolCall], results: Sequence[JsonObject]
    ) -> None:
        """They are done."""
        ...


class ChatToolLoop:
    """The rounds of one request."""

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
        """All messages that the client does not see."""

    async def run(self) -> UpstreamTurn:
        """The last round: an answer, or calls of the client's own."""
        ask = self._ask_streaming if self._request.get("stream") else self._ask_complete
        while True:
            engines = self._engines if self._runner.has_budget else None
            answer = await ask(build_turn_request(self._request, engines, self.hidden_messages))
            if not answer.searches or not engines:
                return answer
            await self._run_searches(answer)
            if answer.client_calls:
                return answer

    async def _run_searches(self, answer: UpstreamTurn) -> None:
        await self._listener.searches_started(answer.searches)
        results = await self._runner.run(answer.searches)
        await self._listener.searches_finished(answer.searches, results)
        calls = [call.as_message() for call in answer.calls]
        self.hidden_messages.append({**answer.message, "role": "assistant", "tool_calls": calls})
        for call, result in zip(answer.searches, results, strict=True):
            tool_message = {
                "role": "tool",
                "tool_call_id": call.id,
                "content": tool_result_json(result),
            }
            self.hidden_messages.append(tool_message)

    async def _ask_complete(self, body: JsonObject) -> UpstreamTurn:
        async with self._upstream.post_json(CHAT_PATH, body) as response:
            answer = _parse_completion(await self._upstream.read_all(response))
            await self._listener.turn_started(metadata_headers(response))
        return await self._handle_complete(answer)

    async def _handle_complete(self, answer: JsonObject) -> UpstreamTurn:
        self.usage = sum_usage(self.usage, object_or_empty(answer.get("usage")))
        message = object_or_empty(first_choice(answer).get("message"))
        max_calls = self._upstream.limits.max_upstream_tool_calls
        assembler = ToolCallAssembler(max_calls, search_injected=self._engines is not None)
        delta = {name: value for name, value in message.items() if name != "tool_calls"}
        visible_calls = assembler.add_deltas(message.get("tool_calls")) + assembler.flush()
        choice = {name: value for name, value in first_choice(answer).items() if name != "message"}
        rest = {**answer, "choices": [choice]}
        await self._listener.chunk_received(
            rest, {**delta, "tool_calls": visible_calls} if visible_calls else delta
        )
        return UpstreamTurn(message, assembler.calls, first_choice(answer).get("finish_reason"))

    async def _ask_streaming(self, body: JsonObject) -> UpstreamTurn:
        stream = _StreamedTurn(self._upstream.limits, search_injected=self._engines is not None)
        async with self._upstream.post_json(CHAT_PATH, body) as response:
            kind = response.headers.get("content-type", "").lower()
            if kind.startswith("application/json"):  # some do not stream, or fail so
                error = await self._upstream.read_rejection(response)
                if not first_choice(parse_json(error.body)):
                    raise error
                await self._listener.turn_started(metadata_headers(response))
                return await self._handle_complete(parse_json(error.body))
            await self._listener.turn_started(metadata_headers(response))
            async for chunk in stream.chunks(response):
                await self._listener.chunk_received(chunk, stream.visible_delta(chunk))
        self.usage = sum_usage(self.usage, stream.usage)
        if held := stream.assembler.flush():
            await self._listener.chunk_received({}, {"tool_calls": held})
        return stream.turn()


class _StreamedTurn:
    """One round as a stream."""

    def __init__(self, limits: Limits, *, search_injected: bool) -> None:
        self.assembler = ToolCallAssembler(
            limits.max_upstream_tool_calls, search_injected=search_injected
        )
        self.usage: JsonObject = {}
        self._limits = limits
        self._texts: dict[str, list[str]] = {}
        """Pieces of what the message says, by field."""
        self._lists: dict[str, list[object]] = {}
        self._reason: str | None = None
        self._done = False

    async def chunks(self, response: httpx2.Response) -> AsyncIterator[JsonObject]:
        """All chunks up to the end; Broken if there is none."""
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
        if self._reason is None and not is_complete:
            raise UpstreamUnavailable("The upstream's answer broke off.")

    def visible_delta(self, chunk: JsonObject) -> JsonObject:
        """Take a chunk; of its delta, what the client sees: all but our calls."""
        self.usage = object_or_empty(chunk.get("usage")) or self.usage
        choice = first_choice(chunk)
        delta = object_or_empty(choice.get("delta"))
        self._reason = choice.get("finish_reason") or self._reason
        visible = {name: value for name, value in delta.items() if name != "tool_calls"}
        for name, value in visible.items():
            if isinstance(value, str) and name != "role":
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):  # parts of reasoning that some want to hear again
                self._lists.setdefault(name, []).extend(list_or_empty(delta[name]))
        if calls := self.assembler.add_deltas(delta.get("tool_calls")):
            visible["tool_calls"] = calls
        return visible

    def turn(self) -> UpstreamTurn:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message = {**UpstreamTurn().message, **self._lists, **texts}
        return UpstreamTurn(message, self.assembler.calls, self._reason)


def sum_usage(total: JsonObject, usage: JsonObject) -> JsonObject:
    """Two usages as one."""
    total_usage = dict(total)
    for name, value in usage.items():
        before = total_usage.get(name)
        if value is None:
            total_usage.setdefault(name, None)
        elif isinstance(value, dict):
            total_usage[name] = sum_usage(object_or_empty(before), object_or_empty(usage[name]))
        elif isinstance(value, int | float) and isinstance(before, int | float):
            total_usage[name] = before + value
        else:
            total_usage[name] = value
    return total_usage


def parse_json(data: str | bytes) -> JsonObject:
    """An object that an upstream sent."""
    text = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    if text.count(b",") > MAX_JSON_VALUES:
        raise UpstreamUnavailable(f"The upstream sent more than {MAX_JSON_VALUES:,} values.")
    try:
        return object_or_empty(json.loads(data))
    except (ValueError, RecursionError):
        raise UpstreamUnavailable("The upstream sent what is no JSON.") from None


def first_choice(answer: JsonObject) -> JsonObject:
    return object_or_empty(next(iter(list_or_empty(answer.get("choices"))), None))


def _parse_completion(content: bytes) -> JsonObject:
    answer = parse_json(content)
    if not first_choice(answer):
        raise UpstreamUnavailable("The upstream sent no answer.", error_object(answer.get("error")))
    return answer
