"""Search commands for the terminal: progress on stderr, the report on stdout."""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import anyio

from gemini_cli_mcp.call_context import LOCAL_OWNER, CallContext
from gemini_cli_mcp.cli.command_parser import BAD_USAGE_EXIT_CODE
from gemini_cli_mcp.cli.interrupt import InterruptHandler
from gemini_cli_mcp.cli.live_progress import live_progress
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.cli.output import print_result
from gemini_cli_mcp.errors import (
    Cancelled,
    CliNotFound,
    ExecutionFailed,
    GeminiMcpError,
    to_public_error,
)
from gemini_cli_mcp.process.foreground import run_in_foreground
from gemini_cli_mcp.providers.registry import ProviderRegistry, cli_argv
from gemini_cli_mcp.research import requests
from gemini_cli_mcp.research.deep_search import DeepSearchFinished, deep_search_context
from gemini_cli_mcp.research.deep_search import deep_search as run_deep_search
from gemini_cli_mcp.research.grounded_search import grounded_search as run_grounded_search
from gemini_cli_mcp.research.requests import DeepSearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import Result
from gemini_cli_mcp.research.search import search as run_search
from gemini_cli_mcp.research.web_search import EngineProviders
from gemini_cli_mcp.research.web_search import web_search as run_web_search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _CommandContext:
    """What the command works with."""

    settings: Settings
    environ: Mapping[str, str]
    workspace: Workspace
    interrupt: InterruptHandler

    @cached_property
    def providers(self) -> ProviderRegistry:
        return ProviderRegistry(self.settings, self.workspace, self.environ, is_one_shot=True)

    @property
    def researcher(self) -> Researcher:
        return Researcher(self.settings, self.providers.configured, self.workspace)

    @contextmanager
    def call(self) -> Generator[CallContext]:
        """The context of a call whose progress is shown and which Ctrl-C cancels."""
        with live_progress(self.settings) as display:
            context = CallContext(
                LOCAL_OWNER,
                display.show_step,
                self.settings.timeout,
                report_findings=display.show_findings,
            )
            error = Cancelled("The search was cancelled.")
            self.interrupt.set_callbacks(lambda: context.cancel(error), display.close)
            yield context


def search(settings: Settings, environ: Mapping[str, str], options: Options) -> int:
    """Run `search`, print its result and return the exit code."""

    async def run(command: _CommandContext) -> Result:
        request = requests.parse_search({"query": options.query})
        with command.call() as context:
            return await run_search(request, context, command.researcher)

    return _run(settings, environ, options, run)


def grounded_search(settings: Settings, environ: Mapping[str, str], options: Options) -> int:
    """Run `grounded_search`, print its result and return the exit code."""
    arguments = {
        "query": options.query,
        "model": options.model,
        "thinking": options.thinking,
        "include_thoughts": options.include_thoughts,
    }

    async def run(command: _CommandContext) -> Result:
        request = requests.parse_grounded_search(arguments, settings)
        with command.call() as context:
            return await run_grounded_search(request, context, command.researcher)

    return _run(settings, environ, options, run)


def web_search(settings: Settings, environ: Mapping[str, str], options: Options) -> int:
    """Run `web_search`, print its hits and return the exit code."""
    arguments = {
        "query": options.query,
        "engine": options.engine,
        "recency": options.recency,
        "count": options.count,
    }

    async def run(command: _CommandContext) -> Result:
        request = requests.parse_web_search(arguments, settings.engines)
        with command.call() as context:
            engines = EngineProviders(settings, command.providers, environ)
            return await run_web_search(request, context, engines)

    return _run(settings, environ, options, run)


def deep_search(settings: Settings, environ: Mapping[str, str], options: Options) -> int:
    """Run `deep_search`, print its result, write it to the output file and return the exit code.

    Ctrl-C stops the rounds, not the program: the best report so far is printed.
    """
    if options.output and (problem := _output_problem(options.output)):
        # Fail now, not after minutes of research.
        print(f"{options.output} cannot be written: {problem}.", file=sys.stderr)
        return BAD_USAGE_EXIT_CODE
    arguments = {"query": options.query, "max_iterations": options.max_iterations}

    async def run(command: _CommandContext) -> Result:
        request = requests.parse_deep_search(arguments, settings)
        _warn_if_clamped(request)
        context = deep_search_context(LOCAL_OWNER, settings)
        error = Cancelled("The deep search was cancelled.")
        with live_progress(settings, request.max_rounds) as display:
            command.interrupt.set_callbacks(lambda: context.cancel(error), display.close)
            async with aclosing(run_deep_search(request, context, command.researcher)) as events:
                async for event in events:
                    if isinstance(event, DeepSearchFinished):
                        return event.result
                    display.show_event(event)
        raise ExecutionFailed("The deep search ended without a result.")

    return _run(settings, environ, options, run)


def login(settings: Settings, environ: Mapping[str, str], options: Options) -> int:
    """Run the official CLI in this terminal, where the user signs in as usual."""
    try:
        argv = cli_argv(options.provider, settings, environ)
    except GeminiMcpError as error:
        return print_result(error, settings, options)
    print(f"Starting {' '.join(argv)}. Sign in there, then exit it.", file=sys.stderr)
    # The `node` that the CLI needs is usually in the same folder.
    path = f"{Path(argv[0]).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    try:
        return run_in_foreground(argv, {**environ, "PATH": path})
    except OSError as error:
        not_runnable = CliNotFound(f"{argv[0]} cannot be run: {error.strerror}.")
        return print_result(not_runnable, settings, options)


def _run(
    settings: Settings,
    environ: Mapping[str, str],
    options: Options,
    operation: Callable[[_CommandContext], Awaitable[Result]],
) -> int:
    """Run the operation in a workspace of its own, print its result and return the exit code."""
    workspace = Workspace(settings.config_dir)
    workspace.remove_stale()
    interrupt = InterruptHandler(workspace)
    command = _CommandContext(settings, environ, workspace, interrupt)

    async def attempt() -> Result | GeminiMcpError:
        try:
            return await operation(command)
        except Exception as error:  # noqa: BLE001 - users get a message, never a stack trace
            return to_public_error(error)

    with interrupt:
        try:
            outcome = anyio.run(attempt)
        finally:
            workspace.close()
    return print_result(outcome, settings, options)


def _warn_if_clamped(request: DeepSearchRequest) -> None:
    if request.clamped_rounds:
        asked, used = request.clamped_rounds
        bound = "the minimum" if asked < used else "the maximum (DEEP_SEARCH_MAX_ITERATIONS)"
        logger.warning("--max-iterations %d: using %d, %s", asked, used, bound)


def _output_problem(output: Path) -> str | None:
    """Return why a report cannot be written to this path, or None if it can."""
    try:
        if not output.exists():
            folder = output.absolute().parent
            return None if os.access(folder, os.W_OK) else f"{folder} is not a writable folder"
        if not output.is_file():
            return "it is not a regular file"
        return None if os.access(output, os.W_OK) else "it is not writable"
    except OSError as error:
        return error.strerror
