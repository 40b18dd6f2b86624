"""A long-running command with line-based stdin and stdout."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from gemini_cli_mcp.process.child import Child, spawn_child

MAX_UNREAD_BYTES = 64 << 20
"""Maximum bytes queued for a command that does not read its stdin before it is abandoned."""


class LineProcess:
    """A handle to the running command."""

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
        scratch: Path | None = None,
    ) -> AsyncGenerator["LineProcess"]:
        """Run `argv` while the context is open.

        If this process is killed meanwhile, the folder `scratch` is removed (not on Windows).
        Raises OSError if the command cannot be started.
        """
        child = Child(limit_each_line=True)
        async with spawn_child(child, argv, env, cwd, scratch) as stdin:
            yield cls(child, stdin)

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield the lines of stdout until the command can no longer be used."""
        while True:
            for line in self._child.take_lines():
                yield line
            if self.is_finished:
                return
            await self._wait_changed()

    def send_line(self, line: bytes) -> None:
        """Send a line without waiting."""
        if not self._stdin.is_closing():
            self._stdin.write(line + b"\n")
            self._child.changed.set()

    @property
    def is_finished(self) -> bool:
        """Whether the command can no longer be used."""
        child = self._child
        return (
            child.exited.is_set()
            or child.exceeded_output_limit
            or not {0, 1} <= child.open_pipes
            or self._stdin.get_write_buffer_size() > MAX_UNREAD_BYTES
        )

    async def wait_finished(self) -> None:
        """Wait until the command can no longer be used."""
        while not self.is_finished:
            await self._wait_changed()

    async def _wait_changed(self) -> None:
        self._child.changed.clear()
        await self._child.changed.wait()

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the command; 0 if unknown."""
        return self._child.memory_bytes()
