"""One response for the client, by an upstream that knows them, or else by its chat completions."""

from gemini_cli_mcp.engines import Engines
from gemini_cli_mcp.gateway.conversion import Converted, as_chat, described
from gemini_cli_mcp.gateway.line import Headers, Line, Refused
from gemini_cli_mcp.gateway.native import Native
from gemini_cli_mcp.gateway.outlet import Outlet
from gemini_cli_mcp.gateway.parked import ParkedResponses
from gemini_cli_mcp.gateway.rounds import Rounds
from gemini_cli_mcp.gateway.searches import Searches
from gemini_cli_mcp.gateway.splice import Splice
from gemini_cli_mcp.models import Object, as_list, as_object

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
    ) -> None:
        """Without engines the request does not get our tool."""
        self.line = line
        self.request = request
        self.engines = engines
        self._searches = searches
        self._owner = owner
        self._parked = parked
        sources = SOURCES in as_list(request.get("include"))
        self._splice = Splice(described(request), sources=sources)

    async def native(self, outlet: Outlet) -> None:
        """By the upstream's own responses; Refused, among others, if it knows none."""
        heard = self._heard(outlet)
        native = Native(self.line, self.request, self.engines, self._searches, self._splice, heard)
        response = await native.run()
        if native.ending:
            self._parked.end(self._owner, str(response["id"]), native.ending)
        await self._done(outlet, response, native.headers)

    async def converted(self, outlet: Outlet) -> None:
        """By the upstream's chat completions; Unsupported if they cannot do it."""
        chat = as_chat(self.request)
        listener = Converted(self._splice, self._searches, self._heard(outlet))
        rounds = Rounds(self.line, chat, self.engines, self._searches, listener)
        last = await rounds.run()
        response = await listener.end(last, rounds.usage)
        await self._done(outlet, response, listener.headers)

    async def fail(self, error: Object) -> None:
        """Tell the client why a stream ends here."""
        await self._splice.fail(error)

    def _heard(self, outlet: Outlet) -> Outlet | None:
        """The client's end of a stream, which hears the events from now on."""
        if not self.request.get("stream"):
            return None
        self._splice.tell = outlet.tell
        return outlet

    async def _done(self, outlet: Outlet, response: Object, headers: Headers) -> None:
        if any(as_object(item).get("type") == "function_call" for item in self._splice.output):
            self._parked.keep(self._owner, self._splice.searched)
        if self.request.get("stream"):
            await outlet.end()
        else:
            await outlet.answer_json(200, headers, response)


def knows_no_responses(refused: Refused) -> bool:
    """Whether an upstream has no such path, as opposed to no such model."""
    if refused.status in (405, 501):
        return True
    return refused.status == 404 and "model" not in str(refused.error.get("message")).lower()
