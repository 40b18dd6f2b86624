"""The edge for a person in a terminal: progress on stderr, the report on stdout."""

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from typing import cast

import anyio
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.errors import failure_result
from gemini_cli_mcp.models import Object, Progress, as_object
from gemini_cli_mcp.providers.gemini_cli import GeminiCli
from gemini_cli_mcp.research.answer import Desk
from gemini_cli_mcp.research.search import search as research
from gemini_cli_mcp.text import scrub_all
from gemini_cli_mcp.workspace import Workspace


def search(config: Config, environ: Mapping[str, str], query: str, *, as_json: bool) -> int:
    """Run `search` and show its result; the exit code."""
    workspace = Workspace(config.config_dir)
    workspace.sweep()
    desk = Desk(GeminiCli(config, workspace, environ), workspace, max_cycles=config.max_cycles)
    try:
        with _live() as progress:
            payload = anyio.run(_payload, desk, query, config.timeout, progress)
    finally:
        workspace.close()
    # A report is not lost because a terminal cannot show one of its characters.
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="replace")
    return _show(payload, as_json=as_json)


async def _payload(desk: Desk, query: str, timeout: float, progress: Progress) -> Object:
    try:
        return await research(desk, query, timeout=timeout, progress=progress)
    except Exception as error:  # noqa: BLE001 - a person gets a sentence, never a stack trace
        return failure_result(error)


@contextmanager
def _live() -> Generator[Progress]:
    """Show what is going on: one changing line in a terminal, else a line for each step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda message: console.print(message, markup=False, highlight=False, soft_wrap=True)
        return
    with console.status("") as status:
        yield lambda message: status.update(escape(message))


def _show(payload: Object, *, as_json: bool) -> int:
    clean = as_object(scrub_all(payload))
    errors = Console(stderr=True, highlight=False)
    if as_json:
        print(json.dumps(clean, ensure_ascii=False, indent=2))
    elif clean["success"]:
        _show_report(clean["result"])
        errors.print("\n" + _summary(clean["metadata"]), style="dim", markup=False)
    else:
        error = clean["error"]
        errors.print(f"{error['code']}: {error['message']}", style="bold red", markup=False)
        errors.print(error.get("hint", ""), markup=False)
    return 0 if clean["success"] else 1


def _show_report(report: str) -> None:
    if sys.stdout.isatty():
        Console().print(Markdown(report))
    else:
        print(report)


def _summary(metadata: Object) -> str:
    searches, sources = metadata["search_queries_used"], metadata["sources_visited"]
    parts = [
        f"{len(searches)} search{'' if len(searches) == 1 else 'es'}",
        f"{len(sources)} source{'' if len(sources) == 1 else 's'}",
        f"{metadata['duration_ms'] / 1000:.1f} s",
        metadata["model"],
    ]
    note = metadata.get("note")
    return " · ".join(parts) + (f"\n{note}" if note else "")
