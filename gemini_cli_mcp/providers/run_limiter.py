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
from gemini_cli_mcp.owner import OWNER
from gemini_cli_mcp.providers.gemini.run_result import Finished
from gemini_cli_mcp.types import Progress

USUAL_RUN = 20.0
"""Seconds that a run is thought to take before any has ended."""
LONGEST_HINT = 300.0

_let_in: ContextVar[bool] = ContextVar("_let_in", default=False)
"""Whether the call that this task works on has had a place before."""


class Seat(Protocol):
    """The right to one run in a warm process."""

    async def run(self, prompt: str, progress: Progress) -> Finished:
        """Make it."""
        ...

    def leave(self) -> None:
        """Give it back."""
        ...


class _Single:
    """The right to one process of its own."""


Find = Callable[[], Seat | None]
"""Looks for a free seat and takes it."""


@dataclass(eq=False)
class _Waiter:
    find: Find | None
    let_in: bool
    owner: str
    turn: "asyncio.Future[Seat | _Single]"


class Places:
    """The places of one program."""

    def __init__(self, singles: int, queue: int) -> None:
        self._free = singles
        self._queue = queue
        self._waiting: list[_Waiter] = []
        self._running: Counter[str] = Counter()
        """How many runs each owner has."""
        self._last_given: dict[str, int] = {}
        """The number of the place that each owner got last."""
        self._given = 0
        self._usual = USUAL_RUN

    @property
    def running(self) -> int:
        """How many runs there are."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._really_waiting())

    @contextlib.asynccontextmanager
    async def one(
        self, progress: Progress, find: Find | None = None
    ) -> AsyncGenerator[Seat | None]:
        """A place for one run: a seat, or None for a process of its own."""
        owner = OWNER.get()
        place = await self._taken(progress, find, owner)
        begin = time.monotonic()
        try:
            yield None if isinstance(place, _Single) else place
        finally:
            self._usual += (time.monotonic() - begin - self._usual) / 8
            self._given_back(place, owner)

    def serve(self) -> None:
        """Give the places that are free to those who wait."""
        seats = True
        while order := self._in_order():
            for waiter in order:
                place = self._now(waiter.find if seats else None)
                seats = seats and bool(place or not waiter.find)
                if place:
                    self._waiting.remove(waiter)
                    self._count(waiter.owner)
                    waiter.turn.set_result(place)
                    break  # which may change who is next
            else:
                return

    async def _taken(self, progress: Progress, find: Find | None, owner: str) -> "Seat | _Single":
        # Who waits comes before us for a process of its own, but does not stand before a seat.
        place = (find and find()) if self._really_waiting() else self._now(find)
        if place:
            self._count(owner)
        else:
            self._check_queue(owner)
            place = await self._waited(progress, find, owner)
        _let_in.set(True)
        return place

    def _now(self, find: Find | None) -> "Seat | _Single | None":
        """A place that is free now."""
        return self._single() or (find() if find else None)

    async def _waited(self, progress: Progress, find: Find | None, owner: str) -> "Seat | _Single":
        progress("waiting for other searches to end")
        turn: asyncio.Future[Seat | _Single] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(find, _let_in.get(), owner, turn)
        self._waiting.append(waiter)
        try:
            return await turn
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif turn.done() and not turn.cancelled() and not turn.exception():
                self._given_back(turn.result(), owner)  # its turn came at that very moment
            raise

    def _in_order(self) -> list[_Waiter]:
        """Those who wait, the next one first."""
        return sorted(
            self._really_waiting(),
            key=lambda waiter: (
                self._running[waiter.owner],
                self._last_given.get(waiter.owner, 0),
                # Work that is half done goes first: the deadline of its call is running.
                not waiter.let_in,
            ),
        )

    def _really_waiting(self) -> list[_Waiter]:
        """Not those who were cancelled and do not know yet."""
        return [waiter for waiter in self._waiting if not waiter.turn.done()]

    def _count(self, owner: str) -> None:
        self._given += 1
        self._running[owner] += 1
        self._last_given[owner] = self._given

    def _single(self) -> _Single | None:
        if not self._free:
            return None
        self._free -= 1
        return _Single()

    def _given_back(self, place: "Seat | _Single", owner: str) -> None:
        self._running[owner] -= 1
        if isinstance(place, _Single):
            self._free += 1
        else:
            place.leave()
        self.serve()

    def _check_queue(self, owner: str) -> None:
        """Refuse a call that finds the queue full, or somebody who has more calls in it."""
        waiting = self._really_waiting()
        if len(waiting) < self._queue or _let_in.get():
            return
        rounds = (len(waiting) + 1) / max(1, self.running)
        busy = Busy(
            f"{len(waiting)} calls are waiting already.",
            retry_after_s=round(min(max(1.0, rounds * self._usual), LONGEST_HINT)),
        )
        each = Counter(waiter.owner for waiter in waiting)
        last = [waiter for waiter in waiting if not waiter.let_in and each[waiter.owner] > 1]
        most = max(
            last, key=lambda waiter: (each[waiter.owner], waiting.index(waiter)), default=None
        )
        if most is None or each[most.owner] <= each[owner] + 1:
            raise busy
        self._waiting.remove(most)
        most.turn.set_exception(busy)
