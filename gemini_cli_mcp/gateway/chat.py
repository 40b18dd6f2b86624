"""Answer a chat completion request in one or more upstream turns, streamed or complete."""

from collections.abc import Callable, Sequence

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.sse import DONE, format_event
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.gateway.tool_loop import ChatToolLoop, UpstreamTurn, first_choice
from gemini_cli_mcp.gateway.upstream_client import Headers, UpstreamClient
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.settings.engines_file import Engines

TEXT_SEPARATOR = "\n\n"
"""Separates the text before a search from the text after it."""

CHUNK_OBJECT = "chat.completion.chunk"

KeepMessages = Callable[[list[str], list[JsonObject]], None]
"""Stores the messages hidden from the client, keyed by the ids of the client's own calls."""


class ChatEndpoint:
    """One chat request that gets our tool; the listener of its own tool loop."""

    def __init__(
        self,
        upstream: UpstreamClient,
        request: JsonObject,
        engines: Engines,
        runner: SearchRunner,
        keep: KeepMessages,
    ) -> None:
        self._request = request
        self._runner = runner
        self._keep = keep
        self._loop = ChatToolLoop(upstream, request, engines, runner, self)
        self._writer: ResponseWriter | None = None
        """Set if the client requested a stream."""
        self._headers: Headers = []
        self._common_fields: JsonObject = {}
        """Fields shared by all chunks of the answer."""
        self._extra_fields: JsonObject = {}
        """Other fields of the upstream's latest chunk."""
        self._last_chunk: JsonObject = {}
        """The upstream's latest chunk, or its complete answer."""
        self._role_sent = False
        self._texts: list[str] = []
        """Pieces of the text sent to the client."""
        self._separator = ""

    async def answer(self, writer: ResponseWriter) -> None:
        if self._request.get("stream"):
            await writer.stream(
                self._answer_streaming, lambda error: writer.send_event({"error": error})
            )
        else:
            await self._answer_complete(writer)

    async def _answer_complete(self, writer: ResponseWriter) -> None:
        last_turn = await self._run()
        message = dict(last_turn.message)
        self._record_text(self._fallback_text(last_turn))
        if self._texts:
            message["content"] = "".join(self._texts)
        if last_turn.searches:
            message.pop("tool_calls", None)
        if last_turn.searches and last_turn.client_calls:
            message["tool_calls"] = [call.as_message() for call in last_turn.client_calls]
        if annotations := self._annotations():
            message["annotations"] = annotations
        choice = {
            **first_choice(self._last_chunk),
            "message": message,
            "finish_reason": _finish_reason(last_turn),
        }
        completion = {
            **self._last_chunk,
            **self._common_fields,
            "object": "chat.completion",
            "choices": [choice],
        }
        if self._loop.usage:
            completion["usage"] = self._loop.usage
        await writer.send_json(200, self._headers, completion)

    async def _answer_streaming(self, writer: ResponseWriter) -> None:
        self._writer = writer
        last_turn = await self._run()
        if fallback := self._fallback_text(last_turn):
            self._record_text(fallback)
            await self._send_delta({"content": fallback})
        if annotations := self._annotations():
            await self._send_delta({"annotations": annotations})
        await self._send_delta(
            {},
            _finish_reason(last_turn),
            extra_fields=self._extra_fields,
            choice=first_choice(self._last_chunk),
        )
        usage = self._loop.usage
        if usage and object_or_empty(self._request.get("stream_options")).get("include_usage"):
            chunk: JsonObject = {
                "object": CHUNK_OBJECT,
                **self._common_fields,
                "choices": [],
                "usage": usage,
            }
            await writer.send_event(chunk)
        await writer.end(format_event(DONE))

    async def _run(self) -> UpstreamTurn:
        last_turn = await self._loop.run()
        if last_turn.client_calls and self._loop.hidden_messages:
            self._keep(
                [call.id for call in last_turn.client_calls], self._messages_to_keep(last_turn)
            )
        return last_turn

    def _messages_to_keep(self, last_turn: UpstreamTurn) -> list[JsonObject]:
        """Return the messages that replace the one the client sees in the transcript."""
        if last_turn.searches:
            return self._loop.hidden_messages
        calls = [call.as_message() for call in last_turn.calls]
        return [
            *self._loop.hidden_messages,
            {**last_turn.message, "role": "assistant", "tool_calls": calls},
        ]

    async def _send_delta(
        self,
        delta: JsonObject,
        finish_reason: str | None = None,
        *,
        extra_fields: JsonObject | None = None,
        choice: JsonObject | None = None,
    ) -> None:
        if self._writer:
            choice_fields = {
                **(choice or {}),
                "index": 0,
                "delta": delta,
                "finish_reason": finish_reason,
            }
            chunk = {
                **(extra_fields or {}),
                "object": CHUNK_OBJECT,
                **self._common_fields,
                "choices": [choice_fields],
            }
            await self._writer.send_event(chunk)

    def _fallback_text(self, last_turn: UpstreamTurn) -> str:
        """Return a substitute answer if the model requested a search with none left."""
        if last_turn.message.get("content") or not last_turn.searches or last_turn.client_calls:
            return ""
        return self._separator + self._runner.fallback_answer()

    def _annotations(self) -> list[JsonObject]:
        citations = url_citations("".join(self._texts), self._runner.hits)
        return [{"type": "url_citation", "url_citation": citation} for citation in citations]

    def _record_text(self, text: str) -> None:
        if text:
            self._texts.append(text)

    # TurnListener

    async def turn_started(self, headers: Headers) -> None:
        self._headers = headers
        self._separator = (
            TEXT_SEPARATOR if self._texts and not self._texts[-1].endswith("\n") else ""
        )
        if self._writer:
            await self._writer.open_stream(headers)

    async def chunk_received(self, chunk: JsonObject, delta: JsonObject) -> None:
        """Forward an upstream chunk with this delta, unless nothing visible remains."""
        self._last_chunk = chunk or self._last_chunk
        for name in _COMMON_FIELDS:
            if chunk.get(name) and name not in self._common_fields:
                self._common_fields[name] = chunk[name]
        text = delta.get("content")
        if text and isinstance(text, str):
            delta = {**delta, "content": f"{self._separator}{text}"}
            self._record_text(delta["content"])
            self._separator = ""
        visible = {name: value for name, value in delta.items() if name != "role"}
        other_fields = {
            name: value for name, value in chunk.items() if name not in _REPLACED_FIELDS
        }
        self._extra_fields = (
            other_fields if self._role_sent and chunk else {**self._extra_fields, **other_fields}
        )
        if not self._role_sent:
            if not chunk.get("id") and not visible:  # Azure starts with an empty chunk
                return
            self._role_sent = True
            visible = {"role": "assistant", **visible}  # openai-node requires it
        elif not any(value not in (None, "", []) for value in visible.values()):
            return
        await self._send_delta(visible, extra_fields=self._extra_fields, choice=first_choice(chunk))

    async def searches_started(self, calls: Sequence[ToolCall]) -> None:
        """Do nothing: the client only gets keep-alives during a search."""

    async def searches_finished(
        self, calls: Sequence[ToolCall], results: Sequence[JsonObject]
    ) -> None:
        """Do nothing: the client does not see the results."""


_COMMON_FIELDS = ("id", "created", "model")
"""Fields that are identical in all chunks of an answer."""
_REPLACED_FIELDS = (*_COMMON_FIELDS, "choices", "usage")


def _finish_reason(last_turn: UpstreamTurn) -> str:
    if last_turn.searches:
        return "tool_calls" if last_turn.client_calls else "stop"
    return last_turn.finish_reason or "stop"
