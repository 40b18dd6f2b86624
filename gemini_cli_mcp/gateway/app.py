"""The gateway: what a client of the OpenAI API can ask of it."""

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gemini_cli_mcp import __version__
from gemini_cli_mcp.errors import failure_result
from gemini_cli_mcp.gateway.chat import Chat
from gemini_cli_mcp.gateway.continuations import ParkedResponses, ParkedTurns
from gemini_cli_mcp.gateway.response_writer import Outlet
from gemini_cli_mcp.gateway.responses.endpoint import Responses, knows_no_responses
from gemini_cli_mcp.gateway.responses.native import PATH as RESPONSES
from gemini_cli_mcp.gateway.search_options import Wishes
from gemini_cli_mcp.gateway.search_runner import Search, Searches
from gemini_cli_mcp.gateway.tool_injection import injection, turns_of
from gemini_cli_mcp.gateway.tool_loop import PATH, parsed
from gemini_cli_mcp.gateway.upstream_client import (
    Broken,
    Line,
    Refused,
    create_http_client,
    headers_of,
)
from gemini_cli_mcp.http_common.auth import Door, Token
from gemini_cli_mcp.http_common.serving import NoBody, body_of
from gemini_cli_mcp.json_values import Object, as_list, as_object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.redaction import clean
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.engines_file import MOST_HITS, RECENCIES, Engines
from gemini_cli_mcp.settings.upstreams import Upstream, Upstreams

LARGEST_BODY = 32 << 20
"""Bytes of a request; pictures come in it as text."""
MOST_VALUES = 300_000
"""Commas and brackets of a request: parsing more of them would stop everybody else."""
Work = Callable[[Outlet], Awaitable[object]]


class App:
    """Everything of one gateway, in front of its upstreams."""

    def __init__(
        self,
        upstreams: Upstreams,
        engines: Engines,
        search: WebSearch,
        limits: Limits,
        tokens: Sequence[Token] = (),
        hosts: Sequence[str] = (),
        secrets: Sequence[str] = (),
    ) -> None:
        self._secrets = secrets
        self._limits = limits
        self._upstreams = upstreams
        self._engines = engines
        self._search = search
        self._turns = ParkedTurns(limits.parked_turn)
        self._responses = ParkedResponses(limits.parked_turn)
        self._native: set[str] = set()
        """Upstreams that have answered with a response."""
        self._chat_only: dict[str, float] = {}
        """When an upstream turned out to know no responses."""
        self._client: httpx2.AsyncClient | None = None
        routes = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._respond, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{model:path}", self._model, methods=["GET"]),
                Route("/healthz", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _not_ours},
            lifespan=self._lifespan,
        )
        self.asgi = Door(routes, tokens, refusal, open_paths=("/healthz",), hosts=hosts)

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:
        async with create_http_client() as self._client:
            yield

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def _models(self, request: Request) -> Response:
        """The models of all upstreams; of a single one, just what it says."""
        if len(self._upstreams.all) == 1:
            line = self._line(self._upstreams.all[0], request)
            return self._attended(lambda outlet: _passed("GET", line, "/models", outlet))
        return self._attended(lambda outlet: self._all_models(request, outlet))

    async def _all_models(self, request: Request, outlet: Outlet) -> None:
        told: dict[str, list[Object]] = {}

        async def ask(upstream: Upstream) -> None:
            with anyio.move_on_after(self._limits.upstream_models), suppress(Broken):
                line = self._line(upstream, request)
                async with line.relay("GET", "/models") as response:
                    listed = as_list(parsed(await line.whole(response)).get("data"))
                models = [as_object(model) for model in listed]
                told[upstream.id] = [m for m in models if upstream.serves(str(m.get("id")))]

        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams.all:
                tasks.start_soon(ask, upstream)
        if not told:
            raise Broken("None of the upstreams tells its models.")
        found = [model for each in self._upstreams.all for model in told.get(each.id, [])]
        await outlet.answer_json(200, [], {"object": "list", "data": found})

    async def _model(self, request: Request) -> Response:
        model = str(request.path_params["model"])
        if {".", ".."} & set(model.split("/")):
            return _no_upstream(model)
        upstream = self._upstreams.of(model)
        if upstream is None:
            return _no_upstream(model)
        line = self._line(upstream, request)
        return self._attended(
            lambda outlet: _passed("GET", line, f"/models/{quote(model)}", outlet)
        )

    async def _chat(self, request: Request) -> Response:
        asked = await self._asked(request)
        if isinstance(asked, Response):
            return asked
        messages = as_list(asked.body.get("messages"))
        completed = self._turns.completed(asked.owner, messages)
        if len(completed) > len(messages):
            asked.change({**asked.body, "messages": completed})
        engines = self._injection(asked.body)
        if engines is None:
            return self._attended(
                lambda outlet: _passed("POST", asked.line, PATH, outlet, asked.content)
            )

        def keep(ids: list[str], turns: list[Object]) -> None:
            self._turns.keep(asked.owner, messages, ids, turns)

        searches = self._searches(asked.body, engines)
        return self._attended(Chat(asked.line, asked.body, engines, searches, keep).answer)

    async def _respond(self, request: Request) -> Response:
        asked = await self._asked(request)
        if isinstance(asked, Response):
            return asked
        completed, goes_on = self._responses.completed(asked.owner, asked.body)
        previous = asked.body.get("previous_response_id")
        if completed is not asked.body:
            asked.change(completed)
        engines = self._injection(asked.body, goes_on=goes_on)
        searches = self._searches(asked.body, engines or self._engines)
        answer = Responses(
            asked.line, asked.body, engines, searches, asked.owner, self._responses, previous
        )
        if engines is None:
            return self._attended(lambda outlet: self._pass_response(asked, answer, outlet))
        return self._attended(lambda outlet: self._answer(asked, answer, outlet))

    async def _pass_response(self, asked: "Asked", answer: Responses, outlet: Outlet) -> None:
        """Byte for byte, if the upstream knows responses at all."""
        if self._speaks_responses(asked.line.upstream):
            try:
                known = asked.line.upstream.id in self._native
                status = await _passed(
                    "POST", asked.line, RESPONSES, outlet, asked.content, as_it_is=known
                )
            except Refused as error:
                self._learn(asked.line.upstream, error)
            else:
                if status == 200:
                    self._native.add(asked.line.upstream.id)
                return
        await self._answer(asked, answer, outlet)

    async def _answer(self, asked: "Asked", answer: Responses, outlet: Outlet) -> None:
        """By rounds with the upstream, in whichever API it knows."""

        async def work(outlet: Outlet) -> None:
            if self._speaks_responses(asked.line.upstream):
                try:
                    await answer.native(outlet)
                except Refused as error:
                    self._learn(asked.line.upstream, error)
                else:
                    self._native.add(asked.line.upstream.id)
                    return
            await answer.converted(outlet)

        if asked.body.get("stream"):
            await outlet.stream(work, answer.fail)
        else:
            await work(outlet)

    def _learn(self, upstream: Upstream, error: Refused) -> None:
        """Remember that an upstream knows no responses; any other refusal stays one."""
        known = upstream.responses or upstream.id in self._native
        if known or not knows_no_responses(error):
            raise error
        self._chat_only[upstream.id] = time.monotonic()

    async def _asked(self, request: Request) -> "Asked | Response":
        """What a client sent, and where it goes; or why it does not."""
        if request.headers.get("content-encoding", "identity") != "identity":
            return refusal(415, "The body must not be compressed.", "unsupported_encoding")
        try:
            content = await body_of(request.receive, LARGEST_BODY, self._limits.gateway_body)
        except NoBody as why:
            return refusal(why.status, why.message, why.code)
        body = _object(content)
        if body is None:
            most = f"a JSON object with at most {MOST_VALUES:,} values"
            return refusal(400, f"The body must be {most}.", "invalid_body")
        most = self._limits.request_items
        if len(turns_of(body)) > most:
            return refusal(413, f"A request has at most {most:,} messages or items.", "too_many")
        upstream = self._upstreams.of(str(body.get("model") or ""))
        if upstream is None:
            return _no_upstream(str(body.get("model")))
        line = self._line(upstream, request)
        return Asked(line, str(request.scope["owner"]), body, content)

    def _injection(self, body: Object, *, goes_on: bool = False) -> Engines | None:
        mode = self._engines.gateway.match_mode
        return injection(body, self._engines, mode, goes_on=goes_on)

    def _speaks_responses(self, upstream: Upstream) -> bool:
        if upstream.responses is not None:
            return upstream.responses
        found_out = self._chat_only.get(upstream.id)
        kept = self._limits.responses_unsupported
        return found_out is None or time.monotonic() - found_out >= kept

    def _searches(self, body: Object, engines: Engines) -> Searches:
        wishes = Wishes.of(as_list(body.get("tools")))
        most = body.get("max_tool_calls")
        return Searches(
            self._searcher(engines, wishes),
            self._engines.gateway.max_rounds,
            self._limits.gateway_searches,
            most if isinstance(most, int) else None,
        )

    def _searcher(self, engines: Engines, wishes: Wishes) -> Search:
        """Searches with these engines, by arguments that a model made up."""

        async def search(arguments: Object) -> Object:
            asked = _tolerant(arguments)
            if isinstance(asked["query"], str):
                asked["query"] = wishes.worded(asked["query"])
            asked.setdefault("count", wishes.count)
            asked.setdefault("engine", engines.default)
            names = ", ".join(engine.id for engine in engines.engines)
            if not engines.get(str(asked["engine"])):
                return _failure("INVALID_INPUT", f"`engine` must be one of: {names}.")
            try:
                found = await self._search.search(**asked, progress=lambda _: None)
            except Exception as error:  # noqa: BLE001 - the model is told, whatever it is
                return as_object(clean(failure_result(error), self._secrets))
            found = as_object(clean(found, self._secrets))
            hits = wishes.kept([as_object(hit) for hit in as_list(found["hits"])])
            if not hits:
                domains = ", ".join(wishes.domains)
                return _failure("NO_RESULTS", f"Nothing was found on {domains}.")
            return {**found, "hits": hits}

        return search

    def _attended(self, work: Work) -> Response:
        return Attended(work, self._limits, self._secrets)

    def _line(self, upstream: Upstream, request: Request) -> Line:
        if self._client is None:
            raise RuntimeError("the gateway does not run")
        return Line(upstream, self._client, request.headers.raw, self._limits, request.url.query)


@dataclass
class Asked:
    """One request with a body."""

    line: Line
    owner: str
    body: Object
    content: bytes
    """The body as the client sent it."""

    def change(self, body: Object) -> None:
        self.body = body
        self.content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


class Attended(Response):
    """Work that answers by itself, and ends when the client leaves."""

    def __init__(self, work: Work, limits: Limits, secrets: Sequence[str]) -> None:
        super().__init__()
        self._work = work
        self._limits = limits
        self._secrets = secrets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                await _answered(self._work, Outlet(send, self._limits, self._secrets))
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
            await outlet.refuse(error)
    except Exception as error:  # noqa: BLE001 - no stack trace to anybody
        if not outlet.started:
            await outlet.answer_json(502, [], {"error": outlet.said(error)})


async def _passed(
    method: str,
    line: Line,
    path: str,
    outlet: Outlet,
    content: bytes | None = None,
    *,
    as_it_is: bool = True,
) -> int:
    """A request and its answer, byte for byte; the status. Or else Refused if it is an error."""
    # Only a coding that we can undo: an error is read as a whole, because it may repeat our key.
    wanted = (line.header(b"accept-encoding") or b"").lower() if as_it_is else b""
    encodings = (b"accept-encoding", b"gzip" if b"gzip" in wanted else b"identity")
    error = Broken("The upstream did not come to an end.")
    events = False
    with anyio.move_on_after(line.limits.upstream_round):
        async with line.relay(method, path, content, encodings) as response:
            if response.status_code >= 400:
                raise await line.refused(response)
            kind = response.headers.get("content-type", "")
            events = kind.startswith("text/event-stream") and (
                "content-encoding" not in response.headers
            )
            await outlet.start(response.status_code, headers_of(response))
            if await _pass_body(response, line, outlet):
                await outlet.end()
                return response.status_code
            error = Broken("The upstream's answer is too large.")
    if events:  # a client of events is told why they stop
        await outlet.write(b"\n\n")  # it may have been in the middle of a line
        await outlet.tell({"error": error.error})
    raise error


async def _pass_body(response: httpx2.Response, line: Line, outlet: Outlet) -> bool:
    """Pass it on; whether it has an end."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > line.limits.upstream_bytes:
            return False
        await outlet.write(chunk)
    return True


def _object(content: bytes) -> Object | None:
    if content.count(b",") + content.count(b"[") > MOST_VALUES:
        return None
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
    if str(arguments.get("recency")) in RECENCIES:
        asked["recency"] = arguments["recency"]
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        asked["count"] = min(max(int(float(arguments["count"])), 1), MOST_HITS)
    return asked


def _failure(code: str, message: str) -> Object:
    return {"error": {"code": code, "message": message}}


def refusal(status: int, message: str, code: str) -> Response:
    """An error in the form that the SDKs read."""
    kind = "invalid_request_error" if status < 500 else "api_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def _no_upstream(model: str) -> Response:
    return refusal(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")


async def _not_ours(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "This gateway has /v1/chat/completions, /v1/responses, /v1/models and /healthz."
    return refusal(status, what, "not_found" if status == 404 else "method_not_allowed")
