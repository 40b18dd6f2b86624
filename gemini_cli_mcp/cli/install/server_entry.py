"""The entry that tells a client how to start this server, and with which variables.

Desktop apps start with a short PATH and no shell environment, so every path is absolute and the
entry itself contains the variables that the server needs.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemini_cli_mcp.cli.install.clients import ClientConfig
from gemini_cli_mcp.errors import CliNotFound, InvalidInput
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.providers.gemini.binary import (
    DESKTOP_APP_PATH,
    desktop_app_environ,
    find_gemini,
    find_node,
)
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import find_misspelt

SERVER_NAME = "gemini-cli-mcp"
"""Name of our entry."""
PROGRAM_NAMES = ("gemini-cli-mcp", "gemini-cli-research-mcp")
DISTRIBUTION = "gemini-cli-research-mcp"
MODULE = "gemini_cli_mcp"
PATH_VARIABLES = {
    "GEMINI_MCP_CLI_PATH",
    "GEMINI_MCP_AGY_PATH",
    "GEMINI_MCP_CONFIG_DIR",
    "GEMINI_MCP_WEB_SEARCH",
}
"""Variables whose paths are made absolute: a client may start us in any folder."""
_UV_CACHE_FOLDERS = {"archive-v0", "environments-v2", "builds-v0"}


def server_entry(client: ClientConfig, entry_env: Mapping[str, object]) -> JsonObject:
    """Return the entry for this client."""
    program, *arguments = program_argv()
    return {
        **client.extra_fields,
        "command": program,
        "args": [*arguments, "serve"],
        "env": dict(entry_env),
    }


def program_argv() -> list[str]:
    """Return a command that starts this program from any folder."""
    for name in (PROGRAM_NAMES[0], f"{PROGRAM_NAMES[0]}.exe"):
        program = Path(sys.executable).with_name(name)
        if program.exists():
            return [str(program)]
    return [sys.executable, "-m", MODULE]


def is_temporary_installation() -> bool:
    """Return whether this program runs from uv's cache (`uvx`), which uv may clean up."""
    return bool(_UV_CACHE_FOLDERS & set(Path(sys.prefix).parts))


def starts_this_program(entry: Mapping[str, object]) -> bool:
    """Return whether an entry starts this program, however it was installed."""
    nested = object_or_empty(entry.get("command"))  # Zed's format before 2025-11
    command = nested.get("path") or entry.get("command")
    words = [str(word) for word in list_or_empty(nested.get("args") or entry.get("args"))]
    # On Windows also with backslashes, wherever the file was written.
    name = str(command).replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    # With `uvx`, only our distribution: a package called like our command is not ours.
    from_index = [word.partition("@")[0].partition("[")[0].partition("=")[0] for word in words]
    return name in PROGRAM_NAMES or MODULE in words or DISTRIBUTION in from_index


def build_entry_env(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    """Return the variables of the entry: those that the user names, and where gemini is."""
    values = _parse_variables(environ, variables)
    # Report an invalid value now: the client would fail silently.
    settings = Settings.from_env({"HOME": environ.get("HOME", ""), **values})
    combined = {**environ, **values}
    try:
        binary = find_gemini(combined.get("GEMINI_MCP_CLI_PATH") or settings.cli_path, combined)
    except CliNotFound:
        return values
    entry_env = {"GEMINI_MCP_CLI_PATH": str(binary.path), **values}
    node = find_node(binary, combined)
    if node and not find_node(binary, desktop_app_environ(combined)):
        entry_env.setdefault("PATH", os.pathsep.join((str(Path(node).parent), DESKTOP_APP_PATH)))
    return entry_env


def _parse_variables(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for assignment in variables:
        name, separator, value = assignment.partition("=")
        if not name.isidentifier():
            raise InvalidInput(f"--env {name}: not a valid variable name.")
        if message := find_misspelt([name]).get(name):
            raise InvalidInput(f"--env {name}: {message}", hint="Correct the name.")
        value = value if separator else environ.get(name, "")
        if not value:
            raise InvalidInput(
                f"--env {name}: the variable is not set in this environment.",
                hint=f"Set {name} in this terminal first, or pass --env {name}=VALUE.",
            )
        if not value.isprintable():
            raise InvalidInput(f"--env {name}: the value contains characters that are not text.")
        values[name] = str(Path(value).expanduser().absolute()) if name in PATH_VARIABLES else value
    return values
