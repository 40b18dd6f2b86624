"""One tool call: its end, good or bad, becomes a result.

All that goes out is free of secrets, and scrubbed: one lone surrogate would end the stdio
transport of mcp 2.3.0.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import anyio
from mcp.types import CallToolResult, ContentBlock, TextContent

from gemini_cli_mcp.errors import Cancelled, ExecutionFailed, failure_result
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.redaction import clean
from gemini_cli_mcp.server import resources

logger = logging.getLogger(__name__)

POLL = 0.02
"""Seconds between two looks at calls that are being ended."""


class Calls:
    """The tool calls that are under way, so that they can be ended."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._running: set[anyio.CancelScope] = set()
        self._ending = False

    async def answer(self, work: Callable[[], Awaitable[Object]]) -> CallToolResult:
        """The result of the work, or of its failure."""
        try:
            with self._one():
                return result(await work(), self._secrets)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, whatever it is
            return result(failure_result(error), self._secrets)

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


def result(payload: Object, secrets: Sequence[str]) -> CallToolResult:
    """The payload as a client gets it: as text, as structure, and with links to what is cut."""
    sent = as_object(clean(payload, secrets))
    error = as_object(sent.get("error"))
    if error and error["code"] != Cancelled.code:
        logger.error("A call failed: %s", error["code"])  # its words may quote the question
    text = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    if "next_offset" in sent:
        content.append(resources.link(sent["job_id"]))
    if "shortened" in as_object(sent.get("metadata")) and sent.get("status") == "done":
        content.append(resources.link(sent["job_id"], metadata=True))
    return CallToolResult(content=content, structured_content=sent, is_error=not sent["success"])
