"""Run one command to completion without ever leaving a process behind.

A command may be started before its input is known, and then waits for it. Both output pipes are
read while stdin is written, so neither side can block the other.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from gemini_cli_mcp.process.child import MAX_STDOUT_BYTES, TERMINATE_GRACE, Child, spawn_child

STOP_CHECK_INTERVAL = 0.5
"""Seconds between calls of `should_stop`."""

EndReason = Literal["exited", "finished", "stopped", "idle", "timeout", "output_limit"]


@dataclass(frozen=True)
class Completed:
    """How the command ended: by itself (`exited`), or the reason for which it was stopped.

    `finished`: `is_finished()` reported that its output was complete. `stopped`: `should_stop()`
    asked for it.
    """

    end_reason: EndReason
    exit_code: int | None
    """Negative if the command was killed by that signal."""
    stderr: str
    """The tail of stderr."""
    duration: float = 0.0
    """Seconds from the start of the run to its end."""


@dataclass(frozen=True)
class CommandOutput:
    """What a short command wrote."""

    stdout: str
    stderr: str


class StartedCommand:
    """A command that runs and waits for its input. Whoever starts it must run or stop it."""

    def __init__(
        self, child: Child, stdin: asyncio.WriteTransport, stack: contextlib.AsyncExitStack
    ) -> None:
        self._child = child
        self._stdin = stdin
        self._stack = stack
        """Stops the whole process tree."""

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        scratch: Path | None = None,
        grace: float = TERMINATE_GRACE,
        max_stdout_bytes: int = MAX_STDOUT_BYTES,
    ) -> "StartedCommand":
        """Start `argv`; raise OSError if that is known to be impossible.

        If this process is killed meanwhile, the folder `scratch` is removed (not on Windows).
        """
        child = Child(max_stdout_bytes)
        stack = contextlib.AsyncExitStack()
        stdin = await stack.enter_async_context(spawn_child(child, argv, env, cwd, scratch, grace))
        return cls(child, stdin, stack)

    def send(self, data: bytes) -> None:
        """Write the beginning of the input."""
        self._stdin.write(data)

    @property
    def has_exited(self) -> bool:
        return self._child.exited.is_set()

    async def wait_exited(self) -> None:
        await self._child.exited.wait()

    async def stop(self) -> None:
        """Stop the whole process tree. Raise OSError if the command could not be started."""
        await self._stack.aclose()

    async def run(
        self,
        stdin: bytes,
        *,
        on_line: Callable[[bytes], None],
        idle_timeout: Callable[[], float],
        timeout: float,
        is_finished: Callable[[], bool] = lambda: False,
        should_stop: Callable[[], Awaitable[bool]] | None = None,
    ) -> Completed:
        """Write the rest of the input, pass each line of stdout to `on_line`, wait for the end.

        The command is stopped when `is_finished()` or `should_stop()` returns true, after
        `idle_timeout()` seconds without output, after `timeout` seconds in total, and when the
        caller is cancelled. Raises OSError if the command could not be started.
        """
        started = time.monotonic()
        try:
            self._stdin.write(stdin)
            self._stdin.close()  # takes effect after the last byte is written
            end_reason = await self._wait_for_end(
                on_line=on_line,
                idle_timeout=idle_timeout,
                timeout=timeout,
                is_finished=is_finished,
                should_stop=should_stop,
            )
        finally:
            await self.stop()
            for line in self._child.take_lines():  # if cancelled, its session ID may be among them
                on_line(line)
        stderr = self._child.stderr.decode(errors="replace")
        return Completed(end_reason, self._child.exit_code, stderr, time.monotonic() - started)

    async def _wait_for_end(
        self,
        *,
        on_line: Callable[[bytes], None],
        idle_timeout: Callable[[], float],
        timeout: float,
        is_finished: Callable[[], bool],
        should_stop: Callable[[], Awaitable[bool]] | None,
    ) -> EndReason:
        """Wait until the command exits or there is a reason to stop it."""
        child = self._child
        started = time.monotonic()
        deadline = started + timeout
        next_check = started + STOP_CHECK_INTERVAL if should_stop else math.inf
        while not child.exited.is_set():
            child.changed.clear()
            for line in child.take_lines():
                on_line(line)
            now = time.monotonic()
            # The time before it got its input does not count.
            idle_deadline = max(child.last_output, started) + idle_timeout()
            if is_finished():
                with anyio.move_on_after(child.exit_grace):  # stderr may arrive last
                    await child.exited.wait()
                return "finished"
            if child.exceeded_output_limit:
                return "output_limit"
            if now >= deadline:
                return "timeout"
            if now >= idle_deadline:
                return "idle"
            if should_stop and now >= next_check:
                if await should_stop():
                    return "stopped"
                next_check = time.monotonic() + STOP_CHECK_INTERVAL
                continue
            with anyio.move_on_after(min(deadline, idle_deadline, next_check) - now):
                await child.changed.wait()
        return "exited"


async def read_output(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float = 10.0
) -> CommandOutput:
    """Run a command without input, such as `node --version`; OSError if it cannot be started."""
    lines: list[bytes] = []
    completed = await run(
        argv,
        stdin=b"",
        env=env,
        cwd=cwd,
        on_line=lines.append,
        idle_timeout=lambda: timeout,
        timeout=timeout,
    )
    return CommandOutput(b"\n".join(lines).decode(errors="replace").strip(), completed.stderr)


async def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    env: Mapping[str, str],
    cwd: Path,
    on_line: Callable[[bytes], None],
    idle_timeout: Callable[[], float],
    timeout: float,
    scratch: Path | None = None,
    is_finished: Callable[[], bool] = lambda: False,
    should_stop: Callable[[], Awaitable[bool]] | None = None,
    grace: float = TERMINATE_GRACE,
    max_stdout_bytes: int = MAX_STDOUT_BYTES,
) -> Completed:
    """Start `argv` and run it as `StartedCommand.run` does."""
    command = await StartedCommand.start(
        argv, env=env, cwd=cwd, scratch=scratch, grace=grace, max_stdout_bytes=max_stdout_bytes
    )
    return await command.run(
        stdin,
        on_line=on_line,
        idle_timeout=idle_timeout,
        timeout=timeout,
        is_finished=is_finished,
        should_stop=should_stop,
    )
