"""A child process whose whole tree can be ended, whatever happens to the server.

On Linux a guardian process (guardian_main.py) runs the command. It kills the whole process tree,
including processes that left the group, when told to and when the server dies. Telling it takes
writing one byte, which no cancellation can interrupt. Elsewhere the command gets its own session,
and its process group is killed.
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
"""Bytes of stdout that are taken; a child that writes more is ended."""
STDERR_TAIL_BYTES = 16 << 10
"""Bytes of stderr that are kept: the last ones say why it failed."""
PIPE_BYTES = 1 << 20
"""The gemini CLI exits with unflushed data; a large pipe takes it in (64 KiB lost some)."""
TERMINATE_GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL: MCP clients give a whole server two."""
GUARDIAN_TIMEOUT = 2.0
"""Seconds beyond the grace that a guardian gets to end a stubborn tree."""
DRAIN_TIMEOUT = 1.0
"""Seconds to read what is left in the pipes after the end."""


class Child(asyncio.SubprocessProtocol):
    """What the pipes bring, bounded, and whether the child still lives.

    `process_exited` comes when the child is gone. `Process.wait()` would also wait for the
    pipes, which a grandchild may hold open for ever (cpython gh-119710).
    """

    def __init__(
        self, on_line: Callable[[bytes], None], max_stdout_bytes: int = MAX_STDOUT_BYTES
    ) -> None:
        self._on_line = on_line
        self._max_stdout_bytes = max_stdout_bytes
        self._line = bytearray()
        self.stdout_bytes = 0
        """Bytes of stdout so far, or since somebody set it back."""
        self.open_pipes = {0, 1, 2}
        self.stderr = bytearray()
        self.last_output = time.monotonic()
        self.exceeded_output_limit = False
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self.changed = asyncio.Event()
        """Something happened that whoever follows must look at."""
        self.exit_code: int | None = None
        """Negative: killed by that signal."""
        self.find_pid: Callable[[], int | None] = lambda: None
        """The command's own process, once it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _running.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # All is over, and if `run` was cancelled twice nobody else is left to close this.
        self._transport.close()
        _running.discard(self)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.last_output = time.monotonic()
        self.changed.set()
        if fd == 2:
            self.stderr += data
            del self.stderr[:-STDERR_TAIL_BYTES]
        elif self.stdout_bytes + len(data) > self._max_stdout_bytes:
            self.exceeded_output_limit = True  # keep draining, keep nothing
        else:
            self.stdout_bytes += len(data)
            first, *others = data.split(b"\n")
            self._line += first
            for part in others:
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
async def spawned(
    child: Child,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    scratch: Path | None,
    grace: float = TERMINATE_GRACE,
) -> AsyncGenerator[asyncio.WriteTransport]:
    """The command, from its start to the end of its whole tree; yields where to write to it.

    Should this whole process be killed meanwhile, the folder `scratch` goes with it (Linux).
    Raises OSError if it cannot be started.
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
                    stdin.abort()  # the child left with its input unread
                if child.exited.is_set():
                    transport.close()  # before that it would kill the guardian
        child.exit_code = tree.exit_code(transport.get_returncode())
    finally:
        tree.close()


_running: set[Child] = set()


def running_count() -> int:
    """How many commands run, or are still being ended."""
    return len(_running)


async def _spawn(
    child: Child,
    tree: "GuardianHandle | ProcessGroup",
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
) -> tuple[asyncio.SubprocessTransport, bool]:
    """The child's transport, and whether this task was cancelled meanwhile.

    A spawn that is cancelled leaks its child or waits for it for ever (gh-103847), so it is seen
    to its end: it takes milliseconds. The shield keeps cancel scopes out; what still comes is
    `Task.cancel()`, of a Ctrl-C or of an HTTP server that cuts off.
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
            # Refused beyond a user's share of pipe memory; the usual 64 KiB must do then.
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
    """Our ends of the two pipes to a guardian: the lifeline, and what it has to tell."""

    def __init__(self, scratch: Path | None, grace: float) -> None:
        self._scratch = scratch
        self._grace = grace
        self._lifeline_end, self._lifeline = os.pipe()
        self._status, self._status_end = os.pipe()
        os.set_blocking(self._status, False)
        self.inherited_fds = (self._lifeline_end, self._status_end)
        self._open = {*self.inherited_fds, self._lifeline, self._status}
        self._status_text = b""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The guardian that runs the command."""
        scratch = str(self._scratch or "")
        numbers = map(str, (os.getpid(), *self.inherited_fds, self._grace))
        return [sys.executable, "-I", "-S", guardian_main.__file__, *numbers, scratch, *argv]

    async def terminate(self, child: Child, pid: int) -> None:
        """Tell the guardian to end the tree and see it go; kill what a lost one left."""
        self._tell_to_end()
        try:
            with anyio.move_on_after(self._grace + GUARDIAN_TIMEOUT, shield=True):
                await child.exited.wait()
        finally:
            if child.exited.is_set() and "clean" not in self._status_lines():
                # The guardian itself was killed; the command with it, but not its group.
                for group in self._status_lines().get("started", ()):
                    _signal_group(int(group), signal.SIGKILL)
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await child.drained.wait()

    def find_pid(self, pid: int) -> int | None:
        """The command's own process."""
        return next((int(number) for number in self._status_lines().get("started", ())), None)

    def exit_code(self, returncode: int | None) -> int | None:
        """The command's, or the guardian's if it could not tell."""
        status = self._status_lines()
        if "failed" in status:
            number = int(status["failed"][0])
            raise OSError(number, os.strerror(number))
        if "exited" in status:
            return os.waitstatus_to_exitcode(int(status["exited"][0]))
        return returncode

    def close(self) -> None:
        self._tell_to_end()
        self._close(self._status)

    def _tell_to_end(self) -> None:
        self._close(*self.inherited_fds)
        if self._lifeline in self._open:
            with contextlib.suppress(BrokenPipeError):  # it is gone already
                os.write(self._lifeline, b".")
            self._close(self._lifeline)

    def _close(self, *descriptors: int) -> None:
        for descriptor in self._open.intersection(descriptors):
            os.close(descriptor)
            self._open.discard(descriptor)

    def _status_lines(self) -> dict[str, list[str]]:
        """What the guardian wrote so far, by first word."""
        if self._status in self._open:
            with contextlib.suppress(BlockingIOError):
                self._status_text += os.read(self._status, 4096)
        lines = (line.split() for line in self._status_text.decode(errors="replace").splitlines())
        return {line[0]: line[1:] for line in lines if line}


class ProcessGroup:
    """Where there is no guardian: a process group, which a grandchild can leave."""

    inherited_fds = ()

    def __init__(self, grace: float) -> None:
        self._grace = grace

    def command(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    async def terminate(self, child: Child, pid: int) -> None:
        """End the group: ask, wait, then kill; then read what the pipes still hold."""
        try:
            if not child.exited.is_set():
                _signal_group(pid, signal.SIGTERM)
                with anyio.move_on_after(self._grace, shield=True):
                    await child.exited.wait()
        finally:
            # Also after an orderly exit: the leader may be gone while its children live on.
            _signal_group(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await child.exited.wait()
            await child.drained.wait()

    def find_pid(self, pid: int) -> int | None:
        return pid

    def exit_code(self, returncode: int | None) -> int | None:
        return returncode

    def close(self) -> None:
        """Nothing is held."""


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(pid, number)
        else:
            # The pid is the group's id since the start; getpgid() fails once it was reaped.
            os.killpg(pid, number)
