"""Run one command to completion without ever leaving a process behind.

Knows nothing of gemini. Both pipes are read while stdin is fed, so neither side can block the
other.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from gemini_cli_mcp.process.child import MAX_STDOUT_BYTES, TERMINATE_GRACE, Child, spawned

EXIT_GRACE = 1.0
"""Seconds that one which has said all has to leave by itself: stderr may come last."""

EndReason = Literal["exited", "finished", "idle", "timeout", "output_limit"]


@dataclass(frozen=True)
class Completed:
    """How the command ended: by itself (`exited`), or why we ended it.

    `finished`: it had said all that was wanted of it.
    """

    ended: EndReason
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
    idle_timeout: Callable[[], float],
    timeout: float,
    scratch: Path | None = None,
    is_finished: Callable[[], bool] = lambda: False,
    grace: float = TERMINATE_GRACE,
    max_stdout_bytes: int = MAX_STDOUT_BYTES,
) -> Completed:
    """Run `argv`, hand each line of its stdout to `on_line`, and see it to its end.

    It is ended when `finished()`, after `idle()` seconds without output, after `timeout` seconds
    in all, and when the caller is cancelled. Should this whole process be killed meanwhile, the
    folder `scratch` goes with it (Linux). Raises OSError if it cannot be started.
    """
    child = Child(on_line, max_stdout_bytes)
    async with spawned(child, argv, env, cwd, scratch, grace) as child_stdin:
        child_stdin.write(stdin)
        child_stdin.close()  # after the last byte has gone
        ended = await _wait_for_end(
            child, idle_timeout=idle_timeout, timeout=timeout, is_finished=is_finished
        )
    return Completed(ended, child.exit_code, child.stderr.decode(errors="replace"))


async def _wait_for_end(
    child: Child,
    *,
    idle_timeout: Callable[[], float],
    timeout: float,
    is_finished: Callable[[], bool],
) -> EndReason:
    """Wait for the end, or for a reason to end it."""
    deadline = time.monotonic() + timeout
    while not child.exited.is_set():
        now = time.monotonic()
        silent_until = child.last_output + idle_timeout()
        if is_finished():
            with anyio.move_on_after(EXIT_GRACE):
                await child.exited.wait()
            return "finished"
        if child.exceeded_output_limit:
            return "output_limit"
        if now >= deadline:
            return "timeout"
        if now >= silent_until:
            return "idle"
        child.changed.clear()
        with anyio.move_on_after(min(deadline, silent_until) - now):
            await child.changed.wait()
    return "exited"
