"""A command in a terminal emulator: what a person sees, at each moment and in the end."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyte

from tests.support import Stub, command

HISTORY_LINES = 500


@dataclass
class TerminalRun:
    """A command that has ended, and what it wrote."""

    exit_code: int
    output: str
    """Everything that it wrote, with escape sequences."""
    text: str
    """What can be read in the end, including the lines that have scrolled out."""
    moments: list[list[str]] = field(default_factory=list[list[str]])
    """The visible lines after each write."""


def run_in_terminal(
    stub: Stub,
    *arguments: str,
    columns: int = 80,
    lines: int = 24,
    on_text: Callable[[subprocess.Popen[bytes], str], None] | None = None,
) -> TerminalRun:
    """Run a command with stdout and stderr in a terminal of this size.

    `on_text` is called with the process and the visible text after each write.
    """
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        command(*arguments),
        env={**stub.environ, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=secondary,
        stderr=secondary,
    )
    os.close(secondary)
    screen = pyte.HistoryScreen(columns, lines, history=HISTORY_LINES)
    stream = pyte.ByteStream(screen)
    output = b""
    moments: list[list[str]] = []
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(primary, 1 << 16):
            output += chunk
            stream.feed(chunk)
            moments.append(_visible(screen))
            if on_text:
                on_text(process, "\n".join(moments[-1]))
    os.close(primary)
    history = [_line_text(line, columns) for line in screen.history.top]
    text = "\n".join((*history, *_visible(screen))).rstrip()
    return TerminalRun(process.wait(60), output.decode(errors="replace"), text, moments)


def _visible(screen: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in screen.display]


def _line_text(line: "dict[int, pyte.screens.Char]", columns: int) -> str:
    return "".join(line[column].data for column in range(columns)).rstrip()


def view_lines(moment: Sequence[str], frames: str) -> list[str]:
    """Return the lines of the live view that start with a frame of the spinner."""
    return [line for line in moment if line[:1] in frames and line]
