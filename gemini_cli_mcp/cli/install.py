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
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.providers.gemini.binary import (
    SHORT_PATH,
    as_desktop_app,
    find_gemini,
    find_node,
)
from gemini_cli_mcp.providers.gemini.home import user_folder
from gemini_cli_mcp.settings.env import Config

NAME = "gemini-cli-mcp"
BACKUP = ".before-gemini-cli-mcp"
PATHS = {
    "GEMINI_MCP_CLI_PATH",
    "GEMINI_MCP_AGY_PATH",
    "GEMINI_MCP_CONFIG_DIR",
    "GEMINI_MCP_WEB_SEARCH",
}
"""Variables whose values must not depend on where a client starts us."""


@dataclass(frozen=True)
class Client:
    """Where an MCP client keeps its servers, and in which words."""

    title: str
    folders: Mapping[str, str]
    """By platform: a variable that names a folder, or a folder below the home; one for `any`."""
    file: str
    key: str = "mcpServers"
    extra: Mapping[str, str] | None = None
    """What stands in an entry beside command, arguments and environment."""
    afterwards: str = "Start it again, then ask it something that needs the web."


_APPS = {
    "darwin": "Library/Application Support",
    "win32": "$APPDATA",
    "linux": "$XDG_CONFIG_HOME",
}
_DEFAULTS = {"$APPDATA": "AppData/Roaming", "$XDG_CONFIG_HOME": ".config"}
CLIENTS: dict[str, Client] = {
    "claude-desktop": Client("Claude Desktop", _APPS, "Claude/claude_desktop_config.json"),
    "claude-code": Client(
        "Claude Code",
        {"any": "$CLAUDE_CONFIG_DIR"},
        ".claude.json",
        extra={"type": "stdio"},
        afterwards="New sessions have it.",
    ),
    "cursor": Client("Cursor", {"any": ""}, ".cursor/mcp.json"),
    "vscode": Client("VS Code", _APPS, "Code/User/mcp.json", "servers", {"type": "stdio"}),
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
        known = CLIENTS[client]
        path = config_file(known, environ, sys.platform)
        if only_print:
            shown = {known.key: {NAME: entry(known, environ, variables)}}
            sys.stdout.write(json.dumps(shown, indent=2) + "\n")
            return 0
        before = _read(path)
        content = _parsed(path, before, known.key)
        servers = as_object(content.get(known.key))
        if uninstall:
            if servers.pop(NAME, None) is None:
                _say(f"{NAME} does not stand in {path}; nothing was changed.")
                return 0
        else:
            old = as_object(servers.get(NAME))
            new = entry(known, environ, variables)
            new["env"] = {**as_object(old.get("env")), **new["env"]}
            servers[NAME] = {**old, **new}
        _write(path, {**content, known.key: servers}, before)
    except GeminiMcpError as error:
        _say(f"[ERROR] {error.code}: {error.message}\n{error.next_step}")
        return 1
    if uninstall:
        _say(f"{NAME} was removed from {path}.")
        return 0
    _say(f"{NAME} was written to {path}. {known.title}: {known.afterwards}")
    _warn(as_object(servers[NAME]["env"]), environ)
    return 0


def config_file(client: Client, environ: Mapping[str, str], platform: str) -> Path:
    """Where the client looks for its servers on this system."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    folders = client.folders
    place = folders.get("any", folders.get(platform, folders.get("linux", "")))
    if place.startswith("$"):
        place = environ.get(place[1:]) or _DEFAULTS.get(place, "")
    return home / place / client.file


def entry(client: Client, environ: Mapping[str, str], variables: Sequence[str]) -> Object:
    """How the client is to start us."""
    program, *arguments = own_command()
    return {
        **(client.extra or {}),
        "command": program,
        "args": [*arguments, "serve"],
        "env": _environment(environ, variables),
    }


def own_command() -> list[str]:
    """How this program is started from anywhere."""
    program = Path(sys.executable).with_name(NAME)
    return [str(program)] if program.exists() else [sys.executable, "-m", "gemini_cli_mcp"]


def _environment(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for given in variables:
        name, assigned, value = given.partition("=")
        if not name.isidentifier():
            raise InvalidInput(f"--env {name}: that is no name of a variable.")
        value = value if assigned else environ.get(name, "")
        if not value:
            raise InvalidInput(
                f"--env {name}: it is not set here.",
                hint=f"Set {name} in this terminal first, or give it as --env {name}=VALUE.",
            )
        chosen[name] = str(Path(value).expanduser().absolute()) if name in PATHS else value
    # A wrong value is told here, not by a silent client.
    config = Config.from_env({"HOME": environ.get("HOME", ""), **chosen})
    known = {**environ, **chosen}
    try:
        found = find_gemini(known.get("GEMINI_MCP_CLI_PATH") or config.cli_path, known)
    except CliNotFound:
        return chosen
    written = {"GEMINI_MCP_CLI_PATH": str(found.path), **chosen}
    node = find_node(found, known)
    if node and not find_node(found, as_desktop_app(known)):
        written.setdefault("PATH", os.pathsep.join((str(Path(node).parent), SHORT_PATH)))
    return written


def _warn(written: Object, environ: Mapping[str, str]) -> None:
    """Say what is still missing in the entry's environment: the client will not."""
    if "GEMINI_MCP_CLI_PATH" not in written:
        _say("No gemini was found: npm install -g @google/gemini-cli, then run this again.")
    key_file = user_folder(environ) / ".env"
    if "GEMINI_API_KEY" not in written and not key_file.exists():
        _say(
            "A desktop app does not see the variables of your shell: add --env GEMINI_API_KEY, "
            "or put the key into ~/.gemini/.env. `gemini-cli-mcp doctor` tells more."
        )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _untouched(path, f"cannot be read ({error.strerror})") from None


def _parsed(path: Path, read: bytes | None, key: str) -> Object:
    """The file's content, if it can be written again without a loss."""
    try:
        text = (read or b"").decode("utf-8-sig")
        content: object = json.loads(text) if text.strip() else {}
        json.dumps(content, allow_nan=False)
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _untouched(path, f"is not plain JSON{where}") from None
    found = as_object(content)
    if not isinstance(content, dict) or not isinstance(found.get(key) or {}, dict):
        raise _untouched(path, "holds something else than a configuration")
    return found


def _untouched(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} {why}; it was left as it is.",
        hint="Mend it, or put in by hand what the same command says with --print.",
    )


def _write(path: Path, content: Object, before: bytes | None) -> None:
    """Whole or not at all, for this user alone, and with a copy of what was there at first."""
    data = json.dumps(content, indent=2).encode() + b"\n"
    new: Path | None = None
    try:
        target = path.resolve()  # a link to a file of dotfiles stays one
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) & 0o700 if before is not None else 0o600
        backup = target.with_name(target.name + BACKUP)
        if before is not None and NAME.encode() not in before and not backup.exists():
            backup.touch(mode=0o600)
            backup.write_bytes(before)
        descriptor, name = mkstemp(dir=target.parent, prefix=f".{target.name}.")
        new = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.chmod(mode)
        if _read(path) != before:
            raise _untouched(path, "was changed by somebody else just now")
        new.replace(target)
    except OSError as error:
        raise _untouched(path, f"cannot be written ({error.strerror})") from None
    finally:
        if new:
            new.unlink(missing_ok=True)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
