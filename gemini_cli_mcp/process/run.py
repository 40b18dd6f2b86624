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

from gemini_cli_mcp.process.child import GRACE, MAX_STDOUT, Child, living

LAST_WORDS = 1.0
"""Seconds that one which has said all has to leave by itself: stderr may come last."""

Ended = Literal["exited", "finished", "idle", "timeout", "flood"]


@dataclass(frozen=True)
class Completed:
    """How the command ended: by itself (`exited`), or why we ended it.

    `finished`: it had said all that was wanted of it.
    """

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
    idle: Callable[[], float],
    timeout: float,
    scratch: Path | None = None,
    finished: Callable[[], bool] = lambda: False,
    grace: float = GRACE,
    max_stdout: int = MAX_STDOUT,
) -> Completed:
    """Run `argv`, hand each line of its stdout to `on_line`, and see it to its end.

    It is ended when `finished()`, after `idle()` seconds without output, after `timeout` seconds
    in all, and when the caller is cancelled. Should this whole process be killed meanwhile, the
    folder `scratch` goes with it (Linux). Raises OSError if it cannot be started.
    """
    child = Child(on_line, max_stdout)
    async with living(child, argv, env, cwd, scratch, grace) as feed:
        feed.write(stdin)
        feed.close()  # after the last byte has gone
        ended = await _follow(child, idle=idle, timeout=timeout, finished=finished)
    return Completed(ended, child.exit_code, child.stderr.decode(errors="replace"))


async def _follow(
    child: Child, *, idle: Callable[[], float], timeout: float, finished: Callable[[], bool]
) -> Ended:
    """Wait for the end, or for a reason to end it."""
    deadline = time.monotonic() + timeout
    while not child.exited.is_set():
        now = time.monotonic()
        silent_until = child.last_output + idle()
        if finished():
            with anyio.move_on_after(LAST_WORDS):
                await child.exited.wait()
            return "finished"
        if child.flooded:
            return "flood"
        if now >= deadline:
            return "timeout"
        if now >= silent_until:
            return "idle"
        child.wake.clear()
        with anyio.move_on_after(min(deadline, silent_until) - now):
            await child.wake.wait()
    return "exited"
