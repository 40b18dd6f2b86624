"""Answer a Responses request with the upstream's Responses API or its chat completions."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gemini_cli_mcp.gateway.events import TurnStarted
from gemini_cli_mcp.gateway.passthrough import pass_through
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.responses.builder import ResponseBuilder
from gemini_cli_mcp.gateway.responses.continuations import ResponseContinuations
from gemini_cli_mcp.gateway.responses.events import ResponseFinished, ResponsesEvent
from gemini_cli_mcp.gateway.responses.native import RESPONSES_PATH, native_loop
from gemini_cli_mcp.gateway.responses.output import WireEvent
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.responses.via_chat import via_chat
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.upstream_capabilities import UpstreamCapabilities
from gemini_cli_mcp.gateway.upstream_client import Headers, UpstreamClient, UpstreamRejected
from gemini_cli_mcp.settings.engines import Engines


@dataclass(frozen=True)
class ResponsesEndpoint:
    """One request to `/v1/responses`."""

    upstream: UpstreamClient
    request: ResponsesRequest
    engines: Engines | None
    """Without engines the request does not get our tool."""
    runner: SearchRunner
    owner: str
    continuations: ResponseContinuations
    capabilities: UpstreamCapabilities
    previous_response_id: object = None
    """The response that the client continues, as the client knows it."""

    async def pass_through_or_answer(self, writer: ResponseWriter, content: bytes) -> None:
        """Pass the request through byte for byte if the upstream has the Responses API."""
        upstream = self.upstream.upstream
        if self.capabilities.supports_responses(upstream):
            try:
                status = await pass_through(
                    "POST",
                    self.upstream,
                    RESPONSES_PATH,
                    writer,
                    content,
                    keep_encoding=self.capabilities.is_native(upstream),
                )
            except UpstreamRejected as error:
                self.capabilities.mark_chat_only(upstream, error)
            else:
                if status == 200:
                    self.capabilities.mark_native(upstream)
                return
        await self.answer(writer)

    async def answer(self, writer: ResponseWriter) -> None:
        """Run the tool loop and answer with its outcome, streamed or complete."""
        builder = ResponseBuilder(self.request, self.previous_response_id)
        if self.request.stream:
            await writer.stream(
                lambda writer: self._answer(builder, writer),
                lambda error: _send_events(writer, builder.fail(error)),
            )
        else:
            await self._answer(builder, writer)

    async def _answer(self, builder: ResponseBuilder, writer: ResponseWriter) -> None:
        """Use the API that the upstream supports."""
        upstream = self.upstream.upstream
        with self.upstream.limit_turns() as client:
            if self.capabilities.supports_responses(upstream):
                loop = native_loop(self.request, client, self.engines, self.runner)
                try:
                    await self._write(loop, builder, writer)
                except UpstreamRejected as error:
                    self.capabilities.mark_chat_only(upstream, error)
                else:
                    self.capabilities.mark_native(upstream)
                    return
            loop = via_chat(self.request, client, self.engines, self.runner)
            await self._write(loop, builder, writer)

    async def _write(
        self,
        loop: AsyncGenerator[ResponsesEvent],
        builder: ResponseBuilder,
        writer: ResponseWriter,
    ) -> None:
        """Send each event as soon as the loop yields it, or the response at the end."""
        streaming = self.request.stream
        headers: Headers = []
        async with aclosing(loop) as events:
            async for event in events:
                if isinstance(event, TurnStarted):
                    headers = event.headers
                    if streaming:
                        await writer.open_stream(headers)
                wire_events = builder.apply(event)
                if isinstance(event, ResponseFinished):
                    self._keep(event, builder)  # before the client can send its next request
                if streaming:
                    await _send_events(writer, wire_events)
        if streaming:
            await writer.end()
        else:
            await writer.send_json(200, headers, builder.response)

    def _keep(self, finished: ResponseFinished, builder: ResponseBuilder) -> None:
        """Keep what the upstream needs again with the client's next request."""
        response_id = str(builder.response.get("id"))
        continuation = finished.continuation
        if continuation and (
            continuation.pending_searches or continuation.response_id != response_id
        ):
            self.continuations.keep_upstream(self.owner, response_id, continuation)
        conversation = self.request.conversation_key
        if continuation and continuation.pending_searches and conversation:
            self.continuations.keep_upstream(self.owner, conversation, continuation)
        if finished.client_call_ids:
            self.continuations.keep_searches(
                self.owner, builder.finished_searches, finished.client_call_ids
            )


async def _send_events(writer: ResponseWriter, events: Sequence[WireEvent]) -> None:
    for event in events:
        await writer.send_event(event.as_json())
