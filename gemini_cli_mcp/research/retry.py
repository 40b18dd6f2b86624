"""Another try after failures that will pass, with growing waits, within the time there is."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import tenacity

from gemini_cli_mcp.errors import EngineFailed, ExecutionFailed, RateLimited

WAITS = (1.0, 2.0, 4.0)
"""Seconds before each further try of a single search."""

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


async def patiently(attempt: Callable[[], Awaitable[T]], sleep: Sleep) -> T:
    """What the first try that succeeds gives; else the last failure."""
    async for trial in tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(len(WAITS) + 1),
        retry=tenacity.retry_if_exception(worth_another_try),
        wait=lambda state: wait_after(state, WAITS),
        sleep=sleep,
        reraise=True,
    ):
        with trial:
            return await attempt()
    raise AssertionError("tenacity returns or raises")


def worth_another_try(error: BaseException) -> bool:
    """Whether the failure may pass, and there is time to wait for that."""
    if isinstance(error, RateLimited):
        left = anyio.current_effective_deadline() - anyio.current_time()
        return (error.retry_after_s or 0) < left
    return isinstance(error, ExecutionFailed | EngineFailed) and error.retryable


def wait_after(state: tenacity.RetryCallState, waits: tuple[float, ...]) -> float:
    """Seconds until the next try: what Google asked for, else the next of `waits`."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        return error.retry_after_s
    return waits[min(state.attempt_number, len(waits)) - 1]
