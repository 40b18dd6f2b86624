"""The entry that tells a client how to start this server, and with which variables.

Desktop apps start with a short PATH and no shell environment, so every path is absolute and the
entry itself contains the variables that the server needs.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from gemini_cli_mcp.cli.install.clients import ClientConfig
from gemini_cli_mcp.errors import CliNotFound, InvalidInput
from gemini_cli_mcp.installation import DISTRIBUTION
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.platforms.folders import desktop_app_environ
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary, find_gemini, find_node
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import find_misspelt

SERVER_NAME = "gemini-cli-mcp"
"""Name of our entry."""
PROGRAM_NAMES = ("gemini-cli-mcp", "gemini-cli-research-mcp")
MODULE = "gemini_cli_mcp"
CLI_PATH, AGY_PATH = "GEMINI_MCP_CLI_PATH", "GEMINI_MCP_AGY_PATH"
PATH_VARIABLES = {
    *(CLI_PATH, AGY_PATH, "GEMINI_MCP_CONFIG_DIR", "GEMINI_MCP_WEB_SEARCH"),
    "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Variables whose paths are made absolute: a client may start us in any folder."""
REMOTE_FIELDS = {"url", "serverUrl", "httpUrl", "headers"}
"""Fields of an entry that points to a server by its URL; ours starts a program."""
INSTALLERS = {"uv", "uvx", "pipx"}
"""Programs that install a package and start it."""


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


def starts_this_program(entry: Mapping[str, object]) -> bool:
    """Return whether an entry starts this program, however it was installed."""
    nested = object_or_empty(entry.get("command"))  # Zed's format before 2025-11
    command = nested.get("path") or entry.get("command")
    words = [str(word) for word in list_or_empty(nested.get("args") or entry.get("args"))]
    # On Windows also with backslashes, wherever the file was written.
    name = str(command).replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")
    if name in PROGRAM_NAMES or ("-m", MODULE) in pairwise(words):
        return True
    if name not in INSTALLERS:
        return False
    added = {word for option, word in pairwise(words) if option in ("--with", "-w")}
    # A package called like our command is not ours, unless `uv run` takes it from a project.
    if name == "uv" and "run" in words and "tool" not in words:
        return bool(set(PROGRAM_NAMES) & set(words)) and PROGRAM_NAMES[0] not in added
    requirements = {word.removeprefix("--from=") for word in words} - added
    return any(re.match(DISTRIBUTION + r"(?![\w.-])", word) for word in requirements)


def entry_variables(entry: Mapping[str, object]) -> Mapping[str, object]:
    """Return the variables in an entry."""
    nested = object_or_empty(entry.get("command"))  # Zed's format before 2025-11
    return {**object_or_empty(nested.get("env")), **object_or_empty(entry.get("env"))}


def entry_fields(entry: Mapping[str, object]) -> Mapping[str, object]:
    """Return what an update keeps of an entry: nothing that belongs to a remote server."""
    dropped = REMOTE_FIELDS if entry.get("type") == "stdio" else REMOTE_FIELDS | {"type"}
    return {name: value for name, value in entry.items() if name not in dropped}


def build_entry_env(
    environ: Mapping[str, str], variables: Sequence[str], old: Mapping[str, object]
) -> dict[str, object]:
    """Return the variables of the entry: the old ones, those that the user names, and our paths.

    A gemini that was configured before is kept while it can be used.
    """
    new = _parse_variables(environ, variables)
    old_values = variable_values(old)
    # The PATH of this terminal, not of the old entry, which may be outdated.
    combined = {**environ, **new}
    if AGY_PATH in new:
        with suppress(CliNotFound):
            new[AGY_PATH] = str(find_agy(new[AGY_PATH], combined).path)
    candidates = [new.get(CLI_PATH)]
    if CLI_PATH not in new:
        candidates = [old_values.get(CLI_PATH), environ.get(CLI_PATH, "").strip() or "gemini"]
    for candidate in filter(None, candidates):
        with suppress(CliNotFound):
            binary = find_gemini(candidate, combined)
            new[CLI_PATH] = str(binary.path)
            if "PATH" not in new:
                new |= _path_to_node(binary, combined, old_values.get("PATH"))
            break
    for name, value in new.items():
        if not value.isprintable():
            raise InvalidInput(f"{name}: the value contains characters that are not text.")
    return {**old, **new}


def variable_values(env: Mapping[str, object]) -> dict[str, str]:
    """Return the variables that have a value; clients also allow numbers and null."""
    return {name: str(value) for name, value in env.items() if value is not None}


def _path_to_node(
    binary: GeminiBinary, environ: Mapping[str, str], old_path: str | None
) -> dict[str, str]:
    """Return a PATH if the client would not find the Node that gemini needs."""
    desktop_environ = desktop_app_environ(environ)
    path = old_path or desktop_environ.get("PATH", "")
    node = find_node(binary, environ)
    if not node or find_node(binary, {**desktop_environ, "PATH": path}):
        return {}
    return {"PATH": os.pathsep.join((str(Path(node).parent), path))}


def read_entry_settings(
    environ: Mapping[str, str], variables: Sequence[str], values: Mapping[str, str]
) -> Settings:
    """Return the settings of a server with these variables.

    Report an invalid value or a misspelt name now: the client would fail silently.
    """
    # The client itself fills in values such as `${input:key}`.
    known = {name: value for name, value in values.items() if "${" not in value}
    settings = Settings.from_env({"HOME": environ.get("HOME", ""), **known})
    names = [assignment.partition("=")[0] for assignment in variables]
    for name, message in find_misspelt(names, settings.engines.key_variables).items():
        raise InvalidInput(f"--env {name}: {message}", hint="Correct the name.")
    return settings


def _parse_variables(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for assignment in variables:
        name, separator, value = assignment.partition("=")
        if not name.isidentifier():
            raise InvalidInput(f"--env {name}: not a valid variable name.")
        value = value if separator else environ.get(name, "")
        if not value.strip():
            raise InvalidInput(
                f"--env {name}: the variable is not set in this environment.",
                hint=f"Set {name} in this terminal first, or pass --env {name}=VALUE.",
            )
        is_command = name in (CLI_PATH, AGY_PATH) and Path(value).name == value
        if name in PATH_VARIABLES and not is_command:
            value = str(Path(value).expanduser().absolute())
        values[name] = value
    return values
