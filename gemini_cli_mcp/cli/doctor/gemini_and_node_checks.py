"""Checks of the gemini CLI and its Node: location, version, visibility to desktop apps."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemini_cli_mcp.cli.doctor.findings import UPGRADE_COMMAND, Finding, note, ok, problem
from gemini_cli_mcp.cli.install.server_entry import program_argv
from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.platforms import shell_commands
from gemini_cli_mcp.platforms.folders import desktop_app_environ
from gemini_cli_mcp.process.run import read_output
from gemini_cli_mcp.providers.child_environment import system_variables
from gemini_cli_mcp.providers.gemini.binary import (
    GeminiBinary,
    child_path,
    find_gemini,
    find_node,
)
from gemini_cli_mcp.settings.env import Settings

MIN_NODE_MAJOR = 20


def check_binary(
    settings: Settings, environ: Mapping[str, str]
) -> tuple[GeminiBinary | None, list[Finding]]:
    """Return the binary, or None if it is unusable, and the findings about it."""
    try:
        binary = find_gemini(settings.cli_path, environ)
    except CliNotFound as error:
        fix = UPGRADE_COMMAND
        if "not executable" in error.message:
            fix = shell_commands.make_executable(settings.cli_path)
        elif environ.get("GEMINI_MCP_CLI_PATH"):
            unset = shell_commands.unset_variables(["GEMINI_MCP_CLI_PATH"])
            fix = f"{unset}; {UPGRADE_COMMAND}"
        return None, [problem("gemini CLI", error.message, fix)]
    return binary, [_binary_finding(binary), *_check_desktop_app_path(binary, settings, environ)]


def _binary_finding(binary: GeminiBinary) -> Finding:
    if binary.is_official:
        return ok("gemini CLI", f"{binary.version} at {binary.path}")
    return note(
        "gemini CLI",
        f"{binary.path} is not the official CLI (a wrapper or a stub): every search starts a new "
        "process, and the evidence for its sources may be weaker",
    )


def _check_desktop_app_path(
    binary: GeminiBinary, settings: Settings, environ: Mapping[str, str]
) -> Iterator[Finding]:
    environ = desktop_app_environ(environ)
    try:
        visible_binary = find_gemini(settings.cli_path, environ)
    except CliNotFound:
        visible_binary = None
    if visible_binary is None or (binary.is_official and not find_node(visible_binary, environ)):
        program = shlex.join(program_argv())
        missing = "this gemini" if visible_binary is None else "the Node that gemini needs"
        yield note(
            "desktop apps",
            f"their short PATH does not include {missing}; `install` configures its location",
            f"{program} install claude-desktop  # or another client",
        )


async def check_starts(
    binary: GeminiBinary, environ: Mapping[str, str], cwd: Path
) -> Finding | None:
    """Return a problem if the system cannot start the binary, otherwise None."""
    try:
        env = _version_environment(binary, environ)
        await read_output([*binary.argv, "--version"], env=env, cwd=cwd)
    except OSError as error:
        return problem(
            "gemini CLI", f"{binary.path} cannot be run: {error.strerror}", UPGRADE_COMMAND
        )
    return None


def _version_environment(binary: GeminiBinary, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a program needs to report its version; on Windows, more than PATH."""
    return {**system_variables(environ), "PATH": child_path(binary, environ)}


async def check_node(binary: GeminiBinary, environ: Mapping[str, str], cwd: Path) -> Finding:
    """Check that there is a Node which is recent enough for the CLI."""
    program = find_node(binary, environ)
    if not program:
        return problem(
            "Node",
            "gemini needs Node, but there is no `node` on PATH",
            f"{shell_commands.install_node()}  # version {MIN_NODE_MAJOR} or newer; also from "
            f"{shell_commands.NODE_DOWNLOADS}",
        )
    try:
        env = _version_environment(binary, environ)
        version = (await read_output([program, "--version"], env=env, cwd=cwd)).stdout
    except OSError as error:
        version = f"not a working Node ({error.strerror})"
    match = re.match(r"v(\d+)\.", version)
    if not match or int(match[1]) < MIN_NODE_MAJOR:
        return problem(
            "Node",
            f"{program} is {version or 'not a working Node'}; "
            f"gemini needs {MIN_NODE_MAJOR} or newer",
            f"{shell_commands.prepend_to_path('...')}  # the folder of a newer Node, for example "
            f"from {shell_commands.NODE_DOWNLOADS}",
        )
    return ok("Node", f"{version} at {program}")
