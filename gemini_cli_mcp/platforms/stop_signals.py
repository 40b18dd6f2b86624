"""The signals that ask a server to stop, on every platform."""

import asyncio
import signal
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = tuple(
    signal.Signals(getattr(signal, name))
    # SIGHUP: the terminal was closed. SIGBREAK (Windows): Ctrl-Break, a closed console, a log-off.
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
)


@contextmanager
def receive_stop_signals() -> Generator[AsyncIterator[signal.Signals]]:
    """Yield the stop signals that arrive while the context is open; they have no other effect.

    Not the event loop's own handlers: Windows has none.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def receive(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, signal.Signals(number))

    async def received() -> AsyncIterator[signal.Signals]:
        while True:
            yield await queue.get()

    previous = {number: signal.signal(number, receive) for number in STOP_SIGNALS}
    try:
        yield received()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
