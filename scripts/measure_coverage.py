"""Run at the start of every Python process while scripts/coverage runs: measures ours.

Not by coverage's own way, an environment variable: the tests give processes environments of their
own, and servers leave by os._exit.
"""

import atexit
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS = ("gemini_cli_mcp", "gemini-cli-mcp", "tests.support.launcher", "exec(eval(sys.stdin")
"""What stands in the command line of our program, and of the workers that run the tests."""


def measure() -> None:
    import coverage

    measured = coverage.Coverage(
        data_file=str(ROOT / ".coverage-data/part"),
        data_suffix=True,
        source=[str(ROOT / "gemini_cli_mcp")],
        config_file=False,
        messages=False,
    )
    # As coverage itself does in processes: some of them load nothing of ours, and say so to nobody.
    measured._warn_no_data = measured._warn_unimported_source = False
    measured.start()
    process, leave = os.getpid(), os._exit

    def save() -> None:
        if os.getpid() == process:  # not in a fork
            measured.stop()
            measured.save()

    def save_and_leave(code: int) -> None:
        save()
        leave(code)

    atexit.register(save)
    os._exit = save_and_leave  # type: ignore[assignment]


if any(word in " ".join(sys.orig_argv) for word in OURS):
    measure()
