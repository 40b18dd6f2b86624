"""Checks beyond the gemini CLI: our folder, stale servers, other providers, engines, network."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from gemini_cli_mcp.cli.doctor.findings import Finding, note, ok, problem
from gemini_cli_mcp.cli.live_progress import pluralize
from gemini_cli_mcp.errors import CliNotFound, ConfigError
from gemini_cli_mcp.http_common.auth import TOKENS_VARIABLE, parse_tokens
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace


def check_config_dir(settings: Settings) -> Iterator[Finding]:
    """Check the private folder, creating it as a server start would."""
    workspace = Workspace(settings.config_dir)
    try:
        workspace.root()
    except ConfigError as error:
        fix = "export GEMINI_MCP_CONFIG_DIR=...  # a folder that you own"
        yield problem("folder", error.message, fix)
    else:
        exposed = workspace.accessible_to_others()
        yield ok("folder", f"{settings.config_dir}, {'' if exposed else 'private and '}writable")
        for path in exposed:
            yield note(
                "folder",
                f"other users can read or change {path}",
                f"chmod 700 {shlex.quote(str(path))}",
            )
    finally:
        workspace.close()


def check_stale_servers(settings: Settings) -> Iterator[Finding]:
    """Look for processes and folders that stopped servers did not clean up."""
    stale = Workspace(settings.config_dir).stale_folders()
    pids = " ".join(str(pid) for folder in stale for pid in _find_processes(folder))
    if pids:
        yield note(
            "stale servers",
            f"processes of a stopped server are still running: {pids}",
            f"kill {pids}",
        )
    if stale:
        yield note(
            "stale servers",
            f"{pluralize(len(stale), 'folder', 's')} of stopped servers; removed at the next start",
        )
    if not stale:
        yield ok("stale servers", "none")


def _find_processes(folder: Path) -> list[int]:
    """Return the processes whose gemini home is in this folder (Linux only)."""
    pids: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"GEMINI_CLI_HOME={folder}/".encode() in (process / "environ").read_bytes():
                pids.append(int(process.name))
        except OSError:
            continue  # exited, or owned by another user
    return pids


def check_providers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the configured providers other than gemini."""
    for name in settings.providers:
        if name == "api":
            yield replace(_check_api(environ), provider=name)
        elif name == "antigravity":
            yield replace(_check_antigravity(settings, environ), provider=name)


def _check_api(environ: Mapping[str, str]) -> Finding:
    if find_spec("google") is None or find_spec("google.genai") is None:
        return problem(
            "provider api",
            "the google-genai package is not installed",
            "pip install 'gemini-cli-research-mcp[api]'",
        )
    vertex = environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
    if not (vertex or environ.get("GEMINI_API_KEY") or environ.get("GOOGLE_API_KEY")):
        return problem("provider api", "no API key is set", "export GEMINI_API_KEY=...")
    return ok("provider api", "the package is installed and a key is set")


def _check_antigravity(settings: Settings, environ: Mapping[str, str]) -> Finding:
    try:
        path = find_agy(settings.agy_path, environ)
    except CliNotFound as error:
        return problem("provider antigravity", error.message, error.next_step)
    return ok("provider antigravity", f"{path}; only a search can show whether it is signed in")


def check_engines(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the engines of web_search and their keys."""
    if not settings.web_search:
        yield ok("engines", "only `google`, because GEMINI_MCP_WEB_SEARCH is not set")
        return
    for warning in settings.engines.warnings:
        yield note("engines", warning)
    missing_keys = {
        target.key_variable or "ZAI_API_KEY": engine.id
        for engine in settings.engines.engines
        for target in engine.targets
        if (target.key_variable or target.family == "glm")
        and not environ.get(target.key_variable or "ZAI_API_KEY")
    }
    for variable, engine in missing_keys.items():
        yield note(
            "engines", f"{engine} has no key: {variable} is not set", f"export {variable}=..."
        )
    if not missing_keys:
        names = ", ".join(engine.id for engine in settings.engines.engines)
        yield ok("engines", f"{names}, from {settings.web_search}")


def check_network(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check who could connect to an HTTP server started with this environment."""
    try:
        tokens = parse_tokens(environ)
    except ConfigError as error:
        yield problem("network", error.message, f"Correct {TOKENS_VARIABLE}.")
        return
    if tokens:
        count = pluralize(len(tokens), "token", "s")
        description = f"HTTP servers can accept connections from other machines, with {count}"
    else:
        description = (
            f"HTTP servers listen on this machine only, because {TOKENS_VARIABLE} is not set"
        )
    yield ok("network", f"{description}; `serve` without --http uses only stdin and stdout")
