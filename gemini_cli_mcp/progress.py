"""What is going on, for whoever listens: in order, numbered, and repeated in silence."""

import time
from collections.abc import Awaitable, Callable

import anyio

ProgressSink = Callable[[int, str], Awaitable[None]]
"""Takes a number that always grows, and words with the seconds so far."""


class ProgressFeed:
    """The progress of one piece of work; the last is told again after `heartbeat` seconds."""

    def __init__(self, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._started = time.monotonic()
        self._messages: list[tuple[float, str]] = []
        self._delivered = 0
        """How many messages somebody was told."""
        self._number = 0
        self._closed = False
        self._changed = anyio.Event()

    @property
    def latest(self) -> str:
        """The last news, with the seconds that have passed by now."""
        message = self._messages[-1][1] if self._messages else "starting"
        return f"{message} ({time.monotonic() - self._started:.0f} s)"

    def publish(self, message: str) -> None:
        """There is news. Never blocks."""
        self._messages.append((time.monotonic() - self._started, message))
        self._wake()

    def close(self) -> None:
        """There will be no more."""
        self._closed = True
        self._wake()

    async def forward_to(self, sink: ProgressSink) -> None:
        """Tell the last that somebody heard, all that nobody did, and what comes, to the end."""
        position = max(0, self._delivered - 1)
        while True:
            changed = self._changed
            if position < len(self._messages):
                seconds, message = self._messages[position]
                position += 1
                text = f"{message} ({seconds:.0f} s)"
            elif self._closed:
                return
            else:
                with anyio.move_on_after(self._heartbeat):
                    await changed.wait()
                    continue
                text = self.latest
            self._delivered = max(self._delivered, position)
            self._number += 1
            await sink(self._number, text)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
