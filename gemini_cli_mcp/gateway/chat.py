"""Answer a chat completion request in one or more upstream turns, streamed or complete."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.client_request import ClientRequest
from gemini_cli_mcp.gateway.continuations import ChatContinuations
from gemini_cli_mcp.gateway.events import (
    EMPTY_CHUNK,
    AnswerDelta,
    ChatChunk,
    SearchFinished,
    SearchStarted,
    TurnsFinished,
    TurnStarted,
)
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.sse import DONE, format_event
from gemini_cli_mcp.gateway.tool_call_assembler import call_delta_json, call_json
from gemini_cli_mcp.gateway.tool_loop import chat_tool_loop
from gemini_cli_mcp.gateway.upstream_client import Headers
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.settings.engines import Engines

TEXT_SEPARATOR = "\n\n"
"""Separates the text before a search from the text after it."""
CHUNK_OBJECT = "chat.completion.chunk"
_COMMON_FIELDS = ("id", "created", "model")
"""Fields that are identical in all chunks of an answer."""
_OWN_FIELDS = ("role", "tool_calls")
"""Fields of a delta that we write ourselves."""
_REPLACED_FIELDS = (*_COMMON_FIELDS, "choices", "usage")


@dataclass(frozen=True)
class ChatEndpoint:
    """One chat request that gets our tool."""

    request: ClientRequest
    client_messages: Sequence[object]
    """As the client sent them: it will send them again."""
    engines: Engines
    runner: SearchRunner
    continuations: ChatContinuations

    async def answer(self, writer: ResponseWriter) -> None:
        if not self.request.body.get("stream"):
            await self._write_answer(ChatCollector(writer, self.runner))
            return
        options = object_or_empty(self.request.body.get("stream_options"))
        include_usage = bool(options.get("include_usage"))
        await writer.stream(
            lambda writer: self._write_answer(
                ChatStreamWriter(writer, self.runner, include_usage=include_usage)
            ),
            lambda error: writer.send_event({"error": error.fields}),
        )

    async def _write_answer(self, answer: "ChatStreamWriter | ChatCollector") -> None:
        with self.request.upstream.limit_turns() as upstream:
            loop = chat_tool_loop(self.request.body, upstream, self.engines, self.runner)
            async with aclosing(loop) as events:
                async for event in events:
                    match event:
                        case TurnStarted(headers):
                            await answer.start_turn(headers)
                        case AnswerDelta():
                            await answer.add_delta(event)
                        case TurnsFinished():
                            self._keep_hidden_messages(event)
                            await answer.finish(event)
                        case SearchStarted() | SearchFinished():
                            pass  # the client only gets keep-alives during a search

    def _keep_hidden_messages(self, last_turn: TurnsFinished) -> None:
        """Keep the messages that replace the one the client sees in the transcript."""
        call_ids = [call.id for call in last_turn.client_calls]
        if call_ids and last_turn.hidden_messages:
            self.continuations.keep(
                self.request.owner, self.client_messages, call_ids, last_turn.hidden_messages
            )


class _Answer:
    """What a streamed and a complete answer have in common: one answer from several turns."""

    def __init__(self, runner: SearchRunner) -> None:
        self.common_fields: JsonObject = {}
        """Fields shared by all chunks of the answer: those of the first turn."""
        self.last_chunk = EMPTY_CHUNK
        """The upstream's latest chunk, or its complete answer."""
        self._runner = runner
        self._texts: list[str] = []
        """Pieces of the text for the client."""
        self._separator = ""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def start_turn(self) -> None:
        is_separated = not self._texts or self._texts[-1].endswith("\n")
        self._separator = "" if is_separated else TEXT_SEPARATOR

    def add_delta(self, delta: AnswerDelta) -> JsonObject:
        """Add a piece; return the fields of its delta for the client, without the role."""
        chunk = delta.chunk
        self.last_chunk = chunk if chunk.fields else self.last_chunk
        for name in _COMMON_FIELDS:
            if chunk.fields.get(name):
                self.common_fields.setdefault(name, chunk.fields[name])
        fields = {name: value for name, value in chunk.delta.items() if name not in _OWN_FIELDS}
        if delta.text and isinstance(fields["content"], str):  # some upstreams send parts
            fields["content"] = self.add_text(delta.text)
        if delta.calls:
            fields["tool_calls"] = [call_delta_json(call) for call in delta.calls]
        return fields

    def add_text(self, text: str) -> str:
        """Add text; return it with the separator from the text of an earlier turn."""
        text, self._separator = f"{self._separator}{text}", ""
        self._texts.append(text)
        return text

    def fallback_text(self, last_turn: TurnsFinished) -> str:
        """Return a substitute answer if the model requested a search with none left."""
        if last_turn.message.get("content") or not last_turn.searches or last_turn.client_calls:
            return ""
        return self._runner.fallback_answer()

    def annotations(self) -> list[object]:
        citations = url_citations(self.text, self._runner.hits)
        return [{"type": "url_citation", "url_citation": item.as_json()} for item in citations]


class ChatCollector:
    """Collects a complete answer and sends it at the end."""

    def __init__(self, writer: ResponseWriter, runner: SearchRunner) -> None:
        self._writer = writer
        self._headers: Headers = []
        self._answer = _Answer(runner)

    async def start_turn(self, headers: Headers) -> None:
        self._headers = headers
        self._answer.start_turn()

    async def add_delta(self, delta: AnswerDelta) -> None:
        self._answer.add_delta(delta)

    async def finish(self, last_turn: TurnsFinished) -> None:
        """Send the completion to the client."""
        answer = self._answer
        if fallback := answer.fallback_text(last_turn):
            answer.add_text(fallback)
        message = dict(last_turn.message)
        if answer.text:
            message["content"] = answer.text
        if last_turn.searches:
            message.pop("tool_calls", None)
        if last_turn.searches and last_turn.client_calls:
            message["tool_calls"] = [call_json(call) for call in last_turn.client_calls]
        if annotations := answer.annotations():
            message["annotations"] = annotations
        choice = {
            **answer.last_chunk.choice,
            "message": message,
            "finish_reason": _finish_reason(last_turn),
        }
        completion = {
            **answer.last_chunk.fields,
            **answer.common_fields,
            "object": "chat.completion",
            "choices": [choice],
        }
        if last_turn.usage:
            completion["usage"] = last_turn.usage
        await self._writer.send_json(200, self._headers, completion)


class ChatStreamWriter:
    """Writes an answer as a stream of chunks."""

    def __init__(
        self, writer: ResponseWriter, runner: SearchRunner, *, include_usage: bool
    ) -> None:
        self._writer = writer
        self._include_usage = include_usage
        self._answer = _Answer(runner)
        self._extra_fields: JsonObject = {}
        """Other fields of the upstream's latest chunk."""
        self._role_sent = False

    async def start_turn(self, headers: Headers) -> None:
        self._answer.start_turn()
        await self._writer.open_stream(headers)

    async def add_delta(self, delta: AnswerDelta) -> None:
        """Forward a piece, unless nothing visible remains of it."""
        fields = self._answer.add_delta(delta)
        chunk = delta.chunk
        other_fields = {
            name: value for name, value in chunk.fields.items() if name not in _REPLACED_FIELDS
        }
        if self._role_sent and chunk.fields:
            self._extra_fields = other_fields
        else:
            self._extra_fields = {**self._extra_fields, **other_fields}
        if not self._role_sent:
            if not chunk.fields.get("id") and not fields:  # Azure starts with an empty chunk
                return
            self._role_sent = True
            fields = {"role": "assistant", **fields}  # openai-node requires it
        elif not any(value not in (None, "", []) for value in fields.values()):
            return
        await self._send_delta(fields, chunk=chunk)

    async def finish(self, last_turn: TurnsFinished) -> None:
        """Write what follows the last piece, and end the stream."""
        answer = self._answer
        if fallback := answer.fallback_text(last_turn):
            await self._send_delta({"content": answer.add_text(fallback)})
        if annotations := answer.annotations():
            await self._send_delta({"annotations": annotations})
        await self._send_delta({}, chunk=answer.last_chunk, finish_reason=_finish_reason(last_turn))
        if last_turn.usage and self._include_usage:
            head = {"object": CHUNK_OBJECT, **answer.common_fields}
            await self._writer.send_event({**head, "choices": [], "usage": last_turn.usage})
        await self._writer.end(format_event(DONE))

    async def _send_delta(
        self,
        fields: JsonObject,
        *,
        chunk: ChatChunk | None = None,
        finish_reason: object = None,
    ) -> None:
        """Send a delta, with the other fields of the upstream's chunk that it comes from."""
        choice = {
            **(chunk.choice if chunk else {}),
            "index": 0,
            "delta": fields,
            "finish_reason": finish_reason,
        }
        extra_fields = {} if chunk is None else self._extra_fields
        head = {**extra_fields, "object": CHUNK_OBJECT, **self._answer.common_fields}
        await self._writer.send_event({**head, "choices": [choice]})


def _finish_reason(last_turn: TurnsFinished) -> object:
    if last_turn.searches:
        return "tool_calls" if last_turn.client_calls else "stop"
    return last_turn.finish_reason or "stop"
