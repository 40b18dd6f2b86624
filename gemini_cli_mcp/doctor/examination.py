"""Look at everything in turn, and show what was found."""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from rich.console import Console
from rich.markup import escape

from gemini_cli_mcp import __version__
from gemini_cli_mcp.config import Config
from gemini_cli_mcp.doctor import cli, surroundings
from gemini_cli_mcp.doctor.dry_run import dry_run
from gemini_cli_mcp.doctor.findings import Finding, can_search, ok, problem
from gemini_cli_mcp.errors import ConfigError, GeminiMcpError
from gemini_cli_mcp.models import Object
from gemini_cli_mcp.providers.choice import Providers
from gemini_cli_mcp.research.answer import Desk
from gemini_cli_mcp.research.grounded import grounded_search
from gemini_cli_mcp.text import redact
from gemini_cli_mcp.workspace import Workspace

MARKS = {
    "ok": "[green]ok[/green]     ",
    "note": "[yellow]note[/yellow]   ",
    "problem": "[red]problem[/red]",
}
LIVE_QUESTION = "What day is it today?"


def doctor(environ: Mapping[str, str], *, live: bool, as_json: bool) -> int:
    """Examine and show; the exit code is 0 only if a search can work."""
    findings: list[Finding] = []
    console = Console(highlight=False, soft_wrap=True)

    async def look() -> None:
        async for finding in examine(environ, live=live):
            findings.append(finding)
            if not as_json:
                console.print(_line(finding))

    anyio.run(look)
    healthy = can_search(findings)
    if as_json:
        told: Object = {"ok": healthy, "findings": [finding.as_object() for finding in findings]}
        json.dump(told, sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        console.print(
            "\nA search can work."
            if healthy
            else "\nA search cannot work yet: mend the problems above."
        )
    return 0 if healthy else 1


def _line(finding: Finding) -> str:
    line = f"{MARKS[finding.status]} {escape(finding.topic)}: {escape(finding.message)}"
    return line + (f"\n        fix: [bold]{escape(finding.fix)}[/bold]" if finding.fix else "")


async def examine(environ: Mapping[str, str], *, live: bool) -> AsyncIterator[Finding]:
    """Everything, the most basic first."""
    yield ok("gemini-cli-mcp", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        config = Config.from_env(environ)
    except ConfigError as error:
        yield problem("configuration", error.message, f"correct or unset it: {error.next_step}")
        return
    yield ok("configuration", "every variable has a value that it can have")
    place = surroundings.folder(config)
    yield place
    for finding in surroundings.leftovers(config):
        yield finding
    if "gemini" in config.providers:
        async for finding in _gemini(config, environ):
            yield replace(finding, provider="gemini")
    for finding in surroundings.providers(config, environ):
        yield finding
    for finding in surroundings.engines(config, environ):
        yield finding
    yield surroundings.exposure()
    if live and place.status != "problem":
        yield await _live(config, environ)


async def _gemini(config: Config, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    binary, findings = cli.binary(config, environ)
    for finding in findings:
        yield finding
    works = binary is not None
    if binary and binary.official:
        with TemporaryDirectory() as cwd:
            node = await cli.node(binary, environ, Path(cwd))
        yield node
        works = node.status == "ok"
    for finding in cli.sign_in(environ):
        yield finding
    if works and binary and binary.official:
        for finding in await dry_run(config, environ):
            yield finding


async def _live(config: Config, environ: Mapping[str, str]) -> Finding:
    """One tiny search, with the user's own sign-in."""
    workspace = Workspace(config.config_dir)
    try:
        providers = Providers(config, workspace, environ).listed
        desk = Desk(providers, workspace, max_cycles=1)
        found = await grounded_search(desk, config, LIVE_QUESTION, progress=lambda _: None)
    except GeminiMcpError as error:
        return problem("live search", f"{error.code}: {redact(error.message)}", error.next_step)
    finally:
        workspace.close()
    return ok(
        "live search",
        f"{len(found['sources'])} sources in {found['metadata']['duration_ms'] / 1000:.1f} s",
    )
