"""Another try after failures that will pass, with growing waits, within the time there is."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import tenacity

from gemini_cli_mcp.errors import EngineFailed, ExecutionFailed, RateLimited

RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each further try of a single search."""

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


async def with_retries(attempt: Callable[[], Awaitable[T]], sleep: Sleep) -> T:
    """What the first try that succeeds gives; else the last failure."""
    async for trial in tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(len(RETRY_DELAYS) + 1),
        retry=tenacity.retry_if_exception(is_retryable_now),
        wait=lambda state: retry_delay(state, RETRY_DELAYS),
        sleep=sleep,
        reraise=True,
    ):
        with trial:
            return await attempt()
    raise AssertionError("tenacity returns or raises")


def is_retryable_now(error: BaseException) -> bool:
    """Whether the failure may pass, and there is time to wait for that."""
    if isinstance(error, RateLimited):
        remaining = anyio.current_effective_deadline() - anyio.current_time()
        return (error.retry_after_s or 0) < remaining
    return isinstance(error, ExecutionFailed | EngineFailed) and error.retryable


def retry_delay(state: tenacity.RetryCallState, delays: tuple[float, ...]) -> float:
    """Seconds until the next try: what Google asked for, else the next of `waits`."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        return error.retry_after_s
    return delays[min(state.attempt_number, len(delays)) - 1]
