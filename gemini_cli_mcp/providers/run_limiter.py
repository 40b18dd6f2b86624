"""Limit the number of concurrent runs and queue the rest fairly.

A run gets a process of its own if it can: one that was started ahead (`ready`), otherwise one that
is started for it (`cold`). Beyond both limits it shares a process (which reports less about a run,
and later). If that is not possible either, the run waits. When the queue is full, new calls are
refused immediately; a call that was admitted once is not refused later, when it corrects an answer
or verifies a round.

Owners share the slots. A free slot goes to the owner with the fewest runs and, among equals, to
the one whose last grant is the oldest, so an owner can hold all slots only while no other owner
waits. In a full queue, an owner with more waiting calls yields to one with fewer.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import overload
from weakref import WeakSet

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import Busy
from gemini_cli_mcp.providers.run_slots import AnyGrant, AnySource, Grant, R_co, S_co, SlotSource
from gemini_cli_mcp.types import ProcessUse

INITIAL_RUN_ESTIMATE = 20.0
"""Assumed duration of a run, in seconds, until one has ended."""
MAX_RETRY_AFTER = 300.0
"""Maximum `retry_after_s` of a refusal, in seconds."""


@dataclass(eq=False)
class _Waiter:
    source: AnySource | None
    admitted: bool
    owner: str
    grant: "asyncio.Future[AnyGrant]"


class RunLimiter:
    """Grants and queues the slots of one program."""

    def __init__(self, max_cold: int, max_waiting: int, max_ready: int = 0) -> None:
        """Runs in processes started ahead do not count as cold, but `max_cold + max_ready` limits
        the runs in processes of their own."""
        self._max_cold = max_cold
        self._max_dedicated = max_cold + max_ready
        self._granted: Counter[ProcessUse] = Counter()
        """Number of runs in progress."""
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
        self._finished_runs: Counter[ProcessUse] = Counter()

    @property
    def running(self) -> int:
        """Number of runs in progress."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a slot."""
        return len(self._pending_waiters())

    @property
    def finished_runs(self) -> Mapping[ProcessUse, int]:
        """Number of runs of the gemini CLI that have returned a result, good or bad, by how they
        got their process."""
        return self._finished_runs

    def count_finished_run(self, process: ProcessUse) -> None:
        self._finished_runs[process] += 1

    @property
    def owner_count(self) -> int:
        """Number of owners that the limiter keeps counters for."""
        return len(self._running.keys() | self._last_granted.keys())

    @property
    def is_overflowing(self) -> bool:
        """Whether there are more runs than processes of their own for them."""
        return self._is_burst or bool(self._pending_waiters())

    @overload
    def acquire(self, context: CallContext) -> AbstractAsyncContextManager[AnyGrant]: ...

    @overload
    def acquire(
        self, context: CallContext, source: SlotSource[R_co, S_co] | None
    ) -> AbstractAsyncContextManager[Grant[R_co, S_co]]: ...

    @asynccontextmanager
    async def acquire(
        self, context: CallContext, source: AnySource | None = None
    ) -> AsyncGenerator[AnyGrant]:
        """Hold a slot for one run; without a source, the run starts a process of its own."""
        grant = await self._acquire(context, source)
        started = time.monotonic()
        try:
            yield grant
        finally:
            self._run_estimate += (time.monotonic() - started - self._run_estimate) / 8
            self._release(grant, context.owner)

    def dispatch(self) -> None:
        """Grant free slots to waiting calls."""
        exhausted: set[AnySource | None] = set()
        while waiters := self._waiters_by_priority():
            for waiter in waiters:
                if waiter.source in exhausted:
                    continue
                if grant := self._free_grant(waiter.source):
                    self._waiters.remove(waiter)
                    self._record_grant(grant, waiter.owner)
                    waiter.grant.set_result(grant)
                    break  # the grant may change the order
                exhausted.add(waiter.source)
            else:
                return

    async def _acquire(self, context: CallContext, source: AnySource | None) -> AnyGrant:
        future: asyncio.Future[AnyGrant] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(source, context.root in self._admitted, context.owner, future)
        self._waiters.append(waiter)
        try:
            # Other calls may be waiting for processes that this one does not need.
            self.dispatch()
            if not future.done():
                self._ensure_queue_space(waiter)
                context.progress("waiting for other searches to finish")
            grant = await future
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif future.done() and not future.cancelled() and not future.exception():
                # Granted just before the cancellation.
                self._release(future.result(), context.owner)
            raise
        self._admitted.add(context.root)
        return grant

    def _free_grant(self, source: AnySource | None) -> AnyGrant | None:
        """Acquire a slot that is free now, if there is one."""
        has_dedicated = self._dedicated_count < self._max_dedicated
        if has_dedicated and source and (ready := source.take_ready()):
            return Grant("ready", ready=ready)
        # In a burst, another cold start would take memory, and time from all other runs.
        if self._is_burst and (grant := self._shared_grant(source)):
            return grant
        if has_dedicated and self._granted["cold"] < self._max_cold:
            return Grant("cold")
        return self._shared_grant(source)

    @property
    def _dedicated_count(self) -> int:
        return self._granted["ready"] + self._granted["cold"]

    @property
    def _is_burst(self) -> bool:
        return self.running > self._max_dedicated

    def _shared_grant(self, source: AnySource | None) -> AnyGrant | None:
        shared = source.take_shared() if source else None
        return Grant("shared", shared=shared) if shared else None

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

    def _record_grant(self, grant: AnyGrant, owner: str) -> None:
        self._granted[grant.process] += 1
        self._slots_granted += 1
        self._running[owner] += 1
        self._last_granted[owner] = self._slots_granted

    def _release(self, grant: AnyGrant, owner: str) -> None:
        self._granted[grant.process] -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        if slot := grant.ready or grant.shared:
            slot.release()
        self.dispatch()
        if not self._pending_waiters():
            # While calls wait, the order of past grants decides whose turn it is.
            self._last_granted = {name: self._last_granted[name] for name in self._running}

    def _ensure_queue_space(self, new: _Waiter) -> None:
        """Refuse the call if the queue is full, unless it can replace a call of a busier owner."""
        waiting = [waiter for waiter in self._pending_waiters() if waiter is not new]
        if len(waiting) < self._max_waiting or new.admitted:
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
        if evicted is None or waiting_by_owner[evicted.owner] <= waiting_by_owner[new.owner] + 1:
            raise busy
        self._waiters.remove(evicted)
        evicted.grant.set_exception(busy)
