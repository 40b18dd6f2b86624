"""The MCP server: its tools, the reports that it keeps as resources, and its prompts."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio import to_thread
from mcp.server import MCPServer, NotificationOptions
from mcp.server.lowlevel import Server as LowLevelServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, Resource, ResourceTemplate, Tool

from gemini_cli_mcp import __version__
from gemini_cli_mcp.errors import GeminiMcpError, InvalidInput, failure_result
from gemini_cli_mcp.jobs import Done, Job, Jobs
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.owner import OWNER
from gemini_cli_mcp.progress import News, Tell
from gemini_cli_mcp.redaction import clean
from gemini_cli_mcp.server import resources, schemas
from gemini_cli_mcp.server.call_registry import Calls
from gemini_cli_mcp.server.clients import patience
from gemini_cli_mcp.server.handlers import tool
from gemini_cli_mcp.server.job_views import draft, state
from gemini_cli_mcp.server.pagination import LARGEST, page, tokens
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.types import Progress
from gemini_cli_mcp.workspace import Workspace

if TYPE_CHECKING:
    from gemini_cli_mcp.providers.registry import Providers
    from gemini_cli_mcp.research.researcher import Desk
    from gemini_cli_mcp.research.web_search import WebSearch

logger = logging.getLogger(__name__)

LONGEST_WAIT = 1e6
"""Seconds; no job lives that long."""

_Context = Context[Any, Any]
_Tool = Callable[[Object, _Context], Awaitable[CallToolResult]]


class Watch(Protocol):
    """Counts what happens."""

    def called(self, tool: str, result: Object | None, seconds: float) -> None:
        """A call ended with this; None: its client left it."""
        ...

    def used(self, result: Object) -> None:
        """A result that models have worked on."""
        ...


class Server(MCPServer[None]):
    """Everything that an MCP client can have of us, over any transport."""

    def __init__(self, config: Config, environ: Mapping[str, str], workspace: Workspace) -> None:
        self._config = config
        self._environ = environ
        self._workspace = workspace
        self._calls = Calls(config.secrets)
        self._jobs: Jobs | None = None
        self.watch: Watch | None = None
        """Whoever counts what happens."""
        self._greeted = anyio.Event()
        self._warmth = anyio.CancelScope()
        self._cooled = anyio.Event()
        super().__init__(
            "gemini-cli-mcp",
            title="Gemini CLI web research",
            instructions=schemas.INSTRUCTIONS,
            version=__version__,
            tools=[
                tool(
                    self._watched("search", self._search),
                    name="search",
                    title="Web search with sources",
                    description=schemas.SEARCH_DESCRIPTION,
                    parameters=schemas.search_parameters(),
                ),
                tool(
                    self._watched("grounded_search", self._grounded_search),
                    name="grounded_search",
                    title="One grounded Google search",
                    description=schemas.GROUNDED_SEARCH_DESCRIPTION,
                    parameters=schemas.grounded_search_parameters(
                        config.grounded_model, config.grounded_thinking
                    ),
                ),
                tool(
                    self._watched("web_search", self._web_search),
                    name="web_search",
                    title="Web search for links",
                    description=schemas.WEB_SEARCH_DESCRIPTION,
                    parameters=config.engines.parameters,
                ),
                tool(
                    self._watched("deep_search", self._deep_search),
                    name="deep_search",
                    title="Deep research in verified rounds",
                    description=schemas.DEEP_SEARCH_DESCRIPTION,
                    parameters=schemas.deep_search_parameters(config.max_rounds),
                ),
                tool(
                    self._watched("deep_search_result", self._deep_search_result),
                    name="deep_search_result",
                    title="Result of a deep research",
                    description=schemas.DEEP_SEARCH_RESULT_DESCRIPTION,
                    parameters=schemas.result_parameters(),
                ),
                tool(
                    self._watched("deep_search_cancel", self._deep_search_cancel),
                    name="deep_search_cancel",
                    title="Stop a deep research",
                    description=schemas.DEEP_SEARCH_CANCEL_DESCRIPTION,
                    parameters=schemas.cancel_parameters(),
                    ends_something=True,
                ),
            ],
            lifespan=lambda _: self._lifespan(),
        )
        for name, title, prompt in (
            ("research", "Research a topic", schemas.research_prompt),
            ("fact-check", "Check a claim", schemas.fact_check_prompt),
        ):
            self.add_prompt(Prompt.from_function(prompt, name=name, title=title))

    @property
    def lowlevel(self) -> LowLevelServer[Any]:
        """For a transport of our own."""
        return self._lowlevel_server

    def greet(self) -> None:
        """No handshake is to come: what can be kept ready, may be."""
        self._greeted.set()

    async def problem(self) -> GeminiMcpError | None:
        """Why a search could not work now."""
        # In a thread: it looks at files, and imports what a search needs.
        return await to_thread.run_sync(lambda: self._providers.problem())

    @property
    def numbers(self) -> Mapping[str, tuple[str, Callable[[], float]]]:
        """What can be counted at any moment: what it is, and how it is looked up."""
        return {
            "queue": ("Runs that wait for their turn", lambda: self._providers.places.waiting),
            "runs": ("Runs under way", lambda: self._providers.places.running),
            "cli_processes": ("CLI processes that live", lambda: self._providers.processes),
            "quotas_open": ("Quotas that are used up", lambda: self._providers.quotas.open),
            "jobs": ("Deep searches under way", lambda: self._jobs.running if self._jobs else 0),
        }

    async def end(self) -> None:
        """Take no more calls, and end those and the jobs that run."""
        await self._calls.end()
        if self._jobs:
            await self._jobs.end()
        if self._config.warm and self._greeted.is_set():
            self._warmth.cancel()
            await self._cooled.wait()

    async def run_stdio_async(self) -> None:
        """Serve one client over stdin and stdout, and say that our resources change."""
        options = self._lowlevel_server.create_initialization_options(
            NotificationOptions(resources_changed=True)
        )
        async with stdio_server() as (read_stream, write_stream):
            await self._lowlevel_server.run(read_stream, write_stream, options)

    # Tools

    def _watched(self, name: str, function: _Tool) -> _Tool:
        async def watched(arguments: Object, context: _Context) -> CallToolResult:
            begin = time.monotonic()
            result: Object | None = None
            try:
                answer = await function(arguments, context)
                result = as_object(answer.structured_content)
                return answer
            finally:
                if self.watch:
                    self.watch.called(name, result, time.monotonic() - begin)
                    if result and not name.startswith("deep_search"):  # those are counted once
                        self.watch.used(result)

        return watched

    async def list_tools(self) -> list[Tool]:
        self._greeted.set()
        return await super().list_tools()

    async def _search(self, arguments: Object, context: _Context) -> CallToolResult:
        async def work(progress: Progress) -> Object:
            from gemini_cli_mcp.research.search import search

            query, timeout = arguments.get("query"), self._config.timeout
            found = await search(self._desk, query, timeout=timeout, progress=progress)
            if tokens(found) <= LARGEST:
                return found
            job = self._running_jobs.keep(OWNER.get(), found)
            return await to_thread.run_sync(page, found, job.id, 0)

        return await self._followed(work, context)

    async def _grounded_search(self, arguments: Object, context: _Context) -> CallToolResult:
        async def work(progress: Progress) -> Object:
            from gemini_cli_mcp.research.grounded_search import failure_text, grounded_search

            names = ("query", "model", "thinking", "include_thoughts")
            asked = [arguments.get(name) for name in names]
            try:
                return await grounded_search(self._desk, self._config, *asked, progress=progress)
            except GeminiMcpError as error:
                return {**failure_result(error), "result": failure_text(error)}

        return await self._followed(work, context)

    async def _web_search(self, arguments: Object, context: _Context) -> CallToolResult:
        async def work(progress: Progress) -> Object:
            asked = [arguments.get(name) for name in ("query", "engine", "recency", "count")]
            return await self._engines.search(*asked, progress=progress)

        return await self._followed(work, context)

    async def _followed(
        self, work: Callable[[Progress], Awaitable[Object]], context: _Context
    ) -> CallToolResult:
        """Work to its end and tell how it goes."""
        news = News(self._config.limits.heartbeat)
        answer = CallToolResult(content=[])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(news.follow, self._teller(context))
            answer = await self._calls.answer(lambda: work(news.add))
            news.end()
        return answer

    async def _deep_search(self, arguments: Object, context: _Context) -> CallToolResult:
        async def work() -> Object:
            from gemini_cli_mcp.research.deep_search import DeepSearch

            query, rounds = arguments.get("query"), arguments.get("max_iterations")
            seconds = self._seconds(arguments, context)
            asked = DeepSearch(self._desk, self._config, query, rounds)
            job = self._running_jobs.submit(OWNER.get(), asked, self._done(context))
            await self._running_jobs.wait(job, seconds, self._teller(context))
            return await to_thread.run_sync(state, job)

        return await self._calls.answer(work)

    async def _deep_search_result(self, arguments: Object, context: _Context) -> CallToolResult:
        async def work() -> Object:
            seconds, offset = self._seconds(arguments, context), _offset(arguments)
            job = self._job(arguments)
            await self._running_jobs.wait(job, seconds, self._teller(context))
            # In a thread: cutting a long report parses it.
            told = await to_thread.run_sync(state, job, offset)
            return {**told, **await to_thread.run_sync(draft, job)}

        return await self._calls.answer(work)

    async def _deep_search_cancel(self, arguments: Object, context: _Context) -> CallToolResult:
        async def work() -> Object:
            job = self._job(arguments)
            await self._running_jobs.cancel(job)
            return await to_thread.run_sync(state, job)

        return await self._calls.answer(work)

    def _teller(self, context: _Context) -> Tell:
        async def tell(number: int, message: str) -> None:
            sent = str(clean(message, self._config.secrets))
            await context.report_progress(number, message=sent)

        return tell

    # Reports as resources

    async def list_resources(self) -> list[Resource]:
        return resources.listed(self._running_jobs.of(OWNER.get()), self._config.secrets)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return resources.templates()

    async def read_resource(
        self, uri: Any, context: Context[None, Any] | None = None
    ) -> Iterable[ReadResourceContents]:
        return resources.read(self._running_jobs, OWNER.get(), str(uri), self._config.secrets)

    # Inside

    @cached_property
    def _desk(self) -> "Desk":
        # Late: the handshake does not need what a search needs.
        from gemini_cli_mcp.research.researcher import Desk

        self._greeted.set()
        cycles = self._config.max_cycles
        return Desk(self._providers.listed, self._workspace, max_cycles=cycles)

    @cached_property
    def _providers(self) -> "Providers":
        from gemini_cli_mcp.providers.registry import Providers

        return Providers(self._config, self._workspace, self._environ, warm=True)

    @cached_property
    def _engines(self) -> "WebSearch":
        from gemini_cli_mcp.research.web_search import WebSearch

        return WebSearch(self._config, self._providers, self._environ)

    def _done(self, context: _Context) -> Done:
        """What is to be done when a deep search ends."""
        announce = _announcement(context)

        async def done(outcome: Object) -> None:
            if self.watch:
                self.watch.used(outcome)
            await announce(outcome)

        return done

    @property
    def _running_jobs(self) -> Jobs:
        if self._jobs is None:
            raise RuntimeError("the server does not run")
        return self._jobs

    def _job(self, arguments: Object) -> Job:
        job_id = arguments.get("job_id")
        if not isinstance(job_id, str):
            raise InvalidInput("`job_id` must be the string that `deep_search` returned.")
        return self._running_jobs.get(job_id, OWNER.get())

    def _seconds(self, arguments: Object, context: _Context) -> float:
        """How long a call waits."""
        value = arguments.get("wait_seconds")
        if value is None:
            return patience(context, self._config.limits.client_wait)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidInput("`wait_seconds` must be a number, 0 or more.")
        return min(value, LONGEST_WAIT)

    async def _stay_warm(self) -> None:
        """Keep processes ready, from when the client shows that the handshake is over."""
        try:
            await self._greeted.wait()
            if not self._config.warm:
                return
            # In a thread: a client that is listing our tools must not wait for imports.
            await to_thread.run_sync(import_module, "gemini_cli_mcp.providers.gemini.acp_pool")
            with self._warmth:
                await self._providers.stay_warm()
        except Exception as error:  # noqa: BLE001 - searches go without
            logger.error("No warm gemini any more: %s", type(error).__name__)
        finally:  # also if the client left in the same moment
            self._cooled.set()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[None]:
        async def sweep() -> None:
            if removed := await to_thread.run_sync(self._workspace.sweep):
                logger.info("Removed %d temporary files of servers that are gone", removed)

        try:
            async with (
                Jobs.open(self._config.limits) as self._jobs,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(sweep)  # beside the handshake, not before it
                tasks.start_soon(self._stay_warm)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._workspace.close()


def _announcement(context: _Context) -> Done:
    """Tells the client that there is another report, in its own era's way."""

    async def announce(outcome: Object) -> None:
        if outcome["success"]:
            for send in (
                context.notify_resources_changed,
                context.session.send_resource_list_changed,
            ):
                with suppress(Exception):  # the client may be gone, and no report is lost by that
                    await send()

    return announce


def _offset(arguments: Object) -> int:
    value = arguments.get("offset")
    if value is None:
        return 0
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value == value // 1
    ):
        raise InvalidInput("`offset` must be a whole number, 0 or more.")
    return int(value)
