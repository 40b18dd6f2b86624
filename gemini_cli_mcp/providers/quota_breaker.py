"""What is known of quotas: no run is started that Google has said it will refuse.

A breaker for each sign-in and model, shared by everything in one program. It opens when Google
says that a quota is used up, or asks to wait, and stays open for as long as it asked. After a
wait all go on; after a quota that was used up one run may try first.
"""

import hashlib
import logging
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from gemini_cli_mcp.errors import QuotaExhausted, RateLimited

logger = logging.getLogger(__name__)

FIRST_WAIT = 60.0
"""Seconds before another try where Google did not say when."""
LONGEST_WAIT = 900.0
PROBE = 5.0
"""Seconds after which those who wait for somebody else's try should ask again."""


@dataclass
class _Open:
    """A quota that is used up."""

    error: QuotaExhausted | RateLimited
    until: float
    refusals: int
    probing: bool = False


class Quotas:
    """The breakers of one program."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._open)

    def check(self, name: str) -> None:
        """Raise what Google said, if it said not to come back yet."""
        known = self._known(name)
        if known is None:
            return
        left = known.until - time.monotonic()
        if left > 0 or known.probing:
            raise type(known.error)(
                f"{known.error.message} No run was started: Google asked to wait.",
                hint=known.error.next_step,
                retry_after_s=math.ceil(10 * max(left, PROBE if known.probing else 1.0)) / 10,
            )

    @contextmanager
    def asking(self, name: str) -> Generator[None]:
        """Around a run: whether it may be, and what it taught."""
        self.check(name)
        known = self._known(name)
        if known:
            known.probing = True
        try:
            yield
        except (QuotaExhausted, RateLimited) as error:
            self._refused(name, error)
            raise
        else:
            # Only the one that tried can tell; others began before the quota was used up.
            if known and self._open.get(name) is known:
                del self._open[name]
                logger.info("A quota that was used up is there again")
        finally:
            if known:
                known.probing = False

    def _known(self, name: str) -> _Open | None:
        known = self._open.get(name)
        waited = known and isinstance(known.error, RateLimited)
        if known and waited and known.until <= time.monotonic():
            del self._open[name]
            return None
        return known

    def _refused(self, name: str, error: QuotaExhausted | RateLimited) -> None:
        known = self._open.get(name)
        if known and not known.probing:
            return  # of the runs that were under way, the first one said it
        refusals = known.refusals + 1 if known else 1
        wait = error.retry_after_s
        if wait is None:
            if isinstance(error, RateLimited):
                return  # our own cycles wait a little
            wait = min(FIRST_WAIT * 2 ** (refusals - 1), LONGEST_WAIT)
        logger.warning("%s: no run is started for %.0f s", error.code, wait)
        self._open[name] = _Open(error, time.monotonic() + wait, refusals)


def name_of(*parts: object) -> str:
    """The name of a sign-in and a model that tells nothing of either."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
