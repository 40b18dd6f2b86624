"""The signals that ask a server to stop, on every platform."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FrameType

STOP_SIGNALS = tuple(
    signal.Signals(getattr(signal, name))
    # SIGHUP: the terminal was closed. SIGBREAK (Windows): Ctrl-Break, a closed console, a log-off.
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
)


@contextmanager
def receive_stop_signals() -> Generator[AsyncIterator[signal.Signals]]:
    """Yield the stop signals that arrive while the context is open; they have no other effect."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def received() -> AsyncIterator[signal.Signals]:
        while True:
            yield await queue.get()

    with ExitStack() as stack:
        for number in STOP_SIGNALS:
            stack.callback(_handle(number, loop, queue.put_nowait))
        yield received()


def _handle(
    number: signal.Signals,
    loop: asyncio.AbstractEventLoop,
    receive: Callable[[signal.Signals], None],
) -> Callable[[], object]:
    """Call `receive` in the event loop for each signal; return a function that ends that."""

    def on_signal(_: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(receive, number)

    try:
        loop.add_signal_handler(number, receive, number)
    except NotImplementedError:  # Windows, where every signal wakes the event loop
        previous = signal.signal(number, on_signal)
        return lambda: signal.signal(number, previous)
    return lambda: loop.remove_signal_handler(number)
