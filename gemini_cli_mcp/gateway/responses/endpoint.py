"""One response for the client, by an upstream that knows them, or else by its chat completions."""

import re
from collections.abc import Sequence

from gemini_cli_mcp.gateway.continuations import ParkedResponses, conversation_of
from gemini_cli_mcp.gateway.response_writer import Outlet
from gemini_cli_mcp.gateway.responses.builder import Splice
from gemini_cli_mcp.gateway.responses.native import Native
from gemini_cli_mcp.gateway.responses.via_chat import Converted, as_chat, described
from gemini_cli_mcp.gateway.search_runner import Searches
from gemini_cli_mcp.gateway.tool_loop import Rounds
from gemini_cli_mcp.gateway.upstream_client import Headers, Line, Refused
from gemini_cli_mcp.json_values import Object, as_list
from gemini_cli_mcp.settings.engines_file import Engines

SOURCES = "web_search_call.action.sources"
"""What a client includes that wants to know what each search found."""


class Responses:
    """One request to `/v1/responses`."""

    def __init__(
        self,
        line: Line,
        request: Object,
        engines: Engines | None,
        searches: Searches,
        owner: str,
        parked: ParkedResponses,
        previous: object = None,
    ) -> None:
        """Without engines the request does not get our tool.

        `previous` is the response that the client goes on from, by the name that it knows.
        """
        self.line = line
        self.request = request
        self.engines = engines
        self._searches = searches
        self._owner = owner
        self._parked = parked
        sources = SOURCES in as_list(request.get("include"))
        self._splice = Splice(described(request), sources=sources, previous=previous)

    async def native(self, outlet: Outlet) -> None:
        """By the upstream's own responses; Refused, among others, if it knows none."""
        heard = self._heard(outlet)
        native = Native(self.line, self.request, self.engines, self._searches, self._splice, heard)
        response = await native.run()
        if native.ending:
            self._parked.end(self._owner, str(response.get("id")), native.ending)
        conversation = conversation_of(self.request)
        if native.ending and native.ending.outputs and conversation:
            self._parked.end(self._owner, conversation, native.ending)
        await self._done(outlet, response, native.headers, native.theirs)

    async def converted(self, outlet: Outlet) -> None:
        """By the upstream's chat completions; Unsupported if they cannot do it."""
        chat = as_chat(self.request)
        listener = Converted(self._splice, self._searches, self._heard(outlet))
        rounds = Rounds(self.line, chat, self.engines, self._searches, listener)
        try:
            last = await rounds.run()
        except Exception:
            listener.join_all()
            raise
        response = await listener.end(last, rounds.usage)
        theirs = [call.id for call in last.theirs]
        await self._done(outlet, response, listener.headers, theirs)

    async def fail(self, error: Object) -> None:
        """Tell the client why a stream ends here."""
        await self._splice.fail(error)

    def _heard(self, outlet: Outlet) -> Outlet | None:
        """The client's end of a stream, which hears the events from now on."""
        if not self.request.get("stream"):
            return None
        self._splice.tell = outlet.tell
        return outlet

    async def _done(
        self, outlet: Outlet, response: Object, headers: Headers, theirs: Sequence[str]
    ) -> None:
        if theirs:
            self._parked.keep(self._owner, self._splice.searched, theirs)
        if self.request.get("stream"):
            await outlet.end()
        else:
            await outlet.answer_json(200, headers, response)


_NO_PATH = re.compile(
    r"(?i)\s*(?:404 )?(?:page |file |route |endpoint |path )?(?:not found|invalid url|unknown "
    r"(?:request )?url|unexpected endpoint|no such (?:route|path|endpoint))"
)


def knows_no_responses(refused: Refused) -> bool:
    """Whether an upstream has no such path, as opposed to no such model or stored response."""
    if refused.status in (405, 501):
        return True
    told = refused.told
    return refused.status == 404 and (told is None or bool(_NO_PATH.match(told)))
