"""Run one command to completion without leaving it, or its group, behind.

Knows nothing of gemini. The child gets its own session, so that a deadline or a
cancellation ends it together with everything that stayed in its group. Both pipes are
read while stdin is fed, so neither side can block the other.
"""

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import anyio

MAX_STDOUT = 16 << 20
"""Bytes of stdout that are taken; a child that writes more is ended."""
STDERR_TAIL = 16 << 10
"""Bytes of stderr that are kept: the last ones say why it failed."""
PIPE_SIZE = 1 << 20
"""The gemini CLI exits with unflushed data; a large pipe takes it in (64 KiB lost some)."""
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL: MCP clients give a whole server two."""
DRAIN = 1.0
"""Seconds to read what is left in the pipes after the end."""

Ended = Literal["exited", "idle", "timeout", "flood"]


@dataclass(frozen=True)
class Completed:
    """How the command ended: by itself (`exited`), or why we ended it."""

    ended: Ended
    exit_code: int | None
    """Negative: killed by that signal."""
    stderr: str
    """Its last part."""


async def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    env: Mapping[str, str],
    cwd: Path,
    on_line: Callable[[bytes], None],
    idle: float,
    timeout: float,
) -> Completed:
    """Run `argv`, hand each line of its stdout to `on_line`, and see it to its end.

    It is ended after `idle` seconds without output, after `timeout` seconds in all, and
    when the caller is cancelled. Raises OSError if it cannot be started.
    """
    child = _Child(on_line)
    transport = await _spawn(child, argv, env, cwd)
    feed = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
    try:
        feed.write(stdin)
        feed.close()  # after the last byte has gone
        ended = await _follow(child, idle=idle, timeout=timeout)
    finally:
        try:
            await _end(child, transport.get_pid())
        finally:
            if 0 in child.open_pipes:
                feed.abort()  # the child left with its input unread
            transport.close()
    return Completed(ended, transport.get_returncode(), child.stderr.decode(errors="replace"))


class _Child(asyncio.SubprocessProtocol):
    """What the pipes bring, bounded, and whether the child still lives.

    `process_exited` comes when the child is gone. `Process.wait()` would also wait for the
    pipes, which a grandchild may hold open for ever (cpython gh-119710).
    """

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._line = bytearray()
        self._taken = 0
        self.open_pipes = {0, 1, 2}
        self.stderr = bytearray()
        self.last_output = time.monotonic()
        self.flooded = False
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self.wake = asyncio.Event()
        """Something happened that `_follow` must look at."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.last_output = time.monotonic()
        if fd == 2:
            self.stderr += data
            del self.stderr[:-STDERR_TAIL]
        elif self._taken + len(data) > MAX_STDOUT:
            self.flooded = True  # keep draining, keep nothing
            self.wake.set()
        else:
            self._taken += len(data)
            first, *others = data.split(b"\n")
            self._line += first
            for part in others:
                self._finish_line()
                self._line += part

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and self._line:
            self._finish_line()
        self.open_pipes.discard(fd)
        if self.open_pipes <= {0}:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.wake.set()

    def _finish_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if not self.flooded:
            self._on_line(line)


async def _spawn(
    child: _Child, argv: Sequence[str], env: Mapping[str, str], cwd: Path
) -> asyncio.SubprocessTransport:
    async def spawn(pipe_size: int) -> asyncio.SubprocessTransport:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: child,
            *argv,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            pipesize=pipe_size,
        )
        return transport

    with anyio.CancelScope(shield=True):  # a cancelled spawn leaks its child (gh-103847)
        try:
            return await spawn(PIPE_SIZE if sys.platform == "linux" else -1)
        except PermissionError as error:
            # Refused beyond a user's share of pipe memory; the usual 64 KiB must do then.
            if error.errno != errno.EPERM:
                raise
            return await spawn(-1)
    raise AssertionError("a shielded scope runs to its end")


async def _follow(child: _Child, *, idle: float, timeout: float) -> Ended:
    """Wait for the end, or for a reason to end it."""
    deadline = time.monotonic() + timeout
    while not child.exited.is_set():
        now = time.monotonic()
        if child.flooded:
            return "flood"
        if now >= deadline:
            return "timeout"
        if now >= child.last_output + idle:
            return "idle"
        with anyio.move_on_after(min(deadline, child.last_output + idle) - now):
            await child.wake.wait()
    return "exited"


async def _end(child: _Child, pid: int) -> None:
    """End the whole group: ask, wait, then kill; then read what the pipes still hold."""
    try:
        if not child.exited.is_set():
            _signal_group(pid, signal.SIGTERM)
            with anyio.move_on_after(GRACE, shield=True):
                await child.exited.wait()
    finally:
        # Also after an orderly exit: the leader may be gone while its children live on.
        _signal_group(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    with anyio.move_on_after(DRAIN, shield=True):
        await child.exited.wait()
    with anyio.move_on_after(DRAIN, shield=True):
        await child.drained.wait()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(pid, number)
        else:
            # The pid is the group's id since the start; getpgid() fails once it was reaped.
            os.killpg(pid, number)
