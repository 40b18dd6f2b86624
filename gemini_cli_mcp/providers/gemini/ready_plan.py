"""Which kinds of processes are kept ready.

The kind of the last run is kept ready. If two kinds alternate, the one that is ready stays, so
that no process is started and stopped for nothing; a kind that is used twice in a row replaces it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from gemini_cli_mcp.providers.gemini.launcher import ProcessKind

MAX_REMEMBERED_KINDS = 32
"""Callers can name any model, and each makes another kind."""


class ReadyPlan:
    """The kinds to keep ready, one for each process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._kinds: list[ProcessKind] = []
        self._last_used: dict[ProcessKind, int] = {}
        """Number of the last run of each kind, the least recently used one first."""
        self._run_count = 0

    @property
    def kinds(self) -> Sequence[ProcessKind]:
        """The kind of each process to keep ready; a kind may occur several times."""
        return self._kinds

    def missing(self, kinds: Iterable[ProcessKind]) -> list[ProcessKind]:
        """Return the kinds of which there are too few in `kinds`."""
        return list(Counter(self._kinds) - Counter(kinds))

    def fill(self, kind: ProcessKind) -> None:
        """Use this kind for all processes that have none yet."""
        self._kinds += [kind] * (self._count - len(self._kinds))

    def record_run(self, kind: ProcessKind) -> None:
        """Take notice of a run; it may change what is kept ready."""
        self.fill(kind)
        previous_use = self._last_used.pop(kind, None)
        if self._kinds and kind not in self._kinds:
            self._replace_least_used(kind, previous_use)
        self._run_count += 1
        self._last_used[kind] = self._run_count
        if len(self._last_used) > MAX_REMEMBERED_KINDS:
            del self._last_used[next(iter(self._last_used))]

    def _replace_least_used(self, kind: ProcessKind, previous_use: int | None) -> None:
        """Give one process to this kind, unless it alternates with all that are kept ready."""
        candidate = min(self._kinds, key=lambda other: self._last_used.get(other, 0))
        alternates = previous_use is not None and self._last_used.get(candidate, 0) > previous_use
        if Counter(self._kinds)[candidate] > 1 or not alternates:
            self._kinds[self._kinds.index(candidate)] = kind
