"""Search commands for the terminal: progress on stderr, the report on stdout."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio

from gemini_cli_mcp.cli.live_progress import (
    RoundsView,
    SpinnerView,
    live_progress,
)
from gemini_cli_mcp.cli.output import hits_markdown, print_result
from gemini_cli_mcp.errors import CliNotFound, GeminiMcpError, failure_result
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.providers.registry import ProviderRegistry, cli_argv
from gemini_cli_mcp.research.deep_search import DeepSearch
from gemini_cli_mcp.research.grounded_search import grounded_search as run_grounded_search
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.search import search as run_search
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

BAD_USAGE_EXIT_CODE = 2


def search(settings: Settings, environ: Mapping[str, str], query: str, *, as_json: bool) -> int:
    """Run `search`, print its result and return the exit code."""

    async def run(researcher: Researcher, providers: ProviderRegistry) -> JsonObject:
        with live_progress(settings, SpinnerView()) as progress:
            return await run_search(researcher, query, timeout=settings.timeout, progress=progress)

    return print_result(_run(settings, environ, run), settings.secrets, as_json=as_json)


def grounded_search(
    settings: Settings,
    environ: Mapping[str, str],
    query: str,
    *,
    model: str | None,
    thinking: str | None,
    include_thoughts: bool,
    as_json: bool,
) -> int:
    """Run `grounded_search`, print its result and return the exit code."""

    async def run(researcher: Researcher, providers: ProviderRegistry) -> JsonObject:
        with live_progress(settings, SpinnerView()) as progress:
            arguments = (query, model, thinking, include_thoughts)
            return await run_grounded_search(researcher, settings, *arguments, progress=progress)

    return print_result(_run(settings, environ, run), settings.secrets, as_json=as_json)


def web_search(
    settings: Settings,
    environ: Mapping[str, str],
    query: str,
    *,
    engine: str | None,
    recency: str | None,
    count: int | None,
    as_json: bool,
) -> int:
    """Run `web_search`, print its hits and return the exit code."""

    async def run(researcher: Researcher, providers: ProviderRegistry) -> JsonObject:
        with live_progress(settings, SpinnerView()) as progress:
            searcher = WebSearch(settings, providers, environ)
            response = await searcher.search(query, engine, recency, count, progress=progress)
            return response if as_json else {**response, "result": hits_markdown(response)}

    return print_result(_run(settings, environ, run), settings.secrets, as_json=as_json)


def login(settings: Settings, environ: Mapping[str, str], provider: str) -> int:
    """Replace this process with the official CLI, where the user signs in as usual."""
    try:
        argv = cli_argv(provider, settings, environ)
    except GeminiMcpError as error:
        return print_result(failure_result(error), settings.secrets, as_json=False)
    print(f"Starting {' '.join(argv)}. Sign in there, then exit it.", file=sys.stderr)
    # The `node` that the CLI needs is usually in the same folder.
    path = f"{Path(argv[0]).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    try:
        os.execvpe(argv[0], argv, {**environ, "PATH": path})  # noqa: S606 - the user's own CLI
    except OSError as error:
        not_runnable = CliNotFound(f"{argv[0]} cannot be run: {error.strerror}.")
        return print_result(failure_result(not_runnable), settings.secrets, as_json=False)


def deep_search(
    settings: Settings,
    environ: Mapping[str, str],
    query: str,
    *,
    max_iterations: int | None,
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

    async def run(researcher: Researcher, providers: ProviderRegistry) -> JsonObject:
        deep = DeepSearch(researcher, settings, query, max_iterations)
        with live_progress(settings, RoundsView(deep)) as progress:
            interrupt.set_callback(deep.cancel)
            return await deep.run(progress)

    with interrupt:
        payload = _run(settings, environ, run)
        return print_result(payload, settings.secrets, as_json=as_json, output=output)


def _run(
    settings: Settings,
    environ: Mapping[str, str],
    operation: Callable[[Researcher, ProviderRegistry], Awaitable[JsonObject]],
) -> JsonObject:
    """Run the operation in a workspace of its own; return its result or an error result."""
    workspace = Workspace(settings.config_dir)
    workspace.remove_stale()
    providers = ProviderRegistry(settings, workspace, environ)
    researcher = Researcher(providers.configured, workspace, max_cycles=settings.max_cycles)

    async def attempt() -> JsonObject:
        try:
            return await operation(researcher, providers)
        except Exception as error:  # noqa: BLE001 - users get a message, never a stack trace
            return failure_result(error)

    try:
        return anyio.run(attempt)
    finally:
        workspace.close()


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
