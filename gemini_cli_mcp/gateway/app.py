"""The gateway: what a client of the OpenAI API can ask of it."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gemini_cli_mcp import __version__
from gemini_cli_mcp.door import Door
from gemini_cli_mcp.engines import MOST_HITS, RECENCIES, Engines
from gemini_cli_mcp.errors import failure_result
from gemini_cli_mcp.gateway import line as lines
from gemini_cli_mcp.gateway.chat import PATH, Chat
from gemini_cli_mcp.gateway.injection import injection
from gemini_cli_mcp.gateway.line import Broken, Line, Refused, headers_of, whole
from gemini_cli_mcp.gateway.outlet import Outlet
from gemini_cli_mcp.gateway.parked import Parked
from gemini_cli_mcp.gateway.searches import Search, Searches
from gemini_cli_mcp.models import Object, as_list, as_object
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.upstreams import Upstream, Upstreams

LARGEST_BODY = 32 << 20
"""Bytes of a request; pictures come in it as text."""
SLOWEST_BODY = 60.0
"""Seconds that a client has to send it."""

Work = Callable[[Outlet], Awaitable[None]]


class App:
    """Everything of one gateway, in front of its upstreams."""

    def __init__(
        self,
        upstreams: Upstreams,
        engines: Engines,
        search: WebSearch,
        tokens: tuple[str, ...] = (),
    ) -> None:
        self._upstreams = upstreams
        self._engines = engines
        self._search = search
        self._parked = Parked()
        self._client: httpx2.AsyncClient | None = None
        routes = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{model:path}", self._model, methods=["GET"]),
                Route("/healthz", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _not_ours},
            lifespan=self._lifespan,
        )
        self.asgi = Door(routes, tokens, refusal, open_paths=("/healthz",))

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:
        async with lines.client() as self._client:
            yield

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def _models(self, request: Request) -> Response:
        """The models of all upstreams; of a single one, just what it says."""
        if len(self._upstreams.all) == 1:
            line = self._line(self._upstreams.all[0], request)
            return Attended(lambda outlet: _passed("GET", line, "/models", None, outlet))
        told: dict[str, list[Object]] = {}

        async def ask(upstream: Upstream) -> None:
            try:
                async with self._line(upstream, request).relay("GET", "/models") as response:
                    listed = as_list(as_object(json.loads(await whole(response))).get("data"))
            except (Broken, ValueError, RecursionError):
                return
            models = [as_object(model) for model in listed]
            told[upstream.id] = [m for m in models if upstream.serves(str(m.get("id")))]

        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams.all:
                tasks.start_soon(ask, upstream)
        if not told:
            return refusal(502, "None of the upstreams tells its models.", "upstream_failed")
        found = [model for each in self._upstreams.all for model in told.get(each.id, [])]
        return JSONResponse({"object": "list", "data": found})

    async def _model(self, request: Request) -> Response:
        model = str(request.path_params["model"])
        upstream = self._upstreams.of(model)
        if upstream is None:
            return _no_upstream(model)
        line = self._line(upstream, request)
        return Attended(lambda outlet: _passed("GET", line, f"/models/{model}", None, outlet))

    async def _chat(self, request: Request) -> Response:
        content = await _content(request)
        if isinstance(content, Response):
            return content
        body = _object(content)
        if body is None:
            return refusal(400, "The body must be a JSON object.", "invalid_body")
        upstream = self._upstreams.of(str(body.get("model") or ""))
        if upstream is None:
            return _no_upstream(str(body.get("model")))
        line = self._line(upstream, request)
        owner = str(request.scope["owner"])
        messages = as_list(body.get("messages"))
        completed = self._parked.completed(owner, messages)
        if len(completed) > len(messages):
            body = {**body, "messages": completed}
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        engines = injection(body, self._engines, self._engines.gateway.match_mode)
        if engines is None:
            return Attended(lambda outlet: _passed("POST", line, PATH, content, outlet))

        def keep(ids: list[str], turn: list[Object]) -> None:
            self._parked.keep(owner, messages, ids, turn)

        searches = Searches(self._searcher(engines), self._engines.gateway.max_rounds)
        return Attended(Chat(line, body, engines, searches, keep).answer)

    def _searcher(self, engines: Engines) -> Search:
        """Searches with these engines, by arguments that a model made up."""

        async def search(arguments: Object) -> Object:
            asked = _tolerant(arguments)
            if asked.get("engine") is None and engines.default:
                asked["engine"] = engines.default
            names = ", ".join(engine.id for engine in engines.engines)
            if not engines.get(str(asked.get("engine"))):
                return {"error": {"message": f"`engine` must be one of: {names}."}}
            try:
                return await self._search.search(**asked, progress=lambda _: None)
            except Exception as error:  # noqa: BLE001 - the model is told, whatever it is
                return failure_result(error)

        return search

    def _line(self, upstream: Upstream, request: Request) -> Line:
        if self._client is None:
            raise RuntimeError("the gateway does not run")
        return Line(upstream, self._client, request.headers, request.url.query)


class Attended(Response):
    """Work that answers by itself, and ends when the client leaves."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                await _answered(self._work, Outlet(send))
                tasks.cancel_scope.cancel()

            tasks.start_soon(work)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()


async def _answered(work: Work, outlet: Outlet) -> None:
    """The work, and how it failed. Once a head is sent, an answer without an end tells that."""
    try:
        await work(outlet)
    except Refused as error:
        if not outlet.started:
            await outlet.answer(error.status, error.headers, error.body)
    except Broken as error:
        if not outlet.started:
            await _tell(outlet, error.error)
    except Exception as error:  # noqa: BLE001 - no stack trace to anybody
        if not outlet.started:
            await _tell(outlet, lines.failed(f"It failed unexpectedly ({type(error).__name__})."))


async def _tell(outlet: Outlet, error: Object) -> None:
    body = json.dumps({"error": error}).encode()
    await outlet.answer(502, {"content-type": "application/json"}, body)


async def _passed(
    method: str, line: Line, path: str, content: bytes | None, outlet: Outlet
) -> None:
    """A request and its answer, byte for byte."""
    encodings = line.headers.get("accept-encoding", "identity")
    async with line.relay(method, path, content, encodings) as response:
        await outlet.start(response.status_code, headers_of(response))
        async for chunk in response.aiter_raw():
            await outlet.write(chunk)
    await outlet.end()


async def _content(request: Request) -> bytes | Response:
    """The body of a request, or why it is not taken."""
    if request.headers.get("content-encoding", "identity") != "identity":
        return refusal(415, "The body must not be compressed.", "unsupported_encoding")
    taken = bytearray()
    try:
        with anyio.fail_after(SLOWEST_BODY):
            async for chunk in request.stream():
                taken += chunk
                if len(taken) > LARGEST_BODY:
                    most = f"{LARGEST_BODY >> 20} MiB"
                    return refusal(413, f"The body must be at most {most}.", "body_too_large")
    except TimeoutError:
        return refusal(408, "The body did not come in time.", "timeout")
    except ClientDisconnect:
        return Response(status_code=499)
    return bytes(taken)


def _object(content: bytes) -> Object | None:
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return cast("Object", value) if isinstance(value, dict) else None


def _tolerant(arguments: Object) -> Object:
    """What a model may have meant: smaller ones send numbers as text and words of their own."""
    asked: Object = {"query": arguments.get("query")}
    if engine := arguments.get("engine"):
        asked["engine"] = engine
    if arguments.get("recency") in RECENCIES:
        asked["recency"] = arguments["recency"]
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        asked["count"] = min(max(int(float(arguments["count"])), 1), MOST_HITS)
    return asked


def refusal(status: int, message: str, code: str) -> Response:
    """An error in the form that the SDKs read."""
    kind = "invalid_request_error" if status < 500 else "api_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def _no_upstream(model: str) -> Response:
    return refusal(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")


async def _not_ours(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "This gateway has /v1/chat/completions, /v1/models and /healthz."
    return refusal(status, what, "not_found" if status == 404 else "method_not_allowed")
