"""Rounds with an upstream of the Responses API, spliced into one response for the client."""

from collections import Counter
from collections.abc import AsyncIterator

import httpx2

from gemini_cli_mcp.gateway.continuations import Ending, as_output
from gemini_cli_mcp.gateway.response_writer import Outlet
from gemini_cli_mcp.gateway.responses.builder import Splice, annotated
from gemini_cli_mcp.gateway.search_runner import ENOUGH, Searches
from gemini_cli_mcp.gateway.sse import DONE, events
from gemini_cli_mcp.gateway.tool_calls import NAME, Call
from gemini_cli_mcp.gateway.tool_injection import is_hosted, with_search
from gemini_cli_mcp.gateway.tool_loop import added_up, parsed
from gemini_cli_mcp.gateway.upstream_client import Broken, Headers, Line, beside, error_of
from gemini_cli_mcp.json_values import Object, as_count, as_list, as_object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.engines_file import Engines

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
        self.theirs: list[str] = []
        """The ids of what the client has to do now."""
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
            most = self._line.limits.upstream_calls
            last = _Round(self._splice, self._found, most, visible=engines is not None)
            # A conversation holds all of it already.
            stored = self._request.get("conversation") is not None and turns
            request: Object = {**self._request, "input": []} if stored else self._request
            await self._ask(last, with_search(request, engines, turns))
            self._usage = added_up(self._usage, as_object(last.response.get("usage")))
            results: list[Object] = [{"error": ENOUGH}] * len(last.calls)
            going_on = engines is not None and last.status == "completed"
            if going_on and last.calls:
                results = await self._found.results(last.calls)
            if engines:
                await self._splice.finds(last.calls, results)
            pairs = zip(last.calls, results, strict=True)
            outputs = [as_output(call, result) for call, result in pairs]
            if not outputs or not going_on or last.theirs:
                return await self._end(last, outputs)
            if self._request.get("conversation") is not None:
                turns = outputs
            else:
                turns += [*self._replayed(last.items), *outputs]

    async def _ask(self, asked: "_Round", body: Object) -> None:
        async with self._line.ask(PATH, body) as response:
            if not self._request.get("stream"):
                answer = parsed(await self._line.whole(response))
                self.headers = beside(response)
                await asked.take_whole(answer, self._own(answer))
                return
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                error = await self._line.refused(response)  # some do not stream, or fail so
                answer = parsed(error.body)
                if "output" not in answer:
                    raise error
                if self._outlet:
                    await self._outlet.open(beside(response))
                await asked.take_whole(answer, self._own(answer))
                return
            if self._outlet:
                await self._outlet.open(beside(response))
            async for event in _events(response, self._line.limits):
                told = as_object(event.get("response"))
                await asked.take(event, self._own(told))
            if not asked.response:
                raise Broken("The upstream's answer broke off.")

    async def _end(self, last: "_Round", outputs: list[Object]) -> Object:
        known, actual = self._splice.response.get("id"), last.response.get("id")
        if known != actual or outputs:
            self.ending = Ending(str(actual), outputs)
        self.theirs = last.theirs
        if last.calls and not last.theirs and not last.has_text:
            await self._splice.message(self._found.as_answer(), self._found.hits)
        told = {
            name: value for name, value in self._own(last.response).items() if name not in _FIRST
        }
        if self._usage:
            told["usage"] = self._usage
        told["status"] = last.status
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

    def __init__(self, splice: Splice, searches: Searches, most: int, *, visible: bool) -> None:
        """An upstream that makes more than `most` items is not one."""
        self._most = most
        self.response: Object = {}
        """The upstream's own, at its end."""
        self.items: list[Object] = []
        self.calls: list[Call] = []
        self._splice = splice
        self._found = searches
        self._visible = visible
        self.status = "completed"
        self._places: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._cited_already: Counter[tuple[int, int]] = Counter()

    @property
    def theirs(self) -> list[str]:
        """The ids of what the client has to do now."""
        return [
            str(item.get("call_id") or item.get("id"))
            for item in self.items
            if not _is_ours(item) and _is_theirs(item)
        ]

    @property
    def has_text(self) -> bool:
        return any(item.get("type") == "message" for item in self.items)

    async def take_whole(self, answer: Object, own: Object) -> None:
        if not answer.get("id") or "output" not in answer:
            raise Broken("The upstream sent no response.", error_of(answer.get("error")))
        if not self._splice.response:
            await self._splice.begin(own)
        self.response = answer
        self.status = str(answer.get("status") or "completed")
        for item in map(as_object, as_list(answer.get("output"))):
            await self._take_whole_item(item)

    async def _take_whole_item(self, item: Object) -> None:
        if _is_ours(item):
            await self._call(item)
        else:
            self._add(item)
            await self._splice.whole(item, self._found.hits)

    async def take(self, event: Object, own: Object) -> None:
        """Take one event of a stream, and pass it on as one of the whole."""
        kind = str(event.get("type"))
        if kind == "error" or (event.get("error") and "type" not in event):
            raise Broken("The upstream failed.", _error_of(event))
        if not self._splice.response:
            await self._splice.begin(own or self._splice.blank)
        if kind in _ENDS:
            await self._finish(kind, as_object(event.get("response")))
        elif kind.startswith("response.output_item."):
            await self._take_item(kind, event)
        elif kind not in _BEGINS and as_count(event.get("output_index")) not in self._hidden:
            await self._pass(kind, event)

    async def _finish(self, kind: str, response: Object) -> None:
        if kind == "response.failed" and not as_object(response.get("error")):
            raise Broken("The upstream failed.")
        self.response = response or {"status": kind}
        self.status = kind.removeprefix("response.")
        if self.status == "failed":
            return
        told = {str(item.get("id")) for item in self.items}
        for item in map(as_object, as_list(response.get("output"))):
            if str(item.get("id")) not in told:  # some tell no more than the end
                await self._take_whole_item(item)

    async def _take_item(self, kind: str, event: Object) -> None:
        item, index = as_object(event.get("item")), as_count(event.get("output_index"))
        if kind == "response.output_item.added":
            if len(self._places) + len(self._hidden) >= self._most:
                raise Broken(f"The upstream sent more than {self._most:,} items.")
            if _is_ours(item):
                self._hidden.add(index)
            else:
                self._places[index] = await self._splice.open(item)
        elif _is_ours(item):
            await self._call(item)
        else:
            self._add(item)
            if index not in self._places:
                self._places[index] = await self._splice.open(item)
            await self._splice.close(self._places[index], self._cited(item))

    async def _call(self, item: Object) -> None:
        call = Call(str(item.get("call_id")), NAME, str(item.get("arguments") or ""))
        self.calls.append(call)
        self._add(item)
        if self._visible:
            await self._splice.searches([call])

    def _add(self, item: Object) -> None:
        if len(self.items) == self._most:
            raise Broken(f"The upstream sent more than {self._most:,} items.")
        self.items.append(item)

    async def _pass(self, kind: str, event: Object) -> None:
        fields = {name: event[name] for name in event if name not in ("type", "sequence_number")}
        if "output_index" in fields:
            place = self._places.get(as_count(fields["output_index"]))
            if place is None:
                return  # of an item that nobody was told of
            fields["output_index"] = place
        if kind == "response.output_text.annotation.added":
            self._cited_already[_part(fields)] += 1
        if kind == "response.output_text.done":
            await self._cite(fields)
        if kind == "response.content_part.done":
            fields["part"] = annotated(as_object(fields.get("part")), self._found.hits)
        await self._splice.say(kind, **fields)

    async def _cite(self, fields: Object) -> None:
        part = annotated({"type": "output_text", "text": fields.get("text")}, self._found.hits)
        names = ("item_id", "output_index", "content_index")
        first = self._cited_already[_part(fields)]
        await self._splice.cite(part, first, **{name: fields.get(name) for name in names})

    def _cited(self, item: Object) -> Object:
        if item.get("type") != "message":
            return item
        parts = [as_object(part) for part in as_list(item.get("content"))]
        return {**item, "content": [annotated(part, self._found.hits) for part in parts]}


_DONE_BY_UPSTREAMS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    "mcp_call",
)


def _part(fields: Object) -> tuple[int, int]:
    return as_count(fields.get("output_index")), as_count(fields.get("content_index"))


def _is_theirs(item: Object) -> bool:
    """Whether an item wants something of the client."""
    kind = str(item.get("type"))
    if kind == "tool_search_call":
        return item.get("execution") != "server"
    asks = kind.endswith("_call") or kind == "mcp_approval_request"
    return asks and kind not in _DONE_BY_UPSTREAMS


def _is_ours(item: Object) -> bool:
    return item.get("type") == "function_call" and item.get("name") == NAME


def _error_of(event: Object) -> Object:
    return error_of(event.get("error")) or {
        name: event.get(name) for name in ("code", "message", "param")
    }


async def _events(response: httpx2.Response, limits: Limits) -> AsyncIterator[Object]:
    async for data in events(response.aiter_bytes(), limits):
        if data == DONE:
            return
        yield parsed(data)
