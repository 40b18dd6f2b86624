"""Sessions of an ACP process, opened in advance, one at a time.

Measured on 0.61: opening a session takes 35 ms, but sessions must not be opened concurrently (the
last of eight waited 13 s for a lock).
"""

from pathlib import Path

import anyio

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.acp_client import AcpClient, AgentUnavailable

SESSIONS_IN_ADVANCE = 48
"""Sessions a process keeps open in advance for bursts; only one until its first run."""


class AcpSessions:
    """Opens the sessions of one process and hands them out."""

    def __init__(self, client: AcpClient, cwd: Path, max_runs: int, limits: Limits) -> None:
        self._client = client
        self._cwd = cwd
        self._max_runs = max_runs
        self._limits = limits
        self._open_count = 0
        self._acquired_count = 0
        self._waiting_count = 0
        self._sender, self._receiver = anyio.create_memory_object_stream[str](float("inf"))
        self._requested = anyio.Event()
        """Set when more sessions may be needed; replaced by the task that opens them."""

    @property
    def limit_reached(self) -> bool:
        """Whether the process has opened as many sessions as it should in its lifetime."""
        return self._open_count >= self._limits.acp_max_sessions

    async def open_first(self, count: int) -> None:
        """Open up to this many sessions, at least one."""
        for _ in range(min(max(1, count), SESSIONS_IN_ADVANCE)):
            await self._open()

    async def keep_open(self) -> None:
        """Open sessions for waiting runs, plus some in advance, until cancelled.

        Raises AcpError, AgentUnavailable or TimeoutError; then no more sessions are handed out.
        """
        try:
            while True:
                unused = self._receiver.statistics().current_buffer_used
                if unused < self._sessions_in_advance + self._waiting_count:
                    await self._open()
                else:
                    self._requested = anyio.Event()
                    await self._requested.wait()
        finally:
            self._sender.close()

    async def acquire(self) -> str:
        """Return a session for one run. Raise AgentUnavailable if there is none in time."""
        self._waiting_count += 1
        self._requested.set()
        try:
            with anyio.fail_after(self._limits.acp_session_wait_timeout):
                session_id = await self._receiver.receive()
        except (TimeoutError, anyio.EndOfStream, anyio.ClosedResourceError):
            raise AgentUnavailable from None
        finally:
            self._waiting_count -= 1
            self._requested.set()
        self._acquired_count += 1
        return session_id

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()

    @property
    def _sessions_in_advance(self) -> int:
        if not self._acquired_count:
            return 1
        remaining = self._limits.acp_max_sessions - self._open_count
        return max(0, min(SESSIONS_IN_ADVANCE, self._max_runs, remaining))

    async def _open(self) -> None:
        with anyio.fail_after(self._limits.acp_session_open_timeout):
            session_id = await self._client.new_session(self._cwd)
        self._open_count += 1
        await self._sender.send(session_id)
