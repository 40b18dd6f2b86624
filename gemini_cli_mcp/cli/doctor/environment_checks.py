"""What lies around the CLI: our folder, what dead servers left, other providers, engines."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from gemini_cli_mcp.cli.doctor.findings import Finding, note, ok, problem
from gemini_cli_mcp.errors import CliNotFound, ConfigError
from gemini_cli_mcp.http_common.auth import TOKENS_VARIABLE, parse_tokens
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace


def check_config_dir(settings: Settings) -> Iterator[Finding]:
    """The private folder: made as a start would make it."""
    workspace = Workspace(settings.config_dir)
    try:
        workspace.root()
    except ConfigError as error:
        fix = "export GEMINI_MCP_CONFIG_DIR=...  # a folder of yours"
        yield problem("folder", error.message, fix)
    else:
        shared = workspace.accessible_to_others()
        yield ok("folder", f"{settings.config_dir}, {'' if shared else 'private and '}writable")
        for path in shared:
            yield note(
                "folder",
                f"other users can read or change {path}",
                f"chmod 700 {shlex.quote(str(path))}",
            )
    finally:
        workspace.close()


def check_stale_servers(settings: Settings) -> Iterator[Finding]:
    """What servers left that are gone."""
    stale = Workspace(settings.config_dir).stale_folders()
    processes = [pid for folder in stale for pid in _processes_of(folder)]
    if processes:
        pids = " ".join(map(str, processes))
        yield note(
            "left-overs",
            f"processes of a server that is gone are still there: {pids}",
            f"kill {pids}",
        )
    if stale:
        yield note(
            "left-overs",
            f"{len(stale)} folders of servers that are gone; the next start removes them",
        )
    if not stale:
        yield ok("left-overs", "none")


def _processes_of(folder: Path) -> list[int]:
    """Processes that have their home in this folder (Linux; elsewhere nobody tells)."""
    pids: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"GEMINI_CLI_HOME={folder}/".encode() in (process / "environ").read_bytes():
                pids.append(int(process.name))
        except OSError:
            continue  # gone, or not ours
    return pids


def check_providers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Those that are listed beside gemini."""
    for name in settings.providers:
        if name == "api":
            yield replace(_check_api(environ), provider=name)
        elif name == "antigravity":
            yield replace(_check_antigravity(settings, environ), provider=name)


def _check_api(environ: Mapping[str, str]) -> Finding:
    if find_spec("google") is None or find_spec("google.genai") is None:
        return problem(
            "provider api",
            "the google-genai package is missing",
            "pip install 'gemini-cli-mcp[api]'",
        )
    vertex = environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
    if not (vertex or environ.get("GEMINI_API_KEY") or environ.get("GOOGLE_API_KEY")):
        return problem("provider api", "there is no key", "export GEMINI_API_KEY=...")
    return ok("provider api", "package and key are there")


def _check_antigravity(settings: Settings, environ: Mapping[str, str]) -> Finding:
    try:
        path = find_agy(settings.agy_path, environ)
    except CliNotFound as error:
        return problem("provider antigravity", error.message, error.next_step)
    return ok("provider antigravity", f"{path}; whether it is signed in, only a search can tell")


def check_engines(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What web_search can use."""
    if not settings.web_search:
        yield ok("engines", "one, `google`: GEMINI_MCP_WEB_SEARCH is not set")
        return
    for text in settings.engines.warnings:
        yield note("engines", text)
    missing = {
        target.key_variable or "ZAI_API_KEY": engine.id
        for engine in settings.engines.engines
        for target in engine.targets
        if (target.key_variable or target.family == "glm")
        and not environ.get(target.key_variable or "ZAI_API_KEY")
    }
    for variable, engine in missing.items():
        yield note(
            "engines", f"{engine} has no key: {variable} is not set", f"export {variable}=..."
        )
    if not missing:
        names = ", ".join(engine.id for engine in settings.engines.engines)
        yield ok("engines", f"{names}, from {settings.web_search}")


def check_network(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether anybody else can reach us."""
    try:
        tokens = parse_tokens(environ)
    except ConfigError as error:
        yield problem("network", error.message, f"Correct {TOKENS_VARIABLE}.")
        return
    if tokens:
        description = f"HTTP servers may listen for other machines, with {len(tokens)} token(s)"
    else:
        description = (
            f"HTTP servers listen on this machine only, because {TOKENS_VARIABLE} is not set"
        )
    yield ok("network", f"{description}; `serve` without --http speaks over stdin and stdout alone")
