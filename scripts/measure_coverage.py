"""Imported at the start of every Python process while scripts/coverage runs; measures our own.

coverage's environment variable does not work here: the tests give processes their own environments,
and servers exit with os._exit.
"""

import atexit
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMAND_LINE_MARKERS = (
    "gemini_cli_mcp",
    "gemini-cli-mcp",
    "tests.support.launcher",
    "exec(eval(sys.stdin",
)
"""Strings that identify the command lines of our program and of the test workers."""


def measure() -> None:
    import coverage

    tracer = coverage.Coverage(
        data_file=str(ROOT / ".coverage-data/part"),
        data_suffix=True,
        source=[str(ROOT / "gemini_cli_mcp")],
        config_file=False,
        messages=False,
    )
    # As coverage itself does in subprocesses: some of them import none of our modules.
    tracer._warn_no_data = tracer._warn_unimported_source = False
    tracer.start()
    pid, original_exit = os.getpid(), os._exit

    def save() -> None:
        if os.getpid() == pid:  # not in a fork
            tracer.stop()
            tracer.save()

    def save_and_exit(code: int) -> None:
        save()
        original_exit(code)

    atexit.register(save)
    os._exit = save_and_exit  # type: ignore[assignment]


if any(marker in " ".join(sys.orig_argv) for marker in COMMAND_LINE_MARKERS):
    measure()
