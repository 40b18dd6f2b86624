"""Build one Responses API response from several turns: items, events, sequence numbers."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

SEARCH_ID_PREFIX = "ws_gateway_"
"""Prefix of the ids of our search items, to recognize them when they come back."""
END_EVENTS = {"completed": "response.completed", "incomplete": "response.incomplete"}

ERROR_CODES = (
    *("server_error", "rate_limit_exceeded", "invalid_prompt", "invalid_image"),
    *("image_content_policy_violation", "vector_store_timeout"),
)
"""The API's error codes that an upstream failure may map to."""

SendEvent = Callable[[JsonObject], Awaitable[None]]


async def _discard(event: JsonObject) -> None:
    """Ignore the events of a response that is not streamed."""


@dataclass
class ResponseBuilder:
    """The client's response as built so far."""

    initial: JsonObject
    """The response before the upstream has answered."""
    send_event: SendEvent = _discard
    include_sources: bool = False
    """Whether the client requested the sources of each search."""
    previous_response_id: object = None
    """The id of the response that the client continues."""
    response: JsonObject = field(default_factory=dict[str, object])
    output: list[JsonObject] = field(default_factory=list[JsonObject])
    finished_searches: dict[str, tuple[ToolCall, JsonObject]] = field(
        default_factory=dict[str, tuple[ToolCall, JsonObject]]
    )
    """Each finished search and its result, by item id."""
    _sequence: int = 0
    _running_searches: dict[int, int] = field(default_factory=dict[int, int])

    async def emit(self, kind: str, **fields: object) -> None:
        """Send one event with the next sequence number."""
        sequence_number = self._sequence
        self._sequence += 1
        await self.send_event({"type": kind, "sequence_number": sequence_number, **fields})

    async def start(self, response: JsonObject) -> None:
        """Start the response; all later turns become part of it."""
        overrides: JsonObject = {"status": "in_progress", "output": []}
        overrides["previous_response_id"] = self.previous_response_id
        self.response = {**response, **overrides}
        for kind in ("response.created", "response.in_progress"):
            await self.emit(kind, response=self.response)

    async def add_item(self, item: JsonObject) -> int:
        """Append an item and return its index."""
        self.output.append(item)
        index = len(self.output) - 1
        await self.emit("response.output_item.added", output_index=index, item=item)
        return index

    async def finish_item(self, index: int, item: JsonObject) -> None:
        """Replace an item with its final state."""
        self.output[index] = item
        await self.emit("response.output_item.done", output_index=index, item=item)

    async def add_message(self, text: str, hits: Sequence[JsonObject]) -> None:
        """Add a message of our own if the model wrote none."""
        part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        item = {"id": f"msg_{token_hex(16)}", "type": "message", "role": "assistant"}
        await self.add_complete_item({**item, "status": "completed", "content": [part]}, hits)

    async def add_complete_item(self, item: JsonObject, hits: Sequence[JsonObject]) -> None:
        """Add an item that is already complete, with all its events."""
        started: JsonObject = {**item, "status": "in_progress"}
        if item.get("type") == "message":
            index = await self.add_item({**started, "content": []})
            parts = [object_or_empty(part) for part in list_or_empty(item.get("content"))]
            location = {"item_id": item.get("id"), "output_index": index}
            content = [
                await self._add_complete_part(part, hits, **location, content_index=part_index)
                for part_index, part in enumerate(parts)
            ]
            await self.finish_item(index, {**item, "content": content})
        elif item.get("type") == "function_call":
            index = await self.add_item({**started, "arguments": ""})
            location = {"item_id": item.get("id"), "output_index": index}
            event_prefix = "response.function_call_arguments"
            await self.emit(f"{event_prefix}.delta", **location, delta=item.get("arguments"))
            await self.emit(f"{event_prefix}.done", **location, arguments=item.get("arguments"))
            await self.finish_item(index, item)
        else:
            await self.finish_item(await self.add_item(item), item)

    async def _add_complete_part(
        self, part: JsonObject, hits: Sequence[JsonObject], **location: object
    ) -> JsonObject:
        is_text = part.get("type") == "output_text"
        empty: JsonObject = {"text": "", "annotations": []} if is_text else {}
        await self.emit("response.content_part.added", **location, part={**part, **empty})
        if is_text:
            text = part.get("text")
            await self.emit("response.output_text.delta", **location, delta=text, logprobs=[])
            return await self.finish_text(part, hits, **location)
        await self.emit("response.content_part.done", **location, part=part)
        return part

    async def finish_text(
        self, part: JsonObject, hits: Sequence[JsonObject], **location: object
    ) -> JsonObject:
        """Finish the text part at this location; return it with its annotations."""
        finished_part = with_annotations(part, hits)
        await self.emit_annotations(finished_part, 0, **location)
        await self.emit(
            "response.output_text.done", **location, text=finished_part["text"], logprobs=[]
        )
        await self.emit("response.content_part.done", **location, part=finished_part)
        return finished_part

    async def emit_annotations(
        self, part: JsonObject, first_index: int, **location: object
    ) -> None:
        """Emit the annotations of a part, numbered from `first_index`."""
        for annotation_index, annotation in enumerate(
            list_or_empty(part.get("annotations")), first_index
        ):
            await self.emit(
                "response.output_text.annotation.added",
                **location,
                annotation_index=annotation_index,
                annotation=annotation,
            )

    async def searches_started(self, calls: Sequence[ToolCall]) -> None:
        """Add our calls as web search items."""
        for call in calls:
            item_id = SEARCH_ID_PREFIX + token_hex(12)
            index = await self.add_item(self._search_item(call, item_id, "in_progress"))
            self._running_searches[id(call)] = index
            for state in ("in_progress", "searching"):
                await self._emit_search_event(state, index, item_id)

    async def searches_finished(
        self, calls: Sequence[ToolCall], results: Sequence[JsonObject]
    ) -> None:
        """Finish the items of these searches."""
        for call, result in zip(calls, results, strict=True):
            index = self._running_searches.pop(id(call))
            item_id = str(self.output[index]["id"])
            self.finished_searches[item_id] = call, result
            failed = "error" in result
            item = self._search_item(call, item_id, "failed" if failed else "completed")
            if self.include_sources:
                hits = [object_or_empty(hit) for hit in list_or_empty(result.get("hits"))]
                item["action"]["sources"] = [{"type": "url", "url": hit["url"]} for hit in hits]
            if not failed:
                await self._emit_search_event("completed", index, item_id)
            await self.finish_item(index, item)

    async def end(self, **fields: object) -> JsonObject:
        """End the response, emit its final event and return it."""
        status = str(fields.get("status", "completed"))
        completed_at = int(time.time()) if status == "completed" else None
        if "completed_at" in self.response:
            fields.setdefault("completed_at", completed_at)
        self.response = {**self.response, "output": self.output, "status": status, **fields}
        await self.emit(END_EVENTS.get(status, "response.failed"), response=self.response)
        return self.response

    async def fail(self, error: JsonObject) -> None:
        """End the response with an error."""
        if not self.response:
            await self.start(self.initial)
        message = str(error.get("message") or "The upstream failed.")
        await self.end(status="failed", error={"code": _error_code(error), "message": message})

    @staticmethod
    def _search_item(call: ToolCall, item_id: str, status: str) -> JsonObject:
        action = {"type": "search", "query": call.query, "queries": [call.query]}
        return {"id": item_id, "type": "web_search_call", "status": status, "action": action}

    async def _emit_search_event(self, state: str, index: int, item_id: str) -> None:
        kind = f"response.web_search_call.{state}"
        await self.emit(kind, output_index=index, item_id=item_id)


def with_annotations(part: JsonObject, hits: Sequence[JsonObject]) -> JsonObject:
    """Return a message part with annotations for the URLs in it that a search returned."""
    if part.get("type") != "output_text" or not hits:
        return part
    existing = list_or_empty(part.get("annotations"))
    citations = url_citations(str(part.get("text") or ""), hits)
    new_annotations = [{"type": "url_citation", **citation} for citation in citations]
    return {**part, "annotations": [*existing, *new_annotations]}


def _error_code(error: JsonObject) -> str:
    """Return one of the codes that clients know."""
    code = str(error.get("code"))
    text = f"{code} {error.get('type')}".lower()
    if "rate_limit" in text or "429" in text:
        return "rate_limit_exceeded"
    return code if code in ERROR_CODES else "server_error"


def initial_response(request: JsonObject) -> JsonObject:
    """Return a new response to this request, with all fields that the API defines."""
    fields = {name: value for name, value in request.items() if value is not None}
    reasoning = object_or_empty(fields.get("reasoning"))
    text = object_or_empty(fields.get("text"))
    return {
        "id": new_item_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": fields.get("max_tool_calls"),
        "model": fields.get("model"),
        "output": [],
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": False,
        "background": False,
        "service_tier": fields.get("service_tier", "default"),
        "temperature": fields.get("temperature", 1.0),
        "top_p": fields.get("top_p", 1.0),
        "presence_penalty": fields.get("presence_penalty", 0.0),
        "frequency_penalty": fields.get("frequency_penalty", 0.0),
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [
            _response_tool(object_or_empty(tool)) for tool in list_or_empty(fields.get("tools"))
        ],
        "truncation": "disabled",
        "usage": None,
        "metadata": object_or_empty(fields.get("metadata")),
        "safety_identifier": fields.get("safety_identifier"),
        "prompt_cache_key": fields.get("prompt_cache_key"),
    }


def _response_tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def new_item_id(kind: str) -> str:
    return f"{kind}_{token_hex(16)}"
