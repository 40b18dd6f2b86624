"""Progress messages: ordered, numbered, and repeated as a heartbeat."""

import time
from collections.abc import Awaitable, Callable

import anyio

ProgressSink = Callable[[int, str], Awaitable[None]]
"""Receives an increasing number and a message that ends with the elapsed seconds."""


class ProgressFeed:
    """Progress of one task; the last message is repeated after `heartbeat` seconds of silence."""

    def __init__(self, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._started = time.monotonic()
        self._messages: list[tuple[float, str]] = []
        self._delivered = 0
        """Number of messages that at least one sink has received."""
        self._sent_count = 0
        self._closed = False
        self._changed = anyio.Event()

    @property
    def latest(self) -> str:
        """The latest message, with the seconds elapsed until now."""
        message = self._messages[-1][1] if self._messages else "starting"
        return f"{message} ({time.monotonic() - self._started:.0f} s)"

    def publish(self, message: str) -> None:
        """Add a message without blocking."""
        self._messages.append((time.monotonic() - self._started, message))
        self._wake()

    def close(self) -> None:
        """End the feed."""
        self._closed = True
        self._wake()

    async def forward_to(self, sink: ProgressSink) -> None:
        """Send all messages that no sink has received yet, and new ones until the end."""
        position = self._delivered
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
            self._sent_count += 1
            await sink(self._sent_count, text)
            self._delivered = max(self._delivered, position)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
