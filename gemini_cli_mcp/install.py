"""Write this server into the configuration of an MCP client, with care for what else is in there.

Desktop apps start with a short PATH and no shell environment, so every path is absolute and the
variables that the server needs stand in the entry itself.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.errors import CliNotFound, ConfigError, GeminiMcpError, InvalidInput
from gemini_cli_mcp.models import Object, as_object
from gemini_cli_mcp.providers import gemini_binary

NAME = "gemini-cli-mcp"
BACKUP = ".before-gemini-cli-mcp"


@dataclass(frozen=True)
class Client:
    """Where an MCP client keeps its servers, and in which words."""

    title: str
    files: Mapping[str, str]
    """By platform: below the home folder, or below %APPDATA% on Windows."""
    key: str = "mcpServers"
    entry: Mapping[str, str] | None = None
    """What stands in an entry beside command, arguments and environment."""
    afterwards: str = "Start it again, then ask it something that needs the web."


CLIENTS: dict[str, Client] = {
    "claude-desktop": Client(
        "Claude Desktop",
        {
            "darwin": "Library/Application Support/Claude/claude_desktop_config.json",
            "win32": "Claude/claude_desktop_config.json",
            "linux": ".config/Claude/claude_desktop_config.json",
        },
    ),
    "claude-code": Client(
        "Claude Code",
        {"darwin": ".claude.json", "win32": "../../.claude.json", "linux": ".claude.json"},
        entry={"type": "stdio"},
        afterwards="New sessions have it.",
    ),
    "cursor": Client(
        "Cursor",
        {
            "darwin": ".cursor/mcp.json",
            "win32": "../../.cursor/mcp.json",
            "linux": ".cursor/mcp.json",
        },
    ),
    "vscode": Client(
        "VS Code",
        {
            "darwin": "Library/Application Support/Code/User/mcp.json",
            "win32": "Code/User/mcp.json",
            "linux": ".config/Code/User/mcp.json",
        },
        key="servers",
        entry={"type": "stdio"},
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
        known = CLIENTS[client]
        path = config_file(known, environ, sys.platform)
        if only_print:
            shown = {known.key: {NAME: entry(known, environ, variables)}}
            sys.stdout.write(json.dumps(shown, indent=2) + "\n")
            return 0
        content = _read(path)
        servers = as_object(content.setdefault(known.key, {}))
        if uninstall:
            if servers.pop(NAME, None) is None:
                _say(f"{NAME} does not stand in {path}; nothing was changed.")
                return 0
        else:
            servers[NAME] = entry(known, environ, variables)
        content[known.key] = servers
        _write(path, content)
    except GeminiMcpError as error:
        _say(f"[ERROR] {error.code}: {error.message}\n{error.next_step}")
        return 1
    done = "removed from" if uninstall else "written to"
    _say(f"{NAME} was {done} {path}. {known.title}: {known.afterwards}")
    if not uninstall:
        _warn(entry(known, environ, variables), environ)
    return 0


def config_file(client: Client, environ: Mapping[str, str], platform: str) -> Path:
    """Where the client looks for its servers on this system."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "win32":
        data = Path(environ.get("APPDATA") or home / "AppData/Roaming")
        return Path(os.path.normpath(data / client.files["win32"]))
    return home / client.files.get(platform, client.files["linux"])


def entry(client: Client, environ: Mapping[str, str], variables: Sequence[str]) -> Object:
    """How the client is to start us."""
    program = Path(sys.executable).with_name(NAME)
    command = [str(program)] if program.exists() else [sys.executable, "-m", "gemini_cli_mcp"]
    return {
        **(client.entry or {}),
        "command": command[0],
        "args": [*command[1:], "serve"],
        "env": _environment(environ, variables),
    }


def _environment(environ: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for given in variables:
        name, assigned, value = given.partition("=")
        if not assigned:
            value = environ.get(name, "")
        if not name.isidentifier() or not value:
            raise InvalidInput(
                f"--env {name}: it is not set here.",
                hint=f"Give it as --env {name}=VALUE, or set it in this terminal first.",
            )
        chosen[name] = value
    Config.from_env({**environ, **chosen})  # a wrong value is told here, not by a silent client
    try:
        found = gemini_binary.find(environ.get("GEMINI_MCP_CLI_PATH") or "gemini", environ)
    except CliNotFound:
        return chosen
    return {"GEMINI_MCP_CLI_PATH": str(found.path), **chosen}


def _warn(written: Object, environ: Mapping[str, str]) -> None:
    """Say what is still missing: the client will not."""
    chosen = as_object(written.get("env"))
    if "GEMINI_MCP_CLI_PATH" not in chosen:
        _say("No gemini was found: npm install -g @google/gemini-cli, then run this again.")
    key_file = Path(environ.get("HOME") or Path.home()) / ".gemini" / ".env"
    if "GEMINI_API_KEY" not in chosen and not key_file.exists():
        _say(
            "A desktop app does not see the variables of your shell: add --env GEMINI_API_KEY, "
            "or put the key into ~/.gemini/.env. `gemini-cli-mcp doctor` tells more."
        )


def _read(path: Path) -> Object:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", hint="Nothing was changed."
        ) from None
    try:
        content: object = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(
            f"{path} is not plain JSON{where}; it was left as it is.",
            hint="Mend it, or put in by hand what the same command says with --print.",
        ) from None
    found = as_object(content)
    lists = [found.get(client.key, {}) for client in CLIENTS.values()]
    if not isinstance(content, dict) or not all(isinstance(listed, dict) for listed in lists):
        raise ConfigError(
            f"{path} holds something else than a configuration; it was left as it is.",
            hint="Put in by hand what the same command says with --print.",
        )
    return found


def _write(path: Path, content: Object) -> None:
    """Whole or not at all, and with a copy of what was there before."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()  # a link to a file of dotfiles stays one
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        if target.exists():
            shutil.copy2(target, target.with_name(target.name + BACKUP))
        descriptor, name = mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
        new = Path(name)
        new.chmod(mode)
        new.replace(target)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", hint="Nothing was changed."
        ) from None


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
