"""Tool loop for chat completions: call the upstream and run its searches until it answers."""

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Literal

from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.events import (
    AnswerDelta,
    ChatChunk,
    ChatEvent,
    SearchFinished,
    SearchStarted,
    TurnsFinished,
    TurnStarted,
)
from gemini_cli_mcp.gateway.search_runner import SearchOutcome, SearchRunner, tool_result_json
from gemini_cli_mcp.gateway.sse import DONE, parse_events
from gemini_cli_mcp.gateway.tool_call_assembler import ToolCallAssembler, call_json
from gemini_cli_mcp.gateway.tool_calls import CallDelta, ToolCall
from gemini_cli_mcp.gateway.tool_injection import build_turn_request
from gemini_cli_mcp.gateway.upstream_client import (
    UpstreamClient,
    UpstreamResponse,
    UpstreamUnavailable,
    parse_json,
)
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.settings.engines import Engines

CHAT_PATH = "/chat/completions"


async def chat_tool_loop(
    request: JsonObject, upstream: UpstreamClient, engines: Engines | None, runner: SearchRunner
) -> AsyncGenerator[ChatEvent]:
    """Yield what happens in each turn, and TurnsFinished at the end.

    Iterate inside `contextlib.aclosing` and `UpstreamClient.limit_turns`: the upstream's response
    stays open between two events, and it must be closed at once when the client disconnects.
    """
    hidden_messages: list[object] = []
    usage: object = None
    while True:
        offered_engines = engines if runner.has_budget else None
        body = build_turn_request(request, offered_engines, hidden_messages)
        turn = _Turn(upstream.limits.max_upstream_tool_calls, search_injected=engines is not None)
        response = upstream.post_json(CHAT_PATH, body)
        turn_events = _read_turn(response, turn, streaming=bool(body.get("stream")))
        async with aclosing(turn_events):
            async for event in turn_events:
                yield event
        usage = sum_usage(usage, turn.usage)
        searches = [call for call in turn.calls if call.is_web_search]
        client_calls = [call for call in turn.calls if not call.is_web_search]
        may_search = offered_engines is not None
        if searches and may_search:
            for call in searches:
                yield SearchStarted(call)
            outcomes = await runner.run(searches)
            hidden_messages.append(_assistant_message(turn))
            for call, outcome in zip(searches, outcomes, strict=True):
                yield SearchFinished(call, outcome)
                hidden_messages.append(_tool_message(call, outcome))
        elif hidden_messages and client_calls and not searches:
            hidden_messages.append(_assistant_message(turn))
        if client_calls or not searches or not may_search:
            yield TurnsFinished(
                turn.message,
                tuple(client_calls),
                tuple(searches),
                turn.finish_reason,
                usage,
                tuple(hidden_messages),
            )
            return


async def _read_turn(
    response_context: AbstractAsyncContextManager[UpstreamResponse],
    turn: "_Turn",
    *,
    streaming: bool,
) -> AsyncGenerator[TurnStarted | AnswerDelta]:
    """Send the request of one turn, and yield the answer while it arrives."""
    async with response_context as response:
        if not streaming or response.is_json:
            completion = await _read_completion(response, streaming=streaming)
            yield TurnStarted(response.headers)
            yield turn.add_completion(completion)
            return
        yield TurnStarted(response.headers)
        done = False
        async for data in parse_events(response.chunks(), response.limits):
            if data == DONE:
                done = True
                break
            yield turn.add_chunk(_parse_chunk(data, "delta"))
        held_back = turn.end_stream(done=done)
    if held_back:
        yield held_back


async def _read_completion(response: UpstreamResponse, *, streaming: bool) -> ChatChunk:
    """Return a complete answer; an upstream without streaming sends it instead of a stream."""
    body = await response.read_all()
    completion = _parse_chunk(body, "message")
    if completion.choice:
        choice = {name: value for name, value in completion.choice.items() if name != "message"}
        return replace(completion, choice=choice)
    if streaming:  # an error with status 200
        raise response.rejection(body)
    error = ApiError.parse(completion.fields.get("error"))
    raise UpstreamUnavailable("The upstream sent no answer.", error)


def _parse_chunk(data: str | bytes, delta_field: Literal["delta", "message"]) -> ChatChunk:
    fields = parse_json(data)
    choice = object_or_empty(next(iter(list_or_empty(fields.get("choices"))), None))
    return ChatChunk(fields, choice, object_or_empty(choice.get(delta_field)))


class _Turn:
    """The upstream's answer in one turn."""

    def __init__(self, max_calls: int, *, search_injected: bool) -> None:
        """With `search_injected`, calls of `web_search` are ours and hidden from the client."""
        self.usage: object = None
        self.finish_reason: object = None
        self._assembler = ToolCallAssembler(max_calls, search_injected=search_injected)
        self._completion: ChatChunk | None = None
        self._texts: dict[str, list[str]] = {}
        """Pieces of a streamed message's text, by field."""
        self._lists: dict[str, list[object]] = {}

    @property
    def calls(self) -> list[ToolCall]:
        return self._assembler.calls

    @property
    def message(self) -> JsonObject:
        if self._completion:
            return self._completion.delta
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        return {"role": "assistant", "content": None, **self._lists, **texts}

    def add_completion(self, completion: ChatChunk) -> AnswerDelta:
        """Add the complete answer; return it as the client may see it."""
        self._completion = completion
        self._add_end_of(completion)
        calls = self._assembler.add_deltas(completion.delta.get("tool_calls"))
        return _answer_delta(completion, calls + self._assembler.flush())

    def add_chunk(self, chunk: ChatChunk) -> AnswerDelta:
        """Add a chunk of a stream; return it as the client may see it."""
        if chunk.fields.get("error") or chunk.fields.get("object") == "error":
            error = ApiError.parse(chunk.fields.get("error") or chunk.fields)
            raise UpstreamUnavailable("The upstream failed.", error)
        self._add_end_of(chunk)
        for name, value in chunk.delta.items():
            if name in ("role", "tool_calls"):
                continue
            if isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):  # reasoning parts that some upstreams need back
                self._lists.setdefault(name, []).extend(list_or_empty(chunk.delta[name]))
        return _answer_delta(chunk, self._assembler.add_deltas(chunk.delta.get("tool_calls")))

    def end_stream(self, *, done: bool) -> AnswerDelta | None:
        """End a stream; return calls that were held back, as they might have been searches.

        Without a finish reason, only an upstream that says it is done has sent all of its calls.
        """
        calls = self.calls
        has_all_calls = done and calls and all(map(_has_valid_arguments, calls))
        if self.finish_reason is None and not has_all_calls:
            raise UpstreamUnavailable("The upstream's answer ended prematurely.")
        held_calls = self._assembler.flush()
        return AnswerDelta(calls=tuple(held_calls)) if held_calls else None

    def _add_end_of(self, chunk: ChatChunk) -> None:
        """Add what only the last chunks of a stream have."""
        self.usage = object_or_empty(chunk.fields.get("usage")) or self.usage
        self.finish_reason = chunk.choice.get("finish_reason") or self.finish_reason


def _answer_delta(chunk: ChatChunk, calls: list[CallDelta]) -> AnswerDelta:
    delta = chunk.delta
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    return AnswerDelta(
        str(delta.get("content") or ""),
        reasoning if isinstance(reasoning, str) else "",
        str(delta.get("refusal") or ""),
        tuple(calls),
        chunk,
    )


def _has_valid_arguments(call: ToolCall) -> bool:
    """Whether the arguments are complete JSON; custom ones need not be JSON."""
    try:
        json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.kind == "custom"
    return True


def _assistant_message(turn: _Turn) -> object:
    """Return the message of a turn with all of its calls, as the upstream needs it again."""
    calls = [call_json(call) for call in turn.calls]
    return {**turn.message, "role": "assistant", "tool_calls": calls}


def _tool_message(call: ToolCall, outcome: SearchOutcome) -> object:
    return {"role": "tool", "tool_call_id": call.id, "content": tool_result_json(outcome)}


def sum_usage(total: object, usage: object) -> JsonObject:
    """Return the sum of two usage objects, with all fields that either has."""
    combined, addends = dict(object_or_empty(total)), object_or_empty(usage)
    for name, value in addends.items():
        previous = combined.get(name)
        if value is None:
            combined.setdefault(name, None)
        elif isinstance(value, dict):
            combined[name] = sum_usage(previous, addends[name])
        elif isinstance(value, int | float) and isinstance(previous, int | float):
            combined[name] = previous + value
        else:
            combined[name] = value
    return combined
