"""The life of a stdio server: it leaves with its client, in order, and leaves nothing behind.

However a client leaves (it closes stdin, it dies, it never reads what we answer), the process is
gone a few seconds later: the answers that nobody reads must not keep it.
"""

import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import anyio

from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

CLIENT_CHECK_INTERVAL = 0.25
"""Seconds between two looks at whether the client is still there."""
CLIENT_GONE_DELAY = 1.0
"""Seconds that a server has to end by itself when its client is gone."""
FORCED_EXIT_DELAY = 0.5
"""Seconds beyond all others after which a process that hangs in itself is ended."""


async def serve_stdio(settings: Settings, environ: Mapping[str, str]) -> None:
    """Serve until the client closes stdin, dies or sends SIGTERM."""
    workspace = Workspace(settings.config_dir)
    server = McpApp(settings, environ, workspace)
    gone = anyio.Event()
    _watch_client(gone, settings.limits.stdio_shutdown_timeout + FORCED_EXIT_DELAY)
    # Open to the very end: a second signal must not come between.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            seconds = settings.limits.stdio_shutdown_timeout
            tasks.start_soon(_shut_down_when_told, server, workspace, signals, gone, seconds)
            try:
                await server.run_stdio_async()
            except* (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the client has closed stdout: there is nobody to tell
            tasks.cancel_scope.cancel()


async def _shut_down_when_told(
    server: McpApp,
    workspace: Workspace,
    signals: AsyncIterator[signal.Signals],
    gone: anyio.Event,
    seconds: float,
) -> None:
    """Leave in order on a signal, and when the client is gone."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when, gone, tasks.cancel_scope)
        async for _ in signals:
            break
        tasks.cancel_scope.cancel()
    if gone.is_set():
        # What it sent before it left may still be on its way, and the server then ends by itself.
        await anyio.sleep(CLIENT_GONE_DELAY)
        seconds -= CLIENT_GONE_DELAY
    try:
        with anyio.move_on_after(seconds, shield=True):
            await server.shutdown()
        workspace.close()
    finally:
        # A thread of the SDK waits in a read or a write that nothing can interrupt.
        os._exit(0)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _watch_client(gone: anyio.Event, seconds: float) -> None:
    """Tell when the client is gone; `seconds` later this process is, whatever hangs in it.

    A thread: an event loop that waits for somebody to read our log cannot watch itself.
    """
    loop = asyncio.get_running_loop()
    parent = os.getppid()
    try:
        stdin = os.dup(0)  # the SDK points the descriptor itself elsewhere
    except OSError:
        return  # there is none, and the SDK sees that too

    def watch() -> None:
        while os.getppid() == parent and not _is_closed(stdin):
            time.sleep(CLIENT_CHECK_INTERVAL)
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(gone.set)
        time.sleep(seconds)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _is_closed(descriptor: int) -> bool:
    """Whether the other end of a pipe is closed, also while there is something left to read."""
    if sys.platform == "win32":
        return False
    half_closed = getattr(select, "POLLRDHUP", 0)  # sockets, on Linux
    poll = select.poll()
    poll.register(descriptor, half_closed)
    ends = select.POLLHUP | select.POLLERR | half_closed
    return any(state & ends for _, state in poll.poll(0))
