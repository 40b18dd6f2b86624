"""The runs that have a process of their own, and whether one of them still needs the CPU."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gemini_cli_mcp.limits import Limits


class StartedRuns:
    """The runs of one program."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._runs: set[_Run] = set()

    @contextmanager
    def track(self) -> Generator[Callable[[], None]]:
        """Take notice of a run until the context exits; the yielded function reports its output."""
        run = _Run(self._limits)
        self._runs.add(run)
        try:
            yield run.record_output
        finally:
            self._runs.remove(run)

    @property
    def is_any_starting(self) -> bool:
        """Whether a run probably needs the CPU."""
        return any(run.is_starting for run in self._runs)


@dataclass(eq=False)
class _Run:
    _limits: Limits
    _started_at: float = field(default_factory=time.monotonic)
    _first_output: float | None = None

    def record_output(self) -> None:
        if self._first_output is None:
            self._first_output = time.monotonic()

    @property
    def is_starting(self) -> bool:
        if self._first_output is None:
            return time.monotonic() - self._started_at < self._limits.run_start_timeout
        return time.monotonic() - self._first_output < self._limits.run_start_time
