"""The Responses API on upstreams that support chat completions only.

Text, functions and streams are converted; anything else is rejected, never silently dropped.
"""

from collections.abc import Sequence

from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.responses.builder import ResponseBuilder, new_item_id
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.gateway.tool_loop import UpstreamTurn
from gemini_cli_mcp.gateway.upstream_client import Headers
from gemini_cli_mcp.json_values import JsonObject, int_or_zero, list_or_empty, object_or_empty


class ChatToResponses:
    """Listens to a chat tool loop and converts its turns to Responses API items."""

    def __init__(
        self, builder: ResponseBuilder, runner: SearchRunner, writer: ResponseWriter | None = None
    ) -> None:
        self.headers: Headers = []
        self._builder = builder
        self._runner = runner
        self._writer = writer
        self._text_index: int | None = None
        """Output index of the text item in progress."""
        self._refusal_index: int | None = None
        """Output index of the refusal in progress."""
        self._call_indices: dict[int, int] = {}
        """Output indices of the client's calls in this turn, by call index."""
        self._pieces: dict[int, list[str]] = {}
        """Text received for items in progress, by output index."""

    async def turn_started(self, headers: Headers) -> None:
        self.headers = headers
        if self._writer:
            await self._writer.open_stream(headers)
        if not self._builder.response:
            await self._builder.start(self._builder.initial)

    async def chunk_received(self, chunk: JsonObject, delta: JsonObject) -> None:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            await self._append_text("reasoning", reasoning)
        if text := delta.get("content"):
            await self._append_text("message", str(text))
        if refusal := delta.get("refusal"):
            await self._append_refusal(str(refusal))
        for call in map(object_or_empty, list_or_empty(delta.get("tool_calls"))):
            await self._append_call(call)

    async def searches_started(self, calls: Sequence[ToolCall]) -> None:
        await self._finish_turn()
        await self._builder.searches_started(calls)

    async def searches_finished(
        self, calls: Sequence[ToolCall], results: Sequence[JsonObject]
    ) -> None:
        await self._builder.searches_finished(calls, results)

    async def end(self, last_turn: UpstreamTurn, usage: JsonObject) -> JsonObject:
        """Finish the response and return it."""
        await self._finish_turn()
        if (
            last_turn.searches
            and not last_turn.client_calls
            and not last_turn.message.get("content")
        ):
            await self._builder.add_message(self._runner.fallback_answer(), self._runner.hits)
        fields: JsonObject = {"usage": _responses_usage(usage)} if usage else {}
        if last_turn.finish_reason in ("length", "content_filter"):
            reason = (
                "max_output_tokens" if last_turn.finish_reason == "length" else "content_filter"
            )
            fields |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return await self._builder.end(**fields)

    async def _append_text(self, kind: str, text: str) -> None:
        """Append text to the message, or to the reasoning before it."""
        index = self._text_index
        if index is None or self._builder.output[index]["type"] != kind:
            await self._finish_text()
            index = await (self._open_message() if kind == "message" else self._open_reasoning())
            self._text_index = index
        self._pieces.setdefault(index, []).append(text)
        if kind == "message":
            await self._emit("output_text.delta", index, content_index=0, delta=text, logprobs=[])
        else:
            await self._emit("reasoning_summary_text.delta", index, summary_index=0, delta=text)

    async def _open_message(self) -> int:
        part: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item = {
            "id": new_item_id("msg"),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
        }
        index = await self._builder.add_item({**item, "content": []})
        await self._emit("content_part.added", index, content_index=0, part=part)
        self._builder.output[index] = {**item, "content": [dict(part)]}
        return index

    async def _open_reasoning(self) -> int:
        part = {"type": "summary_text", "text": ""}
        item = {"id": new_item_id("rs"), "type": "reasoning", "status": "in_progress"}
        index = await self._builder.add_item({**item, "summary": []})
        await self._emit("reasoning_summary_part.added", index, summary_index=0, part=part)
        self._builder.output[index] = {**item, "summary": [dict(part)]}
        return index

    async def _append_refusal(self, text: str) -> None:
        """Append text to the refusal, which gets a message of its own."""
        index = self._refusal_index
        if index is None:
            await self._finish_text()
            item = {"id": new_item_id("msg"), "type": "message", "role": "assistant"}
            index = self._refusal_index = await self._builder.add_item(
                {**item, "status": "in_progress", "content": []}
            )
            part = {"type": "refusal", "refusal": ""}
            await self._emit("content_part.added", index, content_index=0, part=part)
            self._builder.output[index] = {**item, "status": "in_progress", "content": [part]}
        self._pieces.setdefault(index, []).append(text)
        await self._emit("refusal.delta", index, content_index=0, delta=text)

    async def _finish_refusal(self) -> None:
        index, self._refusal_index = self._refusal_index, None
        if index is None:
            return
        self._join_pieces(index)
        item = self._builder.output[index]
        part = item["content"][0]
        await self._emit("refusal.done", index, content_index=0, refusal=part["refusal"])
        await self._emit("content_part.done", index, content_index=0, part=part)
        await self._builder.finish_item(index, {**item, "status": "completed"})

    async def _append_call(self, delta: JsonObject) -> None:
        """Start a call of the client's own, or append to it; several may be in progress."""
        call_index = int_or_zero(delta.get("index"))
        function = object_or_empty(delta.get("function"))
        if call_index not in self._call_indices:
            await self._finish_text()
            item: JsonObject = {
                "id": new_item_id("fc"),
                "type": "function_call",
                "call_id": delta.get("id"),
                "name": function.get("name"),
                "arguments": "",
                "status": "in_progress",
            }
            self._call_indices[call_index] = await self._builder.add_item(item)
        index = self._call_indices[call_index]
        if piece := str(function.get("arguments") or ""):
            self._pieces.setdefault(index, []).append(piece)
            await self._emit("function_call_arguments.delta", index, delta=piece)

    async def _finish_text(self) -> None:
        """Finish the text item in progress."""
        if self._text_index is None:
            return
        index, self._text_index = self._text_index, None
        self._join_pieces(index)
        item: JsonObject = {**self._builder.output[index], "status": "completed"}
        if item["type"] == "message":
            location = {"item_id": item["id"], "output_index": index, "content_index": 0}
            hits = self._runner.hits
            item["content"] = [
                await self._builder.finish_text(item["content"][0], hits, **location)
            ]
        else:
            part = item["summary"][0]
            text = part["text"]
            await self._emit("reasoning_summary_text.done", index, summary_index=0, text=text)
            await self._emit("reasoning_summary_part.done", index, summary_index=0, part=part)
        await self._builder.finish_item(index, item)

    def join_all(self) -> None:
        """Add the received text to all items in progress, because no more will follow."""
        for index in list(self._pieces):
            self._join_pieces(index)

    def _join_pieces(self, index: int) -> None:
        item, text = self._builder.output[index], "".join(self._pieces.pop(index, []))
        if item["type"] == "function_call":
            self._builder.output[index] = {**item, "arguments": item["arguments"] + text}
        else:
            list_field = "content" if item["type"] == "message" else "summary"
            part = item[list_field][0]
            text_field = "refusal" if part["type"] == "refusal" else "text"
            self._builder.output[index] = {
                **item,
                list_field: [{**part, text_field: part[text_field] + text}],
            }

    async def _finish_turn(self) -> None:
        """Finish all items in progress."""
        await self._finish_text()
        await self._finish_refusal()
        for index in self._call_indices.values():
            self._join_pieces(index)
            item = self._builder.output[index]
            arguments = item["arguments"] or "{}"
            await self._emit("function_call_arguments.done", index, arguments=arguments)
            await self._builder.finish_item(
                index, {**item, "arguments": arguments, "status": "completed"}
            )
        self._call_indices = {}

    async def _emit(self, kind: str, index: int, **fields: object) -> None:
        item_id = self._builder.output[index]["id"]
        await self._builder.emit(f"response.{kind}", item_id=item_id, output_index=index, **fields)


def _responses_usage(usage: JsonObject) -> JsonObject:
    prompt_details = object_or_empty(usage.get("prompt_tokens_details"))
    completion_details = object_or_empty(usage.get("completion_tokens_details"))
    return {
        "input_tokens": int_or_zero(usage.get("prompt_tokens")),
        "input_tokens_details": {
            "cached_tokens": int_or_zero(prompt_details.get("cached_tokens")),
            "cache_write_tokens": int_or_zero(prompt_details.get("cache_write_tokens")),
        },
        "output_tokens": int_or_zero(usage.get("completion_tokens")),
        "output_tokens_details": {
            "reasoning_tokens": int_or_zero(completion_details.get("reasoning_tokens"))
        },
        "total_tokens": int_or_zero(usage.get("total_tokens")),
    }
