"""The client's end of one answer."""

import json
import time
from collections.abc import Mapping

import anyio
from starlette.types import Message, Send

from gemini_cli_mcp.gateway.sse import KEEP_ALIVE, event
from gemini_cli_mcp.models import Object

PATIENCE = 3.0
"""Seconds that an upstream has to refuse a stream; from then on the client gets signs of life."""
SILENCE = 5.0
"""Seconds after which a waiting client gets one."""


class Outlet:
    """One response as it is sent. A client sees it whole, or sees that it is not."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last = 0.0
        self.started = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head, unless it is sent."""
        if self.started:
            return
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._pass({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        await self._pass({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last of it. Without this the client sees that something is missing."""
        await self._pass({"type": "http.response.body", "body": data})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """All at once."""
        await self.start(status, {**headers, "content-length": str(len(body))})
        await self.end(body)

    # Events

    async def open(self, beside: Mapping[str, str]) -> None:
        """Begin a stream of events, with a sign of life so that the head is on its way."""
        if not self.started:
            own = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            await self.start(200, {**beside, **own, "x-accel-buffering": "no"})
            await self.write(KEEP_ALIVE)

    async def tell(self, data: Object, name: str | None = None) -> None:
        """Send one event."""
        await self.write(event(json.dumps(data, ensure_ascii=False), name))

    async def stay_alive(self) -> None:
        """Begin if nothing else did, and fill silences, until cancelled."""
        await anyio.sleep(PATIENCE)
        await self.open({})
        while True:
            silence = time.monotonic() - self._last
            if silence >= SILENCE:
                await self.write(KEEP_ALIVE)
            else:
                await anyio.sleep(SILENCE - silence)

    async def _pass(self, message: Message) -> None:
        self._last = time.monotonic()
        await self._send(message)
