"""Write one HTTP response to the client, and stop when the client disconnects."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.sse import KEEP_ALIVE, format_event
from gemini_cli_mcp.gateway.upstream_client import Headers, UpstreamRejected, UpstreamUnavailable
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.sanitize import redact_known, sanitize_json

EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ResponseWriter:
    """An HTTP response that the client receives in full or can recognize as incomplete."""

    def __init__(self, send: Send, limits: Limits, secrets: Sequence[str] = ()) -> None:
        self._send = send
        self._limits = limits
        self._secrets = secrets
        """Redacted from errors: upstreams echo the keys that they reject."""
        self._last_sent_at = 0.0
        self._ended = False
        self.started = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers, unless already sent."""
        if not self.started:
            self.started = True
            await self._send_message(
                {"type": "http.response.start", "status": status, "headers": headers}
            )

    async def write(self, data: bytes) -> None:
        if not self._ended:  # a keep-alive may come late
            await self._send_message(
                {"type": "http.response.body", "body": data, "more_body": True}
            )

    async def end(self, data: bytes = b"") -> None:
        """Complete the response. Without this the client sees that it is incomplete."""
        self._ended = True
        await self._send_message({"type": "http.response.body", "body": data})

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def send_json(self, status: int, headers: Headers, payload: JsonObject) -> None:
        if payload.get("error"):
            payload = object_or_empty(sanitize_json(payload, self._secrets))
        body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
        await self.send(status, [*headers, (b"content-type", b"application/json")], body)

    # Event streams

    async def open_stream(self, headers: Headers) -> None:
        """Start an event stream, with a keep-alive so that the headers are flushed."""
        if not self.started:
            names = [name for name, _ in EVENT_STREAM_HEADERS]
            other_headers = [(name, value) for name, value in headers if name not in names]
            await self.start(200, other_headers + EVENT_STREAM_HEADERS)
            await self.write(KEEP_ALIVE)

    async def send_event(self, data: JsonObject) -> None:
        """Send one event, named after its `type` if it has one."""
        if data.get("error") or object_or_empty(data.get("response")).get("error"):
            data = object_or_empty(sanitize_json(data, self._secrets))
        kind = data.get("type")
        name = str(kind) if kind else None
        await self.write(format_event(json.dumps(data, ensure_ascii=False), name))

    async def stream(
        self,
        write: Callable[["ResponseWriter"], Awaitable[None]],
        send_failure: Callable[[ApiError], Awaitable[None]],
    ) -> None:
        """Run `write` with keep-alives; after the response start, report a failure as an event.

        Nothing follows that event, so the stream does not look completed.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_alive)
            try:
                await write(self)
            except Exception as error:  # noqa: BLE001 - every failure is reported to the client
                failure = error
            tasks.cancel_scope.cancel()
        if failure and not self.started:
            raise failure
        if failure:
            await send_failure(self.api_error(failure))
            await self.end()

    async def send_rejection(self, error: UpstreamRejected) -> None:
        """Pass on the response of an upstream that rejected the request."""
        body = redact_known(error.body.decode("utf-8", "surrogateescape"), self._secrets)
        headers = [
            (name, redact_known(value.decode("latin-1"), self._secrets).encode("latin-1"))
            for name, value in error.headers
        ]
        await self.send(error.status, headers, body.encode("utf-8", "surrogateescape"))

    def api_error(self, error: Exception) -> ApiError:
        """Return a failure as the client may see it; an unexpected one reveals only its type."""
        if isinstance(error, UpstreamRejected | UpstreamUnavailable):
            return ApiError(object_or_empty(sanitize_json(error.error.fields, self._secrets)))
        return ApiError.of(f"Internal error ({type(error).__name__}).")

    async def _keep_alive(self) -> None:
        """Open the stream if needed and send keep-alives while idle, until cancelled."""
        await anyio.sleep(self._limits.stream_start_wait)
        await self.open_stream([])
        while True:
            remaining = self._last_sent_at + self._limits.keep_alive_interval - time.monotonic()
            if remaining <= 0:
                await self.write(KEEP_ALIVE)
            else:
                await anyio.sleep(remaining)

    async def _send_message(self, message: Message) -> None:
        self._last_sent_at = time.monotonic()
        await self._send(message)


WriteResponse = Callable[[ResponseWriter], Awaitable[object]]


class DisconnectAwareResponse(Response):
    """A response that writes itself and is cancelled when the client disconnects."""

    def __init__(self, write: WriteResponse, limits: Limits, secrets: Sequence[str]) -> None:
        super().__init__()
        self._write = write
        self._limits = limits
        self._secrets = secrets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await _run_and_report(
                    self._write, ResponseWriter(send, self._limits, self._secrets)
                )
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()


async def _run_and_report(write: WriteResponse, writer: ResponseWriter) -> None:
    """Write the response and report failures.

    After the response start, a failure shows only as a response that is never completed.
    """
    try:
        await write(writer)
    except UpstreamRejected as error:
        if not writer.started:
            await writer.send_rejection(error)
    except Exception as error:  # noqa: BLE001 - never expose a stack trace
        if not writer.started:
            await writer.send_json(502, [], {"error": writer.api_error(error).fields})
