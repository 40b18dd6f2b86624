"""One command that stays, and is spoken to line by line until somebody ends it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path

from gemini_cli_mcp.process.child import Child, living

UNREAD = 64 << 20
"""Bytes that may wait for a command which does not read; it is given up then."""


class Dialogue:
    """What can be said to the command, and known of it."""

    def __init__(self, child: Child, feed: asyncio.WriteTransport) -> None:
        self._child = child
        self._feed = feed

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        on_line: Callable[[bytes], None],
        scratch: Path | None = None,
    ) -> AsyncGenerator["Dialogue"]:
        """Start `argv`, hand each line of its stdout to `on_line`, and end it with the context.

        Should this whole process be killed meanwhile, the folder `scratch` goes with it (Linux).
        Raises OSError if it cannot be started.
        """

        def take(line: bytes) -> None:
            child.taken = 0  # one line may be long, but all of them together may be longer
            on_line(line)

        child = Child(take)
        async with living(child, argv, env, cwd, scratch) as feed:
            yield cls(child, feed)

    def say(self, line: bytes) -> None:
        """Send a line; never waits."""
        if not self._feed.is_closing():
            self._feed.write(line + b"\n")
            self._child.wake.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come of it."""
        child = self._child
        return (
            child.exited.is_set()
            or child.flooded
            or not {0, 1} <= child.open_pipes
            or self._feed.get_write_buffer_size() > UNREAD
        )

    async def over(self) -> None:
        """Wait until nothing more can come of it."""
        while not self.is_over:
            self._child.wake.clear()
            await self._child.wake.wait()

    @property
    def memory(self) -> int:
        """Bytes that the command holds in memory; 0 where that cannot be known."""
        try:
            status = Path(f"/proc/{self._child.find_pid()}/statm").read_text(encoding="ascii")
            return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0
