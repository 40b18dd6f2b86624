"""HTTP requests in progress, so that clients and a shutdown can cancel them."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
from mcp.types import RequestId
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from gemini_cli_mcp.http_common.asgi import raw_headers

REQUEST_CANCELLED = -32800
SESSION_HEADER = b"mcp-session-id"


@dataclass(frozen=True)
class RequestKey:
    """How a client that cancels a request identifies it."""

    owner: str
    client: str
    """The client's session id, or its address if it has none."""
    request_id: RequestId | None


class InFlightRequest:
    """A request in progress, and how much of its response has been sent."""

    def __init__(self, send: Send, request_id: RequestId | None, new_session: str | None) -> None:
        """`new_session` is the session id to send with the response."""
        self.scope = anyio.CancelScope()
        self.client_gone = anyio.Event()
        self._send = send
        self._id = request_id
        self._new_session = new_session
        self._is_event_stream = False
        self._started = False
        self._ended = False

    def replay(self, body: bytes) -> Receive:
        """Return a `receive` that replays the body, then waits for the client to disconnect."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await self.client_gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = raw_headers(message)
            content_type = next(
                (value for name, value in headers if name.lower() == b"content-type"), b""
            )
            self._is_event_stream = content_type.startswith(b"text/event-stream")
            if self._new_session and message["status"] == 200:
                headers.append((SESSION_HEADER, self._new_session.encode()))
            message = {**message, "headers": headers}
        elif not message.get("more_body"):
            self._ended = True
        await self._send(message)

    async def send_cancelled(self) -> None:
        """Finish the response to a call that was cancelled."""
        if self._ended or not self.scope.cancelled_caught:
            return
        error = {"code": REQUEST_CANCELLED, "message": "Request cancelled"}
        payload = json.dumps({"jsonrpc": "2.0", "id": self._id, "error": error}).encode()
        if not self._started:
            await Response(payload, media_type="application/json")(
                {"type": "http"}, self.replay(b""), self._send
            )
        else:
            event = (
                b"event: message\r\ndata: " + payload + b"\r\n\r\n"
                if self._is_event_stream
                else b""
            )
            await self._send({"type": "http.response.body", "body": event})


class InFlightRequests:
    """All requests in progress."""

    def __init__(self) -> None:
        self._requests: dict[RequestKey, list[InFlightRequest]] = {}

    @contextmanager
    def track(self, key: RequestKey, request: InFlightRequest) -> Generator[None]:
        """Register a request as in progress while the context is open."""
        self._requests.setdefault(key, []).append(request)
        try:
            yield
        finally:
            self._requests[key].remove(request)
            if not self._requests[key]:
                del self._requests[key]

    def cancel(self, key: RequestKey) -> None:
        """Cancel a request on behalf of its client."""
        requests = self._requests.get(key, [])
        if len(requests) == 1:  # without a session, it may belong to two clients of one owner
            requests[0].scope.cancel()

    def cancel_session(self, owner: str, session: str) -> None:
        """Cancel all requests of a session."""
        for key, requests in self._requests.items():
            if (key.owner, key.client) == (owner, session):
                for request in requests:
                    request.scope.cancel()

    def cancel_all(self) -> None:
        for requests in self._requests.values():
            for request in requests:
                request.scope.cancel()
