"""A child process with all its descendants: what each platform must provide.

guardian_handle.py implements it for Linux and macOS, windows_job.py for Windows; child.py chooses.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class ProcessTree(Protocol):
    """A child process with all its descendants. `pid` is the process that was spawned."""

    @property
    def exit_grace(self) -> float:
        """Seconds that a command has to exit by itself when its output is complete."""
        ...

    async def spawn(
        self,
        child: asyncio.SubprocessProtocol,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
    ) -> asyncio.SubprocessTransport:
        """Start `argv`. From its first instruction on, no descendant can escape `terminate`.

        Raises OSError if the command cannot be started.
        """
        ...

    async def terminate(self, exited: asyncio.Event) -> None:
        """Stop all processes, within a bounded time; `exited` is set by the spawned one's exit."""
        ...

    def memory_bytes(self, pid: int) -> int:
        """Return the resident memory of the command itself; 0 if unknown."""
        ...

    def exit_code(self, returncode: int | None) -> int | None:
        """Return the command's exit code; OSError if the command could not be started."""
        ...

    def close(self) -> None:
        """Release all resources, whether or not a process was spawned."""
        ...
