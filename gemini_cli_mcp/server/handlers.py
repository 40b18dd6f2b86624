"""Handlers of the MCP tools: parse the arguments, report progress, return one result."""

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio import to_thread
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult

from gemini_cli_mcp.current_owner import CURRENT_OWNER
from gemini_cli_mcp.errors import GeminiMcpError, InvalidInput, failure_result
from gemini_cli_mcp.jobs import CompletionCallback, Job, JobService
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.progress import ProgressFeed, ProgressSink
from gemini_cli_mcp.redaction import sanitize_json
from gemini_cli_mcp.server.call_registry import CallRegistry
from gemini_cli_mcp.server.job_views import draft_view, job_view
from gemini_cli_mcp.server.pagination import MAX_RESULT_TOKENS, estimate_tokens, paginate
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace

if TYPE_CHECKING:
    from gemini_cli_mcp.providers.registry import ProviderRegistry
    from gemini_cli_mcp.research.researcher import Researcher
    from gemini_cli_mcp.research.web_search import WebSearch

CLIENT_CALL_LIMITS = {"claude-code": math.inf}
"""Seconds, by client name. Claude Code waits for hours while there is progress, and shows it."""
MAX_WAIT_SECONDS = 1e6
"""Longer than any job runs."""

ToolContext = Context[Any, Any]
Handler = Callable[[JsonObject, ToolContext], Awaitable[CallToolResult]]


class CallMetrics(Protocol):
    """Records calls and token usage."""

    def record_call(self, tool: str, result: JsonObject | None, seconds: float) -> None:
        """Record a call that ended with `result`; None means that the client cancelled it."""
        ...

    def record_usage(self, result: JsonObject) -> None:
        """Record the token usage of a result."""
        ...


class ToolHandlers:
    """The tool handlers, and what they share: providers, jobs and running calls."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], workspace: Workspace
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._workspace = workspace
        self._calls = CallRegistry(settings.secrets)
        self._jobs: JobService | None = None
        self._metrics: CallMetrics | None = None
        self.warmup_allowed = anyio.Event()
        """Set on first use, which allows ACP processes to start."""

    def record_to(self, metrics: CallMetrics) -> None:
        """Record all subsequent calls in `metrics`."""
        self._metrics = metrics

    @asynccontextmanager
    async def run_jobs(self) -> AsyncGenerator[None]:
        """Accept jobs while the context is open; cancel unfinished ones on exit."""
        async with JobService.open(self._settings.limits) as self._jobs:
            yield

    async def shutdown(self) -> None:
        """Reject new calls, and cancel running calls and jobs."""
        await self._calls.cancel_all()
        if self._jobs:
            await self._jobs.shutdown()

    @property
    def jobs(self) -> JobService:
        if self._jobs is None:
            raise RuntimeError("The server is not running.")
        return self._jobs

    @property
    def running_jobs(self) -> int:
        return self._jobs.running if self._jobs else 0

    # Imported lazily: the handshake needs none of these.

    @cached_property
    def providers(self) -> "ProviderRegistry":
        from gemini_cli_mcp.providers.registry import ProviderRegistry

        return ProviderRegistry(self._settings, self._workspace, self._environ, warm=True)

    @cached_property
    def _researcher(self) -> "Researcher":
        from gemini_cli_mcp.research.researcher import Researcher

        self.warmup_allowed.set()
        cycles = self._settings.max_cycles
        return Researcher(self.providers.configured, self._workspace, max_cycles=cycles)

    @cached_property
    def _web_search_engines(self) -> "WebSearch":
        from gemini_cli_mcp.research.web_search import WebSearch

        return WebSearch(self._settings, self.providers, self._environ)

    # Tools

    async def search(self, arguments: JsonObject, context: ToolContext) -> CallToolResult:
        async def run(progress: ProgressCallback) -> JsonObject:
            from gemini_cli_mcp.research.search import search

            query, timeout = arguments.get("query"), self._settings.timeout
            result = await search(self._researcher, query, timeout=timeout, progress=progress)
            if estimate_tokens(result) <= MAX_RESULT_TOKENS:
                return result
            job = self.jobs.store_result(CURRENT_OWNER.get(), result)
            return await to_thread.run_sync(paginate, result, job.id, 0)

        return await self._run_with_progress(run, context)

    async def grounded_search(self, arguments: JsonObject, context: ToolContext) -> CallToolResult:
        async def run(progress: ProgressCallback) -> JsonObject:
            from gemini_cli_mcp.research.grounded_search import error_markdown, grounded_search

            names = ("query", "model", "thinking", "include_thoughts")
            values = [arguments.get(name) for name in names]
            try:
                return await grounded_search(
                    self._researcher, self._settings, *values, progress=progress
                )
            except GeminiMcpError as error:
                return {**failure_result(error), "result": error_markdown(error)}

        return await self._run_with_progress(run, context)

    async def web_search(self, arguments: JsonObject, context: ToolContext) -> CallToolResult:
        async def run(progress: ProgressCallback) -> JsonObject:
            values = [arguments.get(name) for name in ("query", "engine", "recency", "count")]
            return await self._web_search_engines.search(*values, progress=progress)

        return await self._run_with_progress(run, context)

    async def deep_search(self, arguments: JsonObject, context: ToolContext) -> CallToolResult:
        async def run() -> JsonObject:
            from gemini_cli_mcp.research.deep_search import DeepSearch

            query, rounds = arguments.get("query"), arguments.get("max_iterations")
            seconds = self._wait_seconds(arguments, context)
            task = DeepSearch(self._researcher, self._settings, query, rounds)
            job = self.jobs.submit(CURRENT_OWNER.get(), task, self._completion_callback(context))
            await self.jobs.wait(job, seconds, self._progress_sink(context))
            return await to_thread.run_sync(job_view, job)

        return await self._calls.run(run)

    async def deep_search_result(
        self, arguments: JsonObject, context: ToolContext
    ) -> CallToolResult:
        async def run() -> JsonObject:
            seconds, offset = self._wait_seconds(arguments, context), _parse_offset(arguments)
            job = self._find_job(arguments)
            await self.jobs.wait(job, seconds, self._progress_sink(context))
            # In a worker thread: splitting a long report means parsing it.
            view = await to_thread.run_sync(job_view, job, offset)
            return {**view, **await to_thread.run_sync(draft_view, job)}

        return await self._calls.run(run)

    async def deep_search_cancel(
        self, arguments: JsonObject, context: ToolContext
    ) -> CallToolResult:
        async def run() -> JsonObject:
            job = self._find_job(arguments)
            await self.jobs.cancel(job)
            return await to_thread.run_sync(job_view, job)

        return await self._calls.run(run)

    def with_metrics(self, name: str, handler: Handler) -> Handler:
        """Wrap a handler so that its calls are recorded."""

        async def run_recorded(arguments: JsonObject, context: ToolContext) -> CallToolResult:
            started = time.monotonic()
            result: JsonObject | None = None
            try:
                answer = await handler(arguments, context)
                result = object_or_empty(answer.structured_content)
                return answer
            finally:
                if self._metrics:
                    self._metrics.record_call(name, result, time.monotonic() - started)
                    if result and not name.startswith("deep_search"):  # counted on completion
                        self._metrics.record_usage(result)

        return run_recorded

    async def _run_with_progress(
        self, run: Callable[[ProgressCallback], Awaitable[JsonObject]], context: ToolContext
    ) -> CallToolResult:
        """Run to completion while reporting progress."""
        feed = ProgressFeed(self._settings.limits.progress_interval)
        answer = CallToolResult(content=[])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.forward_to, self._progress_sink(context))
            answer = await self._calls.run(lambda: run(feed.publish))
            feed.close()
        return answer

    def _progress_sink(self, context: ToolContext) -> ProgressSink:
        async def report(step: int, message: str) -> None:
            redacted = str(sanitize_json(message, self._settings.secrets))
            await context.report_progress(step, message=redacted)

        return report

    def _completion_callback(self, context: ToolContext) -> CompletionCallback:
        """Return the callback for the end of a deep search."""
        announce = _announce_report(context)

        async def on_done(result: JsonObject) -> None:
            if self._metrics:
                self._metrics.record_usage(result)
            await announce(result)

        return on_done

    def _find_job(self, arguments: JsonObject) -> Job:
        job_id = arguments.get("job_id")
        if not isinstance(job_id, str):
            raise InvalidInput("`job_id` must be the string that `deep_search` returned.")
        return self.jobs.get(job_id, CURRENT_OWNER.get())

    def _wait_seconds(self, arguments: JsonObject, context: ToolContext) -> float:
        """Return how long this call waits for its job."""
        value = arguments.get("wait_seconds")
        if value is None:
            return client_call_limit(context, self._settings.limits.client_call_limit)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidInput("`wait_seconds` must be a non-negative number.")
        return min(value, MAX_WAIT_SECONDS)


def client_call_limit(context: ToolContext, default: float) -> float:
    """Return the seconds this client is known to allow for a call; `default` if it is unknown."""
    params = context.session.client_params
    return CLIENT_CALL_LIMITS.get(params.client_info.name, default) if params else default


def _announce_report(context: ToolContext) -> CompletionCallback:
    """Return a callback that notifies the client of a new report, in both protocol eras."""

    async def announce(result: JsonObject) -> None:
        if result["success"]:
            for send in (
                context.notify_resources_changed,
                context.session.send_resource_list_changed,
            ):
                with suppress(Exception):  # the client may be gone; the report is stored anyway
                    await send()

    return announce


def _parse_offset(arguments: JsonObject) -> int:
    value = arguments.get("offset")
    if value is None:
        return 0
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value == value // 1
    ):
        raise InvalidInput("`offset` must be a non-negative integer.")
    return int(value)
