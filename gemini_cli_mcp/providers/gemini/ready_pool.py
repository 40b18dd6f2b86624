"""Processes of the CLI that are started ahead, each for one run, and replaced when used.

No process is started while a run needs the CPU or calls wait, because it would slow them down.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import anyio
import anyio.abc
from anyio import to_thread

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.providers.gemini.launcher import LaunchSpec, ProcessKind
from gemini_cli_mcp.providers.gemini.ready_plan import ReadyPlan
from gemini_cli_mcp.providers.gemini.ready_process import ReadyProcess
from gemini_cli_mcp.providers.gemini.restart_backoff import RestartBackoff
from gemini_cli_mcp.providers.gemini.started_runs import StartedRuns
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings

logger = logging.getLogger(__name__)

SIGN_IN_CHECK_INTERVAL = 5.0
"""Seconds between checks if no process may be started: the CLI is not an official one, or not
signed in."""
ERROR_DELAY = 30.0
"""Seconds after an unexpected error."""
SLOT_TIMEOUT = 1.0
"""Maximum seconds for calls to give their processes back when the program ends."""


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
        self._use_count = 0
        """Number of runs in progress or waiting for a process."""
        self._last_use: float | None = None
        self._running_since = math.inf
        self._started_runs = StartedRuns(settings.limits)
        self._changed = anyio.Event()
        """Set, and replaced, when there may be something to do."""

    @property
    def has_process(self) -> bool:
        """Whether a process waits for its prompt."""
        return bool(self._waiting)

    @contextmanager
    def in_use(self, kind: ProcessKind) -> Generator[None]:
        """Take notice of a run, before it gets a process; the pool adapts to what is used."""
        self._plan.record_run(kind)
        self._use_count += 1
        self._notify()
        try:
            yield
        finally:
            self._use_count -= 1
            self._last_use = time.monotonic()
            self._notify()

    def take(self, kind: ProcessKind) -> "ReadySlot | None":
        """Take a process of this kind, the oldest first; None if there is none."""
        for process in self._waiting:
            if process.kind == kind and process.is_alive:
                self._waiting.remove(process)
                self._open_slots += 1
                self._notify()
                return ReadySlot(process, self)
        return None

    def run_started(self) -> AbstractContextManager[Callable[[], None]]:
        """Start no processes while this run starts; the yielded function reports its output."""
        return self._started_runs.track()

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
        await anyio.sleep(self._limits.ready_first_start_delay)
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    self._changed = anyio.Event()
                    try:
                        seconds = await self._adjust(tasks)
                    except Exception as error:  # noqa: BLE001 - searches work without this pool
                        logger.warning("Nothing can be started ahead (%s)", type(error).__name__)
                        seconds = ERROR_DELAY
                    with anyio.move_on_after(seconds):
                        await self._changed.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._discard_all()
                tasks.cancel_scope.cancel()

    def _notify(self) -> None:
        self._changed.set()

    async def _adjust(self, tasks: anyio.abc.TaskGroup) -> float:
        """Stop what must not be used, start what is missing; return seconds until the next time."""
        await self._discard(await self._unusable())
        await self._discard(self._surplus())
        missing = self._plan.missing(process.kind for process in self._waiting)
        if missing and not self._is_idle:
            return await self._start_one(missing, tasks)
        return self._seconds_until_change()

    @property
    def _idle_at(self) -> float:
        """When the processes are given back because there have been no runs for too long."""
        if self._use_count:
            return math.inf
        if self._last_use is None:
            return self._running_since + self._limits.ready_first_use_timeout
        return self._last_use + self._settings.warm_idle

    @property
    def _is_idle(self) -> bool:
        return time.monotonic() >= self._idle_at

    def _seconds_until_change(self) -> float:
        """Return the time until a process becomes unusable, if nothing happens before."""
        if self._is_idle:
            return math.inf
        expires_at = min((process.expires_at for process in self._waiting), default=math.inf)
        return min(self._idle_at - time.monotonic(), expires_at - time.time())

    async def _unusable(self) -> list[ReadyProcess]:
        """Return the processes that must not be used any more; note those that have failed."""
        processes = list(self._waiting)
        if self._is_idle:
            return processes
        specs = await _launch_specs(process.kind for process in processes)
        unusable: list[ReadyProcess] = []
        for process in processes:
            if process not in self._waiting:  # taken meanwhile
                continue
            if process.command.has_exited:
                logger.info("A process started ahead has exited")
                self._backoff.record_failure(process.kind, process.spec)
            if not process.is_alive or process.spec != specs[process.kind]:
                unusable.append(process)
        return unusable

    def _surplus(self) -> list[ReadyProcess]:
        """Return the processes that are not in the plan."""
        planned = Counter(self._plan.kinds)
        surplus: list[ReadyProcess] = []
        for process in self._waiting:
            planned[process.kind] -= 1
            if planned[process.kind] < 0:
                surplus.append(process)
        return surplus

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

    async def _start_one(self, kinds: Sequence[ProcessKind], tasks: anyio.abc.TaskGroup) -> float:
        """Start a process of one of these kinds, unless none should or must be started now.

        Return the seconds until the next check; 0 if one was started.
        """
        specs = await _launch_specs(kinds)
        if delay := self._start_delay():
            return delay
        seconds = SIGN_IN_CHECK_INTERVAL
        for kind in kinds:
            spec = specs[kind]
            if spec and not self._backoff.must_wait(kind, spec):
                is_started = await self._start(kind, spec, tasks)
                return 0 if is_started else self._limits.ready_check_interval
            if spec:
                seconds = self._limits.ready_check_interval
        return seconds

    def _start_delay(self) -> float:
        """Return the seconds until a process may perhaps be started; 0 if it may be now."""
        newest = max((process.started_at for process in self._waiting), default=-math.inf)
        initializing_for = self._limits.ready_start_time - (time.time() - newest)
        if initializing_for > 0:
            return min(initializing_for, self._limits.ready_check_interval)
        is_busy = self._limiter.is_overflowing or self._started_runs.is_any_starting
        return self._limits.ready_check_interval if is_busy else 0

    async def _start(self, kind: ProcessKind, spec: LaunchSpec, tasks: anyio.abc.TaskGroup) -> bool:
        """Start a process; return whether that was possible."""
        try:
            process = await ReadyProcess.start(kind, spec, self._limits.ready_max_age)
        except (GeminiMcpError, OSError) as error:
            logger.info("No process could be started ahead (%s)", type(error).__name__)
            self._backoff.record_failure(kind, spec)
            return False
        logger.debug("A process was started ahead")
        self._waiting.append(process)
        tasks.start_soon(self._watch, process)
        self._limiter.dispatch()
        return True

    async def _watch(self, process: ReadyProcess) -> None:
        await process.command.wait_exited()
        self._notify()


async def _launch_specs(kinds: Iterable[ProcessKind]) -> Mapping[ProcessKind, LaunchSpec | None]:
    """Return what processes of these kinds would be started with now."""
    distinct = set(kinds)
    return await to_thread.run_sync(
        lambda: {kind: kind.launcher.launch_spec() for kind in distinct}
    )


@dataclass(eq=False)
class ReadySlot:
    """The right to use a process; if it is not used, it goes back to its pool."""

    _process: ReadyProcess
    pool: ReadyPool
    _is_open: bool = True

    async def use(self) -> ReadyProcess | None:
        """Return the process; None if it is outdated."""
        if await self._process.is_outdated():
            self.release()  # the pool stops it
            return None
        self._is_open = False
        self.pool.close_slot()
        return self._process

    def release(self) -> None:
        if self._is_open:
            self._is_open = False
            self.pool.close_slot(unused=self._process)
