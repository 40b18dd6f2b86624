"""The tool calls in progress, so that shutdown can cancel them."""

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
"""Seconds between two looks at calls that are being ended."""


class CallRegistry:
    """The tool calls that are under way, so that they can be ended."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._running: set[anyio.CancelScope] = set()
        self._ending = False

    async def run(self, work: Callable[[], Awaitable[JsonObject]]) -> CallToolResult:
        """The result of the work, or of its failure."""
        try:
            with self._track():
                return to_call_tool_result(await work(), self._secrets)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, whatever it is
            return to_call_tool_result(failure_result(error), self._secrets)

    @contextmanager
    def _track(self) -> Generator[None]:
        """While in here, a call is under way."""
        if not self._ending:
            with anyio.CancelScope() as scope:
                self._running.add(scope)
                try:
                    yield
                    return
                finally:
                    self._running.discard(scope)
        raise ExecutionFailed("The server is ending.", hint="Start it again, then call again.")

    async def cancel_all(self) -> None:
        """Take no more, and end those that run."""
        self._ending = True
        for scope in self._running:
            scope.cancel()
        while self._running:
            await anyio.sleep(POLL_INTERVAL)
