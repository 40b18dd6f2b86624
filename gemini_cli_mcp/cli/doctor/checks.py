"""All checks of `doctor`, the most basic first."""

import re
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from gemini_cli_mcp import __version__
from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.cli.doctor import environment_checks
from gemini_cli_mcp.cli.doctor.dry_run import check_dry_run
from gemini_cli_mcp.cli.doctor.findings import (
    LIVE_SEARCH,
    CheckStarted,
    Finding,
    ok,
    problem,
    unproven,
)
from gemini_cli_mcp.cli.doctor.gemini_and_node_checks import check_binary, check_node, check_starts
from gemini_cli_mcp.cli.doctor.sign_in_checks import check_key, check_sign_in, describe_sign_in
from gemini_cli_mcp.cli.doctor.sign_in_trial import SignInTrial
from gemini_cli_mcp.errors import ConfigError, GeminiMcpError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.platforms import shell_commands
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.requests import parse_grounded_search
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.sanitize import redact
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

CheckEvent = CheckStarted | Finding

_VARIABLE_NAME = re.compile(r"\b(?:GEMINI_MCP|GEMINI|DEEP_SEARCH)_[A-Z_]+\b")
LIVE_QUESTION = "What day is it today?"


async def run_checks(
    environ: Mapping[str, str], limits: Limits | None, *, live: bool, offline: bool
) -> AsyncIterator[CheckEvent]:
    """Run all checks; an unusual machine makes one of them fail, not the rest."""
    yield ok("gemini-cli-mcp", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        settings = Settings.from_env(environ, limits)
    except ConfigError as error:
        variables = _VARIABLE_NAME.findall(error.message) or ["GEMINI_MCP_WEB_SEARCH"]
        unset = shell_commands.unset_variables(list(dict.fromkeys(variables)))
        yield problem("configuration", error.message, f"{unset}  # or correct it")
        return
    yield ok("configuration", "all variables have valid values")
    trial = None if offline else SignInTrial(settings, environ)
    checks: list[tuple[str, AsyncIterator[CheckEvent]]] = [
        ("variables", _iterate(environment_checks.check_variable_names(settings, environ))),
        ("folder", _iterate(environment_checks.check_config_dir(settings))),
        ("stale servers", _iterate(environment_checks.check_stale_servers(settings))),
    ]
    if "gemini" in settings.providers:
        checks.append(("gemini CLI", _check_gemini(settings, environ, trial)))
    checks += [
        ("providers", _check_other_providers(settings, environ, trial)),
        ("engines", _iterate(environment_checks.check_engines(settings, environ))),
        ("network", _iterate(environment_checks.check_network(environ))),
    ]
    if live:
        checks.append((LIVE_SEARCH, _check_live_search(settings, environ)))
    for topic, check in checks:
        yield CheckStarted(topic)
        try:
            async for event in check:
                yield event
        except OSError as error:
            filename = cast("object", error.filename)
            location = f" ({filename})" if filename else ""
            yield problem(
                topic,
                f"could not be checked: {error.strerror}{location}",
                "make it readable for this user, or set HOME to a readable folder",
                is_command=False,
            )


async def _iterate(findings: Iterable[Finding]) -> AsyncIterator[CheckEvent]:
    for finding in findings:
        yield finding


async def _check_gemini(
    settings: Settings, environ: Mapping[str, str], trial: SignInTrial | None
) -> AsyncIterator[CheckEvent]:
    binary, findings = check_binary(settings, environ)
    with TemporaryDirectory() as cwd:
        if binary and binary.is_official:
            findings.append(await check_node(binary, environ, Path(cwd)))
        elif binary and (failure := await check_starts(binary, environ, Path(cwd))):
            findings.append(failure)
    if binary and binary.is_official:
        findings += environment_checks.check_proxy(environ)
    cli_works = binary is not None and not _has_problem(findings)
    is_official = binary is None or binary.is_official
    sign_in_findings = list(check_sign_in(environ, is_official=is_official))
    for finding in (*findings, *sign_in_findings):
        yield replace(finding, provider="gemini")
    if binary and cli_works and binary.is_official:
        yield CheckStarted("the CLI against a fake API on this machine")
        findings = await check_dry_run(settings, binary, environ)
        cli_works = not _has_problem(findings)
        for finding in findings:
            yield replace(finding, provider="gemini")
    if _has_problem(sign_in_findings):
        return
    sign_in = describe_sign_in(environ)
    if not trial or not binary or not cli_works:
        finding = unproven("sign-in", f"{sign_in}; not tried")
        yield replace(finding, provider="gemini")
        return
    yield CheckStarted(f"the sign-in, up to {settings.limits.sign_in_timeout:g} s")
    for finding in await trial.try_sign_in(binary, sign_in):
        yield replace(finding, provider="gemini")


def _has_problem(findings: Iterable[Finding]) -> bool:
    return any(finding.status == "problem" for finding in findings)


async def _check_other_providers(
    settings: Settings, environ: Mapping[str, str], trial: SignInTrial | None
) -> AsyncIterator[CheckEvent]:
    """Check the configured providers other than gemini."""
    if "antigravity" in settings.providers:
        finding = environment_checks.check_antigravity(settings, environ)
        yield replace(finding, provider="antigravity")
    if "api" in settings.providers:
        findings = [environment_checks.check_api(environ)]
        if environ.get("GEMINI_API_KEY") and not _has_problem(findings):
            findings = list(check_key(environ)) or findings
            if trial and not _has_problem(findings):
                findings = (await trial.try_key_of_api()).findings or findings
        for finding in findings:
            topic = "provider api" if finding.topic == "sign-in" else finding.topic
            yield replace(finding, topic=topic, provider="api")


async def _check_live_search(
    settings: Settings, environ: Mapping[str, str]
) -> AsyncIterator[CheckEvent]:
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
            LIVE_SEARCH,
            f"{error.code}: {redact(error.message, settings.secrets)}",
            error.next_step,
            is_command=False,
        )
    else:
        yield ok(LIVE_SEARCH, f"{len(result.sources)} sources in {result.duration:.1f} s")
    finally:
        workspace.close()
