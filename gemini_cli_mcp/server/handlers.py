"""Handlers of the MCP tools: parse the arguments, report progress, return one answer."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from mcp.types import CallToolResult

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import ExecutionFailed, to_public_error
from gemini_cli_mcp.http_common.metrics import Metrics
from gemini_cli_mcp.jobs.service import JobService
from gemini_cli_mcp.jobs.snapshot import JobSnapshot
from gemini_cli_mcp.progress import ProgressFeed, ProgressSink
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research import requests
from gemini_cli_mcp.research.deep_search import deep_search, deep_search_context
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.requests import Arguments
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.research.web_search import EngineProviders, web_search
from gemini_cli_mcp.sanitize import sanitize_json
from gemini_cli_mcp.server.call_metrics import record_outcome
from gemini_cli_mcp.server.client_call import ClientCall
from gemini_cli_mcp.server.job_views import JobView
from gemini_cli_mcp.server.pagination import is_too_long
from gemini_cli_mcp.server.results import Outcome, to_call_tool_result
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

CLIENT_CALL_LIMITS = {"claude-code": math.inf}
"""Seconds, by client name. Claude Code waits for hours while there is progress, and shows it."""
POLL_INTERVAL = 0.02
"""Seconds between checks whether all cancelled calls have ended."""

AnnounceReport = Callable[[str], Awaitable[None]]
Handler = Callable[[Arguments, ClientCall, CallContext], Awaitable[Outcome]]
T = TypeVar("T")


class ToolHandlers:
    """The tool handlers, and what they share: providers, jobs and running calls."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        workspace: Workspace,
        tasks: TaskGroup,
        announce_new_report: AnnounceReport,
        metrics: Metrics | None,
    ) -> None:
        """Deep searches run in `tasks`.

        `announce_new_report` is called with the owner of one that has succeeded.
        """
        self._settings = settings
        self._workspace = workspace
        self._announce_new_report = announce_new_report
        self._metrics = metrics
        self._running_calls: set[CallContext] = set()
        self._is_shutting_down = False
        self.providers = ProviderRegistry(settings, workspace, environ, keeps_processes=True)
        self._engine_providers = EngineProviders(settings, self.providers, environ)
        self._jobs = JobService(
            tasks,
            settings.limits,
            run=lambda request, context: deep_search(request, context, self._researcher),
            create_context=lambda owner: deep_search_context(owner, settings),
            on_finished=self._on_job_finished,
        )
        self._handlers: Mapping[str, Handler] = {
            "search": self._search,
            "grounded_search": self._grounded_search,
            "web_search": self._web_search,
            "deep_search": self._deep_search,
            "deep_search_result": self._deep_search_result,
            "deep_search_cancel": self._deep_search_cancel,
        }

    async def call(self, tool: str, arguments: Arguments, client: ClientCall) -> CallToolResult:
        """Call a tool; return its result, or its failure as a result."""
        started = time.monotonic()
        outcome: Outcome | None = None
        context = CallContext(client.owner)
        if self._is_shutting_down:
            context.cancel(_shutting_down())
        self._running_calls.add(context)
        try:
            try:
                with context.enforce():
                    outcome = await self._handlers[tool](arguments, client, context)
                    return await self._convert(tool, outcome)
            except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
                outcome = to_public_error(error)
                return await self._convert(tool, outcome)
        finally:
            self._running_calls.discard(context)
            if self._metrics:
                record_outcome(self._metrics, tool, outcome, time.monotonic() - started)

    async def cancel_calls(self) -> None:
        """Answer new and running calls with an error; wait until the running ones have ended."""
        self._is_shutting_down = True
        for context in self._running_calls:
            context.cancel(_shutting_down())
        while self._running_calls:
            await anyio.sleep(POLL_INTERVAL)

    @property
    def running_jobs(self) -> int:
        return self._jobs.running

    def list_jobs(self, owner: str) -> list[JobSnapshot]:
        """Return all jobs of an owner, oldest first."""
        return self._jobs.list_for_owner(owner)

    @cached_property
    def _researcher(self) -> Researcher:
        return Researcher(self._settings, self.providers.configured, self._workspace)

    # Tools

    async def _search(
        self, arguments: Arguments, client: ClientCall, context: CallContext
    ) -> Outcome:
        request = requests.parse_search(arguments)
        result = await self._with_progress(
            client, context, lambda part: search(request, part, self._researcher)
        )
        if not await to_thread.run_sync(is_too_long, result):
            return result
        return self._view(self._jobs.store_result(client.owner, result))

    async def _grounded_search(
        self, arguments: Arguments, client: ClientCall, context: CallContext
    ) -> Outcome:
        request = requests.parse_grounded_search(arguments, self._settings)
        return await self._with_progress(
            client, context, lambda part: grounded_search(request, part, self._researcher)
        )

    async def _web_search(
        self, arguments: Arguments, client: ClientCall, context: CallContext
    ) -> Outcome:
        request = requests.parse_web_search(arguments, self._settings.engines)
        return await self._with_progress(
            client, context, lambda part: web_search(request, part, self._engine_providers)
        )

    async def _deep_search(
        self, arguments: Arguments, client: ClientCall, context: CallContext
    ) -> Outcome:
        seconds = self._wait_seconds(requests.parse_wait_seconds(arguments), client)
        request = requests.parse_deep_search(arguments, self._settings)
        is_fresh = requests.parse_fresh(arguments)
        same_job = None if is_fresh else self._jobs.find_same(client.owner, request)
        job = same_job or self._jobs.submit(client.owner, request)
        sink = self._progress_sink(client)
        job = await self._jobs.wait(job.id, client.owner, seconds, sink)
        return self._view(job, is_shared=same_job is not None)

    async def _deep_search_result(
        self, arguments: Arguments, client: ClientCall, context: CallContext
    ) -> Outcome:
        request = requests.parse_job_result(arguments)
        seconds = self._wait_seconds(request.wait_seconds, client)
        sink = self._progress_sink(client)
        job = await self._jobs.wait(request.job_id, client.owner, seconds, sink)
        return self._view(job, request.offset, include_draft=True)

    async def _deep_search_cancel(
        self, arguments: Arguments, client: ClientCall, context: CallContext
    ) -> Outcome:
        job_id = requests.parse_job_cancel(arguments)
        return self._view(await self._jobs.cancel(job_id, client.owner))

    def _view(
        self,
        job: JobSnapshot,
        offset: int = 0,
        *,
        include_draft: bool = False,
        is_shared: bool = False,
    ) -> Outcome:
        """Return what the owner gets of a job, among it the job id."""
        self._jobs.mark_delivered(job.id)
        return JobView(job, time.monotonic(), offset, include_draft, is_shared)

    async def _convert(self, tool: str, outcome: Outcome) -> CallToolResult:
        return await to_thread.run_sync(to_call_tool_result, tool, outcome, self._settings.secrets)

    async def _with_progress(
        self,
        client: ClientCall,
        context: CallContext,
        run: Callable[[CallContext], Awaitable[T]],
    ) -> T:
        """Run a tool within the time that a call may take, while reporting progress."""
        feed = ProgressFeed(self._settings.limits.progress_interval)
        part = context.part(self._settings.timeout, progress=feed.publish)
        outcomes: list[T | Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.forward_to, self._progress_sink(client))
            try:
                outcomes.append(await run(part))
            except Exception as error:  # noqa: BLE001 - raised below, not inside the task group
                outcomes.append(error)
            feed.close()
        [outcome] = outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _progress_sink(self, client: ClientCall) -> ProgressSink:
        async def report(step: int, message: str) -> None:
            redacted = str(sanitize_json(message, self._settings.secrets))
            await client.report_progress(step, redacted)

        return report

    def _wait_seconds(self, requested: float | None, client: ClientCall) -> float:
        """Return how long a call waits for its job; by default, as long as the client allows."""
        if requested is not None:
            return requested
        default = self._settings.limits.client_call_limit
        return CLIENT_CALL_LIMITS.get(client.client_name or "", default)

    async def _on_job_finished(self, job: JobSnapshot) -> None:
        if job.result is None:
            return
        if self._metrics and job.result.metadata.usage:
            self._metrics.record_usage(job.result.metadata.usage.total_tokens)
        await self._announce_new_report(job.owner)


def _shutting_down() -> ExecutionFailed:
    return ExecutionFailed(
        "The server is shutting down.", hint="Start it again, then repeat the call."
    )
