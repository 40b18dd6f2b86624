"""The life of an ACP process, from its start until it has exited."""

import enum
import logging
import math
from collections.abc import Callable

import anyio

logger = logging.getLogger(__name__)


class ProcessState(enum.IntEnum):
    """A process only moves forward, and may skip states."""

    STARTING = 1
    READY = 2
    """Accepts runs."""
    WORN = 3
    """Accepts runs, but has reached a limit and should be replaced."""
    DRAINING = 4
    """Retired: accepts no more runs, but its active runs may finish."""
    GONE = 5
    """The process has exited."""


class Lifecycle:
    """The state of one process; whoever waits for a change is notified."""

    def __init__(self, max_drain_time: float) -> None:
        self._state = ProcessState.STARTING
        self.has_failed = False
        """Whether it was retired because it did not work."""
        self._max_drain_time = max_drain_time
        self._drain_deadline = math.inf
        self._changed = anyio.Event()
        """Set, and replaced, on every change."""

    def advance(self, state: ProcessState) -> None:
        """Enter a state, unless the process is already in it or in a later one."""
        self._state = max(self._state, state)
        self.notify()

    def notify(self) -> None:
        """Wake up whoever waits: the state or the active runs may have changed."""
        self._changed.set()
        self._changed = anyio.Event()

    def retire(
        self, reason: str, timeout: float | None = None, *, has_failed: bool = False
    ) -> None:
        """Accept no more runs; give active runs `timeout` seconds to finish."""
        if not self.is_retired:
            logger.info("Retiring ACP process: %s", reason)
            self.has_failed = has_failed
        timeout = self._max_drain_time if timeout is None else timeout
        self._drain_deadline = min(self._drain_deadline, anyio.current_time() + timeout)
        self.advance(ProcessState.DRAINING)

    @property
    def is_retired(self) -> bool:
        return self._state >= ProcessState.DRAINING

    async def wait_for(self, state: ProcessState) -> None:
        """Wait until the process is in this state or a later one."""
        while self._state < state:
            await self._changed.wait()

    async def wait_drained(self, is_drained: Callable[[], bool]) -> None:
        """Wait until the process is retired and its runs have finished or timed out."""
        await self.wait_for(ProcessState.DRAINING)
        while not is_drained() and anyio.current_time() < self._drain_deadline:
            # Another call of `retire` may have moved the deadline: then this wakes up early.
            with anyio.CancelScope(deadline=self._drain_deadline):
                await self._changed.wait()
