"""Delays before processes are started again that failed before their first run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.providers.gemini.launcher import LaunchSpec, ProcessKind


@dataclass(frozen=True)
class _Failures:
    count: int
    retry_at: float
    spec: LaunchSpec


class RestartBackoff:
    """How often processes of each kind have failed in a row, and when to try again."""

    def __init__(self, delays: Sequence[float]) -> None:
        self._delays = delays
        self._failures: dict[ProcessKind, _Failures] = {}

    def record_failure(self, kind: ProcessKind, spec: LaunchSpec) -> None:
        """Delay the next start, for longer each time."""
        count = self._failures[kind].count + 1 if kind in self._failures else 1
        delay = self._delays[min(count, len(self._delays)) - 1]
        self._failures[kind] = _Failures(count, time.monotonic() + delay, spec)

    def record_success(self, kind: ProcessKind) -> None:
        self._failures.pop(kind, None)

    def must_wait(self, kind: ProcessKind, spec: LaunchSpec) -> bool:
        """Whether it is too early to try again; a different spec may be tried at once."""
        failures = self._failures.get(kind)
        return (
            failures is not None and failures.spec == spec and time.monotonic() < failures.retry_at
        )
