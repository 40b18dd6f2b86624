"""The command `install`: write, print or remove our entry, and say what is still missing."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemini_cli_mcp.cli.install.clients import CLIENTS, ClientConfig
from gemini_cli_mcp.cli.install.config_file import ConfigFile, read_config_file
from gemini_cli_mcp.cli.install.server_entry import (
    DISTRIBUTION,
    SERVER_NAME,
    build_entry_env,
    is_temporary_installation,
    server_entry,
    starts_this_program,
)
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.errors import ConfigError, GeminiMcpError
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.providers.gemini.sign_ins import is_signed_in
from gemini_cli_mcp.sanitize import is_secret_name
from gemini_cli_mcp.settings.variable_names import SECRET_VARIABLES, known_variables

KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "ZAI_API_KEY")
"""Variables of sign-ins."""
INSTALL_GEMINI = "npm install -g @google/gemini-cli"


def install(environ: Mapping[str, str], options: Options) -> int:
    """Write, print or remove the entry; return the exit code."""
    client = CLIENTS[options.client]
    path = client.user_file(environ, sys.platform)
    if options.project and client.project_file:
        path = Path.cwd() / client.project_file
    try:
        if options.print:
            return _print_entry(client, path, build_entry_env(environ, options.env))
        config = read_config_file(path, client.key)
        if options.uninstall:
            return _uninstall(client, config, force=options.force)
        return _install(client, config, environ, options)
    except GeminiMcpError as error:
        _print(f"[ERROR] {error.code}: {error.message}\n{error.next_step}")
        return 1


def _print_entry(client: ClientConfig, path: Path, entry_env: Mapping[str, str]) -> int:
    content = {client.key: {SERVER_NAME: server_entry(client, entry_env)}}
    _print(f"Add this to {path} ({client.title}):")
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return 0


def _uninstall(client: ClientConfig, config: ConfigFile, *, force: bool) -> int:
    if not config.has_entry:
        _print(f"{SERVER_NAME} is not in {config.path}; nothing was changed.")
        return 0
    if not starts_this_program(config.entry) and not force:
        raise _foreign_entry(config, "Add --force to remove it.")
    copy = config.remove_entry()
    _print(f"Removed {SERVER_NAME} from {client.title}: {config.path}")
    _print(f"  The file as it was: {copy}")
    return 0


def _install(
    client: ClientConfig, config: ConfigFile, environ: Mapping[str, str], options: Options
) -> int:
    is_ours = starts_this_program(config.entry)
    if config.has_entry and not is_ours and not options.force:
        raise _foreign_entry(config, "Add --force to replace it.")
    old_entry = config.entry if is_ours else dict[str, object]()
    old_env = object_or_empty(old_entry.get("env"))
    new_env = {**old_env, **build_entry_env(environ, options.env)}
    entry = {**old_entry, **server_entry(client, new_env)}
    secrets = [name for name in new_env if is_secret_name(name)]
    if config.has_entry and entry == config.entry:
        _print(f"{SERVER_NAME} is already configured in {client.title}: {config.path}")
    else:
        copy = config.set_entry(entry, private=bool(secrets))
        verb = "Updated" if is_ours else "Added"
        _print(f"{verb} {SERVER_NAME} in {client.title}: {config.path}")
        if copy:
            _print(f"  The file as it was: {copy}")
        if secrets:
            _print(f"  It contains {', '.join(secrets)}, so only you can read it (mode 0600).")
        if options.project:
            _print("  It contains paths of this machine; do not share it with other people.")
    for problem in _missing(client, entry, environ, options):
        _print(f"Missing: {problem}")
    _print(f"Next: {client.next_step}")
    if options.project and client.project_step:
        _print(client.project_step)
    return 0


def _missing(
    client: ClientConfig, entry: Mapping[str, object], environ: Mapping[str, str], options: Options
) -> Iterator[str]:
    """Yield what still prevents a search, because the client will not say it."""
    env = object_or_empty(entry.get("env"))
    command = f"{SERVER_NAME} install {options.client}{' --project' if options.project else ''}"
    if is_temporary_installation():
        yield (
            "a permanent installation: uv may delete the folder this was started from. Run "
            f"`uv tool install {DISTRIBUTION}`, then `{command}` again."
        )
    if "GEMINI_MCP_CLI_PATH" not in env:
        yield f"gemini was not found. Run `{INSTALL_GEMINI}`, then `{command}` again."
    if entry.get("disabled") is True or entry.get("enabled") is False:
        yield f"the entry is disabled; enable it in {client.title}."
    offered = [
        name
        for name in (*KEY_VARIABLES, *known_variables())
        if environ.get(name, "").strip() and name not in (*env, *SECRET_VARIABLES)
    ]
    if offered:
        flags = " ".join(f"--env {name}" for name in offered)
        reason = (
            f"{', '.join(offered)}, unless you start {client.title} in a terminal where it is set"
            if client.inherits_terminal
            else f"{', '.join(offered)}: set in this terminal, but {client.title} does not see it"
        )
        yield f"{reason}. To write it into the file, run `{command} {flags}`."
    if not is_signed_in({**environ, **{name: str(value) for name, value in env.items()}}):
        yield (
            "a key. Get one at aistudio.google.com/apikey, then run "
            f"`{command} --env GEMINI_API_KEY=...`, or put it into ~/.gemini/.env."
        )


def _foreign_entry(config: ConfigFile, hint: str) -> ConfigError:
    kind = "points to a server by its URL" if "url" in config.entry else "starts another program"
    return ConfigError(
        f"The entry {SERVER_NAME} in {config.path} {kind}; it was not changed.", hint=hint
    )


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
