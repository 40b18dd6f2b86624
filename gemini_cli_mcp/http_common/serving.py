"""Run an HTTP server until a signal arrives, then shut it down gracefully."""

import asyncio
import errno
import signal
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

import anyio
from starlette.types import ASGIApp

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.http_common.uvicorn_server import UvicornServer
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.platforms.stop_signals import receive_stop_signals

ADDRESS_OPTION = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
"""On Windows SO_REUSEADDR would let another program take over a port that is in use."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; ConfigError if the address is unusable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio sets TCP_NODELAY only if it is explicitly TCP, and without that
    # option parts of a response are delayed by 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, ADDRESS_OPTION, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        in_use = error.errno == errno.EADDRINUSE  # the words of Windows do not say that
        reason = "Address already in use" if in_use else error.strerror or error
        raise ConfigError(f"--host {host} --port {port}: {reason}.") from None
    return sock


def base_url(sock: socket.socket) -> str:
    host, port = cast("tuple[str, int]", sock.getsockname()[:2])
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def run_server(
    app: ASGIApp,
    sock: socket.socket,
    *,
    limits: Limits,
    grace: float,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal asks to stop; then give running requests `grace` seconds.

    After that, or on a second signal, `on_shutdown` is called to end them. Requests that have not
    ended `limits.forced_shutdown_delay` seconds later are cancelled.
    """

    server = UvicornServer(
        app,
        head_timeout=limits.request_head_timeout,
        shutdown_timeout=grace + limits.forced_shutdown_delay,
    )
    with receive_stop_signals() as signals:
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


async def _shut_down_on_signal(
    server: UvicornServer,
    signals: AsyncIterator[signal.Signals],
    grace: float,
    forced_delay: float,
    on_shutdown: Callable[[], None],
) -> None:
    loop = asyncio.get_running_loop()
    async for _ in signals:
        if server.should_exit:
            on_shutdown()
            loop.call_later(forced_delay, server.cancel_requests)
        else:
            loop.call_later(grace, on_shutdown)
        server.should_exit = True
