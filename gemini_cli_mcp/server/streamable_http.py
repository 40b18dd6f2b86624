"""Serve MCP over streamable HTTP, in both protocol eras, with health checks and metrics."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gemini_cli_mcp.http_common.access_log import AccessLogMiddleware
from gemini_cli_mcp.http_common.auth import AuthMiddleware, Token, load_tokens
from gemini_cli_mcp.http_common.error_responses import json_error
from gemini_cli_mcp.http_common.metrics import CONTENT_TYPE, Metrics
from gemini_cli_mcp.http_common.serving import base_url, bind_socket, run_server
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.server.mcp_endpoint import McpEndpoint
from gemini_cli_mcp.server.session_ids import SessionIds
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


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
    metrics = Metrics()
    # A subscription would report events of all owners, and never end.
    app = McpApp(
        settings, environ, Workspace(settings.config_dir), metrics, serves_subscriptions=False
    )
    metrics.add_gauges(app.gauges)
    metrics.add_run_counter(app.count_runs)
    http = HttpServer(app, metrics, tokens, allowed_hosts, settings.limits)
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
        self,
        app: McpApp,
        metrics: Metrics,
        tokens: Sequence[Token],
        allowed_hosts: Sequence[str],
        limits: Limits,
    ) -> None:
        self._app = app
        self._metrics = metrics
        # AuthMiddleware checks Host and Origin, on all paths.
        no_host_checks = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            app.server, stateless=True, security_settings=no_host_checks
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
            routes, tokens, json_error, public_paths=public_paths, allowed_hosts=allowed_hosts
        )
        self.asgi = AccessLogMiddleware(middleware)

    def cancel_calls(self) -> None:
        """Cancel all running calls."""
        self._endpoint.cancel_all()

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:
        async with self._manager.run():
            yield

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Report whether a search can run; the error code alone, as this path is public."""
        error = await self._app.readiness_error()
        if error is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "code": error.code}, 503)

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)
