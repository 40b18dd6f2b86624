"""Ctrl-C in a research command: once ends the research, twice leaves at once."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from gemini_cli_mcp.workspace import Workspace

INTERRUPTED_EXIT_CODE = 130
"""The conventional exit code of a program interrupted with Ctrl-C."""
LEAVE_TIMEOUT = 1.0
"""Seconds for what a second Ctrl-C cleans up: the terminal may have stopped to take output."""


class InterruptHandler:
    """Context in which the first Ctrl-C calls a callback, and the second one ends the program."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._callback: Callable[[], object] | None = None
        self._close_view: Callable[[], None] = lambda: None
        self._count = 0

    def set_callbacks(self, cancel: Callable[[], None], close_view: Callable[[], None]) -> None:
        """Call `cancel` in the running event loop on the first Ctrl-C, `close_view` on the next."""
        loop = asyncio.get_running_loop()
        self._callback = lambda: loop.is_closed() or loop.call_soon_threadsafe(cancel)
        self._close_view = close_view

    def __enter__(self) -> None:
        self._previous_handler = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._callback is None:  # nothing has been started yet
            raise KeyboardInterrupt
        self._count += 1
        # In a thread: the code that was interrupted may hold locks that these need.
        if self._count == 1:
            self._callback()
            threading.Thread(target=_announce_stop, daemon=True).start()
        else:
            threading.Thread(target=self._leave, daemon=True).start()

    def _leave(self) -> None:
        """End the program; the guardians of its processes notice, and stop them."""
        timer = threading.Timer(LEAVE_TIMEOUT, os._exit, (INTERRUPTED_EXIT_CODE,))
        timer.daemon = True
        timer.start()
        try:
            self._workspace.close()
            self._close_view()
        finally:
            os._exit(INTERRUPTED_EXIT_CODE)


def _announce_stop() -> None:
    if sys.stderr:
        with suppress(OSError):  # a live view captures it and stays below it
            print("Stopping. Press Ctrl-C again to leave at once.", file=sys.stderr, flush=True)
