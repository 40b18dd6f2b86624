"""Serve MCP over stdio, and shut down gracefully when the client disconnects.

However the client disconnects (it closes stdin, dies, or never reads our responses), the process
exits within a few seconds: unread responses must not keep it alive.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import anyio
from mcp.server import NotificationOptions
from mcp.server.stdio import stdio_server

from gemini_cli_mcp.platforms.parent_process import watch_parent
from gemini_cli_mcp.platforms.stop_signals import receive_stop_signals
from gemini_cli_mcp.platforms.streams import is_closed
from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

CLIENT_CHECK_INTERVAL = 0.25
"""Seconds between checks whether the client is still connected."""
CLIENT_GONE_DELAY = 1.0
"""Seconds for the server to end by itself after the client disconnects."""
FORCED_EXIT_DELAY = 0.5
"""Seconds after the shutdown timeout before a hanging process is forced to exit."""


async def serve_stdio(settings: Settings, environ: Mapping[str, str]) -> None:
    """Serve until the client closes stdin, dies or sends SIGTERM."""
    workspace = Workspace(settings.config_dir)
    connection = StdioConnection(McpApp(settings, environ, workspace))
    client_gone = anyio.Event()
    _watch_client(client_gone, settings.limits.stdio_shutdown_timeout + FORCED_EXIT_DELAY)
    # Open until the very end: a second signal must not interrupt the shutdown.
    with receive_stop_signals() as signals:
        async with anyio.create_task_group() as tasks:
            seconds = settings.limits.stdio_shutdown_timeout
            tasks.start_soon(
                _shut_down_on_signal_or_disconnect,
                connection,
                workspace,
                signals,
                client_gone,
                seconds,
            )
            try:
                await connection.serve()
            except* (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the client has closed stdout: the error cannot be reported
            tasks.cancel_scope.cancel()


class StdioConnection:
    """The connection to the one client, which ends when it closes stdin or by `shutdown`."""

    def __init__(self, app: McpApp) -> None:
        self._app = app
        self._serving = anyio.CancelScope()
        self._ended = anyio.Event()

    async def serve(self) -> None:
        """Answer requests, with notifications of resource changes."""
        server = self._app.server
        options = server.create_initialization_options(NotificationOptions(resources_changed=True))
        async with stdio_server() as (read_stream, write_stream):
            try:
                with self._serving:
                    await server.run(read_stream, write_stream, options)
            finally:
                self._ended.set()

    async def shutdown(self) -> None:
        """Answer running calls with an error, then end the server with its jobs and processes.

        `serve` may not return even then: a thread of the SDK may be blocked in a read or write.
        """
        await self._app.cancel_calls()
        self._serving.cancel()
        await self._ended.wait()


async def _shut_down_on_signal_or_disconnect(
    connection: StdioConnection,
    workspace: Workspace,
    signals: AsyncIterator[signal.Signals],
    client_gone: anyio.Event,
    seconds: float,
) -> None:
    """Shut down gracefully on a signal, or when the client disconnects."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when, client_gone, tasks.cancel_scope)
        async for _ in signals:
            break
        tasks.cancel_scope.cancel()
    if client_gone.is_set():
        # Its last messages may still be in transit, and the server then ends by itself.
        await anyio.sleep(CLIENT_GONE_DELAY)
        seconds -= CLIENT_GONE_DELAY
    try:
        with anyio.move_on_after(seconds, shield=True):
            await connection.shutdown()
        workspace.close()
    finally:
        # A thread of the SDK is blocked in a read or write that cannot be interrupted.
        os._exit(0)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _watch_client(client_gone: anyio.Event, seconds: float) -> None:
    """Set `client_gone` when the client disconnects; force an exit `seconds` later.

    In a thread: an event loop that is blocked by a full log pipe cannot watch itself.
    """
    loop = asyncio.get_running_loop()
    try:
        stdin = os.dup(0)  # the SDK redirects the original descriptor
    except OSError:
        return  # there is no stdin, which the SDK detects as well

    def watch() -> None:
        has_parent = watch_parent()
        while has_parent() and not is_closed(stdin):
            time.sleep(CLIENT_CHECK_INTERVAL)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(client_gone.set)
        time.sleep(seconds)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
