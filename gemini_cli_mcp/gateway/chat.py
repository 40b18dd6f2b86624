"""One chat completion for the client, of however many rounds, at once or as it comes."""

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
"""Between what a model says before a search and after it."""

CHUNK_OBJECT = "chat.completion.chunk"

KeepMessages = Callable[[list[str], list[JsonObject]], None]
"""Keeps what the client does not see of a turn, for the ids of its own calls."""


class ChatEndpoint:
    """One request of a client that gets our tool; it listens to the rounds."""

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
        """The client's end of a stream."""
        self._headers: Headers = []
        self._common_fields: JsonObject = {}
        """What all chunks of the answer have in common."""
        self._extra_fields: JsonObject = {}
        """What the upstream's last chunk said beside its delta."""
        self._last_chunk: JsonObject = {}
        """The last whole answer of the upstream."""
        self._role_sent = False
        self._texts: list[str] = []
        """Pieces of what the client has been told."""
        self._separator = ""

    async def answer(self, writer: ResponseWriter) -> None:
        """Answer the client."""
        if self._request.get("stream"):
            await writer.stream(
                self._answer_streaming, lambda error: writer.send_event({"error": error})
            )
        else:
            await self._answer_complete(writer)

    async def _answer_complete(self, writer: ResponseWriter) -> None:
        last = await self._run()
        message = dict(last.message)
        self._record_text(self._fallback_text(last))
        if self._texts:
            message["content"] = "".join(self._texts)
        if last.searches:
            message.pop("tool_calls", None)
        if last.searches and last.client_calls:
            message["tool_calls"] = [call.as_message() for call in last.client_calls]
        if annotations := self._annotations():
            message["annotations"] = annotations
        choice = {
            **first_choice(self._last_chunk),
            "message": message,
            "finish_reason": _finish_reason(last),
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
        last = await self._run()
        if fallback := self._fallback_text(last):
            self._record_text(fallback)
            await self._send_delta({"content": fallback})
        if annotations := self._annotations():
            await self._send_delta({"annotations": annotations})
        await self._send_delta(
            {},
            _finish_reason(last),
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
        last = await self._loop.run()
        if last.client_calls and self._loop.hidden_messages:
            self._keep([call.id for call in last.client_calls], self._messages_to_keep(last))
        return last

    def _messages_to_keep(self, last: UpstreamTurn) -> list[JsonObject]:
        """What stands in the transcript for the message that the client sees."""
        if last.searches:
            return self._loop.hidden_messages
        calls = [call.as_message() for call in last.calls]
        return [
            *self._loop.hidden_messages,
            {**last.message, "role": "assistant", "tool_calls": calls},
        ]

    async def _send_delta(
        self,
        delta: JsonObject,
        reason: str | None = None,
        *,
        extra_fields: JsonObject | None = None,
        choice: JsonObject | None = None,
    ) -> None:
        if self._writer:
            choice_fields = {**(choice or {}), "index": 0, "delta": delta, "finish_reason": reason}
            chunk = {
                **(extra_fields or {}),
                "object": CHUNK_OBJECT,
                **self._common_fields,
                "choices": [choice_fields],
            }
            await self._writer.send_event(chunk)

    def _fallback_text(self, last: UpstreamTurn) -> str:
        """Words for a model that has none: it was out of searches, and asked for another one."""
        if last.message.get("content") or not last.searches or last.client_calls:
            return ""
        return self._separator + self._runner.fallback_answer()

    def _annotations(self) -> list[JsonObject]:
        cited = url_citations("".join(self._texts), self._runner.hits)
        return [{"type": "url_citation", "url_citation": citation} for citation in cited]

    def _record_text(self, text: str) -> None:
        if text:
            self._texts.append(text)

    # What is heard

    async def turn_started(self, headers: Headers) -> None:
        self._headers = headers
        self._separator = (
            TEXT_SEPARATOR if self._texts and not self._texts[-1].endswith("\n") else ""
        )
        if self._writer:
            await self._writer.open_stream(headers)

    async def chunk_received(self, chunk: JsonObject, delta: JsonObject) -> None:
        """Pass a chunk of the upstream on with this delta, if that still says something."""
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
        rest = {name: value for name, value in chunk.items() if name not in _REPLACED_FIELDS}
        self._extra_fields = rest if self._role_sent and chunk else {**self._extra_fields, **rest}
        if not self._role_sent:
            if not chunk.get("id") and not visible:  # Azure begins with a chunk that says nothing
                return
            self._role_sent = True
            visible = {"role": "assistant", **visible}  # openai-node insists on it
        elif not any(value not in (None, "", []) for value in visible.values()):
            return
        await self._send_delta(visible, extra_fields=self._extra_fields, choice=first_choice(chunk))

    async def searches_started(self, calls: Sequence[ToolCall]) -> None:
        """The client is told nothing of them but signs of life."""

    async def searches_finished(
        self, calls: Sequence[ToolCall], results: Sequence[JsonObject]
    ) -> None:
        """Nor of what they found."""


_COMMON_FIELDS = ("id", "created", "model")
"""What is the same in all chunks of one answer."""
_REPLACED_FIELDS = (*_COMMON_FIELDS, "choices", "usage")


def _finish_reason(last: UpstreamTurn) -> str:
    if last.searches:
        return "tool_calls" if last.client_calls else "stop"
    return last.finish_reason or "stop"
