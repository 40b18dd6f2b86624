"""Run an interactive program in this terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType


def run_in_foreground(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Let the program take our place, and return its exit code. Raise OSError if it cannot start.

    Windows cannot replace a process: the shell would go on at once and read the same keyboard.
    There we wait, and leave Ctrl-C to the program.
    """
    if sys.platform != "win32":
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 - a shell is not wanted
    previous = signal.signal(signal.SIGINT, _ignore)
    try:
        return subprocess.run(argv, env=dict(env), check=False).returncode
    finally:
        signal.signal(signal.SIGINT, previous)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, a handler is not inherited by the program."""
