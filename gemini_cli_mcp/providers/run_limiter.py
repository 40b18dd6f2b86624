"""Limit the number of concurrent runs and queue the rest fairly.

A run needs a slot: preferably one of the few for dedicated processes, otherwise a shared slot in a
shared process (which reports less about a run, and later). If neither is free, the run waits. When
the queue is full, new calls are refused immediately; a call that was admitted once is not refused
later, when it corrects an answer or verifies a round.

Owners share the slots. A free slot goes to the owner with the fewest runs and, among equals, to
the one whose last grant is the oldest, so an owner can hold all slots only while no other owner
waits. In a full queue, an owner with more waiting calls yields to one with fewer.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast
from weakref import WeakSet

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import Busy

INITIAL_RUN_ESTIMATE = 20.0
"""Assumed duration of a run, in seconds, until one has ended."""
MAX_RETRY_AFTER = 300.0
"""Maximum `retry_after_s` of a refusal, in seconds."""


class Slot(Protocol):
    """Permission for one run in a shared process."""

    def release(self) -> None:
        """Return the slot."""
        ...


S = TypeVar("S", bound=Slot)

FindSlot = Callable[[], S | None]
"""Acquires a free shared slot, or returns None."""


class _DedicatedSlot:
    """Permission for one run in a process of its own."""


@dataclass(eq=False)
class _Waiter:
    find_slot: FindSlot[Slot] | None
    admitted: bool
    owner: str
    grant: "asyncio.Future[Slot | _DedicatedSlot]"


class RunLimiter:
    """Grants and queues the slots of one program."""

    def __init__(self, max_processes: int, max_waiting: int) -> None:
        self._free_processes = max_processes
        self._max_waiting = max_waiting
        self._waiters: list[_Waiter] = []
        self._running: Counter[str] = Counter()
        """Number of runs per owner, without owners that have none."""
        self._last_granted: dict[str, int] = {}
        """Sequence number of the last slot granted to each owner that has runs or waits."""
        self._slots_granted = 0
        self._admitted: WeakSet[CallContext] = WeakSet()
        """Calls that have already had a slot."""
        self._run_estimate = INITIAL_RUN_ESTIMATE

    @property
    def running(self) -> int:
        """Number of runs in progress."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a slot."""
        return len(self._pending_waiters())

    @property
    def owner_count(self) -> int:
        """Number of owners that the limiter keeps counters for."""
        return len(self._running.keys() | self._last_granted.keys())

    @contextlib.asynccontextmanager
    async def acquire(
        self, context: CallContext, find_slot: FindSlot[S] | None = None
    ) -> AsyncGenerator[S | None]:
        """Hold a slot for one run: yield a shared slot, or None for a dedicated process."""
        slot = await self._acquire(context, find_slot)
        started = time.monotonic()
        try:
            # A shared slot is always one that `find_slot` returned.
            yield None if isinstance(slot, _DedicatedSlot) else cast("S", slot)
        finally:
            self._run_estimate += (time.monotonic() - started - self._run_estimate) / 8
            self._release(slot, context.owner)

    def dispatch(self) -> None:
        """Grant free slots to waiting calls."""
        try_shared = True
        while waiters := self._waiters_by_priority():
            for waiter in waiters:
                slot = self._free_slot(waiter.find_slot if try_shared else None)
                try_shared = try_shared and bool(slot or not waiter.find_slot)
                if slot:
                    self._waiters.remove(waiter)
                    self._record_grant(waiter.owner)
                    waiter.grant.set_result(slot)
                    break  # the grant may change the order
            else:
                return

    async def _acquire(
        self, context: CallContext, find_slot: FindSlot[Slot] | None
    ) -> Slot | _DedicatedSlot:
        # Waiting calls take precedence for dedicated processes, but not for shared slots.
        slot = (
            (find_slot and find_slot()) if self._pending_waiters() else self._free_slot(find_slot)
        )
        if slot:
            self._record_grant(context.owner)
        else:
            self._ensure_queue_space(context)
            slot = await self._wait_for_slot(context, find_slot)
        self._admitted.add(context.root)
        return slot

    def _free_slot(self, find_slot: FindSlot[Slot] | None) -> Slot | _DedicatedSlot | None:
        """Acquire a slot that is free now, if there is one."""
        return self._acquire_dedicated() or (find_slot() if find_slot else None)

    async def _wait_for_slot(
        self, context: CallContext, find_slot: FindSlot[Slot] | None
    ) -> Slot | _DedicatedSlot:
        context.progress("waiting for other searches to finish")
        grant: asyncio.Future[Slot | _DedicatedSlot] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(find_slot, context.root in self._admitted, context.owner, grant)
        self._waiters.append(waiter)
        try:
            return await grant
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif grant.done() and not grant.cancelled() and not grant.exception():
                self._release(grant.result(), context.owner)  # granted just before the cancellation
            raise

    def _waiters_by_priority(self) -> list[_Waiter]:
        """Return the pending waiters, next one first."""
        return sorted(
            self._pending_waiters(),
            key=lambda waiter: (
                self._running[waiter.owner],
                self._last_granted.get(waiter.owner, 0),
                # Admitted calls go first: their deadlines are already running.
                not waiter.admitted,
            ),
        )

    def _pending_waiters(self) -> list[_Waiter]:
        """Return the waiters, except those cancelled but not yet removed."""
        return [waiter for waiter in self._waiters if not waiter.grant.done()]

    def _record_grant(self, owner: str) -> None:
        self._slots_granted += 1
        self._running[owner] += 1
        self._last_granted[owner] = self._slots_granted

    def _acquire_dedicated(self) -> _DedicatedSlot | None:
        if not self._free_processes:
            return None
        self._free_processes -= 1
        return _DedicatedSlot()

    def _release(self, slot: Slot | _DedicatedSlot, owner: str) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        if isinstance(slot, _DedicatedSlot):
            self._free_processes += 1
        else:
            slot.release()
        self.dispatch()
        if not self._pending_waiters():
            # While calls wait, the order of past grants decides whose turn it is.
            self._last_granted = {name: self._last_granted[name] for name in self._running}

    def _ensure_queue_space(self, context: CallContext) -> None:
        """Refuse the call if the queue is full, unless it can replace a call of a busier owner."""
        waiting = self._pending_waiters()
        if len(waiting) < self._max_waiting or context.root in self._admitted:
            return
        batches = (len(waiting) + 1) / max(1, self.running)
        busy = Busy(
            f"The queue is full ({len(waiting)} calls).",
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
        if (
            evicted is None
            or waiting_by_owner[evicted.owner] <= waiting_by_owner[context.owner] + 1
        ):
            raise busy
        self._waiters.remove(evicted)
        evicted.grant.set_exception(busy)
