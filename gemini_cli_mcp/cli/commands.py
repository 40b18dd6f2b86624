"""Search commands for the terminal: progress on stderr, the report on stdout."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path

import anyio

from gemini_cli_mcp.call_context import LOCAL_OWNER, CallContext
from gemini_cli_mcp.cli.live_progress import live_rounds, live_steps
from gemini_cli_mcp.cli.output import print_result
from gemini_cli_mcp.errors import (
    Cancelled,
    CliNotFound,
    ExecutionFailed,
    GeminiMcpError,
    to_public_error,
)
from gemini_cli_mcp.providers.registry import ProviderRegistry, cli_argv
from gemini_cli_mcp.research import requests
from gemini_cli_mcp.research.deep_search import DeepSearchFinished, deep_search_context
from gemini_cli_mcp.research.deep_search import deep_search as run_deep_search
from gemini_cli_mcp.research.grounded_search import grounded_search as run_grounded_search
from gemini_cli_mcp.research.requests import Arguments
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import Result
from gemini_cli_mcp.research.search import search as run_search
from gemini_cli_mcp.research.web_search import EngineProviders
from gemini_cli_mcp.research.web_search import web_search as run_web_search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

BAD_USAGE_EXIT_CODE = 2


def search(
    settings: Settings, environ: Mapping[str, str], arguments: Arguments, *, as_json: bool
) -> int:
    """Run `search`, print its result and return the exit code."""

    async def run(providers: ProviderRegistry, workspace: Workspace) -> Result:
        request = requests.parse_search(arguments)
        with _spinner(settings) as context:
            return await run_search(request, context, _researcher(settings, providers, workspace))

    return print_result(_run(settings, environ, run), settings.secrets, as_json=as_json)


def grounded_search(
    settings: Settings, environ: Mapping[str, str], arguments: Arguments, *, as_json: bool
) -> int:
    """Run `grounded_search`, print its result and return the exit code."""

    async def run(providers: ProviderRegistry, workspace: Workspace) -> Result:
        request = requests.parse_grounded_search(arguments, settings)
        with _spinner(settings) as context:
            researcher = _researcher(settings, providers, workspace)
            return await run_grounded_search(request, context, researcher)

    return print_result(_run(settings, environ, run), settings.secrets, as_json=as_json)


def web_search(
    settings: Settings, environ: Mapping[str, str], arguments: Arguments, *, as_json: bool
) -> int:
    """Run `web_search`, print its hits and return the exit code."""

    async def run(providers: ProviderRegistry, workspace: Workspace) -> Result:
        request = requests.parse_web_search(arguments, settings.engines)
        with _spinner(settings) as context:
            engines = EngineProviders(settings, providers, environ)
            return await run_web_search(request, context, engines)

    return print_result(_run(settings, environ, run), settings.secrets, as_json=as_json)


def login(settings: Settings, environ: Mapping[str, str], provider: str) -> int:
    """Replace this process with the official CLI, where the user signs in as usual."""
    try:
        argv = cli_argv(provider, settings, environ)
    except GeminiMcpError as error:
        return print_result(error, settings.secrets, as_json=False)
    print(f"Starting {' '.join(argv)}. Sign in there, then exit it.", file=sys.stderr)
    # The `node` that the CLI needs is usually in the same folder.
    path = f"{Path(argv[0]).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    try:
        os.execvpe(argv[0], argv, {**environ, "PATH": path})  # noqa: S606 - the user's own CLI
    except OSError as error:
        not_runnable = CliNotFound(f"{argv[0]} cannot be run: {error.strerror}.")
        return print_result(not_runnable, settings.secrets, as_json=False)


def deep_search(
    settings: Settings,
    environ: Mapping[str, str],
    arguments: Arguments,
    *,
    as_json: bool,
    output: Path | None,
) -> int:
    """Run `deep_search`, print its result, write it to `output` and return the exit code.

    Ctrl-C stops the rounds, not the program: the best report so far is printed.
    """
    if output and (problem := _output_problem(output)):  # fail now, not after minutes of research
        print(f"{output} cannot be written: {problem}.", file=sys.stderr)
        return BAD_USAGE_EXIT_CODE
    interrupt = _CancelOnInterrupt()

    async def run(providers: ProviderRegistry, workspace: Workspace) -> Result:
        request = requests.parse_deep_search(arguments, settings)
        researcher = _researcher(settings, providers, workspace)
        context = deep_search_context(LOCAL_OWNER, settings)
        interrupt.set_callback(lambda: context.cancel(Cancelled("The deep search was cancelled.")))
        with live_rounds(settings, request.max_rounds) as show:
            async with aclosing(run_deep_search(request, context, researcher)) as events:
                async for event in events:
                    if isinstance(event, DeepSearchFinished):
                        return event.result
                    show(event)
        raise ExecutionFailed("The deep search ended without a result.")

    with interrupt:
        outcome = _run(settings, environ, run)
        return print_result(outcome, settings.secrets, as_json=as_json, output=output)


def _run(
    settings: Settings,
    environ: Mapping[str, str],
    operation: Callable[[ProviderRegistry, Workspace], Awaitable[Result]],
) -> Result | GeminiMcpError:
    """Run the operation in a workspace of its own; return its result or its error."""
    workspace = Workspace(settings.config_dir)
    workspace.remove_stale()
    providers = ProviderRegistry(settings, workspace, environ)

    async def attempt() -> Result | GeminiMcpError:
        try:
            return await operation(providers, workspace)
        except Exception as error:  # noqa: BLE001 - users get a message, never a stack trace
            return to_public_error(error)

    try:
        return anyio.run(attempt)
    finally:
        workspace.close()


def _researcher(
    settings: Settings, providers: ProviderRegistry, workspace: Workspace
) -> Researcher:
    return Researcher(settings, providers.configured, workspace)


@contextmanager
def _spinner(settings: Settings) -> Generator[CallContext]:
    """Show the progress of one call in a line."""
    with live_steps(settings) as progress:
        yield CallContext(LOCAL_OWNER, progress, settings.timeout)


class _CancelOnInterrupt:
    """Context in which Ctrl-C, however often pressed, stops the research, not the program."""

    def __init__(self) -> None:
        self._callback: Callable[[], object] = lambda: None

    def set_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the running event loop on every Ctrl-C from now on."""
        loop = asyncio.get_running_loop()
        self._callback = lambda: loop.is_closed() or loop.call_soon_threadsafe(callback)

    def __enter__(self) -> None:
        self._previous_handler = signal.signal(
            signal.SIGINT, lambda number, frame: self._callback()
        )

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)


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
