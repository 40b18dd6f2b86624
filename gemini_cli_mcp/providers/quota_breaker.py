"""Circuit breakers for quotas: do not start runs that Google has said it will refuse.

There is one breaker per sign-in and model, shared by the whole program. It opens when Google
reports an exhausted quota or asks to wait, and stays open for as long as Google asked. After a
rate limit expires, all runs continue; after an exhausted quota, a single run probes first.
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
"""Seconds before the next attempt if Google did not give a delay; doubles with each refusal."""
MAX_DELAY = 900.0
PROBE_RETRY_AFTER = 5.0
"""Seconds after which callers should retry while another run is probing."""


@dataclass
class _OpenBreaker:
    """The state of an open breaker."""

    error: QuotaExhausted | RateLimited
    until: float
    refusals: int
    probing: bool = False


class QuotaBreakers:
    """All breakers of one program."""

    def __init__(self, *, is_one_shot: bool = False) -> None:
        """A program for one call does not log that later runs are not started."""
        self._log_level = logging.DEBUG if is_one_shot else logging.WARNING
        self._open: dict[str, _OpenBreaker] = {}

    @property
    def open_count(self) -> int:
        """Number of open breakers."""
        return len(self._open)

    def raise_if_open(self, key: str) -> None:
        """Raise Google's last refusal if the delay that it asked for has not expired."""
        breaker = self._get(key)
        if breaker is None:
            return
        remaining = breaker.until - time.monotonic()
        if remaining > 0 or breaker.probing:
            delay = max(remaining, PROBE_RETRY_AFTER if breaker.probing else 1.0)
            raise breaker.error.for_another_call(
                f"{breaker.error.message} No run was started because Google asked to wait.",
                math.ceil(10 * delay) / 10,
            )

    @contextmanager
    def guard(self, key: str) -> Generator[None]:
        """Wrap a run: raise if the breaker is open, and update it from the outcome."""
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
            # Only a probe closes the breaker; other runs started before the quota was exhausted.
            if breaker and self._open.get(key) is breaker:
                del self._open[key]
                logger.info("Quota available again")
        finally:
            if breaker:
                breaker.probing = False

    def _get(self, key: str) -> _OpenBreaker | None:
        breaker = self._open.get(key)
        is_rate_limit = breaker and isinstance(breaker.error, RateLimited)
        if breaker and is_rate_limit and breaker.until <= time.monotonic():
            del self._open[key]
            return None
        return breaker

    def _trip(self, key: str, error: QuotaExhausted | RateLimited) -> None:
        breaker = self._open.get(key)
        if breaker and not breaker.probing:
            return  # a concurrent run has already reported it
        refusals = breaker.refusals + 1 if breaker else 1
        delay = error.retry_after_s
        if delay is None:
            if isinstance(error, RateLimited):
                return  # the retry loop already waits a little
            delay = min(INITIAL_DELAY * 2.0 ** (refusals - 1), MAX_DELAY)
        logger.log(self._log_level, "%s: not starting runs for %.0f s", error.code, delay)
        self._open[key] = _OpenBreaker(error, time.monotonic() + delay, refusals)


def breaker_key(*parts: object) -> str:
    """Return a key for a sign-in and a model that reveals neither."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
