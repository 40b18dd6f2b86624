"""The life of a gateway: it listens until it is told to end, and leaves nothing behind."""

import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import anyio
import anyio.to_thread
import uvicorn

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.door import checked_host, tokens_of
from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.gateway.app import App
from gemini_cli_mcp.providers.choice import Providers
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.upstreams import Upstreams, upstreams
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

GRACE = 3
"""Seconds that running answers have to end when the gateway is told to."""


class _Server(uvicorn.Server):
    """Signals are ours: it would end the process before we have cleaned up."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


async def serve_gateway(config: Config, environ: Mapping[str, str], host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. ConfigError if it cannot begin."""
    tokens = tokens_of(environ)
    checked_host(host, tokens)
    known = upstreams(config.engines.gateway, config.upstream_url, environ)
    if tokens and any(upstream.pass_authorization for upstream in known.all):
        raise ConfigError(
            "gateway.upstreams: `passAuthorization` does not go with GEMINI_MCP_HTTP_TOKENS: the "
            "client's Authorization is our token then, and must not reach an upstream."
        )
    listening = _listen(host, port)
    workspace = Workspace(config.config_dir)
    search = WebSearch(config, Providers(config, workspace, environ), environ)
    app = App(known, config.engines, search, tokens)
    server = _Server(
        uvicorn.Config(
            app.asgi,
            http="h11",  # it bounds headers
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
    )
    try:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, server, signals)
                tasks.start_soon(anyio.to_thread.run_sync, workspace.sweep)
                if config.warm:
                    tasks.start_soon(search.stay_warm)
                _tell(listening, known)
                await server.serve([listening])
                tasks.cancel_scope.cancel()
    finally:
        workspace.close()


async def _end_on_signal(server: uvicorn.Server, signals: AsyncIterator[signal.Signals]) -> None:
    async for _ in signals:
        if server.should_exit:
            server.force_exit = True
        server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name: else asyncio does not know that it is, and pieces of an answer wait for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ConfigError(f"--host {host} --port {port}: {error.strerror or error}.") from None
    return listening


def _tell(listening: socket.socket, known: Upstreams) -> None:
    name, port = listening.getsockname()[:2]
    name = f"[{name}]" if ":" in name else name
    for upstream in known.all:
        logger.info("Upstream %s: %s", upstream.id, upstream.base_url)
    logger.info("The gateway listens at http://%s:%d/v1", name, port)
