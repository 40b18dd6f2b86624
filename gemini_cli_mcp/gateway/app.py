"""The gateway's HTTP application and its OpenAI-compatible endpoints."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import httpx2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gemini_cli_mcp import __version__
from gemini_cli_mcp.gateway.chat import ChatEndpoint
from gemini_cli_mcp.gateway.client_request import ClientRequest
from gemini_cli_mcp.gateway.continuations import ChatContinuations
from gemini_cli_mcp.gateway.engine_search import ScopedSearch, SearchScope
from gemini_cli_mcp.gateway.http_client import create_http_client
from gemini_cli_mcp.gateway.model_list import list_models, show_model
from gemini_cli_mcp.gateway.passthrough import pass_through
from gemini_cli_mcp.gateway.response_writer import DisconnectAwareResponse, WriteResponse
from gemini_cli_mcp.gateway.responses.continuations import ResponseContinuations
from gemini_cli_mcp.gateway.responses.endpoint import ResponsesEndpoint
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.tool_injection import conversation_items, engines_to_inject
from gemini_cli_mcp.gateway.tool_loop import CHAT_PATH
from gemini_cli_mcp.gateway.upstream_capabilities import UpstreamCapabilities
from gemini_cli_mcp.gateway.upstream_client import UpstreamClient
from gemini_cli_mcp.http_common.asgi import request_owner
from gemini_cli_mcp.http_common.auth import AuthMiddleware, Token
from gemini_cli_mcp.http_common.error_responses import openai_error
from gemini_cli_mcp.http_common.request_body import BodyError, parse_json_object, read_body
from gemini_cli_mcp.json_values import list_or_empty
from gemini_cli_mcp.settings.engines import Engines
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.upstreams import Upstream, Upstreams

MAX_BODY_BYTES = 32 << 20
"""Maximum bytes of a request body; images are embedded as text."""
MAX_REQUEST_VALUES = 300_000
"""Maximum commas and brackets in a request: parsing more would block all other requests."""


class GatewayApp:
    """The gateway application in front of its upstreams."""

    def __init__(
        self,
        settings: Settings,
        upstreams: Upstreams,
        search: ScopedSearch,
        tokens: Sequence[Token] = (),
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._upstreams = upstreams
        self._search = search
        self._chat_continuations = ChatContinuations(self._limits.continuation_ttl)
        self._response_continuations = ResponseContinuations(self._limits.continuation_ttl)
        self._capabilities = UpstreamCapabilities(self._limits.missing_endpoint_ttl)
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
        clients = [self._upstream_client(upstream, request) for upstream in self._upstreams.all]
        return self._disconnect_aware(lambda writer: list_models(clients, writer))

    async def _model(self, request: Request) -> Response:
        model = str(cast("object", request.path_params["model"]))
        upstream = self._upstreams.for_model(model)
        if upstream is None or {".", ".."} & set(model.split("/")):
            return _model_not_found(model)
        client = self._upstream_client(upstream, request)
        return self._disconnect_aware(lambda writer: show_model(client, model, writer))

    async def _chat(self, request: Request) -> Response:
        client_request = await self._parse_request(request)
        if isinstance(client_request, Response):
            return client_request
        messages = list_or_empty(client_request.body.get("messages"))
        restored = self._chat_continuations.restore(client_request.owner, messages)
        if len(restored) > len(messages):
            client_request = client_request.with_body({**client_request.body, "messages": restored})
        engines = engines_to_inject(client_request.body, self._settings.engines)
        if engines is None:
            upstream, content = client_request.upstream, client_request.content
            return self._disconnect_aware(
                lambda writer: pass_through("POST", upstream, CHAT_PATH, writer, content)
            )
        runner = self._search_runner(client_request, engines)
        endpoint = ChatEndpoint(client_request, messages, engines, runner, self._chat_continuations)
        return self._disconnect_aware(endpoint.answer)

    async def _respond(self, request: Request) -> Response:
        client_request = await self._parse_request(request)
        if isinstance(client_request, Response):
            return client_request
        owner, client_body = client_request.owner, client_request.body
        restored = self._response_continuations.restore(owner, client_body)
        if restored.body is not client_body:
            client_request = client_request.with_body(restored.body)
        engines = engines_to_inject(
            client_request.body, self._settings.engines, continues_search=restored.continues_search
        )
        endpoint = ResponsesEndpoint(
            client_request.upstream,
            ResponsesRequest(client_request.body),
            engines,
            self._search_runner(client_request, engines or self._settings.engines),
            owner,
            self._response_continuations,
            self._capabilities,
            client_body.get("previous_response_id"),
        )
        content = client_request.content
        if engines is None:
            return self._disconnect_aware(
                lambda writer: endpoint.pass_through_or_answer(writer, content)
            )
        return self._disconnect_aware(endpoint.answer)

    async def _parse_request(self, request: Request) -> ClientRequest | Response:
        """Parse the body and select the upstream; return an error response if that fails."""
        if request.headers.get("content-encoding", "identity") != "identity":
            return openai_error(415, "The body must not be compressed.", "unsupported_encoding")
        timeout, max_items = self._limits.gateway_body_timeout, self._limits.max_request_items
        try:
            content = await read_body(request.receive, MAX_BODY_BYTES, timeout)
        except BodyError as error:
            return openai_error(error.status, error.message, error.code)
        has_too_many_values = content.count(b",") + content.count(b"[") > MAX_REQUEST_VALUES
        body = None if has_too_many_values else parse_json_object(content)
        if body is None:
            message = f"The body must be a JSON object with at most {MAX_REQUEST_VALUES:,} values."
            return openai_error(400, message, "invalid_body")
        if len(conversation_items(body)) > max_items:
            message = f"A request may have at most {max_items:,} messages or items."
            return openai_error(413, message, "too_many")
        upstream = self._upstreams.for_model(str(body.get("model") or ""))
        if upstream is None:
            return _model_not_found(str(body.get("model")))
        client = self._upstream_client(upstream, request)
        return ClientRequest(client, request_owner(request.scope), body, content)

    def _search_runner(self, request: ClientRequest, engines: Engines) -> SearchRunner:
        tools = list_or_empty(request.body.get("tools"))
        scope = SearchScope(request.owner, engines, tools)
        max_searches = request.body.get("max_tool_calls")
        return SearchRunner(
            lambda arguments: self._search(arguments, scope),
            self._settings.engines.gateway.max_rounds,
            self._limits.gateway_search_timeout,
            max_searches if isinstance(max_searches, int) else None,
        )

    def _disconnect_aware(self, write: WriteResponse) -> Response:
        return DisconnectAwareResponse(write, self._limits, self._settings.secrets)

    def _upstream_client(self, upstream: Upstream, request: Request) -> UpstreamClient:
        if self._http_client is None:
            raise RuntimeError("The gateway is not running.")
        return UpstreamClient(
            upstream, self._http_client, request.headers.raw, self._limits, request.url.query
        )


def _model_not_found(model: str) -> Response:
    return openai_error(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "This gateway serves /v1/chat/completions, /v1/responses, /v1/models and /healthz."
    return openai_error(status, message, "not_found" if status == 404 else "method_not_allowed")
