"""The edge for a person in a terminal: progress on stderr, the report on stdout."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import cast

import anyio
from rich.console import Console
from rich.markdown import Markdown

from gemini_cli_mcp.cli.live_progress import Rounds, Stderr, Step, counted, live
from gemini_cli_mcp.errors import CliNotFound, GeminiMcpError, failure_result
from gemini_cli_mcp.json_values import Object, as_list, as_object
from gemini_cli_mcp.providers.registry import Providers, find_binary
from gemini_cli_mcp.redaction import clean
from gemini_cli_mcp.research.deep_search import DeepSearch
from gemini_cli_mcp.research.grounded_search import grounded_search as ground
from gemini_cli_mcp.research.researcher import Desk
from gemini_cli_mcp.research.search import search as research
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.sanitize import escaped, markdown_link
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.workspace import Workspace

BAD_USAGE = 2
INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""


def search(config: Config, environ: Mapping[str, str], query: str, *, as_json: bool) -> int:
    """Run `search` and show its result; the exit code."""

    async def work(desk: Desk, providers: Providers) -> Object:
        with live(config, Step()) as progress:
            return await research(desk, query, timeout=config.timeout, progress=progress)

    return _show(_payload(config, environ, work), config.secrets, as_json=as_json)


def grounded_search(
    config: Config,
    environ: Mapping[str, str],
    query: str,
    *,
    model: str | None,
    thinking: str | None,
    include_thoughts: bool,
    as_json: bool,
) -> int:
    """Run `grounded_search` and show its result; the exit code."""

    async def work(desk: Desk, providers: Providers) -> Object:
        with live(config, Step()) as progress:
            asked = (query, model, thinking, include_thoughts)
            return await ground(desk, config, *asked, progress=progress)

    return _show(_payload(config, environ, work), config.secrets, as_json=as_json)


def web_search(
    config: Config,
    environ: Mapping[str, str],
    query: str,
    *,
    engine: str | None,
    recency: str | None,
    count: int | None,
    as_json: bool,
) -> int:
    """Run `web_search` and show its hits; the exit code."""

    async def work(desk: Desk, providers: Providers) -> Object:
        with live(config, Step()) as progress:
            engines = WebSearch(config, providers, environ)
            found = await engines.search(query, engine, recency, count, progress=progress)
            return found if as_json else {**found, "result": _listed(found)}

    return _show(_payload(config, environ, work), config.secrets, as_json=as_json)


def login(config: Config, environ: Mapping[str, str], provider: str) -> int:
    """Become the official CLI, in this terminal: the user signs in there as always."""
    try:
        argv = find_binary(provider, config, environ)
    except GeminiMcpError as error:
        return _show(failure_result(error), config.secrets, as_json=False)
    print(f"Starting {' '.join(argv)}. Sign in there, then leave it.", file=sys.stderr)
    # Beside it lies the `node` that it mostly needs.
    path = f"{Path(argv[0]).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    try:
        os.execvpe(argv[0], argv, {**environ, "PATH": path})  # noqa: S606 - the user's own
    except OSError as error:
        missing = CliNotFound(f"{argv[0]} cannot be run: {error.strerror}.")
        return _show(failure_result(missing), config.secrets, as_json=False)


def deep_search(
    config: Config,
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
    if output and (problem := _problem_of(output)):  # known before minutes are spent
        print(f"{output} cannot be written: {problem}.", file=sys.stderr)
        return BAD_USAGE
    interrupt = _Interrupt()

    async def work(desk: Desk, providers: Providers) -> Object:
        deep = DeepSearch(desk, config, query, max_iterations)
        with live(config, Rounds(deep)) as progress:
            interrupt.then(deep.cancel)
            return await deep.run(progress)

    with interrupt:
        payload = _payload(config, environ, work)
        return _show(payload, config.secrets, as_json=as_json, output=output)


def _payload(
    config: Config,
    environ: Mapping[str, str],
    work: Callable[[Desk, Providers], Awaitable[Object]],
) -> Object:
    """What the work gave, or how it failed."""
    workspace = Workspace(config.config_dir)
    workspace.sweep()
    providers = Providers(config, workspace, environ)
    desk = Desk(providers.listed, workspace, max_cycles=config.max_cycles)

    async def attempt() -> Object:
        try:
            return await work(desk, providers)
        except Exception as error:  # noqa: BLE001 - a person gets a sentence, never a stack trace
            return failure_result(error)

    try:
        return anyio.run(attempt)
    finally:
        workspace.close()


class _Interrupt:
    """While in here, Ctrl-C ends the research and not the program, however often."""

    def __init__(self) -> None:
        self._deed: Callable[[], object] = lambda: None

    def then(self, deed: Callable[[], None]) -> None:
        """What Ctrl-C does from now on, in the loop that runs."""
        loop = asyncio.get_running_loop()
        self._deed = lambda: loop.is_closed() or loop.call_soon_threadsafe(deed)

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, lambda number, frame: self._deed())

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def _show(
    payload: Object, secrets: Sequence[str], *, as_json: bool, output: Path | None = None
) -> int:
    shown = as_object(clean(payload, secrets))
    code = 0 if shown["success"] else 1
    errors = Stderr()
    if output and shown["success"]:
        # First: whatever happens to the screen, the report is kept.
        try:
            output.write_text(shown["result"] + "\n", encoding="utf-8")
        except OSError as error:
            errors.print(f"{output} cannot be written: {error.strerror}.", style="bold red")
            code = 1
    try:
        if as_json:
            _print(json.dumps(shown, ensure_ascii=False, indent=2))
        elif shown["success"]:
            _show_report(shown["result"])
    except BrokenPipeError:
        raise
    except OSError as error:
        errors.print(f"stdout cannot be written: {error.strerror}.", style="bold red")
        code = 1
    if shown["success"]:
        errors.print("\n" + _summary(shown), style="dim")
    elif not as_json:
        error = shown["error"]
        errors.print(f"{error['code']}: {error['message']}", style="bold red")
        errors.print(error.get("hint", ""))
    return INTERRUPTED if as_object(shown.get("error")).get("code") == "CANCELLED" else code


def _listed(found: Object) -> str:
    """Hits as a person reads them."""
    lines = [found["summary"], ""]
    for number, hit in enumerate(found["hits"], 1):
        beside = " · ".join(escaped(hit[name]) for name in ("source", "date") if name in hit)
        lines.append(f"{number}. {markdown_link(hit['title'], hit['url'])} ({beside})")
        if "snippet" in hit:
            lines.append(f"   {escaped(hit['snippet'])}")
    return "\n".join(lines)


def _show_report(report: str) -> None:
    if sys.stdout and sys.stdout.isatty():
        Console().print(Markdown(report))
    else:
        _print(report)


def _print(text: str) -> None:
    if sys.stdout:
        # A report is not lost because a terminal cannot show one of its characters.
        cast("TextIOWrapper", sys.stdout).reconfigure(errors="replace")
        print(text, flush=True)


def _problem_of(output: Path) -> str | None:
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


def _summary(result: Object) -> str:
    metadata = result["metadata"]
    queries = as_list(metadata.get("search_queries_used") or result.get("search_queries"))
    sources = as_list(metadata.get("sources_visited") or result.get("sources"))
    counts = [counted(len(queries), "search", "es"), counted(len(sources), "source", "s")]
    if "hits" in result:
        counts = [f"engine {result['engine']}", counted(len(result["hits"]), "hit", "s")]
    model = metadata.get("model") or result["model"]
    parts = [*counts, f"{metadata['duration_ms'] / 1000:.1f} s", model]
    if "verified" in result:
        verified = "verified" if result["verified"] else "not verified"
        parts = [verified, counted(metadata["iterations"], "round", "s"), *parts]
    for failed in metadata.get("fallback", ()):
        parts.append(f"after {failed['provider']} failed ({failed['code']})")
    note = metadata.get("note")
    return " · ".join(parts) + (f"\n{note}" if note else "")
