"""Run the gateway until it is stopped, and clean up."""

import logging
import socket
from collections.abc import Mapping, Sequence

import anyio
import anyio.to_thread

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.gateway.app import GatewayApp
from gemini_cli_mcp.gateway.engine_search import EngineSearch
from gemini_cli_mcp.http_common.auth import load_tokens
from gemini_cli_mcp.http_common.serving import base_url, bind_socket, run_server
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.web_search import EngineProviders
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.upstreams import Upstreams, load_upstreams
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


async def serve_gateway(
    settings: Settings,
    environ: Mapping[str, str],
    host: str,
    port: int,
    allowed_hosts: Sequence[str],
) -> None:
    """Serve until SIGTERM or SIGINT; raise ConfigError if it cannot start."""
    tokens = load_tokens(environ, host, allowed_hosts)
    upstreams = load_upstreams(settings.engines.gateway, settings.upstream_url, environ)
    if tokens and any(upstream.pass_authorization for upstream in upstreams.all):
        raise ConfigError(
            "gateway.upstreams: `passAuthorization` cannot be combined with "
            "GEMINI_MCP_HTTP_TOKENS: the client's Authorization header then holds the gateway's "
            "token, which must not reach an upstream. Remove one of them."
        )
    sock = bind_socket(host, port)
    workspace = Workspace(settings.config_dir)
    providers = ProviderRegistry(settings, workspace, environ, keeps_processes=True)
    engines = EngineProviders(settings, providers, environ)
    limits = settings.limits
    app = GatewayApp(settings, upstreams, EngineSearch(engines).search, tokens, allowed_hosts)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, workspace.remove_stale)
            tasks.start_soon(engines.run_pools)
            _log_addresses(sock, upstreams)
            await run_server(app.asgi, sock, limits=limits, grace=limits.gateway_shutdown_grace)
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()


def _log_addresses(sock: socket.socket, upstreams: Upstreams) -> None:
    for upstream in upstreams.all:
        logger.info("Upstream %s: %s", upstream.id, upstream.base_url)
    logger.info("Gateway listens at %s/v1", base_url(sock))
