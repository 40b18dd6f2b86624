"""The client's end of one answer."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
from starlette.types import Message, Send

from gemini_cli_mcp.gateway.sse import KEEP_ALIVE, event
from gemini_cli_mcp.gateway.upstream_client import Broken, Headers, Refused, failed
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.redaction import clean, redact_known

EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Outlet:
    """One response as it is sent. A client sees it whole, or sees that it is not."""

    def __init__(self, send: Send, limits: Limits, secrets: Sequence[str] = ()) -> None:
        self._send = send
        self._limits = limits
        self._secrets = secrets
        """What no error may tell: upstreams repeat the keys that they refuse."""
        self._last = 0.0
        self._ended = False
        self.started = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head, unless it is sent."""
        if not self.started:
            self.started = True
            await self._pass({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        if not self._ended:  # a sign of life may come late
            await self._pass({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last of it. Without this the client sees that something is missing."""
        self._ended = True
        await self._pass({"type": "http.response.body", "body": data})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """All at once."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def answer_json(self, status: int, headers: Headers, answer: Object) -> None:
        if answer.get("error"):
            answer = as_object(clean(answer, self._secrets))
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        await self.answer(status, [*headers, (b"content-type", b"application/json")], body)

    # Events

    async def open(self, beside: Headers) -> None:
        """Begin a stream of events, with a sign of life so that the head is on its way."""
        if not self.started:
            names = [name for name, _ in EVENTS]
            kept = [(name, value) for name, value in beside if name not in names]
            await self.start(200, kept + EVENTS)
            await self.write(KEEP_ALIVE)

    async def tell(self, data: Object) -> None:
        """Send one event; what has a type has its name."""
        if data.get("error") or as_object(data.get("response")).get("error"):
            data = as_object(clean(data, self._secrets))
        await self.write(event(json.dumps(data, ensure_ascii=False), data.get("type")))

    async def stream(
        self, work: Callable[["Outlet"], Awaitable[None]], fail: Callable[[Object], Awaitable[None]]
    ) -> None:
        """Do work that streams, with signs of life; a failure behind the head is told so.

        Nothing comes after that, no sign of a good end either.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stay_alive)
            try:
                await work(self)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                failure = error
            tasks.cancel_scope.cancel()
        if failure and not self.started:
            raise failure
        if failure:
            await fail(self.said(failure))
            await self.end()

    async def refuse(self, error: Refused) -> None:
        """Pass on what an upstream answered instead."""
        body = redact_known(error.body.decode("utf-8", "surrogateescape"), self._secrets)
        headers = [
            (name, redact_known(value.decode("latin-1"), self._secrets).encode("latin-1"))
            for name, value in error.headers
        ]
        await self.answer(error.status, headers, body.encode("utf-8", "surrogateescape"))

    def said(self, error: Exception) -> Object:
        """The error object for a failure; one that nobody foresaw tells no more than its type."""
        if isinstance(error, Refused | Broken):
            return as_object(clean(error.error, self._secrets))
        return failed(f"It failed unexpectedly ({type(error).__name__}).")

    async def _stay_alive(self) -> None:
        """Begin if nothing else did, and fill silences, until cancelled."""
        await anyio.sleep(self._limits.upstream_refusal)
        await self.open([])
        while True:
            left = self._last + self._limits.keep_alive - time.monotonic()
            if left <= 0:
                await self.write(KEEP_ALIVE)
            else:
                await anyio.sleep(left)

    async def _pass(self, message: Message) -> None:
        self._last = time.monotonic()
        await self._send(message)
