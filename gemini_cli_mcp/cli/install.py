"""Add this server to the configuration of an MCP client without changing anything else in it.

Desktop apps start with a short PATH and no shell environment, so every path is absolute and the
entry itself contains the variables that the server needs.
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
from gemini_cli_mcp.providers.gemini.sign_ins import user_folder
from gemini_cli_mcp.settings.env import Settings

SERVER_NAME = "gemini-cli-mcp"
BACKUP_SUFFIX = ".before-gemini-cli-mcp"
PATH_VARIABLES = {
    "GEMINI_MCP_CLI_PATH",
    "GEMINI_MCP_AGY_PATH",
    "GEMINI_MCP_CONFIG_DIR",
    "GEMINI_MCP_WEB_SEARCH",
}
"""Variables whose paths are made absolute: a client may start us in any folder."""


@dataclass(frozen=True)
class ClientConfig:
    """Where an MCP client stores its servers, and in which format."""

    title: str
    folders: Mapping[str, str]
    """Folder by platform, or for `any`: a `$VARIABLE`, or a path relative to the home folder."""
    file: str
    key: str = "mcpServers"
    extra_fields: Mapping[str, str] | None = None
    """Fields of an entry in addition to command, arguments and environment."""
    next_step: str = "restart it, then ask something that needs the web."


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
        next_step="available in new sessions.",
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
    """Write, print or remove the entry; return the exit code."""
    try:
        client_config = CLIENTS[client]
        path = config_file(client_config, environ, sys.platform)
        if only_print:
            entry = server_entry(client_config, _entry_env(environ, variables))
            content = {client_config.key: {SERVER_NAME: entry}}
            sys.stdout.write(json.dumps(content, indent=2) + "\n")
            return 0
        original = _read(path)
        content = _parse(path, original, client_config.key)
        servers = object_or_empty(content.get(client_config.key))
        new_env: dict[str, object] = {}
        if uninstall:
            if servers.pop(SERVER_NAME, None) is None:
                _print(f"{SERVER_NAME} is not in {path}; nothing was changed.")
                return 0
        else:
            old_entry = object_or_empty(servers.get(SERVER_NAME))
            new_env = {**object_or_empty(old_entry.get("env")), **_entry_env(environ, variables)}
            servers[SERVER_NAME] = {**old_entry, **server_entry(client_config, new_env)}
        _write(path, {**content, client_config.key: servers}, original)
    except GeminiMcpError as error:
        _print(f"[ERROR] {error.code}: {error.message}\n{error.next_step}")
        return 1
    if uninstall:
        _print(f"{SERVER_NAME} was removed from {path}.")
        return 0
    _print(f"{SERVER_NAME} was added to {path}. {client_config.title}: {client_config.next_step}")
    _warn_if_incomplete(new_env, environ)
    return 0


def config_file(client: ClientConfig, environ: Mapping[str, str], platform: str) -> Path:
    """Return the file in which the client configures its servers on this platform."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    folders = client.folders
    folder = folders.get("any", folders.get(platform, folders.get("linux", "")))
    if folder.startswith("$"):
        folder = environ.get(folder[1:]) or _DEFAULT_FOLDERS.get(folder, "")
    return home / folder / client.file


def server_entry(client: ClientConfig, entry_env: Mapping[str, object]) -> JsonObject:
    """Return the entry that tells the client how to start this server, and with which variables."""
    program, *arguments = program_argv()
    return {
        **(client.extra_fields or {}),
        "command": program,
        "args": [*arguments, "serve"],
        "env": dict(entry_env),
    }


def program_argv() -> list[str]:
    """Return a command that starts this program from any folder."""
    program = Path(sys.executable).with_name(SERVER_NAME)
    return [str(program)] if program.exists() else [sys.executable, "-m", "gemini_cli_mcp"]


def _entry_env(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for assignment in variables:
        name, separator, value = assignment.partition("=")
        if not name.isidentifier():
            raise InvalidInput(f"--env {name}: not a valid variable name.")
        value = value if separator else environ.get(name, "")
        if not value:
            raise InvalidInput(
                f"--env {name}: the variable is not set in this environment.",
                hint=f"Set {name} in this terminal first, or pass --env {name}=VALUE.",
            )
        values[name] = str(Path(value).expanduser().absolute()) if name in PATH_VARIABLES else value
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


def _warn_if_incomplete(entry_env: Mapping[str, object], environ: Mapping[str, str]) -> None:
    """Print what is still missing in the entry's environment, because the client will not."""
    if "GEMINI_MCP_CLI_PATH" not in entry_env:
        _print(
            "gemini was not found. Run `npm install -g @google/gemini-cli`, then run this again."
        )
    key_file = user_folder(environ) / ".env"
    if "GEMINI_API_KEY" not in entry_env and not key_file.exists():
        _print(
            "Desktop apps do not see your shell's variables: add --env GEMINI_API_KEY, or put "
            "the key into ~/.gemini/.env. Run `gemini-cli-mcp doctor` for details."
        )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_changed(path, f"cannot be read ({error.strerror})") from None


def _parse(path: Path, data: bytes | None, key: str) -> JsonObject:
    """Return the parsed content; raise if writing it back would lose anything."""
    try:
        text = (data or b"").decode("utf-8-sig")
        content: object = json.loads(text) if text.strip() else {}
        json.dumps(content, allow_nan=False)
    except (ValueError, RecursionError) as error:
        location = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise _not_changed(path, f"is not plain JSON{location}") from None
    result = object_or_empty(content)
    if not isinstance(content, dict) or not isinstance(result.get(key) or {}, dict):
        raise _not_changed(path, "does not contain a client configuration")
    return result


def _not_changed(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} {reason}; it was not changed.",
        hint="Fix the file, or run the same command with --print and add its output by hand.",
    )


def _write(path: Path, content: Mapping[str, object], original: bytes | None) -> None:
    """Replace the file atomically, private to this user, after a backup of the first original."""
    data = json.dumps(content, indent=2).encode() + b"\n"
    temporary: Path | None = None
    try:
        target = path.resolve()  # keep a symlink into a dotfiles repository
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) & 0o700 if original is not None else 0o600
        backup = target.with_name(target.name + BACKUP_SUFFIX)
        if original is not None and SERVER_NAME.encode() not in original and not backup.exists():
            backup.touch(mode=0o600)
            backup.write_bytes(original)
        descriptor, name = mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.chmod(mode)
        if _read(path) != original:
            raise _not_changed(path, "was changed by another program in the meantime")
        temporary.replace(target)
    except OSError as error:
        raise _not_changed(path, f"cannot be written ({error.strerror})") from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
