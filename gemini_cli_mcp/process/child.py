"""Start a child process whose whole tree can be stopped, even if the server is killed.

Output is limited: stdout is kept line by line up to a maximum, and only the end of stderr is kept.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio

from gemini_cli_mcp.process.process_tree import ProcessTree

DRAIN_TIMEOUT = 1.0
"""Seconds to read the remaining output after the child has exited."""
TERMINATE_GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL: MCP clients allow two for the whole server."""
MAX_STDOUT_BYTES = 16 << 20
"""Maximum bytes of stdout; a child that writes more is stopped."""
STDERR_TAIL_BYTES = 16 << 10
"""Bytes of stderr to keep: the last ones explain a failure."""


class Child(asyncio.SubprocessProtocol):
    """Collects the child's output, within limits, and tracks whether it is running.

    `process_exited` is called as soon as the child exits. `Process.wait()` would also wait for
    the pipes, which a grandchild may hold open forever (cpython gh-119710).
    """

    def __init__(
        self, max_stdout_bytes: int = MAX_STDOUT_BYTES, *, limit_each_line: bool = False
    ) -> None:
        """With `limit_each_line`, the maximum applies to each line, not to the total."""
        self._max_stdout_bytes = max_stdout_bytes
        self._limit_each_line = limit_each_line
        self._stdout_bytes = 0
        self._line = bytearray()
        self._lines: deque[bytes] = deque()
        self.open_pipes = {0, 1, 2}
        self.stderr = bytearray()
        self.last_output = time.monotonic()
        self.exceeded_output_limit = False
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self.changed = asyncio.Event()
        """Set on output, a closed pipe or exit; the waiting task clears it."""
        self.exit_code: int | None = None
        """Negative if the command was killed by that signal."""
        self.exit_grace = 0.0
        """Seconds that the command has to exit by itself when its output is complete."""
        self.memory_bytes: Callable[[], int] = lambda: 0
        """Returns the resident memory of the command itself; 0 if unknown."""

    def take_lines(self) -> Iterator[bytes]:
        """Yield the lines of stdout that have not been taken yet."""
        while self._lines:
            yield self._lines.popleft()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _running.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # If `run` was cancelled twice, nothing else closes the transport.
        self._transport.close()
        _running.discard(self)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.last_output = time.monotonic()
        self.changed.set()
        if fd == 2:
            self.stderr += data
            del self.stderr[:-STDERR_TAIL_BYTES]
        elif self._stdout_bytes + len(data) > self._max_stdout_bytes:
            self.exceeded_output_limit = True  # keep draining, but discard
        else:
            self._stdout_bytes += len(data)
            first, *rest = data.split(b"\n")
            self._line += first
            for part in rest:
                self._finish_line()
                self._line += part

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and self._line:
            self._finish_line()
        self.open_pipes.discard(fd)
        self.changed.set()
        if self.open_pipes <= {0}:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.changed.set()

    def _finish_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self.exceeded_output_limit:
            return
        if self._limit_each_line:
            self._stdout_bytes = 0
        self._lines.append(line)


_running: set[Child] = set()


def running_count() -> int:
    """Return the number of commands that are running or being stopped."""
    return len(_running)


@contextlib.asynccontextmanager
async def spawn_child(
    child: Child,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    scratch: Path | None,
    grace: float = TERMINATE_GRACE,
) -> AsyncGenerator[asyncio.WriteTransport]:
    """Start the command and yield its stdin; stop its whole tree when the context exits.

    If this process is killed meanwhile, the folder `scratch` is removed (not on Windows).
    Raises OSError if the command cannot be started.
    """
    tree = _create_tree(scratch, grace)
    try:
        transport, cancelled = await _spawn(child, tree, argv, env, cwd)
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        child.exit_grace = tree.exit_grace
        child.memory_bytes = lambda: tree.memory_bytes(transport.get_pid())
        try:
            if cancelled:
                raise asyncio.CancelledError
            yield stdin
        finally:
            try:
                await tree.terminate(child.exited)
                with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
                    await child.drained.wait()
            finally:
                if 0 in child.open_pipes:
                    stdin.abort()  # the child exited without reading its input
                if child.exited.is_set():
                    transport.close()  # closing it earlier would kill the guardian
        child.exit_code = tree.exit_code(transport.get_returncode())
    finally:
        tree.close()


def _create_tree(scratch: Path | None, grace: float) -> ProcessTree:
    """Return the implementation for this platform.

    The processes have `grace` seconds to exit by themselves, where a platform can ask them to. If
    our own process is killed, all of them end; where a guardian is left, it removes `scratch`.
    """
    if sys.platform == "win32":
        from gemini_cli_mcp.process.windows_job import WindowsJob

        return WindowsJob()
    from gemini_cli_mcp.process.guardian_handle import GuardianHandle

    return GuardianHandle(scratch, grace, sys.platform)


async def _spawn(
    child: Child,
    tree: ProcessTree,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
) -> tuple[asyncio.SubprocessTransport, bool]:
    """Return the child's transport, and whether this task was cancelled meanwhile.

    A cancelled spawn leaks its child or waits for it forever (gh-103847), so it always runs to
    completion; that takes milliseconds. The shield blocks cancel scopes, but not `Task.cancel()`
    from Ctrl-C or from an HTTP server that aborts a request.
    """
    cancelled = False
    spawning = asyncio.ensure_future(tree.spawn(child, argv, env, cwd))
    with anyio.CancelScope(shield=True):
        while not spawning.done():
            try:
                await asyncio.wait({spawning})
            except asyncio.CancelledError:
                cancelled = True
    return spawning.result(), cancelled
