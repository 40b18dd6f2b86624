"""Streams in process: when chunks are passed on, and who is stopped by a time limit."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import anyio
import httpx2
import pytest
from starlette.types import Message

from gemini_cli_mcp.gateway.chat import ChatEndpoint
from gemini_cli_mcp.gateway.client_request import ClientRequest
from gemini_cli_mcp.gateway.continuations import ChatContinuations
from gemini_cli_mcp.gateway.events import AnswerDelta
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.search_runner import (
    SearchArguments,
    SearchFailure,
    SearchOutcome,
    SearchRunner,
)
from gemini_cli_mcp.gateway.tool_loop import chat_tool_loop
from gemini_cli_mcp.gateway.upstream_client import UpstreamClient, UpstreamUnavailable
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.engines import default_engines
from gemini_cli_mcp.settings.upstreams import Upstream

ENGINES = default_engines("gemini", "flash")
REQUEST: dict[str, object] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "search the web"}],
}


def content_chunk(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    chunk = {"id": "1", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


class Body(httpx2.AsyncByteStream):
    """A stream of the upstream that records whether it was closed."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        self.closed = True


def upstream_client(body: Body, limits: Limits) -> UpstreamClient:
    """Return a client for an upstream that answers with this stream."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    return UpstreamClient(Upstream("one", "http://upstream.example/v1", None), http, [], limits)


async def no_search(arguments: SearchArguments) -> SearchOutcome:
    return SearchFailure("There is no search in this test.")


async def read_answer(upstream: UpstreamClient, pause: float = 0.0) -> AsyncGenerator[str]:
    """Yield the text of the answer, after a pause for each piece."""
    runner = SearchRunner(no_search, 3, timeout=60)
    async with aclosing(chat_tool_loop(REQUEST, upstream, ENGINES, runner)) as events:
        async for event in events:
            if isinstance(event, AnswerDelta):
                await anyio.sleep(pause)
                yield event.text


async def test_a_chunk_is_sent_to_the_client_before_the_next_is_read() -> None:
    sent: list[bytes] = []
    sent_before_chunk: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    async def chunks() -> AsyncGenerator[bytes]:
        for number in range(5):
            sent_before_chunk.append(b"".join(sent))
            yield content_chunk(f"text {number}", "stop" if number == 4 else None)
        yield b"data: [DONE]\n\n"

    limits = Limits()
    request = ClientRequest(upstream_client(Body(chunks()), limits), "me", REQUEST, b"")
    runner = SearchRunner(no_search, 3, timeout=60)
    endpoint = ChatEndpoint(request, [], ENGINES, runner, ChatContinuations(60))
    await endpoint.answer(ResponseWriter(send, limits))

    for number in range(1, 5):
        assert f"text {number - 1}".encode() in sent_before_chunk[number]
    assert sent[-1] == b"data: [DONE]\n\n"


async def test_a_client_that_stops_reading_holds_the_upstream_no_longer_than_a_turn() -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        while True:  # available at once: reading them never waits
            yield content_chunk("text")

    body = Body(chunks())
    texts: list[str] = []

    async def read_once_then_block() -> None:
        with upstream_client(body, Limits(upstream_turn_timeout=0.1)).limit_turns() as upstream:
            async with aclosing(read_answer(upstream)) as answer:
                async for text in answer:
                    texts.append(text)
                    await anyio.sleep_forever()  # as writing to a client that does not read

    with (
        anyio.fail_after(10),
        pytest.raises(UpstreamUnavailable, match=r"did not finish within 0\.1 s"),
    ):
        await read_once_then_block()
    assert texts == ["text"]
    assert body.closed


async def test_the_time_between_two_turns_does_not_count() -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        yield content_chunk("text", "stop")
        yield b"data: [DONE]\n\n"

    with upstream_client(Body(chunks()), Limits(upstream_turn_timeout=0.1)).limit_turns() as client:
        async with aclosing(read_answer(client)) as answer:
            assert [text async for text in answer] == ["text"]
        await anyio.sleep(0.3)  # a search takes longer than a turn may


async def test_a_turn_without_further_chunks_is_stopped_by_its_time_limit() -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        yield content_chunk("text")
        await anyio.sleep(60)

    body = Body(chunks())
    texts: list[str] = []

    async def read_all() -> None:
        with upstream_client(body, Limits(upstream_turn_timeout=0.1)).limit_turns() as upstream:
            async with aclosing(read_answer(upstream)) as answer:
                async for text in answer:
                    texts.append(text)  # noqa: PERF401 - also kept if reading fails

    with anyio.fail_after(10), pytest.raises(UpstreamUnavailable, match="did not finish"):
        await read_all()
    assert texts == ["text"]
    assert body.closed


async def test_the_upstreams_response_is_closed_with_the_loop() -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        while True:
            yield content_chunk("text")

    body = Body(chunks())
    async with aclosing(read_answer(upstream_client(body, Limits()))) as answer:
        assert await anext(answer) == "text"
        assert not body.closed
    assert body.closed
