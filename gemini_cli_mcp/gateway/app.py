"""The gateway's HTTP application and its OpenAI-compatible endpoints."""

import json
from collections.abc import AsyncGenerator, Sequence
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

from gemini_cli_mcp import __version__
from gemini_cli_mcp.gateway.chat import ChatEndpoint
from gemini_cli_mcp.gateway.client_disconnect import DisconnectAwareResponse, WriteResponse
from gemini_cli_mcp.gateway.continuations import ChatContinuations, ResponseContinuations
from gemini_cli_mcp.gateway.passthrough import pass_through
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.responses.endpoint import ResponsesEndpoint
from gemini_cli_mcp.gateway.responses.native import RESPONSES_PATH
from gemini_cli_mcp.gateway.search_options import HostedSearchOptions
from gemini_cli_mcp.gateway.search_runner import SearchRunner, search_function
from gemini_cli_mcp.gateway.tool_injection import conversation_items, engines_to_inject
from gemini_cli_mcp.gateway.tool_loop import CHAT_PATH, parse_json
from gemini_cli_mcp.gateway.upstream_capabilities import UpstreamCapabilities
from gemini_cli_mcp.gateway.upstream_client import (
    UpstreamClient,
    UpstreamRejected,
    UpstreamUnavailable,
    create_http_client,
)
from gemini_cli_mcp.http_common.auth import AuthMiddleware, Token
from gemini_cli_mcp.http_common.serving import BodyError, read_body
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.engines_file import Engines
from gemini_cli_mcp.settings.upstreams import Upstream, Upstreams

MAX_BODY_BYTES = 32 << 20
"""Maximum bytes of a request body; images are embedded as text."""
MAX_REQUEST_VALUES = 300_000
"""Maximum commas and brackets in a request: parsing more would block all other requests."""


class GatewayApp:
    """The gateway application in front of its upstreams."""

    def __init__(
        self,
        upstreams: Upstreams,
        engines: Engines,
        search: WebSearch,
        limits: Limits,
        tokens: Sequence[Token] = (),
        allowed_hosts: Sequence[str] = (),
        secrets: Sequence[str] = (),
    ) -> None:
        self._secrets = secrets
        self._limits = limits
        self._upstreams = upstreams
        self._engines = engines
        self._search = search
        self._chat_continuations = ChatContinuations(limits.continuation_ttl)
        self._response_continuations = ResponseContinuations(limits.continuation_ttl)
        self._capabilities = UpstreamCapabilities(limits.missing_endpoint_ttl)
        self._http_client: httpx2.AsyncClient | None = None
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._respond, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{model:path}", self._model, methods=["GET"]),
                Route("/healthz", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )
        self.asgi = AuthMiddleware(
            app, tokens, openai_error, public_paths=("/healthz",), allowed_hosts=allowed_hosts
        )

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:
        async with create_http_client() as self._http_client:
            yield

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def _models(self, request: Request) -> Response:
        """List the models of all upstreams; with only one, pass its answer through."""
        if len(self._upstreams.all) == 1:
            client = self._upstream_client(self._upstreams.all[0], request)
            return self._disconnect_aware(
                lambda writer: pass_through("GET", client, "/models", writer)
            )
        return self._disconnect_aware(lambda writer: self._all_models(request, writer))

    async def _all_models(self, request: Request, writer: ResponseWriter) -> None:
        models_by_upstream: dict[str, list[JsonObject]] = {}

        async def fetch_models(upstream: Upstream) -> None:
            with (
                anyio.move_on_after(self._limits.upstream_models_timeout),
                suppress(UpstreamUnavailable),
            ):
                client = self._upstream_client(upstream, request)
                async with client.stream_raw("GET", "/models") as response:
                    entries = list_or_empty(parse_json(await client.read_all(response)).get("data"))
                models = [object_or_empty(model) for model in entries]
                models_by_upstream[upstream.id] = [
                    model for model in models if upstream.serves(str(model.get("id")))
                ]

        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams.all:
                tasks.start_soon(fetch_models, upstream)
        if not models_by_upstream:
            raise UpstreamUnavailable("None of the upstreams returned its models.")
        models = [
            model
            for upstream in self._upstreams.all
            for model in models_by_upstream.get(upstream.id, [])
        ]
        await writer.send_json(200, [], {"object": "list", "data": models})

    async def _model(self, request: Request) -> Response:
        model = str(request.path_params["model"])
        if {".", ".."} & set(model.split("/")):
            return _model_not_found(model)
        upstream = self._upstreams.for_model(model)
        if upstream is None:
            return _model_not_found(model)
        client = self._upstream_client(upstream, request)
        return self._disconnect_aware(
            lambda writer: pass_through("GET", client, f"/models/{quote(model)}", writer)
        )

    async def _chat(self, request: Request) -> Response:
        parsed = await self._parse_request(request)
        if isinstance(parsed, Response):
            return parsed
        messages = list_or_empty(parsed.body.get("messages"))
        restored = self._chat_continuations.restore(parsed.owner, messages)
        if len(restored) > len(messages):
            parsed.replace_body({**parsed.body, "messages": restored})
        engines = self._engines_for(parsed.body)
        if engines is None:
            return self._disconnect_aware(
                lambda writer: pass_through(
                    "POST", parsed.client, CHAT_PATH, writer, parsed.content
                )
            )

        def keep(call_ids: list[str], hidden_messages: list[JsonObject]) -> None:
            self._chat_continuations.keep(parsed.owner, messages, call_ids, hidden_messages)

        runner = self._search_runner(parsed.body, engines)
        return self._disconnect_aware(
            ChatEndpoint(parsed.client, parsed.body, engines, runner, keep).answer
        )

    async def _respond(self, request: Request) -> Response:
        parsed = await self._parse_request(request)
        if isinstance(parsed, Response):
            return parsed
        restored, continues_search = self._response_continuations.restore(parsed.owner, parsed.body)
        previous_response_id = parsed.body.get("previous_response_id")
        if restored is not parsed.body:
            parsed.replace_body(restored)
        engines = self._engines_for(parsed.body, continues_search=continues_search)
        runner = self._search_runner(parsed.body, engines or self._engines)
        endpoint = ResponsesEndpoint(
            parsed.client,
            parsed.body,
            engines,
            runner,
            parsed.owner,
            self._response_continuations,
            previous_response_id,
        )
        if engines is None:
            return self._disconnect_aware(
                lambda writer: self._pass_response(parsed, endpoint, writer)
            )
        return self._disconnect_aware(
            lambda writer: self._answer_response(parsed, endpoint, writer)
        )

    async def _pass_response(
        self, parsed: "ParsedRequest", endpoint: ResponsesEndpoint, writer: ResponseWriter
    ) -> None:
        """Pass the request through byte for byte if the upstream has the Responses API."""
        upstream = parsed.client.upstream
        if self._capabilities.supports_responses(upstream):
            try:
                status = await pass_through(
                    "POST",
                    parsed.client,
                    RESPONSES_PATH,
                    writer,
                    parsed.content,
                    keep_encoding=self._capabilities.is_native(upstream),
                )
            except UpstreamRejected as error:
                self._capabilities.mark_chat_only(upstream, error)
            else:
                if status == 200:
                    self._capabilities.mark_native(upstream)
                return
        await self._answer_response(parsed, endpoint, writer)

    async def _answer_response(
        self, parsed: "ParsedRequest", endpoint: ResponsesEndpoint, writer: ResponseWriter
    ) -> None:
        """Run the tool loop with the API that the upstream supports."""
        upstream = parsed.client.upstream

        async def write(writer: ResponseWriter) -> None:
            if self._capabilities.supports_responses(upstream):
                try:
                    await endpoint.answer_natively(writer)
                except UpstreamRejected as error:
                    self._capabilities.mark_chat_only(upstream, error)
                else:
                    self._capabilities.mark_native(upstream)
                    return
            await endpoint.answer_via_chat(writer)

        if parsed.body.get("stream"):
            await writer.stream(write, endpoint.fail)
        else:
            await write(writer)

    async def _parse_request(self, request: Request) -> "ParsedRequest | Response":
        """Parse the body and select the upstream; return an error response if that fails."""
        if request.headers.get("content-encoding", "identity") != "identity":
            return openai_error(415, "The body must not be compressed.", "unsupported_encoding")
        try:
            content = await read_body(
                request.receive, MAX_BODY_BYTES, self._limits.gateway_body_timeout
            )
        except BodyError as error:
            return openai_error(error.status, error.message, error.code)
        body = _parse_body(content)
        if body is None:
            message = f"The body must be a JSON object with at most {MAX_REQUEST_VALUES:,} values."
            return openai_error(400, message, "invalid_body")
        max_items = self._limits.max_request_items
        if len(conversation_items(body)) > max_items:
            message = f"A request may have at most {max_items:,} messages or items."
            return openai_error(413, message, "too_many")
        upstream = self._upstreams.for_model(str(body.get("model") or ""))
        if upstream is None:
            return _model_not_found(str(body.get("model")))
        client = self._upstream_client(upstream, request)
        return ParsedRequest(client, str(request.scope["owner"]), body, content)

    def _engines_for(self, body: JsonObject, *, continues_search: bool = False) -> Engines | None:
        mode = self._engines.gateway.match_mode
        return engines_to_inject(body, self._engines, mode, continues_search=continues_search)

    def _search_runner(self, body: JsonObject, engines: Engines) -> SearchRunner:
        options = HostedSearchOptions.from_tools(list_or_empty(body.get("tools")))
        max_searches = body.get("max_tool_calls")
        return SearchRunner(
            search_function(self._search, engines, options, self._secrets),
            self._engines.gateway.max_rounds,
            self._limits.gateway_search_timeout,
            max_searches if isinstance(max_searches, int) else None,
        )

    def _disconnect_aware(self, write: WriteResponse) -> Response:
        return DisconnectAwareResponse(write, self._limits, self._secrets)

    def _upstream_client(self, upstream: Upstream, request: Request) -> UpstreamClient:
        if self._http_client is None:
            raise RuntimeError("The gateway is not running.")
        return UpstreamClient(
            upstream, self._http_client, request.headers.raw, self._limits, request.url.query
        )


@dataclass
class ParsedRequest:
    """A request with a JSON body, and the client for its upstream."""

    client: UpstreamClient
    owner: str
    body: JsonObject
    content: bytes
    """The encoded body: the client's own bytes unless `replace_body` was called."""

    def replace_body(self, body: JsonObject) -> None:
        self.body = body
        self.content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _parse_body(content: bytes) -> JsonObject | None:
    if content.count(b",") + content.count(b"[") > MAX_REQUEST_VALUES:
        return None
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return cast("JsonObject", value) if isinstance(value, dict) else None


def openai_error(status: int, message: str, code: str) -> Response:
    """Return an error response in the format that the OpenAI SDKs parse."""
    error_type = "invalid_request_error" if status < 500 else "api_error"
    error = {"message": message, "type": error_type, "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def _model_not_found(model: str) -> Response:
    return openai_error(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "This gateway serves /v1/chat/completions, /v1/responses, /v1/models and /healthz."
    return openai_error(status, message, "not_found" if status == 404 else "method_not_allowed")
