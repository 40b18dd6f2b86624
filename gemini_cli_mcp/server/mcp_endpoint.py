"""The MCP endpoint over HTTP: one POST in, one response out.

Every request is independent, so any server behind a load balancer can handle it. A call ends when
its client closes the connection, or cancels it in a separate request.
"""

from dataclasses import dataclass
from typing import cast

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import RequestId
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gemini_cli_mcp.http_common.asgi import raw_headers, request_owner
from gemini_cli_mcp.http_common.error_responses import json_error
from gemini_cli_mcp.http_common.request_body import BodyError, parse_json_object, read_body
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.in_flight_requests import (
    SESSION_HEADER,
    InFlightRequest,
    InFlightRequests,
    RequestKey,
)
from gemini_cli_mcp.server.session_ids import SessionIds

MAX_BODY_BYTES = 4 << 20


class McpEndpoint:
    """The ASGI application behind `/mcp`."""

    def __init__(
        self, manager: StreamableHTTPSessionManager, sessions: SessionIds, limits: Limits
    ) -> None:
        self._limits = limits
        self._manager = manager
        self._sessions = sessions
        self._in_flight = InFlightRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if rejection := self._rejection(scope):
            await rejection(scope, receive, send)
            return
        try:
            body = await read_body(receive, MAX_BODY_BYTES, self._limits.request_body_timeout)
        except BodyError as error:
            await json_error(error.status, error.message, error.code)(scope, receive, send)
            return
        if scope["method"] == "DELETE":  # nothing is stored; only running calls can be cancelled
            if session := _session_id(scope):
                self._in_flight.cancel_session(request_owner(scope), session)
            await Response(status_code=200)(scope, receive, send)
            return
        message = _PostedMessage.parse(body)
        if message.method == "notifications/cancelled":
            self._in_flight.cancel(_request_key(scope, message.cancelled_id))
        await self._handle(scope, receive, send, body, message)

    def cancel_all(self) -> None:
        """Cancel all requests in progress."""
        self._in_flight.cancel_all()

    def _rejection(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("POST", "DELETE"):
            response = json_error(405, "Send requests with POST.", "method_not_allowed")
            response.headers["allow"] = "POST, DELETE"
            return response
        session = _session_id(scope)
        if session is not None and not self._sessions.verify(session, request_owner(scope)):
            return json_error(
                404, "Session not found. Send `initialize` again.", "session_not_found"
            )
        return None

    async def _handle(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, message: "_PostedMessage"
    ) -> None:
        """Handle one request; it ends when its client disconnects or cancels it."""
        new_session = (
            self._sessions.issue(request_owner(scope)) if message.method == "initialize" else None
        )
        request = InFlightRequest(send, message.id, new_session)
        with self._in_flight.track(_request_key(scope, message.id), request):
            async with anyio.create_task_group() as tasks:

                async def forward() -> None:
                    with request.scope:
                        await self._manager.handle_request(
                            _without_session(scope), request.replay(body), request.send
                        )
                    await request.send_cancelled()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(forward)
                while (await receive())["type"] != "http.disconnect":
                    pass
                request.client_gone.set()
                tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class _PostedMessage:
    """What the endpoint reads of a JSON-RPC message; the SDK checks all of it."""

    method: str | None = None
    id: RequestId | None = None
    cancelled_id: RequestId | None = None
    """The id of the request that this notification cancels."""

    @classmethod
    def parse(cls, body: bytes) -> "_PostedMessage":
        match parse_json_object(body):
            case {
                "method": "notifications/cancelled",
                "params": {"requestId": str() | int() as id_},
            }:
                return cls(method="notifications/cancelled", cancelled_id=id_)
            case {"method": str(method), "id": str() | int() as id_}:
                return cls(method=method, id=id_)
            case {"method": str(method)}:
                return cls(method=method)
            case _:
                return cls()


def _session_id(scope: Scope) -> str | None:
    values = [value for name, value in raw_headers(scope) if name == SESSION_HEADER]
    return values[0].decode("latin-1") if values else None


def _without_session(scope: Scope) -> Scope:
    """Remove the session header: the transport is stateless."""
    headers = [(name, value) for name, value in raw_headers(scope) if name != SESSION_HEADER]
    return {**scope, "headers": headers}


def _request_key(scope: Scope, request_id: RequestId | None) -> RequestKey:
    host, _ = cast("tuple[str, int]", scope.get("client") or ("", 0))
    return RequestKey(request_owner(scope), _session_id(scope) or f"from {host}", request_id)
