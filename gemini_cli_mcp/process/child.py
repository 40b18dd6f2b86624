"""A child process whose whole tree can be stopped, even if the server is killed.

On Linux a guardian process (guardian_main.py) runs the command. It kills the whole process tree,
including processes that left the group, on request and when the server dies. A request is a
single byte written to a pipe, which no cancellation can interrupt. On other systems the command
gets its own session, and its process group is killed.
"""

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio

from gemini_cli_mcp.process import guardian_main

MAX_STDOUT_BYTES = 16 << 20
"""Maximum bytes of stdout; a child that writes more is stopped."""
STDERR_TAIL_BYTES = 16 << 10
"""Bytes of stderr to keep: the last ones explain a failure."""
PIPE_BYTES = 1 << 20
"""Size of the pipes: the gemini CLI exits with unflushed data, and 64 KiB pipes lost some of it."""
TERMINATE_GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL: MCP clients allow two for the whole server."""
GUARDIAN_TIMEOUT = 2.0
"""Seconds beyond the grace period for a guardian to kill a tree that ignores SIGTERM."""
DRAIN_TIMEOUT = 1.0
"""Seconds to read the remaining output after the child has exited."""


class Child(asyncio.SubprocessProtocol):
    """Collects the child's output, within limits, and tracks whether it is running.

    `process_exited` is called as soon as the child exits. `Process.wait()` would also wait for
    the pipes, which a grandchild may hold open forever (cpython gh-119710).
    """

    def __init__(
        self, on_line: Callable[[bytes], None], max_stdout_bytes: int = MAX_STDOUT_BYTES
    ) -> None:
        self._on_line = on_line
        self._max_stdout_bytes = max_stdout_bytes
        self._line = bytearray()
        self.stdout_bytes = 0
        """Bytes of stdout so far, or since the owner reset it."""
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
        self.find_pid: Callable[[], int | None] = lambda: None
        """Returns the pid of the command itself, once it has started."""

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
        elif self.stdout_bytes + len(data) > self._max_stdout_bytes:
            self.exceeded_output_limit = True  # keep draining, but discard
        else:
            self.stdout_bytes += len(data)
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
        if not self.exceeded_output_limit:
            self._on_line(line)


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

    If this process is killed meanwhile, the folder `scratch` is removed (Linux only).
    Raises OSError if the command cannot be started.
    """
    tree = GuardianHandle(scratch, grace) if sys.platform == "linux" else ProcessGroup(grace)
    try:
        transport, cancelled = await _spawn(child, tree, argv, env, cwd)
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        child.find_pid = lambda: tree.find_pid(transport.get_pid())
        try:
            if cancelled:
                raise asyncio.CancelledError
            yield stdin
        finally:
            try:
                await tree.terminate(child, transport.get_pid())
            finally:
                if 0 in child.open_pipes:
                    stdin.abort()  # the child exited without reading its input
                if child.exited.is_set():
                    transport.close()  # closing it earlier would kill the guardian
        child.exit_code = tree.exit_code(transport.get_returncode())
    finally:
        tree.close()


_running: set[Child] = set()


def running_count() -> int:
    """Return the number of commands that are running or being stopped."""
    return len(_running)


async def _spawn(
    child: Child,
    tree: "GuardianHandle | ProcessGroup",
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
) -> tuple[asyncio.SubprocessTransport, bool]:
    """Return the child's transport, and whether this task was cancelled meanwhile.

    A cancelled spawn leaks its child or waits for it forever (gh-103847), so it always runs to
    completion; that takes milliseconds. The shield blocks cancel scopes, but not `Task.cancel()`
    from Ctrl-C or from an HTTP server that aborts a request.
    """

    async def spawn(pipe_size: int) -> asyncio.SubprocessTransport:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: child,
            *tree.command(argv),
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=tree.inherited_fds,
            pipesize=pipe_size,
        )
        return transport

    async def spawn_with_large_pipes() -> asyncio.SubprocessTransport:
        try:
            return await spawn(PIPE_BYTES if sys.platform == "linux" else -1)
        except PermissionError as error:
            # The user's limit on pipe memory is exceeded; fall back to the default of 64 KiB.
            if error.errno != errno.EPERM:
                raise
            return await spawn(-1)

    cancelled = False
    spawning = asyncio.ensure_future(spawn_with_large_pipes())
    with anyio.CancelScope(shield=True):
        while not spawning.done():
            try:
                await asyncio.wait({spawning})
            except asyncio.CancelledError:
                cancelled = True
    return spawning.result(), cancelled


class GuardianHandle:
    """The server's ends of the two pipes to a guardian: lifeline and status."""

    def __init__(self, scratch: Path | None, grace: float) -> None:
        self._scratch = scratch
        self._grace = grace
        lifeline_reader, self._lifeline_writer = os.pipe()
        self._status_reader, status_writer = os.pipe()
        os.set_blocking(self._status_reader, False)
        self.inherited_fds = (lifeline_reader, status_writer)
        self._open_fds = {*self.inherited_fds, self._lifeline_writer, self._status_reader}
        self._status_buffer = b""

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line of the guardian that runs `argv`."""
        scratch = str(self._scratch or "")
        guardian_args = map(str, (os.getpid(), *self.inherited_fds, self._grace))
        script = guardian_main.__file__
        return [sys.executable, "-I", "-S", script, *guardian_args, scratch, *argv]

    async def terminate(self, child: Child, pid: int) -> None:
        """Have the guardian stop the tree and wait for it; clean up if the guardian was killed."""
        self._request_stop()
        try:
            with anyio.move_on_after(self._grace + GUARDIAN_TIMEOUT, shield=True):
                await child.exited.wait()
        finally:
            if child.exited.is_set() and "clean" not in self._read_status():
                # The guardian was killed, and the command with it, but not the command's group.
                for command_pid in self._read_status().get("started", ()):
                    _signal_group(int(command_pid), signal.SIGKILL)
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await child.drained.wait()

    def find_pid(self, pid: int) -> int | None:
        """Return the pid of the command rather than of the guardian."""
        return next((int(value) for value in self._read_status().get("started", ())), None)

    def exit_code(self, returncode: int | None) -> int | None:
        """Return the command's exit code, or the guardian's if it reported none."""
        status = self._read_status()
        if "failed" in status:
            error_number = int(status["failed"][0])
            raise OSError(error_number, os.strerror(error_number))
        if "exited" in status:
            return os.waitstatus_to_exitcode(int(status["exited"][0]))
        return returncode

    def close(self) -> None:
        self._request_stop()
        self._close_fds(self._status_reader)

    def _request_stop(self) -> None:
        self._close_fds(*self.inherited_fds)
        if self._lifeline_writer in self._open_fds:
            with contextlib.suppress(BrokenPipeError):  # it has already exited
                os.write(self._lifeline_writer, b".")
            self._close_fds(self._lifeline_writer)

    def _close_fds(self, *descriptors: int) -> None:
        for descriptor in self._open_fds.intersection(descriptors):
            os.close(descriptor)
            self._open_fds.discard(descriptor)

    def _read_status(self) -> dict[str, list[str]]:
        """Return the status lines written so far, keyed by their first word."""
        if self._status_reader in self._open_fds:
            with contextlib.suppress(BlockingIOError):
                self._status_buffer += os.read(self._status_reader, 4096)
        lines = (line.split() for line in self._status_buffer.decode(errors="replace").splitlines())
        return {line[0]: line[1:] for line in lines if line}


class ProcessGroup:
    """A process group, for systems without a guardian; a grandchild can leave it."""

    inherited_fds = ()

    def __init__(self, grace: float) -> None:
        self._grace = grace

    def command(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    async def terminate(self, child: Child, pid: int) -> None:
        """Stop the group with SIGTERM, then SIGKILL; then read the remaining output."""
        try:
            if not child.exited.is_set():
                _signal_group(pid, signal.SIGTERM)
                with anyio.move_on_after(self._grace, shield=True):
                    await child.exited.wait()
        finally:
            # Also after a normal exit: children may outlive the group leader.
            _signal_group(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await child.exited.wait()
            await child.drained.wait()

    def find_pid(self, pid: int) -> int | None:
        return pid

    def exit_code(self, returncode: int | None) -> int | None:
        return returncode

    def close(self) -> None:
        """Do nothing: a process group holds no resources."""


def _signal_group(pid: int, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(pid, signal_number)
        else:
            # The pid is also the group id; getpgid() fails once the process was reaped.
            os.killpg(pid, signal_number)
