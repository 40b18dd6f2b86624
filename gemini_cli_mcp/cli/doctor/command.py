"""Run all checks in turn and print their findings."""

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
from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.cli.doctor import environment_checks
from gemini_cli_mcp.cli.doctor.dry_run import check_dry_run
from gemini_cli_mcp.cli.doctor.findings import Finding, can_search, ok, problem
from gemini_cli_mcp.cli.doctor.gemini_and_node_checks import check_binary, check_node, check_starts
from gemini_cli_mcp.cli.doctor.sign_in_checks import check_sign_in
from gemini_cli_mcp.cli.output import INTERRUPTED_EXIT_CODE
from gemini_cli_mcp.errors import ConfigError, GeminiMcpError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.requests import parse_grounded_search
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.sanitize import redact
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

STATUS_LABELS = {
    "ok": "[green]ok[/green]     ",
    "note": "[yellow]note[/yellow]   ",
    "problem": "[red]problem[/red]",
}
_VARIABLE_NAME = re.compile(r"\b(?:GEMINI_MCP|GEMINI|DEEP_SEARCH)_[A-Z_]+\b")
CAN_SEARCH = "A search can work."
CANNOT_SEARCH = "A search cannot work yet: fix the problems above."
LIVE_QUESTION = "What day is it today?"


def doctor(
    environ: Mapping[str, str], *, live: bool, as_json: bool, limits: Limits | None = None
) -> int:
    """Run the checks and print the findings; return 0 only if a search can work."""
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    findings: list[Finding] = []
    console = Console(highlight=False, soft_wrap=True)

    async def collect() -> None:
        async for finding in run_checks(environ, limits, live=live):
            findings.append(finding)
            if not as_json:
                console.print(_format(finding))

    try:
        anyio.run(collect)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    search_works = can_search(findings)
    if as_json:
        summary = {
            "ok": search_works,
            "findings": [finding.to_json() for finding in findings],
        }
        json.dump(summary, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console.print(f"\n{CAN_SEARCH if search_works else CANNOT_SEARCH}")
    return 0 if search_works else 1


def _format(finding: Finding) -> str:
    line = f"{STATUS_LABELS[finding.status]} {escape(finding.topic)}: {escape(finding.message)}"
    return line + (f"\n        fix: [bold]{escape(finding.fix)}[/bold]" if finding.fix else "")


async def run_checks(
    environ: Mapping[str, str], limits: Limits | None, *, live: bool
) -> AsyncIterator[Finding]:
    """Run all checks, the most basic first."""
    yield ok("gemini-cli-mcp", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        settings = Settings.from_env(environ, limits)
    except ConfigError as error:
        variables = _VARIABLE_NAME.findall(error.message) or ["GEMINI_MCP_WEB_SEARCH"]
        fix = f"unset {' '.join(dict.fromkeys(variables))}  # or correct it"
        yield problem("configuration", error.message, fix)
        return
    yield ok("configuration", "all variables have valid values")
    checks: list[tuple[str, AsyncIterator[Finding]]] = [
        ("folder", _iterate(environment_checks.check_config_dir(settings))),
        ("stale servers", _iterate(environment_checks.check_stale_servers(settings))),
    ]
    if "gemini" in settings.providers:
        checks.append(("gemini CLI", _check_gemini(settings, environ)))
    checks += [
        ("providers", _iterate(environment_checks.check_providers(settings, environ))),
        ("engines", _iterate(environment_checks.check_engines(settings, environ))),
        ("network", _iterate(environment_checks.check_network(environ))),
    ]
    if live:
        checks.append(("live search", _check_live_search(settings, environ)))
    for topic, check in checks:
        try:
            async for finding in check:
                yield finding
        except OSError as error:
            filename = cast("object", error.filename)
            location = f" ({filename})" if filename else ""
            yield problem(
                topic,
                f"could not be checked: {error.strerror}{location}",
                "make it readable for this user, or set HOME to a readable folder",
            )


async def _iterate(findings: Iterable[Finding]) -> AsyncIterator[Finding]:
    for finding in findings:
        yield finding


async def _check_gemini(settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    binary, findings = check_binary(settings, environ)
    with TemporaryDirectory() as cwd:
        if binary and binary.is_official:
            findings.append(await check_node(binary, environ, Path(cwd)))
        elif binary and (failure := await check_starts(binary, environ, Path(cwd))):
            findings.append(failure)
    cli_works = not any(finding.status == "problem" for finding in findings)
    findings += check_sign_in(environ)
    for finding in findings:
        yield replace(finding, provider="gemini")
    if cli_works and binary and binary.is_official:
        for finding in await check_dry_run(settings, binary, environ):
            yield replace(finding, provider="gemini")


async def _check_live_search(
    settings: Settings, environ: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """Run one small real search with the user's own sign-in."""
    workspace = Workspace(settings.config_dir)
    try:
        providers = ProviderRegistry(settings, workspace, environ).configured
        researcher = Researcher(settings, providers, workspace)
        request = parse_grounded_search({"query": LIVE_QUESTION}, settings)
        context = CallContext(timeout=settings.timeout)
        result = await grounded_search(request, context, researcher)
    except GeminiMcpError as error:
        yield problem(
            "live search",
            f"{error.code}: {redact(error.message, settings.secrets)}",
            error.next_step,
        )
    else:
        yield ok("live search", f"{len(result.sources)} sources in {result.duration:.1f} s")
    finally:
        workspace.close()
