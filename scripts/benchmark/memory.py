"""The most memory that a tree of processes held at one moment."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PERIOD = 0.05
MEGABYTE = 1 << 20


@dataclass
class Peak:
    """Megabytes; each the most of its own moment."""

    all: float = 0
    """Of everything that was started."""
    cli: float = 0
    """Of the gemini processes alone."""


@contextmanager
def peak(*without: int) -> Generator[Peak]:
    """Look at everything below this process, but for these."""
    most = Peak()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD):
            held = {pid: resident(pid) for pid in below(os.getpid()) if pid not in without}
            most.all = max(most.all, sum(held.values()))
            cli = sum(size for pid, size in held.items() if is_cli(pid))
            most.cli = max(most.cli, cli)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def below(pid: int) -> list[int]:
    """All descendants."""
    children = [
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in _read(file).split()
    ]
    return children + [further for child in children for further in below(child)]


def resident(pid: int) -> float:
    pages = _read(Path(f"/proc/{pid}/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE if pages else 0


def is_cli(pid: int) -> bool:
    words = _read(Path(f"/proc/{pid}/cmdline")).split("\0")
    return not any("guardian_main.py" in word for word in words) and any(
        word.endswith(("/gemini", "/gemini.js")) for word in words
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # it is gone already
