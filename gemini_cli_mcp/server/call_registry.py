"""Registry of running tool calls, so that shutdown can cancel them."""

import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import anyio
from mcp.types import CallToolResult

from gemini_cli_mcp.errors import ExecutionFailed, failure_result
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.server.results import to_call_tool_result

logger = logging.getLogger(__name__)

POLL_INTERVAL = 0.02
"""Seconds between checks whether all cancelled calls have ended."""


class CallRegistry:
    """Runs tool calls and cancels them on shutdown."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._running: set[anyio.CancelScope] = set()
        self._shutting_down = False

    async def run(self, call: Callable[[], Awaitable[JsonObject]]) -> CallToolResult:
        """Run a call; return its result, or its failure as a result."""
        try:
            with self._track():
                return to_call_tool_result(await call(), self._secrets)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            return to_call_tool_result(failure_result(error), self._secrets)

    @contextmanager
    def _track(self) -> Generator[None]:
        """Register a call as running while the context is open."""
        if not self._shutting_down:
            with anyio.CancelScope() as scope:
                self._running.add(scope)
                try:
                    yield
                    return
                finally:
                    self._running.discard(scope)
        raise ExecutionFailed(
            "The server is shutting down.", hint="Start it again, then repeat the call."
        )

    async def cancel_all(self) -> None:
        """Reject new calls, cancel the running ones, and wait until they have ended."""
        self._shutting_down = True
        for scope in self._running:
            scope.cancel()
        while self._running:
            await anyio.sleep(POLL_INTERVAL)
