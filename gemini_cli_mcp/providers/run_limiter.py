"""How many runs there may be at once, and who is next.

A run takes a place: one of the few for processes of their own, else a seat in a warm process
(which tells less, and later, of what a run saw). Without either it waits its turn. Calls beyond
the queue are refused at once; one that was let in is not refused later, when it corrects an answer
or verifies a round.

Owners share what there is. A place goes to the owner who has the fewest runs, of equals to the one
who has not had one for longest, so an owner can have all places only while nobody else waits. In a
full queue an owner who has more calls in it gives way to one who has fewer.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from gemini_cli_mcp.errors import Busy
from gemini_cli_mcp.owner import CURRENT_OWNER
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.types import ProgressCallback

INITIAL_RUN_ESTIMATE = 20.0
"""Seconds that a run is thought to take before any has ended."""
MAX_RETRY_AFTER = 300.0

_admitted: ContextVar[bool] = ContextVar("_let_in", default=False)
"""Whether the call that this task works on has had a place before."""


class Slot(Protocol):
    """The right to one run in a warm process."""

    async def run(self, prompt: str, progress: ProgressCallback) -> RunResult:
        """Make it."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


class _OwnProcess:
    """The right to one process of its own."""


FindSlot = Callable[[], Slot | None]
"""Looks for a free seat and takes it."""


@dataclass(eq=False)
class _Waiter:
    find_slot: FindSlot | None
    admitted: bool
    owner: str
    turn: "asyncio.Future[Slot | _OwnProcess]"


class RunLimiter:
    """The places of one program."""

    def __init__(self, max_processes: int, max_waiting: int) -> None:
        self._free_processes = max_processes
        self._max_waiting = max_waiting
        self._waiters: list[_Waiter] = []
        self._running: Counter[str] = Counter()
        """How many runs each owner has."""
        self._last_granted: dict[str, int] = {}
        """The number of the place that each owner got last."""
        self._slots_granted = 0
        self._run_estimate = INITIAL_RUN_ESTIMATE

    @property
    def running(self) -> int:
        """How many runs there are."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._pending_waiters())

    @contextlib.asynccontextmanager
    async def acquire(
        self, progress: ProgressCallback, find_slot: FindSlot | None = None
    ) -> AsyncGenerator[Slot | None]:
        """A place for one run: a seat, or None for a process of its own."""
        owner = CURRENT_OWNER.get()
        slot = await self._acquire(progress, find_slot, owner)
        started = time.monotonic()
        try:
            yield None if isinstance(slot, _OwnProcess) else slot
        finally:
            self._run_estimate += (time.monotonic() - started - self._run_estimate) / 8
            self._release(slot, owner)

    def dispatch(self) -> None:
        """Give the places that are free to those who wait."""
        try_shared = True
        while order := self._in_order():
            for waiter in order:
                slot = self._free_slot(waiter.find_slot if try_shared else None)
                try_shared = try_shared and bool(slot or not waiter.find_slot)
                if slot:
                    self._waiters.remove(waiter)
                    self._record_grant(waiter.owner)
                    waiter.turn.set_result(slot)
                    break  # which may change who is next
            else:
                return

    async def _acquire(
        self, progress: ProgressCallback, find_slot: FindSlot | None, owner: str
    ) -> "Slot | _OwnProcess":
        # Who waits comes before us for a process of its own, but does not stand before a seat.
        slot = (
            (find_slot and find_slot()) if self._pending_waiters() else self._free_slot(find_slot)
        )
        if slot:
            self._record_grant(owner)
        else:
            self._check_queue(owner)
            slot = await self._wait_for_slot(progress, find_slot, owner)
        _admitted.set(True)
        return slot

    def _free_slot(self, find_slot: FindSlot | None) -> "Slot | _OwnProcess | None":
        """A place that is free now."""
        return self._take_process() or (find_slot() if find_slot else None)

    async def _wait_for_slot(
        self, progress: ProgressCallback, find_slot: FindSlot | None, owner: str
    ) -> "Slot | _OwnProcess":
        progress("waiting for other searches to end")
        turn: asyncio.Future[Slot | _OwnProcess] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(find_slot, _admitted.get(), owner, turn)
        self._waiters.append(waiter)
        try:
            return await turn
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif turn.done() and not turn.cancelled() and not turn.exception():
                self._release(turn.result(), owner)  # its turn came at that very moment
            raise

    def _in_order(self) -> list[_Waiter]:
        """Those who wait, the next one first."""
        return sorted(
            self._pending_waiters(),
            key=lambda waiter: (
                self._running[waiter.owner],
                self._last_granted.get(waiter.owner, 0),
                # Work that is half done goes first: the deadline of its call is running.
                not waiter.admitted,
            ),
        )

    def _pending_waiters(self) -> list[_Waiter]:
        """Not those who were cancelled and do not know yet."""
        return [waiter for waiter in self._waiters if not waiter.turn.done()]

    def _record_grant(self, owner: str) -> None:
        self._slots_granted += 1
        self._running[owner] += 1
        self._last_granted[owner] = self._slots_granted

    def _take_process(self) -> _OwnProcess | None:
        if not self._free_processes:
            return None
        self._free_processes -= 1
        return _OwnProcess()

    def _release(self, slot: "Slot | _OwnProcess", owner: str) -> None:
        self._running[owner] -= 1
        if isinstance(slot, _OwnProcess):
            self._free_processes += 1
        else:
            slot.release()
        self.dispatch()

    def _check_queue(self, owner: str) -> None:
        """Refuse a call that finds the queue full, or somebody who has more calls in it."""
        waiting = self._pending_waiters()
        if len(waiting) < self._max_waiting or _admitted.get():
            return
        batches = (len(waiting) + 1) / max(1, self.running)
        busy = Busy(
            f"{len(waiting)} calls are waiting already.",
            retry_after_s=round(min(max(1.0, batches * self._run_estimate), MAX_RETRY_AFTER)),
        )
        waiting_by_owner = Counter(waiter.owner for waiter in waiting)
        candidates = [
            waiter
            for waiter in waiting
            if not waiter.admitted and waiting_by_owner[waiter.owner] > 1
        ]
        evicted = max(
            candidates,
            key=lambda waiter: (waiting_by_owner[waiter.owner], waiting.index(waiter)),
            default=None,
        )
        if evicted is None or waiting_by_owner[evicted.owner] <= waiting_by_owner[owner] + 1:
            raise busy
        self._waiters.remove(evicted)
        evicted.turn.set_exception(busy)
