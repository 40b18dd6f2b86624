"""What is going on, for whoever listens: in order, numbered, and repeated in silence."""

import time
from collections.abc import Awaitable, Callable

import anyio

Tell = Callable[[int, str], Awaitable[None]]
"""Takes a number that always grows, and words with the seconds so far."""


class News:
    """The progress of one piece of work; the last is told again after `heartbeat` seconds."""

    def __init__(self, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._started = time.monotonic()
        self._messages: list[tuple[float, str]] = []
        self._heard = 0
        """How many messages somebody was told."""
        self._number = 0
        self._over = False
        self._changed = anyio.Event()

    @property
    def last(self) -> str:
        """The last news, with the seconds that have passed by now."""
        message = self._messages[-1][1] if self._messages else "starting"
        return f"{message} ({time.monotonic() - self._started:.0f} s)"

    def add(self, message: str) -> None:
        """There is news. Never blocks."""
        self._messages.append((time.monotonic() - self._started, message))
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self._over = True
        self._wake()

    async def follow(self, tell: Tell) -> None:
        """Tell the last that somebody heard, all that nobody did, and what comes, to the end."""
        at = max(0, self._heard - 1)
        while True:
            changed = self._changed
            if at < len(self._messages):
                seconds, message = self._messages[at]
                at += 1
                words = f"{message} ({seconds:.0f} s)"
            elif self._over:
                return
            else:
                with anyio.move_on_after(self._heartbeat):
                    await changed.wait()
                    continue
                words = self.last
            self._heard = max(self._heard, at)
            self._number += 1
            await tell(self._number, words)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
