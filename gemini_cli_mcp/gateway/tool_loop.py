"""Rounds with an upstream of chat completions: ask, search, ask again, until there is an answer."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx2

from gemini_cli_mcp.gateway.search_runner import Searches, bounded
from gemini_cli_mcp.gateway.sse import DONE, events
from gemini_cli_mcp.gateway.tool_calls import Call, Calls
from gemini_cli_mcp.gateway.tool_injection import with_search
from gemini_cli_mcp.gateway.upstream_client import Broken, Headers, Line, beside, error_of
from gemini_cli_mcp.json_values import Object, as_list, as_object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.engines_file import Engines

PATH = "/chat/completions"
MOST_VALUES = 1_000_000
"""Commas of one JSON text; parsing more of them would stop everybody else."""


@dataclass
class Round:
    """One answer of the upstream."""

    message: Object = field(default_factory=lambda: {"role": "assistant", "content": None})
    calls: list[Call] = field(default_factory=list[Call])
    finish_reason: str | None = None

    @property
    def theirs(self) -> list[Call]:
        return [call for call in self.calls if not call.is_ours]

    @property
    def ours(self) -> list[Call]:
        return [call for call in self.calls if call.is_ours]


class Listener(Protocol):
    """Who passes the rounds on to the client."""

    async def begins(self, headers: Headers) -> None:
        """An upstream answers; these headers of it are the client's."""
        ...

    async def hears(self, chunk: Object, delta: Object) -> None:
        """A chunk, or a whole answer, and what of it the client may see: all but our calls.

        The chunk is empty where calls were held until the end.
        """
        ...

    async def searches(self, calls: Sequence[Call]) -> None:
        """These are about to be made."""
        ...

    async def finds(self, calls: Sequence[Call], results: Sequence[Object]) -> None:
        """They are done."""
        ...


class Rounds:
    """The rounds of one request."""

    def __init__(
        self,
        line: Line,
        request: Object,
        engines: Engines | None,
        searches: Searches,
        listener: Listener,
    ) -> None:
        self._line = line
        self._request = request
        self._engines = engines
        self._searches = searches
        self._listener = listener
        self.usage: Object = {}
        self.turns: list[Object] = []
        """All messages that the client does not see."""

    async def run(self) -> Round:
        """The last round: an answer, or calls of the client's own."""
        ask = self._stream if self._request.get("stream") else self._at_once
        while True:
            engines = self._engines if self._searches.may_go_on else None
            answer = await ask(with_search(self._request, engines, self.turns))
            if not answer.ours or not engines:
                return answer
            await self._search(answer)
            if answer.theirs:
                return answer

    async def _search(self, answer: Round) -> None:
        await self._listener.searches(answer.ours)
        results = await self._searches.results(answer.ours)
        await self._listener.finds(answer.ours, results)
        calls = [call.as_message() for call in answer.calls]
        self.turns.append({**answer.message, "role": "assistant", "tool_calls": calls})
        for call, result in zip(answer.ours, results, strict=True):
            said = {"role": "tool", "tool_call_id": call.id, "content": bounded(result)}
            self.turns.append(said)

    async def _at_once(self, body: Object) -> Round:
        async with self._line.ask(PATH, body) as response:
            answer = _completion(await self._line.whole(response))
            await self._listener.begins(beside(response))
        return await self._whole(answer)

    async def _whole(self, answer: Object) -> Round:
        self.usage = added_up(self.usage, as_object(answer.get("usage")))
        message = as_object(choice_of(answer).get("message"))
        most = self._line.limits.upstream_calls
        calls = Calls(most, hides=self._engines is not None)
        delta = {name: value for name, value in message.items() if name != "tool_calls"}
        shown = calls.take(message.get("tool_calls")) + calls.rest()
        choice = {name: value for name, value in choice_of(answer).items() if name != "message"}
        told = {**answer, "choices": [choice]}
        await self._listener.hears(told, {**delta, "tool_calls": shown} if shown else delta)
        return Round(message, calls.all, choice_of(answer).get("finish_reason"))

    async def _stream(self, body: Object) -> Round:
        stream = _Stream(self._line.limits, hides=self._engines is not None)
        async with self._line.ask(PATH, body) as response:
            kind = response.headers.get("content-type", "").lower()
            if kind.startswith("application/json"):  # some do not stream, or fail so
                error = await self._line.refused(response)
                if not choice_of(parsed(error.body)):
                    raise error
                await self._listener.begins(beside(response))
                return await self._whole(parsed(error.body))
            await self._listener.begins(beside(response))
            async for chunk in stream.chunks(response):
                await self._listener.hears(chunk, stream.shown(chunk))
        self.usage = added_up(self.usage, stream.usage)
        if held := stream.calls.rest():
            await self._listener.hears({}, {"tool_calls": held})
        return stream.round()


class _Stream:
    """One round as a stream."""

    def __init__(self, limits: Limits, *, hides: bool) -> None:
        self.calls = Calls(limits.upstream_calls, hides=hides)
        self.usage: Object = {}
        self._limits = limits
        self._texts: dict[str, list[str]] = {}
        """Pieces of what the message says, by field."""
        self._lists: dict[str, list[object]] = {}
        self._reason: str | None = None
        self._done = False

    async def chunks(self, response: httpx2.Response) -> AsyncIterator[Object]:
        """All chunks up to the end; Broken if there is none."""
        async for data in events(response.aiter_bytes(), self._limits):
            if data == DONE:
                self._done = True
                break
            chunk = parsed(data)
            if chunk.get("error") or chunk.get("object") == "error":
                raise Broken("The upstream failed.", error_of(chunk.get("error") or chunk))
            yield chunk
        whole = self._done and self.calls.all and all(call.is_whole for call in self.calls.all)
        if self._reason is None and not whole:
            raise Broken("The upstream's answer broke off.")

    def shown(self, chunk: Object) -> Object:
        """Take a chunk; of its delta, what the client sees: all but our calls."""
        self.usage = as_object(chunk.get("usage")) or self.usage
        choice = choice_of(chunk)
        delta = as_object(choice.get("delta"))
        self._reason = choice.get("finish_reason") or self._reason
        shown = {name: value for name, value in delta.items() if name != "tool_calls"}
        for name, value in shown.items():
            if isinstance(value, str) and name != "role":
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):  # parts of reasoning that some want to hear again
                self._lists.setdefault(name, []).extend(as_list(delta[name]))
        if calls := self.calls.take(delta.get("tool_calls")):
            shown["tool_calls"] = calls
        return shown

    def round(self) -> Round:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message = {**Round().message, **self._lists, **texts}
        return Round(message, self.calls.all, self._reason)


def added_up(total: Object, usage: Object) -> Object:
    """Two usages as one."""
    added = dict(total)
    for name, value in usage.items():
        before = added.get(name)
        if value is None:
            added.setdefault(name, None)
        elif isinstance(value, dict):
            added[name] = added_up(as_object(before), as_object(usage[name]))
        elif isinstance(value, int | float) and isinstance(before, int | float):
            added[name] = before + value
        else:
            added[name] = value
    return added


def parsed(data: str | bytes) -> Object:
    """An object that an upstream sent."""
    text = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    if text.count(b",") > MOST_VALUES:
        raise Broken(f"The upstream sent more than {MOST_VALUES:,} values.")
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        raise Broken("The upstream sent what is no JSON.") from None


def choice_of(answer: Object) -> Object:
    return as_object(next(iter(as_list(answer.get("choices"))), None))


def _completion(content: bytes) -> Object:
    answer = parsed(content)
    if not choice_of(answer):
        raise Broken("The upstream sent no answer.", error_of(answer.get("error")))
    return answer
