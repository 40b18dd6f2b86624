"""Run one command to completion without ever leaving a process behind.

Both output pipes are read while stdin is written, so neither side can block the other.
"""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from gemini_cli_mcp.process.child import MAX_STDOUT_BYTES, TERMINATE_GRACE, Child, spawn_child

EXIT_GRACE = 1.0
"""Seconds for a finished command to exit by itself: stderr may arrive last."""

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
    """Seconds from its start to its end."""


@dataclass(frozen=True)
class CommandOutput:
    """What a short command wrote."""

    stdout: str
    stderr: str


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
    """Run `argv`, pass each line of its stdout to `on_line`, and wait until it has ended.

    The command is stopped when `is_finished()` or `should_stop()` returns true, after
    `idle_timeout()` seconds without output, after `timeout` seconds in total, and when the caller
    is cancelled. If this process is killed meanwhile, the folder `scratch` is removed (Linux
    only). Raises OSError if the command cannot be started.
    """
    started = time.monotonic()
    child = Child(on_line, max_stdout_bytes)
    async with spawn_child(child, argv, env, cwd, scratch, grace) as child_stdin:
        child_stdin.write(stdin)
        child_stdin.close()  # takes effect after the last byte is written
        ended = await _wait_for_end(
            child,
            idle_timeout=idle_timeout,
            timeout=timeout,
            is_finished=is_finished,
            should_stop=should_stop,
        )
    stderr = child.stderr.decode(errors="replace")
    return Completed(ended, child.exit_code, stderr, time.monotonic() - started)


async def _wait_for_end(
    child: Child,
    *,
    idle_timeout: Callable[[], float],
    timeout: float,
    is_finished: Callable[[], bool],
    should_stop: Callable[[], Awaitable[bool]] | None,
) -> EndReason:
    """Wait until the command exits or there is a reason to stop it."""
    deadline = time.monotonic() + timeout
    next_check = time.monotonic() + STOP_CHECK_INTERVAL if should_stop else math.inf
    while not child.exited.is_set():
        now = time.monotonic()
        idle_deadline = child.last_output + idle_timeout()
        if is_finished():
            with anyio.move_on_after(EXIT_GRACE):
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
        child.changed.clear()
        with anyio.move_on_after(min(deadline, idle_deadline, next_check) - now):
            await child.changed.wait()
    return "exited"
