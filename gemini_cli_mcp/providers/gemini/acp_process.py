"""One warm `gemini --acp`: many runs at once in one process, each in a session of its own.

Measured on 0.61: opening a session takes 35 ms and must not overlap another (of eight at once the
last waited 13 s for a lock), so they are opened ahead, one by one.
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
from gemini_cli_mcp.providers.gemini.acp_client import AcpClient, AcpError, AgentGone
from gemini_cli_mcp.providers.gemini.acp_events import AcpTurnAdapter
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.home import Home
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord, read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry import Telemetry, TelemetryFile
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback

logger = logging.getLogger(__name__)

SESSIONS_AHEAD = 48
"""Sessions that are open ahead of a process in use, for a burst of calls; before that, one."""
TELEMETRY_POLL_INTERVAL = 0.1
"""Seconds between two looks at what a process has written of a run."""
IDLE_CHECK_INTERVAL = 0.5
"""Seconds between two looks at how long a run has been silent."""


class AcpProcess:
    """One such process, from its first open session to its end."""

    def __init__(
        self,
        client: AcpClient,
        home: Home,
        temp: Path,
        tasks: anyio.abc.TaskGroup,
        settings: Settings,
    ) -> None:
        self._client = client
        self._home = home
        self._temp = temp
        self._telemetry = TelemetryFile(home.telemetry_file(temp))
        self._tasks = tasks
        self._limits = settings.limits
        self._secrets = settings.secrets
        self._max_sessions = settings.warm_sessions
        self._max_idle = settings.warm_idle
        # The caller's own deadline comes before this one.
        self._timeout = max(settings.timeout, settings.round_timeout)
        self._session_count = 0
        self._slots_in_use = 0
        self._cancelling = 0
        self.peak_runs = 0
        """The most runs that there were at once."""
        self._session_sender, self._open_sessions = anyio.create_memory_object_stream[str](
            float("inf")
        )
        self._session_waiters = 0
        self._session_wanted = anyio.Event()
        self._last_run = time.monotonic()
        self._retired = anyio.Event()
        self._drain_scope = anyio.CancelScope()
        self._idle = anyio.Event()
        self.on_slot_free: Callable[[], None] = lambda: None
        """Called when a seat has become free."""
        self.gone = anyio.Event()
        """Set when its process is no more."""
        self.needs_replacement = anyio.Event()
        """Set when another one should take its place."""
        self.retired_idle = False
        """Whether it goes because nobody needs it."""
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
        """The process, from its start to the end of its tree. Raises OSError if there is none."""
        with home.temporary_folder() as temp:
            env = home.environment(environ, temp, settings.pass_env)
            async with (
                AcpClient.open(argv, env=env, cwd=home.working_folder, scratch=scratch) as client,
                anyio.create_task_group() as tasks,
            ):
                process = cls(client, home, temp, tasks, settings)
                try:
                    yield process
                finally:
                    tasks.cancel_scope.cancel()
                    process._session_sender.close()
                    process._open_sessions.close()

    async def start(self, sessions: int) -> None:
        """Be ready for so many runs at once. Raises Refused, Lost or TimeoutError."""
        with anyio.fail_after(self._limits.acp_startup_timeout):
            await self._client.initialize()
            for _ in range(min(max(1, sessions), SESSIONS_AHEAD)):
                await self._session_sender.send(await self._open_session())
        self._last_run = time.monotonic()
        self._tasks.start_soon(self._open_sessions_ahead)
        self._tasks.start_soon(self._retire_when_gone)
        self._tasks.start_soon(self._retire_when_idle)
        self._tasks.start_soon(self._clear_telemetry)

    # Seats

    @property
    def free_slots(self) -> int:
        """Seats for further runs."""
        if self._retired.is_set() or self._client.is_gone:
            return 0
        return self._max_sessions - self._slots_in_use - self._cancelling

    def acquire(self) -> "AcpSlot":
        """Take a seat."""
        self._slots_in_use += 1
        self.peak_runs = max(self.peak_runs, self._slots_in_use)
        return AcpSlot(self)

    def release(self) -> None:
        """Give a seat back."""
        self._slots_in_use -= 1
        self._last_run = time.monotonic()
        self._after_run()

    # Runs

    async def run(self, prompt: str, progress: ProgressCallback) -> RunResult:
        """One run. Raises Lost if it has to be made elsewhere."""
        session = await self._take_session()
        self.run_count += 1
        turn = AcpTurnAdapter(EventLog(progress, self._limits, self._secrets))
        turn.transcript.add_event({"type": "init", "session_id": session})
        self._telemetry.expect(session)
        text = prompt.encode("utf-8", "replace").decode()
        answer = self._client.prompt(session, text, turn.handle_update)
        record = None
        try:
            end_reason = await self._wait_for_answer(answer, turn)
        finally:
            if answer.done():
                record = self._read_and_delete_record(session)
            else:
                self._client.forget(session)
                self._telemetry.forget(session)
                self._cancelling += 1
                self._tasks.start_soon(self._cancel_turn, session, answer)
        if end_reason == "exited":
            return turn.run_result(
                answer, record, await self._wait_for_telemetry(session, turn, record)
            )
        await asyncio.wait({answer}, timeout=self._limits.acp_cancel_timeout)
        if not answer.done() and not turn.transcript.is_searching:
            raise AgentGone  # the process hangs; of a search it may be the API that does
        return RunResult(
            Completed(end_reason, None, ""), turn.transcript, None, is_official_cli=True
        )

    async def _wait_for_telemetry(
        self, session: str, turn: AcpTurnAdapter, record: SessionRecord | None
    ) -> Telemetry | None:
        """The telemetry of a run, if it comes in time; one without tools has nothing to prove."""
        telemetry = None
        with anyio.move_on_after(self._limits.telemetry_timeout if turn.tool_calls else 0):
            while True:
                telemetry = self._telemetry.session(session, record.searches if record else ())
                if telemetry and telemetry.tool_calls >= turn.tool_calls:
                    break
                telemetry = None
                await anyio.sleep(TELEMETRY_POLL_INTERVAL)
        self._telemetry.forget(session)
        return telemetry

    async def _clear_telemetry(self) -> None:
        """The last of a run is written when it is over, and it holds whole conversations."""
        while True:
            await anyio.sleep(max(self._limits.telemetry_timeout, 1.0))
            if not self._slots_in_use and not self._cancelling:
                self._telemetry.clear()

    async def _wait_for_answer(
        self, answer: "asyncio.Future[JsonObject]", turn: "AcpTurnAdapter"
    ) -> EndReason:
        deadline = time.monotonic() + self._timeout
        while not answer.done():
            now = time.monotonic()
            silent_until = turn.last_update_at + turn.transcript.idle_limit
            if now >= deadline:
                return "timeout"
            if now >= silent_until:
                return "idle"
            # Not `await answer`: it must outlive our cancellation, as what answers the cancel.
            remaining = min(deadline, silent_until) - now
            await asyncio.wait(
                {answer}, timeout=min(remaining, IDLE_CHECK_INTERVAL)
            )  # a search may have begun
        return "exited"

    async def _cancel_turn(self, session: str, answer: "asyncio.Future[JsonObject]") -> None:
        """End a turn that nobody waits for."""
        self._client.cancel(session)
        await asyncio.wait({answer}, timeout=self._limits.acp_cancel_timeout)
        if not answer.done():
            self.retire("it did not answer a cancel", self._limits.acp_drain_timeout)
        self._read_and_delete_record(session)
        self._cancelling -= 1
        self._after_run()

    def _read_and_delete_record(self, session: str) -> SessionRecord | None:
        self._client.forget(session)
        with contextlib.suppress(OSError):
            for report in self._temp.glob("gemini-client-error-*"):
                report.unlink(missing_ok=True)  # it holds the whole conversation
        return read_and_delete_record(self._home.path, session, official=True)

    def _after_run(self) -> None:
        """A run is over: see whether there should be another process, and who waits."""
        if (
            self._session_count >= self._limits.acp_max_sessions
            or self._client.memory_bytes > self._limits.acp_max_memory_bytes
        ):
            self.needs_replacement.set()
        if not self._slots_in_use and not self._cancelling:
            self._telemetry.clear()
            self._idle.set()
        self.on_slot_free()

    # Sessions

    async def _take_session(self) -> str:
        self._session_waiters += 1
        self._session_wanted.set()
        try:
            with anyio.fail_after(self._limits.acp_session_wait_timeout):
                return await self._open_sessions.receive()
        except (TimeoutError, anyio.EndOfStream, anyio.ClosedResourceError):
            raise AgentGone from None
        finally:
            self._session_waiters -= 1
            self._session_wanted.set()

    async def _open_sessions_ahead(self) -> None:
        """Open sessions one by one: those that are waited for, and some ahead."""
        try:
            while True:
                open_count = self._open_sessions.statistics().current_buffer_used
                if open_count < self._sessions_ahead + self._session_waiters:
                    await self._session_sender.send(await self._open_session())
                else:
                    self._session_wanted = anyio.Event()
                    await self._session_wanted.wait()
        except (AgentGone, AcpError, TimeoutError) as error:
            self.retire(
                f"it opens no more sessions ({type(error).__name__})",
                self._limits.acp_drain_timeout,
            )
            self._session_sender.close()

    @property
    def _sessions_ahead(self) -> int:
        if not self.run_count:
            return 1
        return max(
            0,
            min(
                SESSIONS_AHEAD,
                self._max_sessions,
                self._limits.acp_max_sessions - self._session_count,
            ),
        )

    async def _open_session(self) -> str:
        with anyio.fail_after(self._limits.acp_session_open_timeout):
            session = await self._client.new_session(self._home.working_folder)
        self._session_count += 1
        return session

    # The end

    def retire(self, reason: str, timeout: float | None = None) -> None:
        """Take no more runs; those in it have this long to end."""
        if not self._retired.is_set():
            logger.info("A warm gemini goes: %s", reason)
        timeout = self._timeout if timeout is None else timeout
        self._drain_scope.deadline = min(self._drain_scope.deadline, anyio.current_time() + timeout)
        self._retired.set()
        self.needs_replacement.set()

    @property
    def is_retired(self) -> bool:
        """Whether it takes no more runs."""
        return self._retired.is_set()

    async def drained(self) -> None:
        """Wait until it may be ended."""
        await self._retired.wait()
        with self._drain_scope:
            while (self._slots_in_use or self._cancelling) and not self._client.is_gone:
                self._idle = anyio.Event()
                await self._idle.wait()

    async def _retire_when_idle(self) -> None:
        """Go when there was no run for long."""
        while True:
            silent = time.monotonic() - self._last_run
            if self._slots_in_use or self._cancelling:
                await anyio.sleep(self._max_idle)
            elif silent < self._max_idle:
                await anyio.sleep(self._max_idle - silent)
            else:
                self.retired_idle = True
                self.retire("nobody needs it")
                return

    async def _retire_when_gone(self) -> None:
        await self._client.wait_gone()
        self.retire("it is gone", 0)
        self._idle.set()


@dataclass(frozen=True)
class AcpSlot:
    """The right to one run."""

    process: AcpProcess

    async def run(self, prompt: str, progress: ProgressCallback) -> RunResult:
        return await self.process.run(prompt, progress)

    def release(self) -> None:
        self.process.release()
