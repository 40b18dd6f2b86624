"""The MCP server: registers tools, prompts and report resources, and owns their lifespan."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
from anyio import to_thread
from mcp.server import MCPServer, NotificationOptions
from mcp.server.lowlevel import Server as LowLevelServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.tools import Tool as RegisteredTool
from mcp.server.stdio import stdio_server
from mcp.types import Resource, ResourceTemplate, Tool

from gemini_cli_mcp import __version__
from gemini_cli_mcp.current_owner import CURRENT_OWNER
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.research.web_search_schema import web_search_schema
from gemini_cli_mcp.server import resources, schemas
from gemini_cli_mcp.server.handlers import CallMetrics, ToolHandlers
from gemini_cli_mcp.server.tool_registration import make_tool
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


class McpApp(MCPServer[None]):
    """Everything offered to MCP clients, over any transport."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], workspace: Workspace
    ) -> None:
        self._settings = settings
        self._workspace = workspace
        self._handlers = ToolHandlers(settings, environ, workspace)
        self._pool_scope = anyio.CancelScope()
        self._pools_stopped = anyio.Event()
        super().__init__(
            "gemini-cli-mcp",
            title="Gemini CLI web research",
            instructions=schemas.INSTRUCTIONS,
            version=__version__,
            tools=_make_tools(self._handlers, settings),
            lifespan=lambda _: self._lifespan(),
        )
        for name, title, prompt in (
            ("research", "Research a topic", schemas.research_prompt),
            ("fact-check", "Check a claim", schemas.fact_check_prompt),
        ):
            self.add_prompt(Prompt.from_function(prompt, name=name, title=title))

    @property
    def lowlevel(self) -> LowLevelServer[Any]:
        """The low-level server, for transports that the SDK does not run."""
        return self._lowlevel_server

    def record_to(self, metrics: CallMetrics) -> None:
        """Record all subsequent calls in `metrics`."""
        self._handlers.record_to(metrics)

    def allow_warmup(self) -> None:
        """Allow ACP processes to start: no handshake competes for the CPU any more."""
        self._handlers.warmup_allowed.set()

    async def readiness_error(self) -> GeminiMcpError | None:
        """Return why a search could not run now; None if it could."""
        # In a worker thread: this reads files and imports what a search needs.
        return await to_thread.run_sync(lambda: self._handlers.providers.readiness_error())

    @property
    def gauges(self) -> Mapping[str, tuple[str, Callable[[], float]]]:
        """The gauges for metrics: by name, a description and a function that reads the value."""
        handlers = self._handlers
        return {
            "queue": ("Runs waiting for a slot", lambda: handlers.providers.limiter.waiting),
            "runs": ("Runs in progress", lambda: handlers.providers.limiter.running),
            "cli_processes": ("Live CLI processes", lambda: handlers.providers.process_count),
            "quotas_open": ("Exhausted quotas", lambda: handlers.providers.breakers.open_count),
            "jobs": ("Deep searches in progress", lambda: handlers.running_jobs),
        }

    async def shutdown(self) -> None:
        """Reject new calls, cancel running calls and jobs, and stop the ACP pools."""
        await self._handlers.shutdown()
        if self._settings.warm and self._handlers.warmup_allowed.is_set():
            self._pool_scope.cancel()
            await self._pools_stopped.wait()

    async def run_stdio_async(self) -> None:
        """Serve one client over stdin and stdout, with notifications of resource changes."""
        options = self._lowlevel_server.create_initialization_options(
            NotificationOptions(resources_changed=True)
        )
        async with stdio_server() as (read_stream, write_stream):
            await self._lowlevel_server.run(read_stream, write_stream, options)

    async def list_tools(self) -> list[Tool]:
        self.allow_warmup()
        return await super().list_tools()

    async def list_resources(self) -> list[Resource]:
        jobs = self._handlers.jobs.list_for_owner(CURRENT_OWNER.get())
        return resources.list_reports(jobs, self._settings.secrets)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return resources.report_templates()

    async def read_resource(
        self, uri: Any, context: Context[None, Any] | None = None
    ) -> Iterable[ReadResourceContents]:
        jobs, owner = self._handlers.jobs, CURRENT_OWNER.get()
        return resources.read_report(jobs, owner, str(uri), self._settings.secrets)

    async def _run_pools(self) -> None:
        """Keep ACP processes ready, starting when the client has finished the handshake."""
        try:
            await self._handlers.warmup_allowed.wait()
            if not self._settings.warm:
                return
            # In a worker thread: a client that is listing tools must not wait for imports.
            await to_thread.run_sync(import_module, "gemini_cli_mcp.providers.gemini.acp_pool")
            with self._pool_scope:
                await self._handlers.providers.run_pools()
        except Exception as error:  # noqa: BLE001 - searches work without it
            logger.error("ACP pool stopped: %s", type(error).__name__)
        finally:  # even if the client disconnects at the same moment
            self._pools_stopped.set()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[None]:
        async def remove_stale() -> None:
            if removed := await to_thread.run_sync(self._workspace.remove_stale):
                logger.info("Removed %d temporary files of stopped servers", removed)

        try:
            async with self._handlers.run_jobs(), anyio.create_task_group() as tasks:
                tasks.start_soon(remove_stale)  # concurrently with the handshake, not before it
                tasks.start_soon(self._run_pools)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._workspace.close()


def _make_tools(handlers: ToolHandlers, settings: Settings) -> list[RegisteredTool]:
    return [
        make_tool(
            handlers.with_metrics("search", handlers.search),
            name="search",
            title="Web search with sources",
            description=schemas.SEARCH_DESCRIPTION,
            parameters=schemas.search_parameters(),
        ),
        make_tool(
            handlers.with_metrics("grounded_search", handlers.grounded_search),
            name="grounded_search",
            title="One grounded Google search",
            description=schemas.GROUNDED_SEARCH_DESCRIPTION,
            parameters=schemas.grounded_search_parameters(
                settings.grounded_model, settings.grounded_thinking
            ),
        ),
        make_tool(
            handlers.with_metrics("web_search", handlers.web_search),
            name="web_search",
            title="Web search for links",
            description=schemas.WEB_SEARCH_DESCRIPTION,
            parameters=web_search_schema(settings.engines),
        ),
        make_tool(
            handlers.with_metrics("deep_search", handlers.deep_search),
            name="deep_search",
            title="Deep research in verified rounds",
            description=schemas.DEEP_SEARCH_DESCRIPTION,
            parameters=schemas.deep_search_parameters(settings.max_rounds),
        ),
        make_tool(
            handlers.with_metrics("deep_search_result", handlers.deep_search_result),
            name="deep_search_result",
            title="Result of a deep search",
            description=schemas.DEEP_SEARCH_RESULT_DESCRIPTION,
            parameters=schemas.result_parameters(),
        ),
        make_tool(
            handlers.with_metrics("deep_search_cancel", handlers.deep_search_cancel),
            name="deep_search_cancel",
            title="Stop a deep search",
            description=schemas.DEEP_SEARCH_CANCEL_DESCRIPTION,
            parameters=schemas.cancel_parameters(),
            is_destructive=True,
        ),
    ]
