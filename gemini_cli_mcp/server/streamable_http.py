"""Stateless MCP over streamable HTTP, in both protocol eras.

Every request is independent, so any server behind a load balancer can handle it. A call ends when
its client closes the connection, or cancels it in a separate request.
"""

import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gemini_cli_mcp.http_common.access_log import AccessLogMiddleware
from gemini_cli_mcp.http_common.auth import AuthMiddleware, Token, load_tokens
from gemini_cli_mcp.http_common.metrics import CONTENT_TYPE, Metrics
from gemini_cli_mcp.http_common.serving import (
    BodyError,
    base_url,
    bind_socket,
    read_body,
    run_server,
)
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.server.session_ids import SessionIds
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 << 20
SESSION_HEADER = b"mcp-session-id"
REQUEST_CANCELLED = -32800
METHOD_NOT_FOUND = -32601
LISTEN_METHOD = "subscriptions/listen"


async def serve_http(
    settings: Settings,
    environ: Mapping[str, str],
    host: str,
    port: int,
    allowed_hosts: Sequence[str],
) -> None:
    """Serve until SIGTERM; raise ConfigError if the server cannot start."""
    tokens = load_tokens(environ, host, allowed_hosts)
    sock = bind_socket(host, port)
    server = McpApp(settings, environ, Workspace(settings.config_dir))
    http = HttpServer(server, tokens, allowed_hosts, settings.limits)
    logger.info("MCP over HTTP at %s/mcp", base_url(sock))
    await run_server(
        http.asgi,
        sock,
        limits=settings.limits,
        grace=settings.grace,
        on_shutdown=http.cancel_calls,
    )


class HttpServer:
    """The HTTP application: MCP, health checks and metrics."""

    def __init__(
        self, server: McpApp, tokens: Sequence[Token], hosts: Sequence[str], limits: Limits
    ) -> None:
        self._server = server
        self._metrics = Metrics(server.gauges)
        server.record_to(self._metrics)
        # AuthMiddleware checks Host and Origin, on all paths.
        no_host_checks = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            server.lowlevel, stateless=True, security_settings=no_host_checks
        )
        self._endpoint = McpEndpoint(self._manager, SessionIds(tokens), limits)
        routes = Starlette(
            routes=[
                Route("/mcp", self._endpoint),
                Route("/healthz", self._health, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics_page, methods=["GET"]),
            ],
            lifespan=self._lifespan,
        )
        public_paths = ("/healthz", "/readyz")
        middleware = AuthMiddleware(
            routes, tokens, json_error, public_paths=public_paths, allowed_hosts=hosts
        )
        self.asgi = AccessLogMiddleware(middleware)

    def cancel_calls(self) -> None:
        """Cancel all running calls."""
        self._endpoint.cancel_all()

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:
        self._server.allow_warmup()
        async with self._manager.run():
            yield

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Report whether a search can run; the error code alone, as this path is public."""
        error = await self._server.readiness_error()
        if error is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "code": error.code}, 503)

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)


class McpEndpoint:
    """The MCP endpoint: one POST in, one response out."""

    def __init__(
        self, manager: StreamableHTTPSessionManager, sessions: SessionIds, limits: Limits
    ) -> None:
        self._limits = limits
        self._manager = manager
        self._sessions = sessions
        self._in_flight: dict[tuple[str, str, str], list[InFlightRequest]] = {}

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
            self._end_session(scope)
            await Response(status_code=200)(scope, receive, send)
            return
        message = _parse_object(body)
        if message.get("method") == LISTEN_METHOD:
            # It would also report events of other owners, and never end.
            rpc_error = {
                "code": METHOD_NOT_FOUND,
                "message": f"{LISTEN_METHOD} is not supported over HTTP",
            }
            response = {"jsonrpc": "2.0", "id": message.get("id"), "error": rpc_error}
            await JSONResponse(response, 404)(scope, receive, send)
            return
        if message.get("method") == "notifications/cancelled":
            self._cancel(scope, object_or_empty(message.get("params")).get("requestId"))
        await self._handle(scope, receive, send, body, message)

    def _rejection(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("POST", "DELETE"):
            response = json_error(405, "Send requests with POST.", "method_not_allowed")
            response.headers["allow"] = "POST, DELETE"
            return response
        session = _session_id(scope)
        if session is not None and not self._sessions.verify(session, scope["owner"]):
            return json_error(
                404, "Session not found. Send `initialize` again.", "session_not_found"
            )
        return None

    async def _handle(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, message: JsonObject
    ) -> None:
        """Handle one request; it ends when its client disconnects or cancels it."""
        call = InFlightRequest(send, message.get("id"))
        if message.get("method") == "initialize":
            call.session = self._sessions.issue(scope["owner"])
        key = _request_key(scope, message.get("id"))
        self._in_flight.setdefault(key, []).append(call)
        try:
            async with anyio.create_task_group() as tasks:

                async def forward() -> None:
                    with call.scope:
                        await self._manager.handle_request(
                            _without_session(scope), call.replay(body), call.send
                        )
                    await call.send_cancelled()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(forward)
                while (await receive())["type"] != "http.disconnect":
                    pass
                call.client_gone.set()
                tasks.cancel_scope.cancel()
        finally:
            self._in_flight[key].remove(call)
            if not self._in_flight[key]:
                del self._in_flight[key]

    def cancel_all(self) -> None:
        for calls in list(self._in_flight.values()):
            for call in list(calls):
                call.scope.cancel()

    def _cancel(self, scope: Scope, request_id: object) -> None:
        """Cancel a call on request of its client."""
        calls = self._in_flight.get(_request_key(scope, request_id), [])
        if len(calls) == 1:  # without a session, it may belong to two clients of one owner
            calls[0].scope.cancel()

    def _end_session(self, scope: Scope) -> None:
        session = _session_id(scope)
        for (owner, session_id, _), calls in list(self._in_flight.items()):
            if session and (owner, session_id) == (scope["owner"], session):
                for call in calls:
                    call.scope.cancel()


class InFlightRequest:
    """A request in progress, and how much of its response has been sent."""

    def __init__(self, send: Send, request_id: object) -> None:
        self.scope = anyio.CancelScope()
        self.client_gone = anyio.Event()
        self.session: str | None = None
        """The session id to send with the response."""
        self._send = send
        self._id = request_id
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
            headers = list(message["headers"])
            content_type = next(
                (value for name, value in headers if name.lower() == b"content-type"), b""
            )
            self._is_event_stream = content_type.startswith(b"text/event-stream")
            if self.session and message["status"] == 200:
                headers.append((SESSION_HEADER, self.session.encode()))
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


def json_error(status: int, message: str, code: str) -> Response:
    """Return the error response to a request that does not reach MCP."""
    return JSONResponse({"error": {"code": code, "message": message}}, status)


def _parse_object(body: bytes) -> JsonObject:
    try:
        return object_or_empty(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _session_id(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == SESSION_HEADER]
    return values[0].decode("latin-1") if values else None


def _without_session(scope: Scope) -> Scope:
    """Remove the session header: the transport is stateless."""
    headers = [(name, value) for name, value in scope["headers"] if name != SESSION_HEADER]
    return {**scope, "headers": headers}


def _request_key(scope: Scope, request_id: object) -> tuple[str, str, str]:
    client = scope.get("client") or ("",)
    return scope["owner"], _session_id(scope) or f"from {client[0]}", json.dumps(request_id)
