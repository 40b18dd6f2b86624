"""Write this server into the configuration of an MCP client, with care for what else is in there.

Desktop apps start with a short PATH and no shell environment, so every path is absolute and the
variables that the server needs stand in the entry itself.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp

from gemini_cli_mcp.errors import CliNotFound, ConfigError, GeminiMcpError, InvalidInput
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.providers.gemini.binary import (
    DESKTOP_APP_PATH,
    desktop_app_environ,
    find_gemini,
    find_node,
)
from gemini_cli_mcp.providers.gemini.home import user_folder
from gemini_cli_mcp.settings.env import Settings

SERVER_NAME = "gemini-cli-mcp"
BACKUP_SUFFIX = ".before-gemini-cli-mcp"
PATH_VARIABLES = {
    "GEMINI_MCP_CLI_PATH",
    "GEMINI_MCP_AGY_PATH",
    "GEMINI_MCP_CONFIG_DIR",
    "GEMINI_MCP_WEB_SEARCH",
}
"""Variables whose values must not depend on where a client starts us."""


@dataclass(frozen=True)
class ClientConfig:
    """Where an MCP client keeps its servers, and in which words."""

    title: str
    folders: Mapping[str, str]
    """By platform: a variable that names a folder, or a folder below the home; one for `any`."""
    file: str
    key: str = "mcpServers"
    extra_fields: Mapping[str, str] | None = None
    """What stands in an entry beside command, arguments and environment."""
    next_step: str = "Start it again, then ask it something that needs the web."


_APP_CONFIG_FOLDERS = {
    "darwin": "Library/Application Support",
    "win32": "$APPDATA",
    "linux": "$XDG_CONFIG_HOME",
}
_DEFAULT_FOLDERS = {"$APPDATA": "AppData/Roaming", "$XDG_CONFIG_HOME": ".config"}
CLIENTS: dict[str, ClientConfig] = {
    "claude-desktop": ClientConfig(
        "Claude Desktop", _APP_CONFIG_FOLDERS, "Claude/claude_desktop_config.json"
    ),
    "claude-code": ClientConfig(
        "Claude Code",
        {"any": "$CLAUDE_CONFIG_DIR"},
        ".claude.json",
        extra_fields={"type": "stdio"},
        next_step="New sessions have it.",
    ),
    "cursor": ClientConfig("Cursor", {"any": ""}, ".cursor/mcp.json"),
    "vscode": ClientConfig(
        "VS Code", _APP_CONFIG_FOLDERS, "Code/User/mcp.json", "servers", {"type": "stdio"}
    ),
}


def install(
    environ: Mapping[str, str],
    client: str,
    *,
    variables: Sequence[str],
    only_print: bool,
    uninstall: bool,
) -> int:
    """Write, print or remove the entry; the exit code."""
    try:
        client_config = CLIENTS[client]
        path = config_file(client_config, environ, sys.platform)
        if only_print:
            entry = {
                client_config.key: {SERVER_NAME: server_entry(client_config, environ, variables)}
            }
            sys.stdout.write(json.dumps(entry, indent=2) + "\n")
            return 0
        before = _read(path)
        content = _parse(path, before, client_config.key)
        servers = object_or_empty(content.get(client_config.key))
        if uninstall:
            if servers.pop(SERVER_NAME, None) is None:
                _print(f"{SERVER_NAME} does not stand in {path}; nothing was changed.")
                return 0
        else:
            old = object_or_empty(servers.get(SERVER_NAME))
            new = server_entry(client_config, environ, variables)
            new["env"] = {**object_or_empty(old.get("env")), **new["env"]}
            servers[SERVER_NAME] = {**old, **new}
        _write(path, {**content, client_config.key: servers}, before)
    except GeminiMcpError as error:
        _print(f"[ERROR] {error.code}: {error.message}\n{error.next_step}")
        return 1
    if uninstall:
        _print(f"{SERVER_NAME} was removed from {path}.")
        return 0
    _print(f"{SERVER_NAME} was written to {path}. {client_config.title}: {client_config.next_step}")
    _warn(object_or_empty(servers[SERVER_NAME]["env"]), environ)
    return 0


def config_file(client: ClientConfig, environ: Mapping[str, str], platform: str) -> Path:
    """Where the client looks for its servers on this system."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    folders = client.folders
    folder = folders.get("any", folders.get(platform, folders.get("linux", "")))
    if folder.startswith("$"):
        folder = environ.get(folder[1:]) or _DEFAULT_FOLDERS.get(folder, "")
    return home / folder / client.file


def server_entry(
    client: ClientConfig, environ: Mapping[str, str], variables: Sequence[str]
) -> JsonObject:
    """How the client is to start us."""
    program, *arguments = program_argv()
    return {
        **(client.extra_fields or {}),
        "command": program,
        "args": [*arguments, "serve"],
        "env": _environment(environ, variables),
    }


def program_argv() -> list[str]:
    """How this program is started from anywhere."""
    program = Path(sys.executable).with_name(SERVER_NAME)
    return [str(program)] if program.exists() else [sys.executable, "-m", "gemini_cli_mcp"]


def _environment(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for assignment in variables:
        name, assigned, value = assignment.partition("=")
        if not name.isidentifier():
            raise InvalidInput(f"--env {name}: that is no name of a variable.")
        value = value if assigned else environ.get(name, "")
        if not value:
            raise InvalidInput(
                f"--env {name}: it is not set here.",
                hint=f"Set {name} in this terminal first, or give it as --env {name}=VALUE.",
            )
        values[name] = str(Path(value).expanduser().absolute()) if name in PATH_VARIABLES else value
    # A wrong value is told here, not by a silent client.
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


def _warn(entry_env: JsonObject, environ: Mapping[str, str]) -> None:
    """Say what is still missing in the entry's environment: the client will not."""
    if "GEMINI_MCP_CLI_PATH" not in entry_env:
        _print("No gemini was found: npm install -g @google/gemini-cli, then run this again.")
    key_file = user_folder(environ) / ".env"
    if "GEMINI_API_KEY" not in entry_env and not key_file.exists():
        _print(
            "A desktop app does not see the variables of your shell: add --env GEMINI_API_KEY, "
            "or put the key into ~/.gemini/.env. `gemini-cli-mcp doctor` tells more."
        )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _left_unchanged(path, f"cannot be read ({error.strerror})") from None


def _parse(path: Path, read: bytes | None, key: str) -> JsonObject:
    """The file's content, if it can be written again without a loss."""
    try:
        text = (read or b"").decode("utf-8-sig")
        content: object = json.loads(text) if text.strip() else {}
        json.dumps(content, allow_nan=False)
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _left_unchanged(path, f"is not plain JSON{where}") from None
    result = object_or_empty(content)
    if not isinstance(content, dict) or not isinstance(result.get(key) or {}, dict):
        raise _left_unchanged(path, "holds something else than a configuration")
    return result


def _left_unchanged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} {why}; it was left as it is.",
        hint="Mend it, or put in by hand what the same command says with --print.",
    )


def _write(path: Path, content: JsonObject, before: bytes | None) -> None:
    """Whole or not at all, for this user alone, and with a copy of what was there at first."""
    data = json.dumps(content, indent=2).encode() + b"\n"
    new: Path | None = None
    try:
        target = path.resolve()  # a link to a file of dotfiles stays one
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) & 0o700 if before is not None else 0o600
        backup = target.with_name(target.name + BACKUP_SUFFIX)
        if before is not None and SERVER_NAME.encode() not in before and not backup.exists():
            backup.touch(mode=0o600)
            backup.write_bytes(before)
        descriptor, name = mkstemp(dir=target.parent, prefix=f".{target.name}.")
        new = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.chmod(mode)
        if _read(path) != before:
            raise _left_unchanged(path, "was changed by somebody else just now")
        new.replace(target)
    except OSError as error:
        raise _left_unchanged(path, f"cannot be written ({error.strerror})") from None
    finally:
        if new:
            new.unlink(missing_ok=True)


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
