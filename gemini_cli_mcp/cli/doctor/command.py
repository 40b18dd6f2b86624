"""Look at everything in turn, and show what was found."""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import anyio
from rich.console import Console
from rich.markup import escape

from gemini_cli_mcp import __version__
from gemini_cli_mcp.cli.doctor import environment, gemini_cli
from gemini_cli_mcp.cli.doctor.dry_run import dry_run
from gemini_cli_mcp.cli.doctor.findings import Finding, can_search, ok, problem
from gemini_cli_mcp.errors import ConfigError, GeminiMcpError
from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.registry import Providers
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.researcher import Desk
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.workspace import Workspace

MARKS = {
    "ok": "[green]ok[/green]     ",
    "note": "[yellow]note[/yellow]   ",
    "problem": "[red]problem[/red]",
}
_VARIABLE = re.compile(r"\b(?:GEMINI_MCP|GEMINI|DEEP_SEARCH)_[A-Z_]+\b")
CAN = "A search can work."
CANNOT = "A search cannot work yet: mend the problems above."
INTERRUPTED = 130
LIVE_QUESTION = "What day is it today?"


def doctor(
    environ: Mapping[str, str], *, live: bool, as_json: bool, limits: Limits | None = None
) -> int:
    """Examine and show; the exit code is 0 only if a search can work."""
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    findings: list[Finding] = []
    console = Console(highlight=False, soft_wrap=True)

    async def look() -> None:
        async for finding in examine(environ, limits, live=live):
            findings.append(finding)
            if not as_json:
                console.print(_line(finding))

    try:
        anyio.run(look)
    except KeyboardInterrupt:
        return INTERRUPTED
    healthy = can_search(findings)
    if as_json:
        told: Object = {"ok": healthy, "findings": [finding.as_object() for finding in findings]}
        json.dump(told, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console.print(f"\n{CAN if healthy else CANNOT}")
    return 0 if healthy else 1


def _line(finding: Finding) -> str:
    line = f"{MARKS[finding.status]} {escape(finding.topic)}: {escape(finding.message)}"
    return line + (f"\n        fix: [bold]{escape(finding.fix)}[/bold]" if finding.fix else "")


async def examine(
    environ: Mapping[str, str], limits: Limits | None, *, live: bool
) -> AsyncIterator[Finding]:
    """Everything, the most basic first."""
    yield ok("gemini-cli-mcp", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        config = Config.from_env(environ, limits)
    except ConfigError as error:
        named = dict.fromkeys(_VARIABLE.findall(error.message)) or {"GEMINI_MCP_WEB_SEARCH": None}
        fix = f"unset {' '.join(named)}  # or correct it"
        yield problem("configuration", error.message, fix)
        return
    yield ok("configuration", "every variable has a value that it can have")
    checks: list[tuple[str, AsyncIterator[Finding]]] = [
        ("folder", _each(environment.folder(config))),
        ("left-overs", _each(environment.leftovers(config))),
    ]
    if "gemini" in config.providers:
        checks.append(("gemini CLI", _gemini(config, environ)))
    checks += [
        ("providers", _each(environment.providers(config, environ))),
        ("engines", _each(environment.engines(config, environ))),
        ("network", _each(environment.exposure(environ))),
    ]
    if live:
        checks.append(("live search", _live(config, environ)))
    for topic, check in checks:
        try:
            async for finding in check:
                yield finding
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            yield problem(
                topic,
                f"it could not be looked at: {error.strerror}{where}",
                "make it readable for this user, or set HOME to a folder that is",
            )


async def _each(findings: Iterable[Finding]) -> AsyncIterator[Finding]:
    for finding in findings:
        yield finding


async def _gemini(config: Config, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    binary, findings = gemini_cli.binary(config, environ)
    with TemporaryDirectory() as cwd:
        if binary and binary.official:
            findings.append(await gemini_cli.node(binary, environ, Path(cwd)))
        elif binary and (broken := await gemini_cli.starts(binary, environ, Path(cwd))):
            findings.append(broken)
    works = not any(finding.status == "problem" for finding in findings)
    findings += gemini_cli.sign_in(environ)
    for finding in findings:
        yield replace(finding, provider="gemini")
    if works and binary and binary.official:
        for finding in await dry_run(config, binary, environ):
            yield replace(finding, provider="gemini")


async def _live(config: Config, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """One tiny search, with the user's own sign-in."""
    workspace = Workspace(config.config_dir)
    try:
        providers = Providers(config, workspace, environ).listed
        desk = Desk(providers, workspace, max_cycles=1)
        found = await grounded_search(desk, config, LIVE_QUESTION, progress=lambda _: None)
    except GeminiMcpError as error:
        yield problem(
            "live search", f"{error.code}: {redact(error.message, config.secrets)}", error.next_step
        )
    else:
        seconds = found["metadata"]["duration_ms"] / 1000
        yield ok("live search", f"{len(found['sources'])} sources in {seconds:.1f} s")
    finally:
        workspace.close()
