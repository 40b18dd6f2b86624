"""One chat completion for the client, of however many rounds, at once or as it comes."""

from collections.abc import Callable, Sequence

from gemini_cli_mcp.gateway.annotations import citations
from gemini_cli_mcp.gateway.response_writer import Outlet
from gemini_cli_mcp.gateway.search_runner import Searches
from gemini_cli_mcp.gateway.sse import DONE, event
from gemini_cli_mcp.gateway.tool_calls import Call
from gemini_cli_mcp.gateway.tool_loop import Round, Rounds, choice_of
from gemini_cli_mcp.gateway.upstream_client import Headers, Line
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.settings.engines_file import Engines

GAP = "\n\n"
"""Between what a model says before a search and after it."""

CHUNK = "chat.completion.chunk"

Keep = Callable[[list[str], list[Object]], None]
"""Keeps what the client does not see of a turn, for the ids of its own calls."""


class Chat:
    """One request of a client that gets our tool; it listens to the rounds."""

    def __init__(
        self, line: Line, request: Object, engines: Engines, searches: Searches, keep: Keep
    ) -> None:
        self._request = request
        self._found = searches
        self._keep = keep
        self._rounds = Rounds(line, request, engines, searches, self)
        self._outlet: Outlet | None = None
        """The client's end of a stream."""
        self._headers: Headers = []
        self._head: Object = {}
        """What all chunks of the answer have in common."""
        self._beside: Object = {}
        """What the upstream's last chunk said beside its delta."""
        self._answer: Object = {}
        """The last whole answer of the upstream."""
        self._begun = False
        self._texts: list[str] = []
        """Pieces of what the client has been told."""
        self._gap = ""

    async def answer(self, outlet: Outlet) -> None:
        """Answer the client."""
        if self._request.get("stream"):
            await outlet.stream(self._stream, lambda error: outlet.tell({"error": error}))
        else:
            await self._at_once(outlet)

    async def _at_once(self, outlet: Outlet) -> None:
        last = await self._run()
        message = dict(last.message)
        self._say_text(self._instead(last))
        if self._texts:
            message["content"] = "".join(self._texts)
        if last.ours:
            message.pop("tool_calls", None)
        if last.ours and last.theirs:
            message["tool_calls"] = [call.as_message() for call in last.theirs]
        if cited := self._annotations():
            message["annotations"] = cited
        choice = {**choice_of(self._answer), "message": message, "finish_reason": _reason(last)}
        told = {**self._answer, **self._head, "object": "chat.completion", "choices": [choice]}
        if self._rounds.usage:
            told["usage"] = self._rounds.usage
        await outlet.answer_json(200, self._headers, told)

    async def _stream(self, outlet: Outlet) -> None:
        self._outlet = outlet
        last = await self._run()
        if instead := self._instead(last):
            self._say_text(instead)
            await self._say({"content": instead})
        if cited := self._annotations():
            await self._say({"annotations": cited})
        await self._say({}, _reason(last), beside=self._beside, choice=choice_of(self._answer))
        usage = self._rounds.usage
        if usage and as_object(self._request.get("stream_options")).get("include_usage"):
            told: Object = {"object": CHUNK, **self._head, "choices": [], "usage": usage}
            await outlet.tell(told)
        await outlet.end(event(DONE))

    async def _run(self) -> Round:
        last = await self._rounds.run()
        if last.theirs and self._rounds.turns:
            self._keep([call.id for call in last.theirs], self._turns(last))
        return last

    def _turns(self, last: Round) -> list[Object]:
        """What stands in the transcript for the message that the client sees."""
        if last.ours:
            return self._rounds.turns
        calls = [call.as_message() for call in last.calls]
        return [*self._rounds.turns, {**last.message, "role": "assistant", "tool_calls": calls}]

    async def _say(
        self,
        delta: Object,
        reason: str | None = None,
        *,
        beside: Object | None = None,
        choice: Object | None = None,
    ) -> None:
        if self._outlet:
            said = {**(choice or {}), "index": 0, "delta": delta, "finish_reason": reason}
            told = {**(beside or {}), "object": CHUNK, **self._head, "choices": [said]}
            await self._outlet.tell(told)

    def _instead(self, last: Round) -> str:
        """Words for a model that has none: it was out of searches, and asked for another one."""
        if last.message.get("content") or not last.ours or last.theirs:
            return ""
        return self._gap + self._found.as_answer()

    def _annotations(self) -> list[Object]:
        cited = citations("".join(self._texts), self._found.hits)
        return [{"type": "url_citation", "url_citation": citation} for citation in cited]

    def _say_text(self, text: str) -> None:
        if text:
            self._texts.append(text)

    # What is heard

    async def begins(self, headers: Headers) -> None:
        self._headers = headers
        self._gap = GAP if self._texts and not self._texts[-1].endswith("\n") else ""
        if self._outlet:
            await self._outlet.open(headers)

    async def hears(self, chunk: Object, delta: Object) -> None:
        """Pass a chunk of the upstream on with this delta, if that still says something."""
        self._answer = chunk or self._answer
        for name in _HEAD:
            if chunk.get(name) and name not in self._head:
                self._head[name] = chunk[name]
        text = delta.get("content")
        if text and isinstance(text, str):
            delta = {**delta, "content": f"{self._gap}{text}"}
            self._say_text(delta["content"])
            self._gap = ""
        said = {name: value for name, value in delta.items() if name != "role"}
        rest = {name: value for name, value in chunk.items() if name not in _TAKEN}
        self._beside = rest if self._begun and chunk else {**self._beside, **rest}
        if not self._begun:
            if not chunk.get("id") and not said:  # Azure begins with a chunk that says nothing
                return
            self._begun = True
            said = {"role": "assistant", **said}  # openai-node insists on it
        elif not any(value not in (None, "", []) for value in said.values()):
            return
        await self._say(said, beside=self._beside, choice=choice_of(chunk))

    async def searches(self, calls: Sequence[Call]) -> None:
        """The client is told nothing of them but signs of life."""

    async def finds(self, calls: Sequence[Call], results: Sequence[Object]) -> None:
        """Nor of what they found."""


_HEAD = ("id", "created", "model")
"""What is the same in all chunks of one answer."""
_TAKEN = (*_HEAD, "choices", "usage")


def _reason(last: Round) -> str:
    if last.ours:
        return "tool_calls" if last.theirs else "stop"
    return last.finish_reason or "stop"
