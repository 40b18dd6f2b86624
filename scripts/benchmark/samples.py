"""Repeated measurements of one thing."""

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Samples:
    """Seconds that the same thing took, several times."""

    seconds: list[float] = field(default_factory=list[float])

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        """The median with the spread."""
        return f"{self.median:.2f} ({min(self.seconds):.2f}–{max(self.seconds):.2f})"

    async def measure(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Add the seconds of this work, and return its result."""
        started = time.perf_counter()
        result = await work()
        self.seconds.append(time.perf_counter() - started)
        return result
