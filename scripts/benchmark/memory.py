"""The peak memory of a process tree."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.05
MEGABYTE = 1 << 20


@dataclass
class Peak:
    """Megabytes; the two peaks may occur at different times."""

    total: float = 0
    """All started processes."""
    cli: float = 0
    """The gemini processes alone."""


@contextmanager
def track_peak(*excluded_pids: int) -> Generator[Peak]:
    """Sample the memory of all descendants of this process except the excluded ones."""
    peak = Peak()
    stopped = threading.Event()

    def sample() -> None:
        while not stopped.wait(SAMPLE_SECONDS):
            sizes = processes(*excluded_pids)
            peak.total = max(peak.total, sum(sizes.values()))
            cli = sum(size for pid, size in sizes.items() if is_cli(pid))
            peak.cli = max(peak.cli, cli)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stopped.set()
        thread.join()


def cli_processes(*excluded_pids: int) -> dict[int, float]:
    """Return the megabytes of each gemini process that this process has started, by pid."""
    return {pid: size for pid, size in processes(*excluded_pids).items() if is_cli(pid)}


def processes(*excluded_pids: int) -> dict[int, float]:
    """Return the megabytes of each process that this process has started, by pid."""
    return {
        pid: resident_megabytes(pid) for pid in descendants(os.getpid()) if pid not in excluded_pids
    }


def descendants(pid: int) -> list[int]:
    try:
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:  # the process has exited
        return []
    children = [int(child) for file in files for child in _read(file).split()]
    return children + [descendant for child in children for descendant in descendants(child)]


def resident_megabytes(pid: int) -> float:
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
        return ""  # the process has exited
