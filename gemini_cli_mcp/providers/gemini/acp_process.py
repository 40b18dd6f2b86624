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

from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.process.run import Completed, Ended
from gemini_cli_mcp.providers.gemini.acp_client import Agent, Lost, Refused
from gemini_cli_mcp.providers.gemini.acp_events import Turn
from gemini_cli_mcp.providers.gemini.events import Transcript
from gemini_cli_mcp.providers.gemini.home import Home
from gemini_cli_mcp.providers.gemini.run_result import Finished
from gemini_cli_mcp.providers.gemini.session_record import Record, read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry import Telemetry, TelemetryFile
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.types import Progress

logger = logging.getLogger(__name__)

AHEAD = 48
"""Sessions that are open ahead of a process in use, for a burst of calls; before that, one."""
TELEMETRY_LOOK = 0.1
"""Seconds between two looks at what a process has written of a run."""
LOOK = 0.5
"""Seconds between two looks at how long a run has been silent."""


class WarmGemini:
    """One such process, from its first open session to its end."""

    def __init__(
        self, agent: Agent, home: Home, temp: Path, tasks: anyio.abc.TaskGroup, config: Config
    ) -> None:
        self._agent = agent
        self._home = home
        self._temp = temp
        self._telemetry = TelemetryFile(home.telemetry_file(temp))
        self._tasks = tasks
        self._limits = config.limits
        self._secrets = config.secrets
        self._most = config.warm_sessions
        self._longest_idle = config.warm_idle
        # The caller's own deadline comes before this one.
        self._timeout = max(config.timeout, config.round_timeout)
        self._opened = 0
        self._sitting = 0
        self._leaving = 0
        self.busiest = 0
        """The most runs that there were at once."""
        self._put, self._stock = anyio.create_memory_object_stream[str](float("inf"))
        self._awaited = 0
        self._demand = anyio.Event()
        self._last_run = time.monotonic()
        self._retired = anyio.Event()
        self._drain = anyio.CancelScope()
        self._quiet = anyio.Event()
        self.freed: Callable[[], None] = lambda: None
        """Called when a seat has become free."""
        self.gone = anyio.Event()
        """Set when its process is no more."""
        self.worn = anyio.Event()
        """Set when another one should take its place."""
        self.given_back = False
        """Whether it goes because nobody needs it."""
        self.served = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        argv: list[str],
        home: Home,
        environ: Mapping[str, str],
        scratch: Path,
        config: Config,
    ) -> AsyncGenerator["WarmGemini"]:
        """The process, from its start to the end of its tree. Raises OSError if there is none."""
        with home.temporary_folder() as temp:
            env = home.environment(environ, temp, config.pass_env)
            async with (
                Agent.open(argv, env=env, cwd=home.work, scratch=scratch) as agent,
                anyio.create_task_group() as tasks,
            ):
                process = cls(agent, home, temp, tasks, config)
                try:
                    yield process
                finally:
                    tasks.cancel_scope.cancel()
                    process._put.close()
                    process._stock.close()

    async def begin(self, sessions: int) -> None:
        """Be ready for so many runs at once. Raises Refused, Lost or TimeoutError."""
        with anyio.fail_after(self._limits.warm_start):
            await self._agent.initialize()
            for _ in range(min(max(1, sessions), AHEAD)):
                await self._put.send(await self._open_session())
        self._last_run = time.monotonic()
        self._tasks.start_soon(self._keep_stock)
        self._tasks.start_soon(self._watch)
        self._tasks.start_soon(self._give_back)
        self._tasks.start_soon(self._clear_telemetry)

    # Seats

    @property
    def free(self) -> int:
        """Seats for further runs."""
        if self._retired.is_set() or self._agent.is_lost:
            return 0
        return self._most - self._sitting - self._leaving

    def sit(self) -> "WarmSeat":
        """Take a seat."""
        self._sitting += 1
        self.busiest = max(self.busiest, self._sitting)
        return WarmSeat(self)

    def leave(self) -> None:
        """Give a seat back."""
        self._sitting -= 1
        self._last_run = time.monotonic()
        self._settle()

    # Runs

    async def run(self, prompt: str, progress: Progress) -> Finished:
        """One run. Raises Lost if it has to be made elsewhere."""
        session = await self._session()
        self.served += 1
        turn = Turn(Transcript(progress, self._limits, self._secrets))
        turn.transcript.take({"type": "init", "session_id": session})
        self._telemetry.expect(session)
        text = prompt.encode("utf-8", "replace").decode()
        answer = self._agent.prompt(session, text, turn.hear)
        record = None
        try:
            ended = await self._follow(answer, turn)
        finally:
            if answer.done():
                record = self._take_record(session)
            else:
                self._agent.forget(session)
                self._telemetry.forget(session)
                self._leaving += 1
                self._tasks.start_soon(self._let_go, session, answer)
        if ended == "exited":
            return turn.finished(answer, record, await self._what_it_saw(session, turn, record))
        await asyncio.wait({answer}, timeout=self._limits.cancel_answer)
        if not answer.done() and not turn.transcript.is_searching:
            raise Lost  # the process hangs; of a search it may be the API that does
        return Finished(Completed(ended, None, ""), turn.transcript, None, official=True)

    async def _what_it_saw(
        self, session: str, turn: Turn, record: Record | None
    ) -> Telemetry | None:
        """The telemetry of a run, if it comes in time; one without tools has nothing to prove."""
        telemetry = None
        with anyio.move_on_after(self._limits.telemetry if turn.tool_calls else 0):
            while True:
                telemetry = self._telemetry.session(session, record.searches if record else ())
                if telemetry and telemetry.tool_calls >= turn.tool_calls:
                    break
                telemetry = None
                await anyio.sleep(TELEMETRY_LOOK)
        self._telemetry.forget(session)
        return telemetry

    async def _clear_telemetry(self) -> None:
        """The last of a run is written when it is over, and it holds whole conversations."""
        while True:
            await anyio.sleep(max(self._limits.telemetry, 1.0))
            if not self._sitting and not self._leaving:
                self._telemetry.clear()

    async def _follow(self, answer: "asyncio.Future[Object]", turn: "Turn") -> Ended:
        deadline = time.monotonic() + self._timeout
        while not answer.done():
            now = time.monotonic()
            silent_until = turn.last_heard + turn.transcript.patience
            if now >= deadline:
                return "timeout"
            if now >= silent_until:
                return "idle"
            # Not `await answer`: it must outlive our cancellation, as what answers the cancel.
            left = min(deadline, silent_until) - now
            await asyncio.wait({answer}, timeout=min(left, LOOK))  # a search may have begun
        return "exited"

    async def _let_go(self, session: str, answer: "asyncio.Future[Object]") -> None:
        """End a turn that nobody waits for."""
        self._agent.cancel(session)
        await asyncio.wait({answer}, timeout=self._limits.cancel_answer)
        if not answer.done():
            self.retire("it did not answer a cancel", self._limits.unhealthy_drain)
        self._take_record(session)
        self._leaving -= 1
        self._settle()

    def _take_record(self, session: str) -> Record | None:
        self._agent.forget(session)
        with contextlib.suppress(OSError):
            for report in self._temp.glob("gemini-client-error-*"):
                report.unlink(missing_ok=True)  # it holds the whole conversation
        return read_and_delete_record(self._home.path, session, official=True)

    def _settle(self) -> None:
        """A run is over: see whether there should be another process, and who waits."""
        if (
            self._opened >= self._limits.sessions_per_process
            or self._agent.memory > self._limits.process_memory
        ):
            self.worn.set()
        if not self._sitting and not self._leaving:
            self._telemetry.clear()
            self._quiet.set()
        self.freed()

    # Sessions

    async def _session(self) -> str:
        self._awaited += 1
        self._demand.set()
        try:
            with anyio.fail_after(self._limits.session_wait):
                return await self._stock.receive()
        except (TimeoutError, anyio.EndOfStream, anyio.ClosedResourceError):
            raise Lost from None
        finally:
            self._awaited -= 1
            self._demand.set()

    async def _keep_stock(self) -> None:
        """Open sessions one by one: those that are waited for, and some ahead."""
        try:
            while True:
                stock = self._stock.statistics().current_buffer_used
                if stock < self._ahead + self._awaited:
                    await self._put.send(await self._open_session())
                else:
                    self._demand = anyio.Event()
                    await self._demand.wait()
        except (Lost, Refused, TimeoutError) as error:
            self.retire(
                f"it opens no more sessions ({type(error).__name__})", self._limits.unhealthy_drain
            )
            self._put.close()

    @property
    def _ahead(self) -> int:
        if not self.served:
            return 1
        return max(0, min(AHEAD, self._most, self._limits.sessions_per_process - self._opened))

    async def _open_session(self) -> str:
        with anyio.fail_after(self._limits.session_open):
            session = await self._agent.new_session(self._home.work)
        self._opened += 1
        return session

    # The end

    def retire(self, why: str, patience: float | None = None) -> None:
        """Take no more runs; those in it have this long to end."""
        if not self._retired.is_set():
            logger.info("A warm gemini goes: %s", why)
        patience = self._timeout if patience is None else patience
        self._drain.deadline = min(self._drain.deadline, anyio.current_time() + patience)
        self._retired.set()
        self.worn.set()

    @property
    def is_retired(self) -> bool:
        """Whether it takes no more runs."""
        return self._retired.is_set()

    async def over(self) -> None:
        """Wait until it may be ended."""
        await self._retired.wait()
        with self._drain:
            while (self._sitting or self._leaving) and not self._agent.is_lost:
                self._quiet = anyio.Event()
                await self._quiet.wait()

    async def _give_back(self) -> None:
        """Go when there was no run for long."""
        while True:
            silent = time.monotonic() - self._last_run
            if self._sitting or self._leaving:
                await anyio.sleep(self._longest_idle)
            elif silent < self._longest_idle:
                await anyio.sleep(self._longest_idle - silent)
            else:
                self.given_back = True
                self.retire("nobody needs it")
                return

    async def _watch(self) -> None:
        await self._agent.lost()
        self.retire("it is gone", 0)
        self._quiet.set()


@dataclass(frozen=True)
class WarmSeat:
    """The right to one run."""

    process: WarmGemini

    async def run(self, prompt: str, progress: Progress) -> Finished:
        return await self.process.run(prompt, progress)

    def leave(self) -> None:
        self.process.leave()
