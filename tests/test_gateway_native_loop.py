"""The loop over turns of a Responses upstream, and the response that is built from its events."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.events import SearchFinished, SearchStarted, TurnStarted
from gemini_cli_mcp.gateway.responses.builder import ResponseBuilder
from gemini_cli_mcp.gateway.responses.events import (
    ResponsesEvent,
    ResponseStarted,
    TextItemStarted,
    TextReceived,
    UpstreamEvent,
)
from gemini_cli_mcp.gateway.responses.items import FunctionCallItem, MessageItem
from gemini_cli_mcp.gateway.responses.native import native_loop
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.search_runner import NO_SEARCHES_LEFT, SearchRunner
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.gateway.upstream_client import UpstreamClient, UpstreamUnavailable
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.upstreams import Upstream
from tests.support import native_responses
from tests.support.scripted_upstream import ScriptedReply

REQUEST = ResponsesRequest({"model": "m", "input": "Hello!", "stream": True})


class RecordedStream(httpx2.AsyncByteStream):
    """A streamed body that records how much of it was read, and hangs after its last piece."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self.read_count = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.read_count += 1
            yield piece
        await anyio.sleep_forever()

    async def aclose(self) -> None:
        self.closed = True


def stream_of(reply: ScriptedReply) -> RecordedStream:
    events = native_responses.events({"model": "m"}, reply, 1)
    return RecordedStream([f"data: {json.dumps(event)}\n\n".encode() for event in events])


@asynccontextmanager
async def events_of(
    stream: RecordedStream, limits: Limits | None = None
) -> AsyncGenerator[AsyncGenerator[ResponsesEvent]]:
    """Yield the events of a loop whose upstream sends this stream."""

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as http:
        upstream = Upstream("native", "http://upstream.example/v1", None)
        client = UpstreamClient(upstream, http, [], limits or Limits())
        with client.limit_turns() as limited_client:
            loop = native_loop(REQUEST, limited_client, None, unused_runner())
            async with aclosing(loop) as events:
                yield events


def unused_runner() -> SearchRunner:
    async def search(arguments: object) -> Any:
        raise AssertionError(arguments)

    return SearchRunner(search, max_turns=3, timeout=10)


async def test_an_event_is_passed_on_before_the_next_one_is_read() -> None:
    stream = stream_of(ScriptedReply("Hello there."))
    read_counts: list[int] = []
    async with events_of(stream) as events:
        async for event in events:
            if isinstance(event, UpstreamEvent) and event.type == "response.output_text.delta":
                read_counts.append(stream.read_count)
            if len(read_counts) == 3:
                break

    assert read_counts == [5, 6, 7]  # created, in progress, item and part come first


async def test_the_upstream_response_is_closed_when_the_consumer_stops() -> None:
    stream = stream_of(ScriptedReply("Hello there."))
    async with events_of(stream) as events:
        assert isinstance(await anext(events), TurnStarted)
        assert isinstance(await anext(events), ResponseStarted)
        assert not stream.closed
        await events.aclose()

        assert stream.closed


async def test_a_consumer_that_is_cancelled_closes_the_upstream_response() -> None:
    stream = stream_of(ScriptedReply("Hello there."))
    with anyio.CancelScope() as scope:
        async with events_of(stream) as events:
            async for _ in events:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

    assert scope.cancelled_caught and stream.closed


async def consume(stream: RecordedStream, limits: Limits, *, blocks: bool = False) -> None:
    """Read all events as an endpoint does; one whose client does not read blocks at the first."""
    async with events_of(stream, limits) as events:
        async for _ in events:
            if blocks:
                await anyio.sleep_forever()


async def test_a_turn_that_never_ends_fails_at_its_deadline() -> None:
    stream = RecordedStream([])

    with anyio.fail_after(10), pytest.raises(UpstreamUnavailable, match=r"within 0\.05 s"):
        await consume(stream, Limits(upstream_turn_timeout=0.05))

    assert stream.closed


async def test_a_client_that_stops_reading_holds_the_upstream_no_longer_than_a_turn() -> None:
    stream = stream_of(ScriptedReply("Hello there."))

    with anyio.fail_after(10), pytest.raises(UpstreamUnavailable, match="did not finish"):
        await consume(stream, Limits(upstream_turn_timeout=0.05), blocks=True)

    assert stream.closed


def test_a_failed_response_contains_the_text_received_so_far() -> None:
    builder = ResponseBuilder(REQUEST)
    message, call = MessageItem(), FunctionCallItem("call_1", "mine")
    for event in (
        ResponseStarted(),
        TextItemStarted(message),
        TextReceived(message.id, "Half "),
        TextReceived(message.id, "an answer"),
        TextItemStarted(call),
        TextReceived(call.id, '{"a'),
    ):
        builder.apply(event)

    (failed,) = builder.fail(ApiError.of("It broke."))

    assert failed.type == "response.failed"
    output: Any = builder.response["output"]
    assert [item["status"] for item in output] == ["in_progress", "in_progress"]
    assert output[0]["content"][0]["text"] == "Half an answer"
    assert output[1]["arguments"] == '{"a'


def test_a_response_that_fails_before_it_started_has_all_events() -> None:
    events = ResponseBuilder(REQUEST).fail(ApiError.of("Slow down.", code="429"))

    assert [(event.sequence_number, event.type) for event in events] == [
        (0, "response.created"),
        (1, "response.in_progress"),
        (2, "response.failed"),
    ]
    response: Any = events[-1].fields["response"]
    assert response["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


def test_searches_with_one_call_id_are_finished_in_order() -> None:
    builder = ResponseBuilder(REQUEST)
    builder.apply(ResponseStarted())
    calls = [ToolCall("same", "web_search", f'{{"query": "{query}"}}') for query in ("a", "b")]
    for call in calls:
        builder.apply(SearchStarted(call))
    for call in calls:
        builder.apply(SearchFinished(call, NO_SEARCHES_LEFT))

    response: Any = builder.fail(ApiError.of("x"))[-1].fields["response"]
    queries = [item["action"]["query"] for item in response["output"]]
    searches = builder.finished_searches
    assert (queries, [search.call for search in searches.values()]) == (["a", "b"], calls)
    assert [item["id"] for item in response["output"]] == list(searches)


def test_upstream_events_may_have_fields_of_any_name() -> None:
    builder = ResponseBuilder(REQUEST)
    builder.apply(ResponseStarted())
    fields = {"kind": 1, "self": 2, "status": 3, "fields": 4}

    (event,) = builder.apply(UpstreamEvent("response.new", dict(fields), None))

    assert event.as_json() == {"type": "response.new", "sequence_number": 2, **fields}
