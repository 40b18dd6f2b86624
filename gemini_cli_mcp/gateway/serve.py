"""The life of a gateway: it listens until it is told to end, and leaves nothing behind."""

import logging
import socket
from collections.abc import Mapping, Sequence

import anyio
import anyio.to_thread

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.gateway.app import App
from gemini_cli_mcp.http_common.auth import checked_host, checked_names, tokens_of
from gemini_cli_mcp.http_common.serving import address_of, listen, serve
from gemini_cli_mcp.providers.registry import Providers
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.settings.upstreams import Upstreams, upstreams
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


async def serve_gateway(
    config: Config, environ: Mapping[str, str], host: str, port: int, hosts: Sequence[str]
) -> None:
    """Serve until SIGTERM or SIGINT. ConfigError if it cannot begin."""
    tokens = tokens_of(environ)
    checked_host(host, tokens)
    checked_names(hosts, tokens)
    known = upstreams(config.engines.gateway, config.upstream_url, environ)
    if tokens and any(upstream.pass_authorization for upstream in known.all):
        raise ConfigError(
            "gateway.upstreams: `passAuthorization` does not go with GEMINI_MCP_HTTP_TOKENS: the "
            "client's Authorization is our token then, and must not reach an upstream."
        )
    listening = listen(host, port)
    workspace = Workspace(config.config_dir)
    providers = Providers(config, workspace, environ)
    search = WebSearch(config, providers, environ, warm=config.warm > 0)
    limits = config.limits
    app = App(known, config.engines, search, limits, tokens, hosts, config.secrets)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, workspace.sweep)
            tasks.start_soon(search.stay_warm)
            _tell(listening, known)
            await serve(app.asgi, listening, limits=limits, grace=limits.gateway_grace)
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()


def _tell(listening: socket.socket, known: Upstreams) -> None:
    for upstream in known.all:
        logger.info("Upstream %s: %s", upstream.id, upstream.base_url)
    logger.info("The gateway listens at %s/v1", address_of(listening))
