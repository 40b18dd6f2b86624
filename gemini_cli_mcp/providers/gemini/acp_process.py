"""A shared `gemini --acp` process that serves many concurrent runs, each in its own session."""

import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import anyio
import anyio.abc

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.providers.gemini.acp_client import AcpClient, AcpError, AgentUnavailable
from gemini_cli_mcp.providers.gemini.acp_lifecycle import Lifecycle, ProcessState
from gemini_cli_mcp.providers.gemini.acp_run import AcpRun
from gemini_cli_mcp.providers.gemini.acp_sessions import AcpSessions
from gemini_cli_mcp.providers.gemini.launcher import Launch
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.settings.env import Settings


class AcpProcess:
    """A running ACP process with its slots and sessions."""

    def __init__(
        self,
        client: AcpClient,
        launch: Launch,
        tasks: anyio.abc.TaskGroup,
        settings: Settings,
        on_slot_free: Callable[[], None],
    ) -> None:
        self._client = client
        self._launch = launch
        self._telemetry = launch.telemetry
        self._tasks = tasks
        self._settings = settings
        self._limits = settings.limits
        self._max_runs = settings.warm_sessions
        self._max_idle = settings.warm_idle
        self._on_slot_free = on_slot_free
        # An upper bound only: the caller's own deadline expires first.
        self._timeout = max(settings.timeout, settings.round_timeout)
        self._sessions = AcpSessions(client, launch.cwd, self._max_runs, self._limits)
        self.lifecycle = Lifecycle(self._timeout)
        self._slots_in_use = 0
        self._cancelling_count = 0
        self._last_run_at = time.monotonic()
        self.peak_runs = 0
        """Highest number of concurrent runs so far."""
        self.run_count = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, launch: Launch, settings: Settings, on_slot_free: Callable[[], None]
    ) -> AsyncGenerator["AcpProcess"]:
        """Run the process; terminate its process tree on exit. Raise OSError if it cannot start.

        `on_slot_free` is called when a slot may have become free.
        """
        process = None
        try:
            async with (
                AcpClient.open(
                    launch.argv, env=launch.env, cwd=launch.cwd, scratch=launch.scratch
                ) as client,
                anyio.create_task_group() as tasks,
            ):
                process = cls(client, launch, tasks, settings, on_slot_free)
                try:
                    yield process
                finally:
                    tasks.cancel_scope.cancel()
                    process._sessions.close()
        finally:
            launch.delete_temp_folder()
            if process:
                process.lifecycle.advance(ProcessState.GONE)

    async def start(self, session_count: int) -> None:
        """Initialize the agent and open up to this many sessions, at least one.

        Raises AcpError, AgentUnavailable or TimeoutError.
        """
        with anyio.fail_after(self._limits.acp_startup_timeout):
            await self._client.initialize()
            await self._sessions.open_first(session_count)
        self._last_run_at = time.monotonic()
        self.lifecycle.advance(ProcessState.READY)
        self._tasks.start_soon(self._keep_sessions_open)
        self._tasks.start_soon(self._retire_when_exited)
        self._tasks.start_soon(self._retire_when_idle)
        self._tasks.start_soon(self._clear_telemetry_when_idle)

    async def wait_drained(self) -> None:
        """Wait until the process is retired and its runs have finished or timed out."""
        await self.lifecycle.wait_drained(lambda: not self._active_runs or self._client.is_closed)

    async def _retire_when_idle(self) -> None:
        while True:
            idle_time = time.monotonic() - self._last_run_at
            if self._active_runs:
                await anyio.sleep(self._max_idle)
            elif idle_time < self._max_idle:
                await anyio.sleep(self._max_idle - idle_time)
            else:
                self.lifecycle.retire("idle")
                return

    async def _retire_when_exited(self) -> None:
        await self._client.wait_closed()
        self.lifecycle.retire("exited", 0, has_failed=True)

    async def _keep_sessions_open(self) -> None:
        try:
            await self._sessions.keep_open()
        except (AgentUnavailable, AcpError, TimeoutError) as error:
            self.lifecycle.retire(
                f"cannot open sessions ({type(error).__name__})",
                self._limits.acp_drain_timeout,
                has_failed=True,
            )

    # Slots

    @property
    def free_slots(self) -> int:
        if self.lifecycle.is_retired or self._client.is_closed:
            return 0
        return self._max_runs - self._active_runs

    @property
    def is_unused(self) -> bool:
        """Whether it has no runs."""
        return not self._active_runs

    @property
    def _active_runs(self) -> int:
        """Number of runs, including cancelled ones that the agent has not ended yet."""
        return self._slots_in_use + self._cancelling_count

    def acquire(self) -> "AcpSlot":
        self._slots_in_use += 1
        self.peak_runs = max(self.peak_runs, self._slots_in_use)
        return AcpSlot(self)

    def release(self) -> None:
        self._slots_in_use -= 1
        self._last_run_at = time.monotonic()
        self._after_run()

    def _after_run(self) -> None:
        """Request a replacement if a limit is reached, and signal that a slot may be free."""
        if (
            self._sessions.limit_reached
            or self._client.memory_bytes > self._limits.acp_max_memory_bytes
        ):
            self.lifecycle.advance(ProcessState.WORN)
        if not self._active_runs:
            self._telemetry.clear()
            self.lifecycle.notify()
        self._on_slot_free()

    # Runs

    async def run(self, prompt: str, context: CallContext) -> RunResult:
        """Run one prompt. Raise AgentUnavailable if it must be repeated in another process."""
        session_id = await self._sessions.acquire()
        self.run_count += 1
        run = AcpRun(
            self._client,
            session_id,
            prompt,
            context,
            self._launch,
            self._settings,
        )
        record = None
        try:
            end_reason = await run.wait_for_end(self._timeout)
        finally:
            if run.is_pending:
                run.abandon()
                self._cancelling_count += 1
                self._tasks.start_soon(self._cancel_run, run)
            else:
                record = run.read_and_delete_record()
        return await run.result(end_reason, record)

    async def _clear_telemetry_when_idle(self) -> None:
        """Truncate the telemetry file periodically while no run is active.

        The CLI writes the last events of a run after it has ended, and they hold whole
        conversations.
        """
        while True:
            await anyio.sleep(max(self._limits.telemetry_timeout, 1.0))
            if not self._active_runs:
                self._telemetry.clear()

    async def _cancel_run(self, run: AcpRun) -> None:
        if not await run.cancel():
            self.lifecycle.retire("cancel request timed out", self._limits.acp_drain_timeout)
        run.read_and_delete_record()
        self._cancelling_count -= 1
        self._after_run()


@dataclass(frozen=True)
class AcpSlot:
    """An acquired slot: the right to one run in a process."""

    process: AcpProcess

    async def run(self, prompt: str, context: CallContext) -> RunResult:
        return await self.process.run(prompt, context)

    def release(self) -> None:
        self.process.release()
