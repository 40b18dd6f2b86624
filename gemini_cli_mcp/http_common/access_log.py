"""One log line per HTTP request."""

import logging
import time
from typing import cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gemini_cli_mcp.sanitize import truncate_line

logger = logging.getLogger(__name__)


class AccessLogMiddleware:
    """Log method, path, status, owner and duration of every request.

    Query strings, headers and bodies are not logged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = 0

        async def record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = cast("int", message["status"])
            await send(message)

        try:
            await self._app(scope, receive, record_status)
        finally:
            seconds = time.monotonic() - started
            path = truncate_line(cast("str", scope["path"]), 100)
            owner = cast("str | None", scope.get("owner")) or "unauthenticated"
            template = "%s %s: %s for %s in %.2f s"
            outcome = status or "disconnected"
            method = cast("str", scope["method"])
            logger.info(template, method, path, outcome, owner, seconds)
