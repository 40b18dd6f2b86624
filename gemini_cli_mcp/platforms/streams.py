"""Standard input, output and error as pipes and consoles."""

import errno
import os
import select
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import TextIO

if sys.platform == "win32":

    def is_writable(stream: TextIO) -> bool:
        """Return whether a line can be written without blocking; Windows does not say."""
        return True

    def is_closed(descriptor: int) -> bool:
        """Return whether the other end of a pipe is closed; on Windows only a read shows that."""
        return False
else:

    def is_writable(stream: TextIO) -> bool:
        """Return whether a line can be written without blocking; assume so if unknown."""
        try:
            poll = select.poll()
            poll.register(stream.fileno(), select.POLLOUT)
            return bool(poll.poll(0))
        except (AttributeError, OSError, ValueError):  # no stream, or one without a descriptor
            return True

    def is_closed(descriptor: int) -> bool:
        """Return whether the other end of a pipe is closed, even if unread data remains."""
        half_closed = getattr(select, "POLLRDHUP", 0)  # sockets, on Linux
        poll = select.poll()
        poll.register(descriptor, select.POLLHUP | half_closed)  # macOS says only what is asked for
        closed_events = select.POLLHUP | select.POLLERR | half_closed
        return any(events & closed_events for _, events in poll.poll(0))


def use_utf8_in_pipes(environ: Mapping[str, str], platform: str = sys.platform) -> None:
    """Write UTF-8 into files and pipes; Windows would use a code page, which loses characters.

    A console gets the right characters in any case. A user's choice of the encoding counts.
    """
    if platform != "win32" or environ.get("PYTHONIOENCODING"):
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")


def is_broken_pipe(error: OSError, platform: str = sys.platform) -> bool:
    """Whether the reader of our output is gone; Windows reports that as an invalid argument."""
    return isinstance(error, BrokenPipeError) or (
        platform == "win32"
        and error.errno == errno.EINVAL
        and getattr(error, "winerror", None) is None  # unlike, say, an invalid file name
    )


def discard_stdout() -> None:
    """Drop further output, or Python reports a broken pipe again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
