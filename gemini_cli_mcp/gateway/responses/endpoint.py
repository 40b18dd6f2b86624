"""Answer a Responses request with the upstream's Responses API or its chat completions."""

from collections.abc import Sequence

from gemini_cli_mcp.gateway.continuations import ResponseContinuations, conversation_key
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.responses.builder import ResponseBuilder, initial_response
from gemini_cli_mcp.gateway.responses.chat_request import to_chat_request
from gemini_cli_mcp.gateway.responses.native import NativeLoop
from gemini_cli_mcp.gateway.responses.via_chat import ChatToResponses
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.tool_loop import ChatToolLoop
from gemini_cli_mcp.gateway.upstream_client import Headers, UpstreamClient
from gemini_cli_mcp.json_values import JsonObject, list_or_empty
from gemini_cli_mcp.settings.engines_file import Engines

INCLUDE_SOURCES = "web_search_call.action.sources"
"""The `include` value that requests the sources of each search."""


class ResponsesEndpoint:
    """One request to `/v1/responses`."""

    def __init__(
        self,
        upstream: UpstreamClient,
        request: JsonObject,
        engines: Engines | None,
        runner: SearchRunner,
        owner: str,
        continuations: ResponseContinuations,
        previous_response_id: object = None,
    ) -> None:
        """Without engines the request does not get our tool.

        `previous_response_id` is the response that the client continues, as the client knows it.
        """
        self.upstream = upstream
        self.request = request
        self.engines = engines
        self._runner = runner
        self._owner = owner
        self._continuations = continuations
        include_sources = INCLUDE_SOURCES in list_or_empty(request.get("include"))
        self._builder = ResponseBuilder(
            initial_response(request),
            include_sources=include_sources,
            previous_response_id=previous_response_id,
        )

    async def answer_natively(self, writer: ResponseWriter) -> None:
        """Use the Responses API; raise UpstreamRejected, for example if the upstream lacks it."""
        stream_writer = self._stream_writer(writer)
        loop = NativeLoop(
            self.upstream, self.request, self.engines, self._runner, self._builder, stream_writer
        )
        response = await loop.run()
        if loop.continuation:
            self._continuations.keep_upstream(
                self._owner, str(response.get("id")), loop.continuation
            )
        conversation = conversation_key(self.request)
        if loop.continuation and loop.continuation.pending_outputs and conversation:
            self._continuations.keep_upstream(self._owner, conversation, loop.continuation)
        await self._finish(writer, response, loop.headers, loop.client_call_ids)

    async def answer_via_chat(self, writer: ResponseWriter) -> None:
        """Use chat completions; raise UnsupportedByUpstream if they cannot express the request."""
        chat_request = to_chat_request(self.request)
        listener = ChatToResponses(self._builder, self._runner, self._stream_writer(writer))
        loop = ChatToolLoop(self.upstream, chat_request, self.engines, self._runner, listener)
        try:
            last_turn = await loop.run()
        except Exception:
            listener.join_all()
            raise
        response = await listener.end(last_turn, loop.usage)
        client_call_ids = [call.id for call in last_turn.client_calls]
        await self._finish(writer, response, listener.headers, client_call_ids)

    async def fail(self, error: JsonObject) -> None:
        """Report to the client why its stream ends."""
        await self._builder.fail(error)

    def _stream_writer(self, writer: ResponseWriter) -> ResponseWriter | None:
        """Send events to the writer and return it; None if the client requested no stream."""
        if not self.request.get("stream"):
            return None
        self._builder.send_event = writer.send_event
        return writer

    async def _finish(
        self,
        writer: ResponseWriter,
        response: JsonObject,
        headers: Headers,
        client_call_ids: Sequence[str],
    ) -> None:
        if client_call_ids:
            self._continuations.keep_searches(
                self._owner, self._builder.finished_searches, client_call_ids
            )
        if self.request.get("stream"):
            await writer.end()
        else:
            await writer.send_json(200, headers, response)
