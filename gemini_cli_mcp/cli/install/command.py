"""The command `install`: write, print or remove our entry, and say what is still missing."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from gemini_cli_mcp import installation
from gemini_cli_mcp.cli.install.clients import CLIENTS, ClientConfig
from gemini_cli_mcp.cli.install.config_file import ConfigFile, read_config_file
from gemini_cli_mcp.cli.install.server_entry import (
    CLI_PATH,
    SERVER_NAME,
    build_entry_env,
    entry_fields,
    entry_variables,
    read_entry_settings,
    server_entry,
    starts_this_program,
    variable_values,
)
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.errors import CliNotFound, ConfigError, GeminiMcpError
from gemini_cli_mcp.platforms import files
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.providers.gemini.sign_ins import is_signed_in
from gemini_cli_mcp.sanitize import has_url_password, is_secret_name
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import SECRET_VARIABLES, known_variables

KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "ZAI_API_KEY")
"""Variables of sign-ins."""
VERTEX_VARIABLES = (
    *("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
    "GOOGLE_APPLICATION_CREDENTIALS",
)
"""Further variables of Vertex AI; other programs use them too."""
INSTALL_GEMINI = "npm install -g @google/gemini-cli"


@dataclass(frozen=True)
class _Change:
    """What `install` does to a file."""

    config: ConfigFile
    entry: Mapping[str, object]
    settings: Settings
    """Of a server with this entry."""
    variables: Mapping[str, str]
    secrets: Sequence[str]
    """Names of the variables that nobody else may see."""


def install(environ: Mapping[str, str], options: Options) -> int:
    """Write, print or remove the entry; return the exit code."""
    client = CLIENTS[options.client]
    try:
        paths = _config_paths(client, environ, options)
        if options.print:
            return _print_entry(client, paths, environ, options)
        configs = [read_config_file(path, client.key) for path in paths]
        if options.uninstall:
            return _uninstall(client, configs, force=options.force)
        return _install(client, configs, environ, options)
    except GeminiMcpError as error:
        _print(f"[ERROR] {error.code}: {error.message}\n{error.next_step}")
        return 1


def _config_paths(client: ClientConfig, environ: Mapping[str, str], options: Options) -> list[Path]:
    if not options.project or not client.project_file:
        return client.user_files(environ)
    try:
        return [Path.cwd() / client.project_file]
    except FileNotFoundError:
        raise ConfigError("The current folder no longer exists.") from None


def _print_entry(
    client: ClientConfig, paths: Sequence[Path], environ: Mapping[str, str], options: Options
) -> int:
    env = build_entry_env(environ, options.env, {})
    read_entry_settings(environ, options.env, variable_values(env))
    content = {client.key: {SERVER_NAME: server_entry(client, env)}}
    _print(f"Add this to {' and to '.join(map(str, paths))} ({client.title}):")
    # Clients read UTF-8, whatever the encoding of this terminal is.
    cast("TextIOWrapper", sys.stdout).reconfigure(encoding="utf-8")
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return 0


def _uninstall(client: ClientConfig, configs: Sequence[ConfigFile], *, force: bool) -> int:
    with_entry = [config for config in configs if config.has_entry]
    for config in with_entry:
        if not starts_this_program(config.entry) and not force:
            raise _foreign_entry(config, "Add --force to remove it.")
    for config in with_entry:
        copy = config.remove_entry()
        _print(f"Removed {SERVER_NAME} from {client.title}: {config.path}")
        _print(f"  The file as it was: {copy}")
    if not with_entry:
        paths = " or ".join(str(config.path) for config in configs)
        _print(f"{SERVER_NAME} is not in {paths}; nothing was changed.")
    return 0


def _install(
    client: ClientConfig,
    configs: Sequence[ConfigFile],
    environ: Mapping[str, str],
    options: Options,
) -> int:
    changes = [_plan_change(client, config, environ, options) for config in configs]
    for change in changes:
        _write_entry(client, change)
    if options.project:
        _print("  It contains paths of this machine; do not share it with other people.")
    for change in changes:
        if change.entry.get("disabled") is True or change.entry.get("enabled") is False:
            _print(f"Missing: the entry in {change.config.path} is disabled; enable it.")
    change = changes[0]
    for problem in _missing(client, change.settings, change.variables, environ, options):
        _print(f"Missing: {problem}")
    _print(f"Next: {client.next_step}")
    if options.project and client.project_step:
        _print(client.project_step)
    return 0


def _plan_change(
    client: ClientConfig, config: ConfigFile, environ: Mapping[str, str], options: Options
) -> _Change:
    is_ours = starts_this_program(config.entry)
    if config.has_entry and not is_ours and not options.force:
        raise _foreign_entry(config, "Add --force to replace it.")
    old_entry = config.entry if is_ours else dict[str, object]()
    env = build_entry_env(environ, options.env, entry_variables(old_entry))
    values = variable_values(env)
    try:
        settings = read_entry_settings(environ, options.env, values)
    except ConfigError as error:
        hint = f"Correct it in {config.path}, or pass --env NAME=VALUE."
        raise ConfigError(error.message, hint=hint) from None
    entry = {**entry_fields(old_entry), **server_entry(client, env)}
    secrets = [name for name, value in values.items() if _is_secret(name, value, settings)]
    return _Change(config, entry, settings, values, secrets)


def _write_entry(client: ClientConfig, change: _Change) -> None:
    """Write the entry unless it is there already, and say what was done."""
    config, entry, secrets = change.config, change.entry, change.secrets
    if config.has_entry and entry == config.entry:
        _print(f"{SERVER_NAME} is already configured in {client.title}: {config.path}")
        if secrets and config.make_private():
            _print(f"  It contains {', '.join(secrets)}; now only you can read it (mode 0600).")
        return
    copy = config.set_entry(entry, private=bool(secrets))
    verb = "Replaced" if config.has_entry else "Added"
    verb = "Updated" if starts_this_program(config.entry) else verb
    _print(f"{verb} {SERVER_NAME} in {client.title}: {config.path}")
    if copy:
        _print(f"  The file as it was: {copy}")
    if secrets:
        privacy = "so only you can read it (mode 0600)" if files.HAS_MODES else "so do not share it"
        _print(f"  It contains {', '.join(secrets)}, {privacy}.")


def _is_secret(name: str, value: str, settings: Settings) -> bool:
    return is_secret_name(name) or name in settings.engines.key_variables or has_url_password(value)


def _missing(
    client: ClientConfig,
    settings: Settings,
    env: Mapping[str, str],
    environ: Mapping[str, str],
    options: Options,
) -> Iterator[str]:
    """Yield what still prevents a search, because the client will not say it."""
    command = f"{SERVER_NAME} install {options.client}{' --project' if options.project else ''}"
    if installation.is_temporary():
        yield (
            "a permanent installation: uv may delete the folder this was started from. Run "
            f"`{installation.permanent_install_command()}`, then `{command}` again."
        )
    if "gemini" in settings.providers:
        try:
            find_gemini(settings.cli_path, environ)
        except CliNotFound as error:
            yield f"gemini. {error.message} Run `{INSTALL_GEMINI}`, then `{command}` again."
    if offered := _offered_variables(settings, env, environ):
        flags = " ".join(f"--env {name}" for name in offered)
        reason = (
            f"{', '.join(offered)}, unless you start {client.title} in a terminal where it is set"
            if client.inherits_terminal
            else f"{', '.join(offered)}: set in this terminal, but {client.title} does not see it"
        )
        yield f"{reason}. To write it into the file, run `{command} {flags}`."
    needs_key = bool({"gemini", "api"} & set(settings.providers))
    if needs_key and not is_signed_in({**environ, **env}):
        yield (
            "a key. Get one at aistudio.google.com/apikey, then run "
            f"`{command} --env GEMINI_API_KEY=...`, or put it into ~/.gemini/.env."
        )


def _offered_variables(
    settings: Settings, env: Mapping[str, str], environ: Mapping[str, str]
) -> list[str]:
    """Return the variables that are set in this terminal but not in the entry."""
    names = [*KEY_VARIABLES, *known_variables(), *sorted(settings.engines.key_variables)]
    if environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").strip():
        names += VERTEX_VARIABLES
    excluded = {*env, *SECRET_VARIABLES, CLI_PATH}  # that path was tried already
    return [
        name
        for name in dict.fromkeys(names)
        if environ.get(name, "").strip() and name not in excluded
    ]


def _foreign_entry(config: ConfigFile, hint: str) -> ConfigError:
    kind = "points to a server by its URL" if "url" in config.entry else "starts another program"
    return ConfigError(
        f"The entry {SERVER_NAME} in {config.path} {kind}; it was not changed.", hint=hint
    )


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
