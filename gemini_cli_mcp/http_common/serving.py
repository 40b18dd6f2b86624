"""Run an HTTP server until a signal arrives, then shut it down gracefully."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio
import uvicorn
from starlette.types import ASGIApp, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.limits import Limits


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; ConfigError if the address is unusable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio sets TCP_NODELAY only if it is explicitly TCP, and without that
    # option parts of a response are delayed by 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ConfigError(f"--host {host} --port {port}: {error.strerror or error}.") from None
    return sock


def base_url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def run_server(
    app: ASGIApp,
    sock: socket.socket,
    *,
    limits: Limits,
    grace: float,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; then give running requests `grace` seconds.

    After that, or on a second signal, `on_shutdown` is called to end them. Requests that have not
    ended `limits.forced_shutdown_delay` seconds later are cancelled.
    """

    class Protocol(_HeaderTimeoutProtocol):
        head_timeout = limits.request_head_timeout

    config = uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace + limits.forced_shutdown_delay,  # type: ignore[arg-type]
    )
    server = _Server(config)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                _shut_down_on_signal,
                server,
                signals,
                grace,
                limits.forced_shutdown_delay,
                on_shutdown,
            )
            await server.serve([sock])
            tasks.cancel_scope.cancel()


class BodyError(Exception):
    """The body of a request was rejected."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


async def read_body(receive: Receive, max_bytes: int, timeout: float) -> bytes:
    """Read the body of a request, with limits on its size and duration."""
    body = bytearray()
    try:
        with anyio.fail_after(timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BodyError(400, "The client disconnected.", "left")
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    limit = f"{max_bytes >> 20} MiB"
                    raise BodyError(
                        413, f"The request body must be at most {limit}.", "body_too_large"
                    )
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise BodyError(408, "Timed out waiting for the request body.", "timeout") from None


class _Server(uvicorn.Server):
    """Leave signals to us: uvicorn would re-raise them and exit before our cleanup."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class _HeaderTimeoutProtocol(H11Protocol):
    """Close connections of clients that do not send complete request headers in time."""

    head_timeout: float  # a class attribute, because uvicorn creates the instances

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_head_timer()

    def _start_head_timer(self) -> None:
        previous_cycle: Any = self.cycle

        def close_if_idle() -> None:
            if self.cycle is previous_cycle and not self.transport.is_closing():
                self.transport.close()

        asyncio.get_running_loop().call_later(self.head_timeout, close_if_idle)


async def _shut_down_on_signal(
    server: uvicorn.Server,
    signals: AsyncIterator[signal.Signals],
    grace: float,
    forced_delay: float,
    on_shutdown: Callable[[], None],
) -> None:
    loop = asyncio.get_running_loop()
    async for _ in signals:
        if server.should_exit:
            on_shutdown()
            loop.call_later(forced_delay, _cancel_requests, server)
        else:
            loop.call_later(grace, on_shutdown)
        server.should_exit = True


def _cancel_requests(server: uvicorn.Server) -> None:
    for task in server.server_state.tasks:
        task.cancel()
