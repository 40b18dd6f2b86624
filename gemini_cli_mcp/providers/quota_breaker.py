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

INITIAL_DELAY = 60.0
"""Seconds before another try where Google did not say when."""
MAX_DELAY = 900.0
PROBE_RETRY_AFTER = 5.0
"""Seconds after which those who wait for somebody else's try should ask again."""


@dataclass
class _OpenBreaker:
    """A quota that is used up."""

    error: QuotaExhausted | RateLimited
    until: float
    refusals: int
    probing: bool = False


class QuotaBreakers:
    """The breakers of one program."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenBreaker] = {}

    @property
    def open_count(self) -> int:
        """How many are open."""
        return len(self._open)

    def raise_if_open(self, key: str) -> None:
        """Raise what Google said, if it said not to come back yet."""
        breaker = self._get(key)
        if breaker is None:
            return
        remaining = breaker.until - time.monotonic()
        if remaining > 0 or breaker.probing:
            raise type(breaker.error)(
                f"{breaker.error.message} No run was started: Google asked to wait.",
                hint=breaker.error.next_step,
                retry_after_s=math.ceil(
                    10 * max(remaining, PROBE_RETRY_AFTER if breaker.probing else 1.0)
                )
                / 10,
            )

    @contextmanager
    def guard(self, key: str) -> Generator[None]:
        """Around a run: whether it may be, and what it taught."""
        self.raise_if_open(key)
        breaker = self._get(key)
        if breaker:
            breaker.probing = True
        try:
            yield
        except (QuotaExhausted, RateLimited) as error:
            self._trip(key, error)
            raise
        else:
            # Only the one that tried can tell; others began before the quota was used up.
            if breaker and self._open.get(key) is breaker:
                del self._open[key]
                logger.info("A quota that was used up is there again")
        finally:
            if breaker:
                breaker.probing = False

    def _get(self, key: str) -> _OpenBreaker | None:
        breaker = self._open.get(key)
        rate_limited = breaker and isinstance(breaker.error, RateLimited)
        if breaker and rate_limited and breaker.until <= time.monotonic():
            del self._open[key]
            return None
        return breaker

    def _trip(self, key: str, error: QuotaExhausted | RateLimited) -> None:
        breaker = self._open.get(key)
        if breaker and not breaker.probing:
            return  # of the runs that were under way, the first one said it
        refusals = breaker.refusals + 1 if breaker else 1
        delay = error.retry_after_s
        if delay is None:
            if isinstance(error, RateLimited):
                return  # our own cycles wait a little
            delay = min(INITIAL_DELAY * 2 ** (refusals - 1), MAX_DELAY)
        logger.warning("%s: no run is started for %.0f s", error.code, delay)
        self._open[key] = _OpenBreaker(error, time.monotonic() + delay, refusals)


def breaker_key(*parts: object) -> str:
    """The name of a sign-in and a model that tells nothing of either."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
