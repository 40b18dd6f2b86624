"""Rounds with an upstream of the Responses API, spliced into one response for the client."""

from collections.abc import AsyncIterator

import httpx2

from gemini_cli_mcp.engines import Engines
from gemini_cli_mcp.gateway.calls import NAME, Call
from gemini_cli_mcp.gateway.injection import is_hosted, with_search
from gemini_cli_mcp.gateway.line import Broken, Headers, Line, beside, error_of, refused, whole
from gemini_cli_mcp.gateway.outlet import Outlet
from gemini_cli_mcp.gateway.parked import Ending, as_output
from gemini_cli_mcp.gateway.rounds import added_up, parsed
from gemini_cli_mcp.gateway.searches import Searches
from gemini_cli_mcp.gateway.splice import Splice, annotated
from gemini_cli_mcp.gateway.sse import DONE, events
from gemini_cli_mcp.models import Object, as_count, as_list, as_object

PATH = "/responses"
_BEGINS = ("response.created", "response.in_progress", "response.queued")
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_FIRST = ("id", "object", "created_at", "output", "previous_response_id")
"""What a response has of its first round, whatever the later ones say."""


class Native:
    """One response of however many rounds."""

    def __init__(
        self,
        line: Line,
        request: Object,
        engines: Engines | None,
        searches: Searches,
        splice: Splice,
        outlet: Outlet | None = None,
    ) -> None:
        self.headers: Headers = []
        self.ending: Ending | None = None
        """Set if the upstream knows the response by another id than the client."""
        self._line = line
        self._request = request
        self._engines = engines
        self._found = searches
        self._splice = splice
        self._outlet = outlet
        self._usage: Object = {}

    async def run(self) -> Object:
        """The whole response."""
        turns: list[Object] = []
        while True:
            engines = self._engines if self._found.may_go_on else None
            last = _Round(self._splice, self._found, visible=engines is not None)
            # A conversation holds all of it already.
            stored = self._request.get("conversation") is not None and turns
            request: Object = {**self._request, "input": []} if stored else self._request
            await self._ask(last, with_search(request, engines, turns))
            self._usage = added_up(self._usage, as_object(last.response.get("usage")))
            outputs: list[Object] = []
            if engines and last.calls:
                results = await self._found.results(last.calls)
                await self._splice.finds(last.calls, results)
                pairs = zip(last.calls, results, strict=True)
                outputs = [as_output(call, result) for call, result in pairs]
            if not outputs or last.theirs:
                return await self._end(last, outputs)
            if self._request.get("conversation") is not None:
                turns = outputs
            else:
                turns += [*self._replayed(last.items), *outputs]

    async def _ask(self, asked: "_Round", body: Object) -> None:
        async with self._line.ask(PATH, body) as response:
            if not self._request.get("stream"):
                answer = parsed(await whole(response))
                self.headers = beside(response)
                await asked.take_whole(answer, self._own(answer))
                return
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                raise await refused(response)
            if self._outlet:
                await self._outlet.open(beside(response))
            async for event in _events(response):
                told = as_object(event.get("response"))
                await asked.take(event, self._own(told))
            if not asked.response:
                raise Broken("The upstream's answer broke off.")

    async def _end(self, last: "_Round", outputs: list[Object]) -> Object:
        known, actual = self._splice.response.get("id"), last.response.get("id")
        if known != actual or outputs:
            self.ending = Ending(str(actual), outputs)
        if last.calls and not last.theirs and not last.has_text:
            await self._splice.message(self._found.as_answer(), self._found.hits)
        told = {
            name: value for name, value in self._own(last.response).items() if name not in _FIRST
        }
        if self._usage:
            told["usage"] = self._usage
        return await self._splice.end(**told)

    def _own(self, response: Object) -> Object:
        """A response of the upstream as one to the client's own request."""
        if not response:
            return response
        listed = [as_object(tool) for tool in as_list(response.get("tools"))]
        kept = [tool for tool in listed if tool.get("name") != NAME]
        hosted = [tool for tool in as_list(self._request.get("tools")) if is_hosted(tool)]
        own = {"tools": [*kept, *hosted]}
        if "tool_choice" in self._request:
            own["tool_choice"] = self._request["tool_choice"]
        return {**response, **own}

    def _replayed(self, items: list[Object]) -> list[Object]:
        """Items of the last round, for an upstream that may not have stored them."""
        if self._request.get("store") is not False:
            return items
        return [
            {name: value for name, value in item.items() if name != "id"}
            for item in items
            if item.get("type") != "reasoning" or item.get("encrypted_content")
        ]


class _Round:
    """One round: what the client sees of it, and what it does not."""

    def __init__(self, splice: Splice, searches: Searches, *, visible: bool) -> None:
        self.response: Object = {}
        """The upstream's own, at its end."""
        self.items: list[Object] = []
        self.calls: list[Call] = []
        self._splice = splice
        self._found = searches
        self._visible = visible
        self._places: dict[int, int] = {}
        self._hidden: set[int] = set()

    @property
    def theirs(self) -> bool:
        """Whether the client has to do something now."""
        kinds = [str(item.get("type")) for item in self.items if not _is_ours(item)]
        return any(kind.endswith("_call") and kind not in _DONE_BY_UPSTREAMS for kind in kinds)

    @property
    def has_text(self) -> bool:
        return any(item.get("type") == "message" for item in self._splice.output)

    async def take_whole(self, answer: Object, own: Object) -> None:
        if not answer.get("id") or "output" not in answer:
            raise Broken("The upstream sent no response.", error_of(answer.get("error")))
        if not self._splice.response:
            await self._splice.begin(own)
        self.response = answer
        for item in map(as_object, as_list(answer.get("output"))):
            if _is_ours(item):
                await self._call(item)
            else:
                self.items.append(item)
                await self._splice.close(await self._splice.open(item), self._cited(item))

    async def take(self, event: Object, own: Object) -> None:
        """Take one event of a stream, and pass it on as one of the whole."""
        kind = str(event.get("type"))
        if kind == "error":
            raise Broken("The upstream failed.", _error_of(event))
        if kind in _BEGINS:
            if not self._splice.response:
                await self._splice.begin(own)
        elif kind in _ENDS:
            self.response = as_object(event.get("response"))
            if kind == "response.failed" and not as_object(self.response.get("error")):
                raise Broken("The upstream failed.")
        elif kind.startswith("response.output_item."):
            await self._take_item(kind, event)
        elif event.get("output_index") not in self._hidden:
            await self._pass(kind, event)

    async def _take_item(self, kind: str, event: Object) -> None:
        item, index = as_object(event.get("item")), as_count(event.get("output_index"))
        if kind == "response.output_item.added":
            if _is_ours(item):
                self._hidden.add(index)
            else:
                self._places[index] = await self._splice.open(item)
        elif _is_ours(item):
            await self._call(item)
        else:
            self.items.append(item)
            if index not in self._places:
                self._places[index] = await self._splice.open(item)
            await self._splice.close(self._places[index], self._cited(item))

    async def _call(self, item: Object) -> None:
        call = Call(str(item.get("call_id")), NAME, str(item.get("arguments") or ""))
        self.calls.append(call)
        self.items.append(item)
        if self._visible:
            await self._splice.searches([call])

    async def _pass(self, kind: str, event: Object) -> None:
        fields = {name: event[name] for name in event if name not in ("type", "sequence_number")}
        if "output_index" in fields:
            fields["output_index"] = self._places.get(as_count(fields["output_index"]), 0)
        if kind == "response.output_text.done":
            await self._cite(fields)
        if kind == "response.content_part.done":
            fields["part"] = annotated(as_object(fields.get("part")), self._found.hits)
        await self._splice.say(kind, **fields)

    async def _cite(self, fields: Object) -> None:
        part = annotated({"type": "output_text", "text": fields.get("text")}, self._found.hits)
        names = ("item_id", "output_index", "content_index")
        await self._splice.cite(part, **{name: fields.get(name) for name in names})

    def _cited(self, item: Object) -> Object:
        if item.get("type") != "message":
            return item
        parts = [annotated(as_object(part), self._found.hits) for part in as_list(item["content"])]
        return {**item, "content": parts}


_DONE_BY_UPSTREAMS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_call", "tool_search_call"),
)


def _is_ours(item: Object) -> bool:
    return item.get("type") == "function_call" and item.get("name") == NAME


def _error_of(event: Object) -> Object:
    return error_of(event.get("error")) or {
        name: event.get(name) for name in ("code", "message", "param")
    }


async def _events(response: httpx2.Response) -> AsyncIterator[Object]:
    async for data in events(response.aiter_bytes()):
        if data == DONE:
            return
        yield parsed(data)
