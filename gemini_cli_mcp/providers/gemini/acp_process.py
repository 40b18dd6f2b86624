"""A shared `gemini --acp` process that serves many concurrent runs, each in its own session.

Measured on 0.61: opening a session takes 35 ms, but sessions must not be opened concurrently (the
last of eight waited 13 s for a lock). They are therefore opened in advance, one at a time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc

from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.process.run import Completed, EndReason
from gemini_cli_mcp.providers.gemini.acp_client import AcpClient, AcpError, AgentUnavailable
from gemini_cli_mcp.providers.gemini.acp_events import AcpTurnAdapter
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.home import Home
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord, read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry_reader import Telemetry, TelemetryFile
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback

logger = logging.getLogger(__name__)

SESSIONS_IN_ADVANCE = 48
"""Sessions a process keeps open in advance for bursts; only one until its first run."""
TELEMETRY_POLL_INTERVAL = 0.1
"""Seconds between reads of the telemetry file while waiting for a run's events."""
IDLE_CHECK_INTERVAL = 0.5
"""Maximum seconds between checks of a run's idle time."""


class AcpProcess:
    """A running ACP process with its slots and sessions."""

    def __init__(
        self,
        client: AcpClient,
        home: Home,
        temp_folder: Path,
        tasks: anyio.abc.TaskGroup,
        settings: Settings,
    ) -> None:
        self._client = client
        self._home = home
        self._temp_folder = temp_folder
        self._telemetry = TelemetryFile(home.telemetry_file(temp_folder))
        self._tasks = tasks
        self._limits = settings.limits
        self._secrets = settings.secrets
        self._max_sessions = settings.warm_sessions
        self._max_idle = settings.warm_idle
        # An upper bound only: the caller's own deadline expires first.
        self._timeout = max(settings.timeout, settings.round_timeout)
        self._session_count = 0
        self._slots_in_use = 0
        self._cancelling_count = 0
        self.peak_runs = 0
        """Highest number of concurrent runs so far."""
        self._session_sender, self._session_receiver = anyio.create_memory_object_stream[str](
            float("inf")
        )
        self._session_waiters = 0
        self._session_requested = anyio.Event()
        self._last_run_at = time.monotonic()
        self._retired = anyio.Event()
        self._drain_scope = anyio.CancelScope()
        self._idle = anyio.Event()
        self.on_slot_free: Callable[[], None] = lambda: None
        """Called when a slot may have become free."""
        self.exited = anyio.Event()
        """Set after the process has exited."""
        self.needs_replacement = anyio.Event()
        """Set when a replacement should be started."""
        self.retired_idle = False
        """Whether it was retired because it was idle."""
        self.run_count = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        argv: list[str],
        home: Home,
        environ: Mapping[str, str],
        scratch: Path,
        settings: Settings,
    ) -> AsyncGenerator["AcpProcess"]:
        """Run the process; terminate its process tree on exit. Raise OSError if it cannot start."""
        with home.temporary_folder() as temp_folder:
            env = home.environment(environ, temp_folder, settings.pass_env)
            async with (
                AcpClient.open(argv, env=env, cwd=home.working_folder, scratch=scratch) as client,
                anyio.create_task_group() as tasks,
            ):
                process = cls(client, home, temp_folder, tasks, settings)
                try:
                    yield process
                finally:
                    tasks.cancel_scope.cancel()
                    process._session_sender.close()
                    process._session_receiver.close()

    async def start(self, session_count: int) -> None:
        """Initialize the agent and open up to this many sessions, at least one.

        Raises AcpError, AgentUnavailable or TimeoutError.
        """
        with anyio.fail_after(self._limits.acp_startup_timeout):
            await self._client.initialize()
            for _ in range(min(max(1, session_count), SESSIONS_IN_ADVANCE)):
                await self._session_sender.send(await self._open_session())
        self._last_run_at = time.monotonic()
        self._tasks.start_soon(self._open_sessions_in_advance)
        self._tasks.start_soon(self._retire_when_exited)
        self._tasks.start_soon(self._retire_when_idle)
        self._tasks.start_soon(self._clear_telemetry_when_idle)

    # Slots

    @property
    def free_slots(self) -> int:
        if self._retired.is_set() or self._client.is_closed:
            return 0
        return self._max_sessions - self._slots_in_use - self._cancelling_count

    def acquire(self) -> "AcpSlot":
        self._slots_in_use += 1
        self.peak_runs = max(self.peak_runs, self._slots_in_use)
        return AcpSlot(self)

    def release(self) -> None:
        self._slots_in_use -= 1
        self._last_run_at = time.monotonic()
        self._after_run()

    # Runs

    async def run(self, prompt: str, progress: ProgressCallback) -> RunResult:
        """Run one prompt. Raise AgentUnavailable if it must be repeated in another process."""
        session_id = await self._acquire_session()
        self.run_count += 1
        turn = AcpTurnAdapter(EventLog(progress, self._limits, self._secrets))
        turn.events.add_event({"type": "init", "session_id": session_id})
        self._telemetry.track(session_id)
        text = prompt.encode("utf-8", "replace").decode()
        response = self._client.prompt(session_id, text, turn.handle_update)
        record = None
        try:
            end_reason = await self._wait_for_response(response, turn)
        finally:
            if response.done():
                record = self._read_and_delete_record(session_id)
            else:
                self._client.unsubscribe(session_id)
                self._telemetry.untrack(session_id)
                self._cancelling_count += 1
                self._tasks.start_soon(self._cancel_turn, session_id, response)
        if end_reason == "exited":
            return turn.run_result(
                response, record, await self._wait_for_telemetry(session_id, turn, record)
            )
        await asyncio.wait({response}, timeout=self._limits.acp_cancel_timeout)
        if not response.done() and not turn.events.is_searching:
            raise AgentUnavailable  # the process hangs; during a search it may be the API instead
        return RunResult(Completed(end_reason, None, ""), turn.events, None, is_official_cli=True)

    async def _wait_for_telemetry(
        self, session_id: str, turn: AcpTurnAdapter, record: SessionRecord | None
    ) -> Telemetry | None:
        """Return the telemetry of a run; None if it is late. Wait only if tools were called."""
        telemetry = None
        with anyio.move_on_after(self._limits.telemetry_timeout if turn.tool_calls else 0):
            while True:
                telemetry = self._telemetry.summarize_session(
                    session_id, record.searches if record else ()
                )
                if telemetry and telemetry.tool_calls >= turn.tool_calls:
                    break
                telemetry = None
                await anyio.sleep(TELEMETRY_POLL_INTERVAL)
        self._telemetry.untrack(session_id)
        return telemetry

    async def _clear_telemetry_when_idle(self) -> None:
        """Truncate the telemetry file periodically while no run is active.

        The CLI writes the last events of a run after it has ended, and they hold whole
        conversations.
        """
        while True:
            await anyio.sleep(max(self._limits.telemetry_timeout, 1.0))
            if not self._slots_in_use and not self._cancelling_count:
                self._telemetry.clear()

    async def _wait_for_response(
        self, response: "asyncio.Future[JsonObject]", turn: "AcpTurnAdapter"
    ) -> EndReason:
        deadline = time.monotonic() + self._timeout
        while not response.done():
            now = time.monotonic()
            idle_deadline = turn.last_update_at + turn.events.idle_limit
            if now >= deadline:
                return "timeout"
            if now >= idle_deadline:
                return "idle"
            # Not `await response`: it must survive our cancellation, since it confirms the cancel.
            remaining = min(deadline, idle_deadline) - now
            # Wake up regularly: the idle limit changes when a search starts.
            await asyncio.wait({response}, timeout=min(remaining, IDLE_CHECK_INTERVAL))
        return "exited"

    async def _cancel_turn(self, session_id: str, response: "asyncio.Future[JsonObject]") -> None:
        """Cancel an abandoned turn."""
        self._client.cancel(session_id)
        await asyncio.wait({response}, timeout=self._limits.acp_cancel_timeout)
        if not response.done():
            self.retire("cancel request timed out", self._limits.acp_drain_timeout)
        self._read_and_delete_record(session_id)
        self._cancelling_count -= 1
        self._after_run()

    def _read_and_delete_record(self, session_id: str) -> SessionRecord | None:
        self._client.unsubscribe(session_id)
        with contextlib.suppress(OSError):
            for error_report in self._temp_folder.glob("gemini-client-error-*"):
                error_report.unlink(missing_ok=True)  # it contains the whole conversation
        return read_and_delete_record(self._home.path, session_id, official=True)

    def _after_run(self) -> None:
        """Request a replacement if a limit is reached, and signal that a slot may be free."""
        if (
            self._session_count >= self._limits.acp_max_sessions
            or self._client.memory_bytes > self._limits.acp_max_memory_bytes
        ):
            self.needs_replacement.set()
        if not self._slots_in_use and not self._cancelling_count:
            self._telemetry.clear()
            self._idle.set()
        self.on_slot_free()

    # Sessions

    async def _acquire_session(self) -> str:
        self._session_waiters += 1
        self._session_requested.set()
        try:
            with anyio.fail_after(self._limits.acp_session_wait_timeout):
                return await self._session_receiver.receive()
        except (TimeoutError, anyio.EndOfStream, anyio.ClosedResourceError):
            raise AgentUnavailable from None
        finally:
            self._session_waiters -= 1
            self._session_requested.set()

    async def _open_sessions_in_advance(self) -> None:
        """Open sessions one at a time: for waiting runs, plus some in advance."""
        try:
            while True:
                open_count = self._session_receiver.statistics().current_buffer_used
                if open_count < self._sessions_in_advance + self._session_waiters:
                    await self._session_sender.send(await self._open_session())
                else:
                    self._session_requested = anyio.Event()
                    await self._session_requested.wait()
        except (AgentUnavailable, AcpError, TimeoutError) as error:
            self.retire(
                f"cannot open sessions ({type(error).__name__})",
                self._limits.acp_drain_timeout,
            )
            self._session_sender.close()

    @property
    def _sessions_in_advance(self) -> int:
        if not self.run_count:
            return 1
        return max(
            0,
            min(
                SESSIONS_IN_ADVANCE,
                self._max_sessions,
                self._limits.acp_max_sessions - self._session_count,
            ),
        )

    async def _open_session(self) -> str:
        with anyio.fail_after(self._limits.acp_session_open_timeout):
            session_id = await self._client.new_session(self._home.working_folder)
        self._session_count += 1
        return session_id

    # Retirement

    def retire(self, reason: str, timeout: float | None = None) -> None:
        """Accept no more runs; give active runs `timeout` seconds to finish."""
        if not self._retired.is_set():
            logger.info("Retiring ACP process: %s", reason)
        timeout = self._timeout if timeout is None else timeout
        self._drain_scope.deadline = min(self._drain_scope.deadline, anyio.current_time() + timeout)
        self._retired.set()
        self.needs_replacement.set()

    @property
    def is_retired(self) -> bool:
        return self._retired.is_set()

    async def wait_drained(self) -> None:
        """Wait until the process is retired and its runs have finished or timed out."""
        await self._retired.wait()
        with self._drain_scope:
            while (self._slots_in_use or self._cancelling_count) and not self._client.is_closed:
                self._idle = anyio.Event()
                await self._idle.wait()

    async def _retire_when_idle(self) -> None:
        while True:
            idle_time = time.monotonic() - self._last_run_at
            if self._slots_in_use or self._cancelling_count:
                await anyio.sleep(self._max_idle)
            elif idle_time < self._max_idle:
                await anyio.sleep(self._max_idle - idle_time)
            else:
                self.retired_idle = True
                self.retire("idle")
                return

    async def _retire_when_exited(self) -> None:
        await self._client.wait_closed()
        self.retire("exited", 0)
        self._idle.set()


@dataclass(frozen=True)
class AcpSlot:
    """An acquired slot: the right to one run in a process."""

    process: AcpProcess

    async def run(self, prompt: str, progress: ProgressCallback) -> RunResult:
        return await self.process.run(prompt, progress)

    def release(self) -> None:
        self.process.release()
