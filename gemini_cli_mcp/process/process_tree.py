"""What a platform must provide to stop a child process and everything that it started.

guardian_handle.py implements it for Linux, process_group.py for other systems; child.py chooses.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

DRAIN_TIMEOUT = 1.0
"""Seconds to read the remaining output after the child has exited."""


class ProcessTree(Protocol):
    """A child process with all its descendants. `pid` is the process that was spawned."""

    @property
    def inherited_fds(self) -> Sequence[int]:
        """The file descriptors that the spawned process inherits."""
        ...

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line to spawn in order to run `argv`."""
        ...

    async def terminate(self, pid: int, exited: asyncio.Event, drained: asyncio.Event) -> None:
        """Stop all processes, within a bounded time, and wait for the remaining output.

        `exited` is set when the spawned process has exited, `drained` when its output was read.
        """
        ...

    def find_pid(self, pid: int) -> int | None:
        """Return the pid of the command itself; None if it has not started yet."""
        ...

    def exit_code(self, returncode: int | None) -> int | None:
        """Return the command's exit code; OSError if the command could not be started."""
        ...

    def close(self) -> None:
        """Release all resources, whether or not a process was spawned."""
        ...


def signal_group(pid: int, signal_number: int) -> None:
    """Send a signal to the process group that `pid` leads, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(pid, signal_number)
        else:
            # The pid is also the group id; getpgid() fails once the process was reaped.
            os.killpg(pid, signal_number)
