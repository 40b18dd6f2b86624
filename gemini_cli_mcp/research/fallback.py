"""Providers in order: where one fails, the next one gets its turn, and the result says so."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from gemini_cli_mcp.errors import (
    Cancelled,
    CliNotFound,
    ConfigError,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotSignedIn,
    PermissionDenied,
    TimedOut,
)
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.providers.base import Provider

logger = logging.getLogger(__name__)

CALLER_ERRORS = (InvalidInput, ConfigError, PermissionDenied, Cancelled)
"""Failures that are the caller's to mend: another provider must not hide them."""
NOT_READY_ERRORS = (CliNotFound, NotSignedIn, NoProvider)
"""Failures of a provider that never came to try."""

T = TypeVar("T")


async def first_success(
    providers: Sequence[Provider], attempt: Callable[[Provider], Awaitable[T]]
) -> tuple[T, list[JsonObject]]:
    """What the first provider that could gave, and why those before it could not."""
    failures: list[tuple[Provider, GeminiMcpError]] = []
    for remaining, provider in zip(reversed(range(len(providers))), providers, strict=True):
        try:
            async with _share_of_time(remaining):
                return await attempt(provider), [_fallback_reason(*item) for item in failures]
        except CALLER_ERRORS:
            raise
        except GeminiMcpError as error:
            if len(providers) == 1:
                raise
            logger.warning("%s failed (%s)", provider.name, error.code)
            failures.append((provider, error))
    attempted = [error for _, error in failures if not isinstance(error, NOT_READY_ERRORS)]
    if attempted:
        raise attempted[-1]
    raise NoProvider(
        "None of the providers can be used: "
        + "; ".join(f"{provider.name}: {error.message}" for provider, error in failures),
        hint=" ".join(f"{provider.name}: {error.next_step}" for provider, error in failures),
    )


@asynccontextmanager
async def _share_of_time(remaining: int) -> AsyncGenerator[None]:
    """Half of the time that is left, so that one that hangs leaves some to those behind it."""
    seconds = anyio.current_effective_deadline() - anyio.current_time()
    if not remaining or seconds == float("inf"):
        yield
        return
    with anyio.move_on_after(seconds / 2) as scope:
        yield
        return
    if scope.cancelled_caught:
        raise TimedOut(f"There was no answer within {seconds / 2:.0f} s.")


def _fallback_reason(provider: Provider, error: GeminiMcpError) -> JsonObject:
    return {"provider": provider.name, "code": error.code, "message": error.message}
