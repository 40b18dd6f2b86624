"""Repeat what failed: with the same provider after a delay, or with the next provider."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import tenacity

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import (
    Cancelled,
    CliNotFound,
    ConfigError,
    EngineFailed,
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotSignedIn,
    RateLimited,
)
from gemini_cli_mcp.execution_errors import PermissionDenied
from gemini_cli_mcp.providers.base import Provider
from gemini_cli_mcp.research.results import FallbackReason

logger = logging.getLogger(__name__)

RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry of a single search."""
CALLER_ERRORS = (InvalidInput, ConfigError, PermissionDenied, Cancelled)
"""Errors that the caller must fix; another provider must not hide them."""
NOT_READY_ERRORS = (CliNotFound, NotSignedIn, NoProvider)
"""Errors of a provider that was not ready to run."""

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


async def first_success(
    providers: Sequence[Provider],
    context: CallContext,
    attempt: Callable[[Provider, CallContext], Awaitable[T]],
) -> tuple[T, tuple[FallbackReason, ...]]:
    """Return the first successful result and why the providers before it failed."""
    failures: list[tuple[Provider, GeminiMcpError]] = []
    for number, provider in enumerate(providers, 1):
        try:
            if number == len(providers):
                result = await attempt(provider, context)
            else:
                # Half of the time that is left: a hanging provider must not use all of it.
                seconds = context.seconds_left / 2
                part = context.part(round(seconds) if seconds > 10 else seconds)
                with part.enforce():
                    result = await attempt(provider, part)
        except CALLER_ERRORS:
            raise
        except GeminiMcpError as error:
            if len(providers) == 1:
                raise
            logger.warning("Provider %s failed (%s)", provider.name, error.code)
            failures.append((provider, error))
        else:
            return result, tuple(
                FallbackReason(failed.name, error.code, error.message) for failed, error in failures
            )
    attempted = [error for _, error in failures if not isinstance(error, NOT_READY_ERRORS)]
    if attempted:
        raise attempted[-1]
    raise NoProvider(
        "No provider is available: "
        + "; ".join(f"{provider.name}: {error.message}" for provider, error in failures),
        hint=" ".join(f"{provider.name}: {error.next_step}" for provider, error in failures),
        terminal_hint="\n".join(
            f"{provider.name}: {error.for_terminal().next_step}" for provider, error in failures
        ),
    )


async def with_retries(
    operation: Callable[[], Awaitable[T]],
    context: CallContext,
    sleep: Sleep,
    *,
    delays: tuple[float, ...] = RETRY_DELAYS,
    max_attempts: int = len(RETRY_DELAYS) + 1,
    before_sleep: Callable[[tenacity.RetryCallState], None] | None = None,
) -> T:
    """Return the result of the first successful attempt, or raise the last error."""

    async def attempt() -> T:  # tenacity would not await what a lambda returns
        return await operation()

    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(max_attempts),
        retry=tenacity.retry_if_exception(lambda error: _is_retryable(error, context)),
        wait=lambda state: _delay(state, delays),
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
    return await retrying(attempt)


def _is_retryable(error: BaseException, context: CallContext) -> bool:
    """Whether the error is transient and the deadline leaves time for a retry."""
    if isinstance(error, GeminiMcpError) and error.is_final:
        return False
    if isinstance(error, RateLimited):
        return (error.retry_after_s or 0) < context.seconds_left
    return isinstance(error, ExecutionFailed | EngineFailed) and error.retryable


def _delay(state: tenacity.RetryCallState, delays: tuple[float, ...]) -> float:
    """Return the seconds until the next attempt: Google's `retry_after_s`, else from `delays`."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        return error.retry_after_s
    return delays[min(state.attempt_number, len(delays)) - 1]
