"""The life of a stdio server: it leaves with its client, in order, and leaves nothing behind."""

import os
import signal
from collections.abc import AsyncIterator, Mapping

import anyio

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.server.app import Server
from gemini_cli_mcp.workspace import Workspace


async def serve_stdio(config: Config, environ: Mapping[str, str]) -> None:
    """Serve until the client closes stdin, dies or sends SIGTERM."""
    workspace = Workspace(config.config_dir)
    server = Server(config, environ, workspace)
    # Open to the very end: a second signal must not come between.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            seconds = config.limits.stdio_shutdown
            tasks.start_soon(_until_told_to_end, server, workspace, signals, seconds)
            await server.run_stdio_async()
            tasks.cancel_scope.cancel()


async def _until_told_to_end(
    server: Server, workspace: Workspace, signals: AsyncIterator[signal.Signals], seconds: float
) -> None:
    """Leave in order on a signal, and when the client is gone though stdin is still open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_parent_is_gone, tasks.cancel_scope)
        async for _ in signals:
            break
        tasks.cancel_scope.cancel()
    try:
        with anyio.move_on_after(seconds, shield=True):
            await server.end()
        workspace.close()
    finally:
        # A thread of the SDK waits in a read of stdin that nothing can interrupt.
        os._exit(0)


async def _parent_is_gone(told: anyio.CancelScope) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        await anyio.sleep(1)
    told.cancel()
