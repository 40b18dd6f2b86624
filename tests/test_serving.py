"""Serving HTTP with uvicorn, whose undocumented parts http_common/uvicorn_server.py overrides."""

import inspect
import signal
import socket

import anyio
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gemini_cli_mcp.http_common.serving import bind_socket, run_server
from gemini_cli_mcp.limits import Limits


def test_uvicorn_still_has_the_parts_that_we_override() -> None:
    assert list(inspect.signature(uvicorn.Server.capture_signals).parameters) == ["self"]
    for name in ("connection_made", "on_response_complete"):
        assert callable(getattr(H11Protocol, name))
    assert "with self.capture_signals():" in inspect.getsource(uvicorn.Server.serve)


async def test_a_request_that_ignores_the_shutdown_is_cancelled_after_a_second_signal() -> None:
    started, cancelled = anyio.Event(), anyio.Event()

    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError  # uvicorn takes this as: there is no lifespan
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    listener = bind_socket("127.0.0.1", 0)
    limits = Limits(forced_shutdown_delay=0.1)
    with anyio.fail_after(30), socket.socket() as client:
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await run_server(hang, listener, limits=limits, grace=60)

            tasks.start_soon(serve)
            await anyio.to_thread.run_sync(client.connect, listener.getsockname())
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await started.wait()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            await cancelled.wait()


@pytest.mark.parametrize("headers", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_connection_without_complete_headers_is_closed(headers: bytes) -> None:
    async def unreachable(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    listener = bind_socket("127.0.0.1", 0)
    limits = Limits(request_head_timeout=0.1)
    with anyio.fail_after(30), socket.socket() as client:
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await run_server(unreachable, listener, limits=limits, grace=0)

            tasks.start_soon(serve)
            await anyio.to_thread.run_sync(client.connect, listener.getsockname())
            client.settimeout(30)
            client.sendall(headers)
            assert await anyio.to_thread.run_sync(client.recv, 100) == b""
            signal.raise_signal(signal.SIGTERM)
