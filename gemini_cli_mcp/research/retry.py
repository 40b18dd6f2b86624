"""Retry transient failures with increasing delays, as far as the deadline allows."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import tenacity

from gemini_cli_mcp.errors import EngineFailed, ExecutionFailed, RateLimited

RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry of a single search."""

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


async def with_retries(operation: Callable[[], Awaitable[T]], sleep: Sleep) -> T:
    """Return the result of the first successful attempt, or raise the last error."""
    async for attempt in tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(len(RETRY_DELAYS) + 1),
        retry=tenacity.retry_if_exception(is_retryable_now),
        wait=lambda state: retry_delay(state, RETRY_DELAYS),
        sleep=sleep,
        reraise=True,
    ):
        with attempt:
            return await operation()
    raise AssertionError("unreachable: tenacity returns or raises")


def is_retryable_now(error: BaseException) -> bool:
    """Whether the error is transient and the deadline leaves time for a retry."""
    if isinstance(error, RateLimited):
        remaining = anyio.current_effective_deadline() - anyio.current_time()
        return (error.retry_after_s or 0) < remaining
    return isinstance(error, ExecutionFailed | EngineFailed) and error.retryable


def retry_delay(state: tenacity.RetryCallState, delays: tuple[float, ...]) -> float:
    """Return the seconds until the next attempt: Google's `retry_after_s`, else from `delays`."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        return error.retry_after_s
    return delays[min(state.attempt_number, len(delays)) - 1]
