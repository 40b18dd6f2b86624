"""The MCP server: answers requests for tools, prompts and reports, and owns their lifespan.

Built on the SDK's low-level server, because its MCPServer derives schemas and argument checks from
function signatures, while our schemas depend on the settings and our errors are structured.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from mcp.server import Server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    Tool,
    ToolAnnotations,
)

from gemini_cli_mcp import __version__
from gemini_cli_mcp.call_context import LOCAL_OWNER
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.http_common.asgi import request_owner
from gemini_cli_mcp.server import client_prompts, resources, schemas
from gemini_cli_mcp.server.client_call import ClientCall, RequestContext
from gemini_cli_mcp.server.report_announcer import ReportAnnouncer
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProcessUse
from gemini_cli_mcp.workspace import Workspace

if TYPE_CHECKING:
    from gemini_cli_mcp.http_common.metrics import Metrics
    from gemini_cli_mcp.server.handlers import ToolHandlers

logger = logging.getLogger(__name__)

HANDLERS_MODULE = "gemini_cli_mcp.server.handlers"


class McpApp:
    """Everything offered to MCP clients, over any transport."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        workspace: Workspace,
        metrics: "Metrics | None" = None,
        *,
        serves_subscriptions: bool = True,
    ) -> None:
        """`serves_subscriptions` requires connections that last and belong to one owner."""
        self._settings = settings
        self._workspace = workspace
        self._environ = environ
        self._metrics = metrics
        self._announcer = ReportAnnouncer()
        self._job_tasks: TaskGroup | None = None
        self._tools = {
            definition.name: _to_mcp_tool(definition)
            for definition in schemas.tool_definitions(settings)
        }
        self._handshake_finished = anyio.Event()
        """Set at the first request after it: then no handshake competes for the CPU any more."""
        self.server = Server(
            "gemini-cli-mcp",
            title="Gemini CLI web research",
            instructions=schemas.INSTRUCTIONS,
            version=__version__,
            lifespan=self._lifespan,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_subscriptions_listen=(
                self._announcer.serve_subscription if serves_subscriptions else None
            ),
        )
        """The server of the SDK, for its transports and its client."""
        self.server.add_notification_handler(
            "notifications/initialized", NotificationParams, self._announcer.on_initialized
        )

    @cached_property
    def _handlers(self) -> "ToolHandlers":
        # Imported and created at the first call: the handshake needs none of it.
        from gemini_cli_mcp.server import handlers

        if self._job_tasks is None:
            raise RuntimeError("The server is not running.")
        return handlers.ToolHandlers(
            self._settings,
            self._environ,
            self._workspace,
            self._job_tasks,
            self._announcer.announce_new_report,
            self._metrics,
        )

    @property
    def _has_handlers(self) -> bool:
        return "_handlers" in vars(self)

    async def readiness_error(self) -> GeminiMcpError | None:
        """Return why a search could not run now; None if it could."""
        # In worker threads: this imports what a search needs, and reads files. The handlers
        # themselves are only ever created on the event loop.
        await to_thread.run_sync(import_module, HANDLERS_MODULE)
        return await to_thread.run_sync(self._handlers.providers.readiness_error)

    @property
    def gauges(self) -> Mapping[str, tuple[str, Callable[[], float]]]:
        """The gauges for metrics: by name, a description and a function that reads the value."""
        return {
            "queue": ("Runs waiting for a slot", lambda: self._handlers.providers.limiter.waiting),
            "runs": ("Runs in progress", lambda: self._handlers.providers.limiter.running),
            "cli_processes": ("Live CLI processes", lambda: self._handlers.providers.process_count),
            "quotas_open": (
                "Exhausted quotas",
                lambda: self._handlers.providers.breakers.open_count,
            ),
            "jobs": ("Deep searches in progress", lambda: self._handlers.running_jobs),
        }

    def count_runs(self) -> Mapping[ProcessUse, int]:
        """Return the number of CLI runs that have ended, by how they got their process."""
        return self._handlers.providers.limiter.finished_runs

    async def cancel_calls(self) -> None:
        """Reject new calls, and answer the running ones with an error."""
        if self._has_handlers:
            await self._handlers.cancel_calls()

    # Lifespan

    @asynccontextmanager
    async def _lifespan(self, server: Server[None]) -> AsyncGenerator[None]:
        try:
            async with anyio.create_task_group() as tasks:
                self._job_tasks = tasks
                # Concurrently with the handshake, not before it.
                tasks.start_soon(self._remove_stale_files)
                tasks.start_soon(self._run_pools)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._announcer.forget_clients()
            self._workspace.close()

    async def _remove_stale_files(self) -> None:
        if removed := await to_thread.run_sync(self._workspace.remove_stale):
            logger.info("Removed %d temporary files of stopped servers", removed)

    async def _run_pools(self) -> None:
        """Start processes ahead, but only when the client has finished the handshake."""
        if not (self._settings.ready_count or self._settings.warm):
            return
        await self._handshake_finished.wait()
        try:
            # In a worker thread: a client that is listing tools must not wait for imports.
            for name in (HANDLERS_MODULE, "gemini_cli_mcp.providers.gemini.provider"):
                await to_thread.run_sync(import_module, name)
            await self._handlers.providers.run_search_pools()
        except Exception as error:  # noqa: BLE001 - searches work without it
            logger.error("Process pools stopped: %s", type(error).__name__)

    # Requests

    async def _list_tools(
        self, context: RequestContext, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        self._handshake_finished.set()
        return ListToolsResult(tools=list(self._tools.values()))

    async def _call_tool(
        self, context: RequestContext, params: CallToolRequestParams
    ) -> CallToolResult:
        if params.name not in self._tools:
            return _error_text(f"Unknown tool: {params.name}")
        self._handshake_finished.set()
        call = _client_call(context)
        try:
            return await self._handlers.call(params.name, params.arguments or {}, call)
        except Exception as error:  # noqa: BLE001 - the SDK would send its text to the client
            logger.error("Tool %s raised %s", params.name, type(error).__name__)
            return _error_text(f"Error executing tool {params.name}")

    async def _list_resources(
        self, context: RequestContext, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        jobs = self._handlers.list_jobs(_owner(context)) if self._has_handlers else []
        return ListResourcesResult(resources=resources.list_reports(jobs, self._settings.secrets))

    async def _list_resource_templates(
        self, context: RequestContext, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=resources.report_templates())

    async def _read_resource(
        self, context: RequestContext, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        jobs = self._handlers.list_jobs(_owner(context)) if self._has_handlers else []
        return resources.read_report(jobs, params.uri, self._settings.secrets)

    async def _list_prompts(
        self, context: RequestContext, params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        return ListPromptsResult(prompts=[prompt.to_mcp() for prompt in client_prompts.PROMPTS])

    async def _get_prompt(
        self, context: RequestContext, params: GetPromptRequestParams
    ) -> GetPromptResult:
        return client_prompts.get_prompt(params.name, params.arguments or {})

    def _input_schema(self, name: str) -> Mapping[str, object] | None:
        tool = self._tools.get(name)
        return tool.input_schema if tool else None


def _client_call(context: RequestContext) -> ClientCall:
    session, params = context.session, context.session.client_params

    async def report_progress(step: int, message: str) -> None:
        await session.report_progress(step, message=message)

    client_name = params.client_info.name if params else None
    return ClientCall(_owner(context), client_name, report_progress)


def _owner(context: RequestContext) -> str:
    """Return the owner of a request; without HTTP, there is only the local one."""
    return request_owner(context.request.scope) if context.request else LOCAL_OWNER


def _to_mcp_tool(definition: schemas.ToolDefinition) -> Tool:
    return Tool(
        name=definition.name,
        title=definition.title,
        description=definition.description,
        input_schema=definition.parameters,
        output_schema=schemas.OUTPUT_SCHEMA,
        annotations=ToolAnnotations(
            title=definition.title,
            read_only_hint=not definition.is_destructive,
            destructive_hint=definition.is_destructive,
            idempotent_hint=definition.is_destructive,
            open_world_hint=True,
        ),
    )


def _error_text(message: str) -> CallToolResult:
    """Return an error that is not in our format, as it is about the server, not about a search."""
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)
