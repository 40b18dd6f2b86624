"""Which files of the package a block of code enters."""

import inspect
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import gemini_cli_mcp

PACKAGE = Path(gemini_cli_mcp.__file__).parent


@contextmanager
def entered_files() -> Generator[set[str]]:
    """Record every file in which a function is entered, on this thread; imports do not count."""
    files: set[str] = set()

    def record(frame: FrameType, event: str, argument: object) -> None:
        # The bodies of modules and classes are not optimized: they run once, at import.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                files.add(path.relative_to(PACKAGE).as_posix())

    previous = sys.getprofile()
    sys.setprofile(record)
    try:
        yield files
    finally:
        sys.setprofile(previous)
