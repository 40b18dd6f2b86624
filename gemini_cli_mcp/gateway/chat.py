"""One chat completion of however many rounds, at once or as it comes."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
import httpx2

from gemini_cli_mcp.engines import Engines
from gemini_cli_mcp.gateway.calls import Call, Calls
from gemini_cli_mcp.gateway.citations import citations
from gemini_cli_mcp.gateway.injection import with_search
from gemini_cli_mcp.gateway.line import Broken, Line, Refused, beside, refused, whole
from gemini_cli_mcp.gateway.outlet import Outlet
from gemini_cli_mcp.gateway.searches import Searches, bounded
from gemini_cli_mcp.gateway.sse import DONE, event, events
from gemini_cli_mcp.models import Object, as_list, as_object

PATH = "/chat/completions"
GAP = "\n\n"
"""Between what a model says before a search and after it."""

Keep = Callable[[list[str], list[Object]], None]
"""Keeps what the client does not see of a mixed turn, for the ids of its own calls."""


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


class Chat:
    """One request of a client that gets our tool."""

    def __init__(
        self, line: Line, request: Object, engines: Engines, searches: Searches, keep: Keep
    ) -> None:
        self._line = line
        self._request = request
        self._engines = engines
        self._searches = searches
        self._keep = keep
        self._text = ""
        self._usage: Object = {}

    async def answer(self, outlet: Outlet) -> None:
        """Answer the client."""
        if self._request.get("stream"):
            await self._stream(outlet)
        else:
            await self._at_once(outlet)

    async def _rounds(self, ask: Callable[[Object], Awaitable[Round]]) -> Round:
        """Ask, search, and ask again, until there is an answer for the client; the last round."""
        added: list[Object] = []
        while True:
            engines = self._engines if self._searches.may_go_on else None
            answer = await ask(with_search(self._request, engines, added))
            if not answer.ours or not engines:
                return answer
            results = await self._searches.results(answer.ours)
            calls = [call.as_message() for call in answer.calls]
            turn: list[Object] = [{**answer.message, "role": "assistant", "tool_calls": calls}]
            for call, result in zip(answer.ours, results, strict=True):
                turn.append({"role": "tool", "tool_call_id": call.id, "content": bounded(result)})
            if answer.theirs:
                self._keep([call.id for call in answer.theirs], added + turn)
                return answer
            added += turn

    def _reason(self, last: Round) -> str:
        if last.ours:
            return "tool_calls" if last.theirs else "stop"
        return last.finish_reason or "stop"

    def _add(self, text: str) -> str:
        """The text as it follows on what was said in earlier rounds."""
        self._text += text
        return text

    def _gap(self) -> str:
        return GAP if self._text and not self._text.endswith("\n") else ""

    def _instead(self, last: Round) -> str:
        """Words for a model that has none: it was out of searches, and asked for another one."""
        if self._text or not last.ours or last.theirs:
            return ""
        found = [f"- {hit.get('title')}: {hit.get('url')}" for hit in self._searches.hits[:10]]
        return "\n".join(["The model gave no answer before its searches were used up.", *found])

    def _annotations(self) -> list[Object]:
        cited = citations(self._text, self._searches.hits)
        return [{"type": "url_citation", "url_citation": citation} for citation in cited]

    # At once

    async def _at_once(self, outlet: Outlet) -> None:
        first: Object = {}
        answer: Object = {}
        headers: Mapping[str, str] = {}

        async def ask(body: Object) -> Round:
            nonlocal answer, headers
            async with self._line.ask(PATH, body) as response:
                content = await whole(response)
                headers = beside(response)
            answer = _completion(content)
            first.update({} if first else answer)
            self._usage = added_up(self._usage, as_object(answer.get("usage")))
            message = as_object(_choice(answer).get("message"))
            calls = Calls()
            calls.take(message.get("tool_calls"))
            if text := message.get("content"):
                self._add(self._gap() + str(text))
            reason = _choice(answer).get("finish_reason")
            return Round(message, calls.all, reason)

        last = await self._rounds(ask)
        self._add(self._instead(last))
        message = dict(last.message)
        if self._text:
            message["content"] = self._text
        if last.ours:
            message.pop("tool_calls", None)
            if last.theirs:
                message["tool_calls"] = [call.as_message() for call in last.theirs]
        if cited := self._annotations():
            message["annotations"] = cited
        choice = {**_choice(answer), "message": message, "finish_reason": self._reason(last)}
        told = {**answer, "choices": [choice]}
        told |= {name: first[name] for name in ("id", "created", "model") if name in first}
        if self._usage:
            told["usage"] = self._usage
        body = json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")
        await outlet.answer(200, {**headers, "content-type": "application/json"}, body)

    # As it comes

    async def _stream(self, outlet: Outlet) -> None:
        failure: Refused | Broken | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outlet.stay_alive)
            try:
                await self._relay(outlet)
            except (Refused, Broken) as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure and not outlet.started:
            raise failure
        if failure:  # without [DONE]: to no client this looks like an end
            await outlet.tell({"error": failure.error})
            await outlet.end()

    async def _relay(self, outlet: Outlet) -> None:
        voice = Voice(outlet)
        last = await self._rounds(lambda body: self._heard(voice, body))
        if instead := self._instead(last):
            await voice.say({"content": self._add(instead)})
        if cited := self._annotations():
            await voice.say({"annotations": cited})
        await voice.say({}, self._reason(last))
        if self._usage and as_object(self._request.get("stream_options")).get("include_usage"):
            await outlet.tell({**voice.head, "choices": [], "usage": self._usage})
        await outlet.end(event(DONE))

    async def _heard(self, voice: "Voice", body: Object) -> Round:
        """One round, passed on while it is heard."""
        stream = Stream()
        gap = self._gap()
        async with self._line.ask(PATH, body) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise await refused(response)
            await voice.outlet.open(beside(response))
            async for chunk in stream.chunks(response):
                delta = stream.shown(chunk)
                if text := delta.get("content"):
                    delta["content"] = self._add(gap + str(text))
                    gap = ""
                await voice.repeat(chunk, delta)
        self._usage = added_up(self._usage, stream.usage)
        if held := stream.calls.rest():
            await voice.say({"tool_calls": held})
        return stream.round()


@dataclass
class Voice:
    """Chunks for the client, all of one answer."""

    outlet: Outlet
    head: Object = field(default_factory=dict[str, object])

    async def repeat(self, chunk: Object, delta: Object) -> None:
        """A chunk of the upstream with this delta, if that still says something."""
        if not self.head:
            self.head = {name: chunk[name] for name in _HEAD if name in chunk}
            delta = {"role": "assistant", **delta}  # openai-node insists on it
        elif not any(value for name, value in delta.items() if name != "role"):
            return
        else:
            delta.pop("role", None)
        rest = {name: value for name, value in chunk.items() if name not in _TAKEN}
        await self.say(delta, **rest)

    async def say(self, delta: Object, reason: str | None = None, **rest: object) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        await self.outlet.tell({**self.head, **rest, "choices": [choice]})


_HEAD = ("id", "object", "created", "model")
"""What is the same in all chunks of one answer."""
_TAKEN = (*_HEAD, "choices", "usage")


class Stream:
    """One round as a stream."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.usage: Object = {}
        self._message = Round().message
        self._reason: str | None = None

    async def chunks(self, response: httpx2.Response) -> AsyncIterator[Object]:
        """All chunks up to the end; Broken if there is none."""
        async for data in events(response.aiter_bytes()):
            if data == DONE:
                return
            chunk = _parsed(data)
            if error := chunk.get("error"):
                raise Broken("The upstream failed.", as_object(error))
            yield chunk
        if self._reason is None:
            raise Broken("The upstream's answer broke off.")

    def shown(self, chunk: Object) -> Object:
        """Take a chunk; of its delta, what the client sees: all but our calls."""
        self.usage = as_object(chunk.get("usage")) or self.usage
        choice = _choice(chunk)
        delta = as_object(choice.get("delta"))
        self._reason = choice.get("finish_reason") or self._reason
        shown = {name: value for name, value in delta.items() if name != "tool_calls"}
        for name, value in shown.items():
            if isinstance(value, str) and name != "role":
                self._message[name] = str(self._message.get(name) or "") + value
        if calls := self.calls.take(delta.get("tool_calls")):
            shown["tool_calls"] = calls
        return shown

    def round(self) -> Round:
        return Round(self._message, self.calls.all, self._reason)


def added_up(total: Object, usage: Object) -> Object:
    """Two usages as one."""
    added = dict(total)
    for name, value in usage.items():
        before = added.get(name)
        if isinstance(value, dict):
            added[name] = added_up(as_object(before), as_object(usage[name]))
        elif isinstance(value, int | float) and isinstance(before, int | float):
            added[name] = before + value
        else:
            added[name] = value
    return added


def _completion(content: bytes) -> Object:
    answer = _parsed(content)
    if not _choice(answer):
        raise Broken("The upstream sent no answer.", as_object(answer.get("error")))
    return answer


def _parsed(data: str | bytes) -> Object:
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        raise Broken("The upstream sent what is no JSON.") from None


def _choice(answer: Object) -> Object:
    return as_object(next(iter(as_list(answer.get("choices"))), None))
