"""One response of the Responses API out of several rounds: its items, its events, its numbers."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

from gemini_cli_mcp.gateway.annotations import citations
from gemini_cli_mcp.gateway.tool_calls import Call
from gemini_cli_mcp.json_values import Object, as_list, as_object

OURS = "ws_gateway_"
"""How the ids of our searches begin, so that they are known when they come back."""
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}

CODES = (
    *("server_error", "rate_limit_exceeded", "invalid_prompt", "invalid_image"),
    *("image_content_policy_violation", "vector_store_timeout"),
)
"""Of those that the API has, what an upstream may mean."""

Tell = Callable[[Object], Awaitable[None]]


async def _nobody(event: Object) -> None:
    """Who gets the events of an answer that comes at once."""


@dataclass
class Splice:
    """What the client has of its response so far."""

    blank: Object
    """The response as it is before anything is known of it."""
    tell: Tell = _nobody
    sources: bool = False
    """Whether the client wants to know what each search found."""
    previous: object = None
    """The response that the client goes on from."""
    response: Object = field(default_factory=dict[str, object])
    output: list[Object] = field(default_factory=list[Object])
    searched: dict[str, tuple[Call, Object]] = field(default_factory=dict[str, tuple[Call, Object]])
    """By the id of its item: each search that was made, and its result."""
    _sequence: int = 0
    _searching: dict[int, int] = field(default_factory=dict[int, int])

    async def say(self, kind: str, **fields: object) -> None:
        """One event."""
        number = self._sequence
        self._sequence += 1
        await self.tell({"type": kind, "sequence_number": number, **fields})

    async def begin(self, response: Object) -> None:
        """The first words; whatever comes later is part of this response."""
        told: Object = {"status": "in_progress", "output": []}
        told["previous_response_id"] = self.previous
        self.response = {**response, **told}
        for kind in ("response.created", "response.in_progress"):
            await self.say(kind, response=self.response)

    async def open(self, item: Object) -> int:
        """The next item; its place."""
        self.output.append(item)
        place = len(self.output) - 1
        await self.say("response.output_item.added", output_index=place, item=item)
        return place

    async def close(self, place: int, item: Object) -> None:
        """An item as it is in the end."""
        self.output[place] = item
        await self.say("response.output_item.done", output_index=place, item=item)

    async def message(self, text: str, hits: Sequence[Object]) -> None:
        """Words of our own, where the model has none."""
        part: Object = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        item = {"id": f"msg_{token_hex(16)}", "type": "message", "role": "assistant"}
        await self.whole({**item, "status": "completed", "content": [part]}, hits)

    async def whole(self, item: Object, hits: Sequence[Object]) -> None:
        """An item that is complete already, with all events that tell of it."""
        begun: Object = {**item, "status": "in_progress"}
        if item.get("type") == "message":
            index = await self.open({**begun, "content": []})
            parts = [as_object(part) for part in as_list(item.get("content"))]
            place = {"item_id": item.get("id"), "output_index": index}
            content = [
                await self._whole_part(part, hits, **place, content_index=number)
                for number, part in enumerate(parts)
            ]
            await self.close(index, {**item, "content": content})
        elif item.get("type") == "function_call":
            index = await self.open({**begun, "arguments": ""})
            place = {"item_id": item.get("id"), "output_index": index}
            told = "response.function_call_arguments"
            await self.say(f"{told}.delta", **place, delta=item.get("arguments"))
            await self.say(f"{told}.done", **place, arguments=item.get("arguments"))
            await self.close(index, item)
        else:
            await self.close(await self.open(item), item)

    async def _whole_part(self, part: Object, hits: Sequence[Object], **place: object) -> Object:
        is_text = part.get("type") == "output_text"
        empty: Object = {"text": "", "annotations": []} if is_text else {}
        await self.say("response.content_part.added", **place, part={**part, **empty})
        if is_text:
            text = part.get("text")
            await self.say("response.output_text.delta", **place, delta=text, logprobs=[])
            return await self.finish_text(part, hits, **place)
        await self.say("response.content_part.done", **place, part=part)
        return part

    async def finish_text(self, part: Object, hits: Sequence[Object], **place: object) -> Object:
        """The end of a text that stands at this place, with its annotations."""
        done = annotated(part, hits)
        await self.cite(done, 0, **place)
        await self.say("response.output_text.done", **place, text=done["text"], logprobs=[])
        await self.say("response.content_part.done", **place, part=done)
        return done

    async def cite(self, part: Object, first: int, **place: object) -> None:
        """Tell the annotations of a part; `first` is the number of the first one."""
        for number, annotation in enumerate(as_list(part.get("annotations")), first):
            await self.say(
                "response.output_text.annotation.added",
                **place,
                annotation_index=number,
                annotation=annotation,
            )

    async def searches(self, calls: Sequence[Call]) -> None:
        """Our calls, as the searches that they are."""
        for call in calls:
            item_id = OURS + token_hex(12)
            place = await self.open(self._search(call, item_id, "in_progress"))
            self._searching[id(call)] = place
            for state in ("in_progress", "searching"):
                await self._search_event(state, place, item_id)

    async def finds(self, calls: Sequence[Call], results: Sequence[Object]) -> None:
        """What came of them."""
        for call, result in zip(calls, results, strict=True):
            place = self._searching.pop(id(call))
            item_id = str(self.output[place]["id"])
            self.searched[item_id] = call, result
            failed = "error" in result
            item = self._search(call, item_id, "failed" if failed else "completed")
            if self.sources:
                hits = [as_object(hit) for hit in as_list(result.get("hits"))]
                item["action"]["sources"] = [{"type": "url", "url": hit["url"]} for hit in hits]
            if not failed:
                await self._search_event("completed", place, item_id)
            await self.close(place, item)

    async def end(self, **told: object) -> Object:
        """The whole response, complete or not; also said."""
        status = str(told.get("status", "completed"))
        ended = int(time.time()) if status == "completed" else None
        if "completed_at" in self.response:
            told.setdefault("completed_at", ended)
        self.response = {**self.response, "output": self.output, "status": status, **told}
        await self.say(ENDS.get(status, "response.failed"), response=self.response)
        return self.response

    async def fail(self, error: Object) -> None:
        """Why there is no more."""
        if not self.response:
            await self.begin(self.blank)
        message = str(error.get("message") or "The upstream failed.")
        await self.end(status="failed", error={"code": _code(error), "message": message})

    @staticmethod
    def _search(call: Call, item_id: str, status: str) -> Object:
        action = {"type": "search", "query": call.query, "queries": [call.query]}
        return {"id": item_id, "type": "web_search_call", "status": status, "action": action}

    async def _search_event(self, state: str, place: int, item_id: str) -> None:
        kind = f"response.web_search_call.{state}"
        await self.say(kind, output_index=place, item_id=item_id)


def annotated(part: Object, hits: Sequence[Object]) -> Object:
    """A part of a message, with annotations for the addresses in it that were found."""
    if part.get("type") != "output_text" or not hits:
        return part
    known = as_list(part.get("annotations"))
    cited = citations(str(part.get("text") or ""), hits)
    added = [{"type": "url_citation", **citation} for citation in cited]
    return {**part, "annotations": [*known, *added]}


def _code(error: Object) -> str:
    """One of the codes that clients know."""
    code = str(error.get("code"))
    text = f"{code} {error.get('type')}".lower()
    if "rate_limit" in text or "429" in text:
        return "rate_limit_exceeded"
    return code if code in CODES else "server_error"
