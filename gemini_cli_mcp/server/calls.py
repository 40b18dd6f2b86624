"""One tool call: its end, good or bad, becomes a result.

All that goes out is scrubbed: one lone surrogate would end the stdio transport of mcp 2.3.0.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio
from mcp.types import CallToolResult, ContentBlock, TextContent

from gemini_cli_mcp.errors import Cancelled, ExecutionFailed, failure_result
from gemini_cli_mcp.models import Object, as_object
from gemini_cli_mcp.server import reports
from gemini_cli_mcp.text import scrub_all

logger = logging.getLogger(__name__)

POLL = 0.02
"""Seconds between two looks at calls that are being ended."""


class Calls:
    """The tool calls that are under way, so that they can be ended."""

    def __init__(self) -> None:
        self._running: set[anyio.CancelScope] = set()
        self._ending = False

    async def answer(self, work: Callable[[], Awaitable[Object]]) -> CallToolResult:
        """The result of the work, or of its failure."""
        try:
            with self._one():
                return result(await work())
        except Exception as error:  # noqa: BLE001 - the client gets an answer, whatever it is
            return result(failure_result(error))

    @contextmanager
    def _one(self) -> Generator[None]:
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

    async def end(self) -> None:
        """Take no more, and end those that run."""
        self._ending = True
        for scope in self._running:
            scope.cancel()
        while self._running:
            await anyio.sleep(POLL)


def result(payload: Object) -> CallToolResult:
    """The payload as a client gets it: as text, as structure, and with links to what is cut."""
    clean = as_object(scrub_all(payload))
    error = as_object(clean.get("error"))
    if error and error["code"] != Cancelled.code:
        logger.error("%s: %s", error["code"], error["message"])
    text = json.dumps(clean, ensure_ascii=False, separators=(",", ":"))
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    if "next_offset" in clean:
        content.append(reports.link(clean["job_id"]))
    if "shortened" in as_object(clean.get("metadata")) and clean.get("status") == "done":
        content.append(reports.link(clean["job_id"], metadata=True))
    return CallToolResult(content=content, structured_content=clean, is_error=not clean["success"])
