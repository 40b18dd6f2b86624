"""The edge for a person in a terminal: progress on stderr, the report on stdout."""

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
from gemini_cli_mcp.research.grounded_search import grounded_search as ground
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.search import search as research
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

BAD_USAGE_EXIT_CODE = 2


def search(settings: Settings, environ: Mapping[str, str], query: str, *, as_json: bool) -> int:
    """Run `search` and show its result; the exit code."""

    async def work(desk: Researcher, providers: ProviderRegistry) -> JsonObject:
        with live_progress(settings, SpinnerView()) as progress:
            return await research(desk, query, timeout=settings.timeout, progress=progress)

    return print_result(_run(settings, environ, work), settings.secrets, as_json=as_json)


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
    """Run `grounded_search` and show its result; the exit code."""

    async def work(desk: Researcher, providers: ProviderRegistry) -> JsonObject:
        with live_progress(settings, SpinnerView()) as progress:
            asked = (query, model, thinking, include_thoughts)
            return await ground(desk, settings, *asked, progress=progress)

    return print_result(_run(settings, environ, work), settings.secrets, as_json=as_json)


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
    """Run `web_search` and show its hits; the exit code."""

    async def work(desk: Researcher, providers: ProviderRegistry) -> JsonObject:
        with live_progress(settings, SpinnerView()) as progress:
            engines = WebSearch(settings, providers, environ)
            found = await engines.search(query, engine, recency, count, progress=progress)
            return found if as_json else {**found, "result": hits_markdown(found)}

    return print_result(_run(settings, environ, work), settings.secrets, as_json=as_json)


def login(settings: Settings, environ: Mapping[str, str], provider: str) -> int:
    """Become the official CLI, in this terminal: the user signs in there as always."""
    try:
        argv = cli_argv(provider, settings, environ)
    except GeminiMcpError as error:
        return print_result(failure_result(error), settings.secrets, as_json=False)
    print(f"Starting {' '.join(argv)}. Sign in there, then leave it.", file=sys.stderr)
    # Beside it lies the `node` that it mostly needs.
    path = f"{Path(argv[0]).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    try:
        os.execvpe(argv[0], argv, {**environ, "PATH": path})  # noqa: S606 - the user's own
    except OSError as error:
        missing = CliNotFound(f"{argv[0]} cannot be run: {error.strerror}.")
        return print_result(failure_result(missing), settings.secrets, as_json=False)


def deep_search(
    settings: Settings,
    environ: Mapping[str, str],
    query: str,
    *,
    max_iterations: int | None,
    as_json: bool,
    output: Path | None,
) -> int:
    """Run `deep_search`, show its result and write it to a file; the exit code.

    Ctrl-C ends the rounds and not the program: what there is so far is shown.
    """
    if output and (problem := _output_problem(output)):  # known before minutes are spent
        print(f"{output} cannot be written: {problem}.", file=sys.stderr)
        return BAD_USAGE_EXIT_CODE
    interrupt = _CancelOnInterrupt()

    async def work(desk: Researcher, providers: ProviderRegistry) -> JsonObject:
        deep = DeepSearch(desk, settings, query, max_iterations)
        with live_progress(settings, RoundsView(deep)) as progress:
            interrupt.set_callback(deep.cancel)
            return await deep.run(progress)

    with interrupt:
        payload = _run(settings, environ, work)
        return print_result(payload, settings.secrets, as_json=as_json, output=output)


def _run(
    settings: Settings,
    environ: Mapping[str, str],
    work: Callable[[Researcher, ProviderRegistry], Awaitable[JsonObject]],
) -> JsonObject:
    """What the work gave, or how it failed."""
    workspace = Workspace(settings.config_dir)
    workspace.remove_stale()
    providers = ProviderRegistry(settings, workspace, environ)
    desk = Researcher(providers.configured, workspace, max_cycles=settings.max_cycles)

    async def attempt() -> JsonObject:
        try:
            return await work(desk, providers)
        except Exception as error:  # noqa: BLE001 - a person gets a sentence, never a stack trace
            return failure_result(error)

    try:
        return anyio.run(attempt)
    finally:
        workspace.close()


class _CancelOnInterrupt:
    """While in here, Ctrl-C ends the research and not the program, however often."""

    def __init__(self) -> None:
        self._callback: Callable[[], object] = lambda: None

    def set_callback(self, callback: Callable[[], None]) -> None:
        """What Ctrl-C does from now on, in the loop that runs."""
        loop = asyncio.get_running_loop()
        self._callback = lambda: loop.is_closed() or loop.call_soon_threadsafe(callback)

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, lambda number, frame: self._callback())

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def _output_problem(output: Path) -> str | None:
    """Why a report cannot be written there."""
    try:
        if not output.exists():
            folder = output.absolute().parent
            return None if os.access(folder, os.W_OK) else f"{folder} is no folder to write to"
        if not output.is_file():
            return "it is no file"
        return None if os.access(output, os.W_OK) else "it may not be changed"
    except OSError as error:
        return error.strerror
