"""MCP over streamable HTTP, in both protocol eras, without a session to lose.

Every request is served for itself, so any server behind a balancer can take it. However a client
leaves a call, the call ends: by closing the connection, or by saying so in a request of its own.
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

from gemini_cli_mcp.http_common.auth import (
    AccessLog,
    Door,
    Token,
    checked_host,
    checked_names,
    tokens_of,
)
from gemini_cli_mcp.http_common.metrics import TYPE, Metrics
from gemini_cli_mcp.http_common.serving import NoBody, address_of, body_of, listen, serve
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.app import Server
from gemini_cli_mcp.server.sessions import Sessions
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

LARGEST_BODY = 4 << 20
SESSION = b"mcp-session-id"
CANCELLED = -32800
NO_METHOD = -32601
LISTEN = "subscriptions/listen"


async def serve_http(
    config: Config, environ: Mapping[str, str], host: str, port: int, hosts: Sequence[str]
) -> None:
    """Serve until SIGTERM. ConfigError if it cannot begin."""
    tokens = tokens_of(environ)
    checked_host(host, tokens)
    checked_names(hosts, tokens)
    listening = listen(host, port)
    server = Server(config, environ, Workspace(config.config_dir))
    http = Http(server, tokens, hosts, config.limits)
    logger.info("MCP over HTTP at %s/mcp", address_of(listening))
    await serve(
        http.asgi,
        listening,
        limits=config.limits,
        grace=config.grace,
        end=http.end,
    )


class Http:
    """Everything that comes in over HTTP."""

    def __init__(
        self, server: Server, tokens: Sequence[Token], hosts: Sequence[str], limits: Limits
    ) -> None:
        self._server = server
        self._metrics = Metrics(server.numbers)
        server.watch = self._metrics
        # Host and Origin are the door's business, for every address.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            server.lowlevel, stateless=True, security_settings=unchecked
        )
        self._exchange = Exchange(self._manager, Sessions(tokens), limits)
        routes = Starlette(
            routes=[
                Route("/mcp", self._exchange),
                Route("/healthz", self._health, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
                Route("/metrics", self._measured, methods=["GET"]),
            ],
            lifespan=self._lifespan,
        )
        open_paths = ("/healthz", "/readyz")
        door = Door(routes, tokens, refusal, open_paths=open_paths, hosts=hosts)
        self.asgi = AccessLog(door)

    def end(self) -> None:
        """End all calls that run."""
        self._exchange.end()

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:
        self._server.greet()
        async with self._manager.run():
            yield

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Whether a search can work, and what is missing; no more than a stranger may know."""
        problem = await self._server.problem()
        if problem is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "code": problem.code}, 503)

    async def _measured(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type=TYPE)


class Exchange:
    """The MCP endpoint: one POST in, one answer out."""

    def __init__(
        self, manager: StreamableHTTPSessionManager, sessions: Sessions, limits: Limits
    ) -> None:
        self._limits = limits
        self._manager = manager
        self._sessions = sessions
        self._calls: dict[tuple[str, str, str], list[Call]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refused := self._refused(scope):
            await refused(scope, receive, send)
            return
        try:
            body = await body_of(receive, LARGEST_BODY, self._limits.request_body)
        except NoBody as why:
            await refusal(why.status, why.message, why.code)(scope, receive, send)
            return
        if scope["method"] == "DELETE":  # there is nothing to forget but calls that run
            self._end_session(scope)
            await Response(status_code=200)(scope, receive, send)
            return
        told = _object(body)
        if told.get("method") == LISTEN:
            # What it would tell is other owners' business too, and it would never end.
            error = {"code": NO_METHOD, "message": f"{LISTEN} is not offered over HTTP"}
            answer = {"jsonrpc": "2.0", "id": told.get("id"), "error": error}
            await JSONResponse(answer, 404)(scope, receive, send)
            return
        if told.get("method") == "notifications/cancelled":
            self._cancel(scope, as_object(told.get("params")).get("requestId"))
        await self._call(scope, receive, send, body, told)

    def _refused(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("POST", "DELETE"):
            answer = refusal(405, "Send requests by POST.", "method_not_allowed")
            answer.headers["allow"] = "POST, DELETE"
            return answer
        session = _session(scope)
        if session is not None and not self._sessions.belongs(session, scope["owner"]):
            return refusal(404, "There is no such session.", "session_not_found")
        return None

    async def _call(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, told: Object
    ) -> None:
        """One request, which ends when its client leaves or takes it back."""
        call = Call(send, told.get("id"))
        if told.get("method") == "initialize":
            call.session = self._sessions.issue(scope["owner"])
        key = _key(scope, told.get("id"))
        self._calls.setdefault(key, []).append(call)
        try:
            async with anyio.create_task_group() as tasks:

                async def work() -> None:
                    with call.scope:
                        await self._manager.handle_request(
                            _without_session(scope), call.replay(body), call.send
                        )
                    await call.take_back()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(work)
                while (await receive())["type"] != "http.disconnect":
                    pass
                call.gone.set()
                tasks.cancel_scope.cancel()
        finally:
            self._calls[key].remove(call)
            if not self._calls[key]:
                del self._calls[key]

    def end(self) -> None:
        for calls in list(self._calls.values()):
            for call in list(calls):
                call.scope.cancel()

    def _cancel(self, scope: Scope, request_id: object) -> None:
        """A call that its client does not want any more."""
        calls = self._calls.get(_key(scope, request_id), [])
        if len(calls) == 1:  # without a session, two clients of one owner may be meant
            calls[0].scope.cancel()

    def _end_session(self, scope: Scope) -> None:
        session = _session(scope)
        for (owner, name, _), calls in list(self._calls.items()):
            if session and (owner, name) == (scope["owner"], session):
                for call in calls:
                    call.scope.cancel()


class Call:
    """One request under way, and its answer as far as it was sent."""

    def __init__(self, send: Send, request_id: object) -> None:
        self.scope = anyio.CancelScope()
        self.gone = anyio.Event()
        self.session: str | None = None
        """The id that the answer is to carry."""
        self._send = send
        self._id = request_id
        self._events = False
        self._started = False
        self._ended = False

    def replay(self, body: bytes) -> Receive:
        """The request's body once more; then the end of its client."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = list(message["headers"])
            kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
            self._events = kind.startswith(b"text/event-stream")
            if self.session and message["status"] == 200:
                headers.append((SESSION, self.session.encode()))
            message = {**message, "headers": headers}
        elif not message.get("more_body"):
            self._ended = True
        await self._send(message)

    async def take_back(self) -> None:
        """The end of an answer to a call that its client has taken back."""
        if self._ended or not self.scope.cancelled_caught:
            return
        error = {"code": CANCELLED, "message": "Request cancelled"}
        said = json.dumps({"jsonrpc": "2.0", "id": self._id, "error": error}).encode()
        if not self._started:
            await Response(said, media_type="application/json")(
                {"type": "http"}, self.replay(b""), self._send
            )
        else:
            event = b"event: message\r\ndata: " + said + b"\r\n\r\n" if self._events else b""
            await self._send({"type": "http.response.body", "body": event})


def refusal(status: int, message: str, code: str) -> Response:
    """What a client gets that does not come as far as MCP."""
    return JSONResponse({"error": {"code": code, "message": message}}, status)


def _object(body: bytes) -> Object:
    try:
        return as_object(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _session(scope: Scope) -> str | None:
    found = [value for name, value in scope["headers"] if name == SESSION]
    return found[0].decode("latin-1") if found else None


def _without_session(scope: Scope) -> Scope:
    """The transport knows no sessions."""
    headers = [(name, value) for name, value in scope["headers"] if name != SESSION]
    return {**scope, "headers": headers}


def _key(scope: Scope, request_id: object) -> tuple[str, str, str]:
    client = scope.get("client") or ("",)
    return scope["owner"], _session(scope) or f"from {client[0]}", json.dumps(request_id)
