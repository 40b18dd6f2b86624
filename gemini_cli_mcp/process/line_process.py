"""One command that stays, and is spoken to line by line until somebody ends it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path

from gemini_cli_mcp.process.child import Child, spawned

MAX_UNREAD_BYTES = 64 << 20
"""Bytes that may wait for a command which does not read; it is given up then."""


class LineProcess:
    """What can be said to the command, and known of it."""

    def __init__(self, child: Child, stdin: asyncio.WriteTransport) -> None:
        self._child = child
        self._stdin = stdin

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
    ) -> AsyncGenerator["LineProcess"]:
        """Start `argv`, hand each line of its stdout to `on_line`, and end it with the context.

        Should this whole process be killed meanwhile, the folder `scratch` goes with it (Linux).
        Raises OSError if it cannot be started.
        """

        def handle_line(line: bytes) -> None:
            child.stdout_bytes = 0  # one line may be long, but all of them together may be longer
            on_line(line)

        child = Child(handle_line)
        async with spawned(child, argv, env, cwd, scratch) as stdin:
            yield cls(child, stdin)

    def send_line(self, line: bytes) -> None:
        """Send a line; never waits."""
        if not self._stdin.is_closing():
            self._stdin.write(line + b"\n")
            self._child.changed.set()

    @property
    def is_finished(self) -> bool:
        """Whether nothing more can come of it."""
        child = self._child
        return (
            child.exited.is_set()
            or child.exceeded_output_limit
            or not {0, 1} <= child.open_pipes
            or self._stdin.get_write_buffer_size() > MAX_UNREAD_BYTES
        )

    async def wait_finished(self) -> None:
        """Wait until nothing more can come of it."""
        while not self.is_finished:
            self._child.changed.clear()
            await self._child.changed.wait()

    @property
    def memory_bytes(self) -> int:
        """Bytes that the command holds in memory; 0 where that cannot be known."""
        try:
            status = Path(f"/proc/{self._child.find_pid()}/statm").read_text(encoding="ascii")
            return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0
