"""The life of an HTTP server: it listens until it is told to end, and ends in order."""

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
    """Where clients come in; ConfigError if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name: else asyncio does not know that it is, and pieces of an answer wait for 40 ms.
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
    name, port = sock.getsockname()[:2]
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


async def run_server(
    app: ASGIApp,
    sock: socket.socket,
    *,
    limits: Limits,
    grace: float,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; then running requests have `grace` seconds.

    A second signal ends them at once. `end` is told when they are to end; whatever does not
    within `limits.shutdown_cut_off` seconds is cut off.
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
    """Why the body of a request is not taken."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


async def read_body(receive: Receive, max_bytes: int, timeout: float) -> bytes:
    """The body of a request, which may have so many bytes and take so long."""
    body = bytearray()
    try:
        with anyio.fail_after(timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BodyError(400, "The client left.", "left")
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    limit = f"{max_bytes >> 20} MiB"
                    raise BodyError(413, f"The body must be at most {limit}.", "body_too_large")
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise BodyError(408, "The body did not come in time.", "timeout") from None


class _Server(uvicorn.Server):
    """Signals are ours: it would end the process before anything is cleaned up."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class _HeaderTimeoutProtocol(H11Protocol):
    """Does not wait for ever for a client that begins to speak and does not come to an end."""

    head_timeout: float  # of the class: uvicorn makes the instances

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        previous_cycle: Any = self.cycle

        def close_if_silent() -> None:
            if self.cycle is previous_cycle and not self.transport.is_closing():
                self.transport.close()

        asyncio.get_running_loop().call_later(self.head_timeout, close_if_silent)


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
