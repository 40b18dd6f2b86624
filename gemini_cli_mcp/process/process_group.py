"""A process group, which stops a child on systems without a guardian."""

import asyncio
import signal
from collections.abc import Sequence

import anyio

from gemini_cli_mcp.process.process_tree import DRAIN_TIMEOUT, signal_group


class ProcessGroup:
    """The child's process group; a grandchild can leave it."""

    inherited_fds = ()

    def __init__(self, grace: float) -> None:
        self._grace = grace

    def command(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    async def terminate(self, pid: int, exited: asyncio.Event, drained: asyncio.Event) -> None:
        """Stop the group with SIGTERM, then SIGKILL; then read the remaining output."""
        try:
            if not exited.is_set():
                signal_group(pid, signal.SIGTERM)
                with anyio.move_on_after(self._grace, shield=True):
                    await exited.wait()
        finally:
            # Also after a normal exit: children may outlive the group leader.
            signal_group(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await exited.wait()
            await drained.wait()

    def find_pid(self, pid: int) -> int | None:
        return pid

    def exit_code(self, returncode: int | None) -> int | None:
        return returncode

    def close(self) -> None:
        """Do nothing: a process group holds no resources."""
