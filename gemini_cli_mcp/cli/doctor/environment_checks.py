"""Checks beyond the gemini CLI: our folder, stale servers, other providers, engines, network."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gemini_cli_mcp.cli.doctor.findings import Finding, note, ok, problem, unproven
from gemini_cli_mcp.cli.live_progress import pluralize
from gemini_cli_mcp.errors import CliNotFound, ConfigError
from gemini_cli_mcp.http_common.auth import TOKENS_VARIABLE, parse_tokens
from gemini_cli_mcp.installation import extra_install_command
from gemini_cli_mcp.platforms import shell_commands
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.providers.gemini.api_route import is_valid_proxy, proxy_variable
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import find_misspelt
from gemini_cli_mcp.workspace import Workspace

MIN_FREE_BYTES = 20 << 20
"""What a run writes at most: homes, telemetry and session records."""


def check_config_dir(settings: Settings) -> Iterator[Finding]:
    """Check the private folder, creating it as a server start would."""
    workspace = Workspace(settings.config_dir)
    try:
        workspace.root()
    except ConfigError as error:
        fix = f"{shell_commands.set_variable('GEMINI_MCP_CONFIG_DIR')}  # a folder that you own"
        if os.strerror(errno.ENOSPC) in error.message:
            fix = f"{shell_commands.show_free_space(settings.config_dir)}  # then delete something"
        yield problem("folder", error.message, fix)
    else:
        exposed = workspace.accessible_to_others()
        yield ok("folder", f"{settings.config_dir}, {'' if exposed else 'private and '}writable")
        for path in exposed:
            yield note(
                "folder",
                f"other users can read or change {path}",
                shell_commands.make_private(path),
            )
        free = shutil.disk_usage(settings.config_dir).free
        if free < MIN_FREE_BYTES:
            yield problem(
                "disk",
                f"only {free >> 20} MB are free on the disk of {settings.config_dir}",
                f"{shell_commands.show_free_space(settings.config_dir)}  # then delete something",
            )
    finally:
        workspace.close()


def check_variable_names(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look for misspelt variables, which have no effect."""
    for name, message in find_misspelt(environ, settings.engines.key_variables).items():
        yield note("variables", f"{name}: {message}", shell_commands.unset_variables([name]))


def check_proxy(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the CLI can use its proxy; with an unusable one, it fails without saying why."""
    name = proxy_variable(environ)
    if name and not is_valid_proxy(environ[name]):
        yield problem(
            "proxy",
            f"{name} is not a proxy that gemini can use; expected a URL such as http://host:8080",
            f"{shell_commands.unset_variables([name])}  # or correct it",
        )


def check_stale_servers(settings: Settings) -> Iterator[Finding]:
    """Look for processes and folders that stopped servers did not clean up."""
    stale = Workspace(settings.config_dir).stale_folders()
    pids = [pid for folder in stale for pid in _find_processes(folder)]
    if pids:
        yield note(
            "stale servers",
            f"processes of a stopped server are still running: {' '.join(map(str, pids))}",
            shell_commands.kill(pids),
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


def check_antigravity(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Check the provider antigravity."""
    try:
        path = find_agy(settings.agy_path, environ).path
    except CliNotFound as error:
        return problem("provider antigravity", error.message, error.next_step, is_command=False)
    return unproven(
        "provider antigravity", f"{path}; only a search can show whether it is signed in"
    )


def check_api(environ: Mapping[str, str]) -> Finding:
    """Check what the provider api needs, without trying its key."""
    if find_spec("google") is None or find_spec("google.genai") is None:
        return problem(
            "provider api",
            "the google-genai package is not installed",
            extra_install_command("api"),
        )
    vertex = environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
    if not (vertex or environ.get("GEMINI_API_KEY") or environ.get("GOOGLE_API_KEY")):
        fix = shell_commands.set_variable("GEMINI_API_KEY")
        return problem("provider api", "no API key is set", fix)
    return unproven("provider api", "the package is installed and a key is set")


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
            "engines",
            f"{engine} has no key: {variable} is not set",
            shell_commands.set_variable(variable),
        )
    if not missing_keys:
        names = ", ".join(engine.id for engine in settings.engines.engines)
        yield ok("engines", f"{names}, from {settings.web_search}")


def check_network(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check who could connect to an HTTP server started with this environment."""
    try:
        tokens = parse_tokens(environ)
    except ConfigError as error:
        yield problem("network", error.message, shell_commands.set_variable(TOKENS_VARIABLE))
        return
    if tokens:
        count = pluralize(len(tokens), "token", "s")
        description = f"HTTP servers can accept connections from other machines, with {count}"
    else:
        description = (
            f"HTTP servers listen on this machine only, because {TOKENS_VARIABLE} is not set"
        )
    yield ok("network", f"{description}; `serve` without --http uses only stdin and stdout")
