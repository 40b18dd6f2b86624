"""Processes of the CLI that are started ahead, each for one run, and replaced when used.

No process is started while a run needs the CPU or calls wait, because it would slow them down.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import anyio.abc
from anyio import to_thread

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.providers.gemini.launcher import LaunchSpec, ProcessKind
from gemini_cli_mcp.providers.gemini.ready_plan import ReadyPlan
from gemini_cli_mcp.providers.gemini.ready_process import ReadyProcess
from gemini_cli_mcp.providers.gemini.restart_backoff import RestartBackoff
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings

logger = logging.getLogger(__name__)

CHECK_INTERVAL = 0.5
"""Maximum seconds between checks while a process is missing."""
RUN_START_TIME = 0.5
"""Seconds after the first output of a run in which it may still need the CPU; then it waits for the
API."""
FIRST_START_DELAY = 0.3
"""Seconds from the handshake to the first start."""
SLOT_TIMEOUT = 1.0
"""Maximum seconds for calls to give their processes back when the program ends."""
SIGN_IN_CHECK_INTERVAL = 5.0
"""Same if none may be started: the CLI is not an official one, or not signed in."""


class ReadyPool:
    """The processes that one program has started ahead, for all its providers."""

    def __init__(self, settings: Settings, limiter: RunLimiter) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._limiter = limiter
        self._plan = ReadyPlan(settings.ready_count)
        self._backoff = RestartBackoff(settings.limits.restart_delays)
        self._waiting: list[ReadyProcess] = []
        self._open_slots = 0
        """Number of processes that were taken and are neither used nor given back yet."""
        self._runs: set[_Run] = set()
        """The runs in progress."""
        self._running_since = math.inf
        self._last_run_at: float | None = None
        self._changed = anyio.Event()
        """Set, and replaced, when there may be something to do."""

    @property
    def has_process(self) -> bool:
        """Whether a process waits for its prompt."""
        return bool(self._waiting)

    def record_run(self, kind: ProcessKind) -> None:
        """Take notice of a run before it starts; the pool adapts to what is used."""
        self._last_run_at = time.monotonic()
        self._plan.record_run(kind)
        self._notify()

    def take(self, kind: ProcessKind) -> "ReadySlot | None":
        """Take a process of this kind, the oldest first; None if there is none."""
        for process in self._waiting:
            if process.kind == kind and process.is_alive(self._limits.ready_max_age):
                self._waiting.remove(process)
                self._open_slots += 1
                self._notify()
                return ReadySlot(process, self)
        return None

    @contextmanager
    def run_in_progress(self) -> Generator[Callable[[], None]]:
        """Start no processes while this run starts; the yielded function reports its output."""
        run = _Run()
        self._runs.add(run)
        try:
            yield run.record_output
        finally:
            self._runs.remove(run)
            self._notify()

    def record_result(self, kind: ProcessKind, spec: LaunchSpec, *, was_lost: bool) -> None:
        """Take notice of how a process has served its run."""
        if was_lost:
            logger.info("A process started ahead was lost: starting another one")
            self._backoff.record_failure(kind, spec)
        else:
            self._backoff.record_success(kind)

    def close_slot(self, unused: ReadyProcess | None = None) -> None:
        """Take notice that a process that was taken is in use, or comes back `unused`."""
        self._open_slots -= 1
        if unused:
            self._waiting.append(unused)
        self._notify()

    async def run(self, first: ProcessKind | None) -> None:
        """Keep processes ready until cancelled, at first of the kind `first`."""
        if first:
            self._plan.fill(first)
        self._running_since = time.monotonic()
        # A program may call right after the handshake; two processes would slow each other down.
        await anyio.sleep(FIRST_START_DELAY)
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    self._changed = anyio.Event()
                    await self._discard(await self._unusable())
                    await self._discard(self._surplus())
                    if kind := next(self._missing_kinds(), None):
                        seconds = await self._start_if_possible(kind, tasks)
                    else:
                        seconds = self._seconds_until_change()
                    with anyio.move_on_after(seconds):
                        await self._changed.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._discard_all()
                tasks.cancel_scope.cancel()

    def _notify(self) -> None:
        self._changed.set()

    @property
    def _idle_at(self) -> float:
        """When the processes are given back because there have been no runs for too long."""
        if self._last_run_at is None:
            return self._running_since + self._limits.ready_first_use_timeout
        return self._last_run_at + self._settings.warm_idle

    @property
    def _is_idle(self) -> bool:
        return time.monotonic() >= self._idle_at

    def _seconds_until_change(self) -> float:
        """Return the time until a process becomes unusable, if nothing happens before."""
        if self._is_idle:
            return math.inf
        oldest = min((process.started_at for process in self._waiting), default=math.inf)
        expires_in = oldest + self._limits.ready_max_age - time.time()
        return min(self._idle_at - time.monotonic(), expires_in)

    async def _unusable(self) -> list[ReadyProcess]:
        """Return the processes that must not be used any more; note those that have failed."""
        if self._is_idle:
            return self._waiting
        unusable: list[ReadyProcess] = []
        for process in list(self._waiting):
            if process.command.has_exited:
                logger.info("A process started ahead has exited")
                self._backoff.record_failure(process.kind, process.spec)
            if not process.is_alive(self._limits.ready_max_age) or await process.is_outdated():
                unusable.append(process)
        return [process for process in unusable if process in self._waiting]

    def _surplus(self) -> list[ReadyProcess]:
        """Return the processes that are not in the plan."""
        planned = Counter(self._plan.kinds)
        surplus: list[ReadyProcess] = []
        for process in self._waiting:
            planned[process.kind] -= 1
            if planned[process.kind] < 0:
                surplus.append(process)
        return surplus

    def _missing_kinds(self) -> Iterator[ProcessKind]:
        """Yield the kinds of the plan for which there is no process."""
        if not self._is_idle:
            waiting = Counter(process.kind for process in self._waiting)
            yield from (Counter(self._plan.kinds) - waiting).elements()

    async def _discard(self, processes: Sequence[ReadyProcess]) -> None:
        """Stop these processes."""
        discarded = set(processes)
        self._waiting = [process for process in self._waiting if process not in discarded]
        async with anyio.create_task_group() as tasks:
            for process in discarded:
                tasks.start_soon(process.discard)

    async def _discard_all(self) -> None:
        """Stop all processes, also those that calls give back because they are cancelled now."""
        with anyio.move_on_after(SLOT_TIMEOUT):
            while self._open_slots:
                self._changed = anyio.Event()
                await self._changed.wait()
        await self._discard(self._waiting)

    async def _start_if_possible(self, kind: ProcessKind, tasks: anyio.abc.TaskGroup) -> float:
        """Start a process of this kind, unless it should or must not be started now.

        Return the seconds until the next check; 0 if it was started.
        """
        newest = max((process.started_at for process in self._waiting), default=-math.inf)
        initializing_for = self._limits.ready_start_time - (time.time() - newest)
        if initializing_for > 0:
            return min(initializing_for, CHECK_INTERVAL)
        if self._limiter.is_overflowing or any(run.is_starting for run in self._runs):
            return CHECK_INTERVAL
        spec = await to_thread.run_sync(kind.launcher.launch_spec)
        if spec is None:
            return SIGN_IN_CHECK_INTERVAL
        if self._backoff.must_wait(kind, spec):
            return CHECK_INTERVAL
        try:
            process = await ReadyProcess.start(kind, spec)
        except (GeminiMcpError, OSError) as error:
            logger.info("No process could be started ahead (%s)", type(error).__name__)
            self._backoff.record_failure(kind, spec)
            return CHECK_INTERVAL
        self._waiting.append(process)
        tasks.start_soon(self._watch, process)
        self._limiter.dispatch()
        return 0

    async def _watch(self, process: ReadyProcess) -> None:
        await process.command.wait_exited()
        self._notify()


@dataclass(eq=False)
class _Run:
    """A run in progress."""

    _first_output: float | None = None

    def record_output(self) -> None:
        if self._first_output is None:
            self._first_output = time.monotonic()

    @property
    def is_starting(self) -> bool:
        output = self._first_output
        return output is None or time.monotonic() - output < RUN_START_TIME


@dataclass(eq=False)
class ReadySlot:
    """The right to use a process; if it is not used, it goes back to its pool."""

    _process: ReadyProcess
    pool: ReadyPool
    _is_used: bool = False

    async def use(self) -> ReadyProcess | None:
        """Return the process; None if it is outdated."""
        is_outdated = await self._process.is_outdated()
        self._is_used = True
        self.pool.close_slot()
        if is_outdated:
            await self._process.discard()
            return None
        return self._process

    def release(self) -> None:
        if not self._is_used:
            self.pool.close_slot(unused=self._process)
