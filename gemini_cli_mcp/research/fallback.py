"""Try the providers in order, and report which ones failed."""

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
"""Errors that the caller must fix; another provider must not hide them."""
NOT_READY_ERRORS = (CliNotFound, NotSignedIn, NoProvider)
"""Errors of a provider that was not ready to run."""

T = TypeVar("T")


async def first_success(
    providers: Sequence[Provider], attempt: Callable[[Provider], Awaitable[T]]
) -> tuple[T, list[JsonObject]]:
    """Return the first successful result and why the providers before it failed."""
    failures: list[tuple[Provider, GeminiMcpError]] = []
    for providers_left, provider in zip(reversed(range(len(providers))), providers, strict=True):
        try:
            async with _limit_time(providers_left):
                return await attempt(provider), [_describe_failure(*item) for item in failures]
        except CALLER_ERRORS:
            raise
        except GeminiMcpError as error:
            if len(providers) == 1:
                raise
            logger.warning("Provider %s failed (%s)", provider.name, error.code)
            failures.append((provider, error))
    attempted = [error for _, error in failures if not isinstance(error, NOT_READY_ERRORS)]
    if attempted:
        raise attempted[-1]
    raise NoProvider(
        "No provider is available: "
        + "; ".join(f"{provider.name}: {error.message}" for provider, error in failures),
        hint=" ".join(f"{provider.name}: {error.next_step}" for provider, error in failures),
    )


@asynccontextmanager
async def _limit_time(providers_left: int) -> AsyncGenerator[None]:
    """Allow half of the remaining time, so that a hanging provider cannot use all of it."""
    seconds = anyio.current_effective_deadline() - anyio.current_time()
    if not providers_left or seconds == float("inf"):
        yield
        return
    with anyio.move_on_after(seconds / 2) as scope:
        yield
        return
    if scope.cancelled_caught:
        raise TimedOut(f"There was no answer within {seconds / 2:.0f} s.")


def _describe_failure(provider: Provider, error: GeminiMcpError) -> JsonObject:
    return {"provider": provider.name, "code": error.code, "message": error.message}
