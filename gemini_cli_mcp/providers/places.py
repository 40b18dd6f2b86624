"""How many runs there may be at once, and who is next.

A run takes a place: a seat in a warm process where there is one, else one of the few places for
single runs. Without either it waits its turn. Calls beyond the queue are refused at once; one
that was let in is not refused later, when it corrects an answer or verifies a round.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from gemini_cli_mcp.errors import Busy
from gemini_cli_mcp.models import Progress
from gemini_cli_mcp.providers.gemini_run import Finished

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
    turn: "asyncio.Future[Seat | _Single]"


class Places:
    """The places of one program."""

    def __init__(self, singles: int, queue: int) -> None:
        self._free = singles
        self._queue = queue
        self._waiting: list[_Waiter] = []
        self._running = 0
        self._usual = USUAL_RUN

    @property
    def running(self) -> int:
        """How many runs there are."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._really_waiting())

    @contextlib.asynccontextmanager
    async def one(
        self, progress: Progress, find: Find | None = None
    ) -> AsyncGenerator[Seat | None]:
        """A place for one run: a seat, or None for a process of its own."""
        place = await self._taken(progress, find)
        begin = time.monotonic()
        self._running += 1
        try:
            yield None if isinstance(place, _Single) else place
        finally:
            self._running -= 1
            self._usual += (time.monotonic() - begin - self._usual) / 8
            self._given_back(place)

    def serve(self) -> None:
        """Give the places that are free to those who wait, first come first served."""
        seats = True
        for waiter in self._really_waiting():
            seat = waiter.find() if seats and waiter.find else None
            seats = seats and bool(seat or not waiter.find)
            if place := seat or self._single():
                self._waiting.remove(waiter)
                waiter.turn.set_result(place)
            elif not seats:
                return

    async def _taken(self, progress: Progress, find: Find | None) -> "Seat | _Single":
        # Who waits for a process of his own does not stand before a free seat.
        place = (find and find()) or (None if self._really_waiting() else self._single())
        if not place:
            self._check_queue()
            place = await self._waited(progress, find)
        _let_in.set(True)
        return place

    async def _waited(self, progress: Progress, find: Find | None) -> "Seat | _Single":
        progress("waiting for other searches to end")
        waiter = _Waiter(find, _let_in.get(), asyncio.get_running_loop().create_future())
        # Work that is half done goes first: the deadline of its call is running.
        ahead = sum(1 for other in self._waiting if other.let_in or not waiter.let_in)
        self._waiting.insert(ahead, waiter)
        try:
            return await waiter.turn
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.turn.done():  # its turn came at that very moment
                self._given_back(waiter.turn.result())
            raise

    def _really_waiting(self) -> list[_Waiter]:
        """Not those who were cancelled and do not know yet."""
        return [waiter for waiter in self._waiting if not waiter.turn.done()]

    def _single(self) -> _Single | None:
        if not self._free:
            return None
        self._free -= 1
        return _Single()

    def _given_back(self, place: "Seat | _Single") -> None:
        if isinstance(place, _Single):
            self._free += 1
        else:
            place.leave()
        self.serve()

    def _check_queue(self) -> None:
        waiting = self.waiting
        if waiting < self._queue or _let_in.get():
            return
        rounds = (waiting + 1) / max(1, self._running)
        raise Busy(
            f"{waiting} calls are waiting already.",
            retry_after_s=round(min(max(1.0, rounds * self._usual), LONGEST_HINT)),
        )
