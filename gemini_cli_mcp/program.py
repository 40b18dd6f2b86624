"""The program: parse arguments, call one function per command."""

import logging
import os
import sys

from gemini_cli_mcp import logs
from gemini_cli_mcp.cli.arguments import parse_options
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.platforms.streams import discard_stdout, is_broken_pipe, use_utf8_in_pipes
from gemini_cli_mcp.sanitize import redact, secret_values
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import find_misspelt

logger = logging.getLogger(__name__)


def run(arguments: list[str], limits: Limits | None) -> int:
    """Run a command and return its exit code."""
    options = parse_options(arguments)
    use_utf8_in_pipes(os.environ)
    logs.configure("INFO")
    try:
        code = _run_command(options, limits)
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        if not is_broken_pipe(error):
            raise
        discard_stdout()  # its reader is gone (`| head`)
        return 0
    except ConfigError as error:
        return _report_config_error(error, options)
    return code


def _run_command(options: Options, limits: Limits | None) -> int:
    if sys.stdout is None and options.command != "serve":  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    # These two handle a bad configuration themselves.
    if options.command == "install":
        from gemini_cli_mcp.cli.install.command import install

        return install(os.environ, options)
    if options.command == "doctor":
        return _doctor(options, limits)
    if options.command == "completion":
        from gemini_cli_mcp.cli.completion import print_completion

        return print_completion(options)
    settings = Settings.from_env(os.environ, limits)
    if options.quiet and settings.log_level in ("DEBUG", "INFO"):
        settings = settings.model_copy(update={"log_level": "WARNING"})
    logs.configure(settings.log_level, settings.secrets)
    _warn_about_settings(settings)
    if options.command == "serve":
        return _serve_http(settings, options) if options.http else _serve_stdio(settings)
    if options.command == "gateway":
        return _serve_gateway(settings, options)
    return _run_terminal_command(settings, options)


def _warn_about_settings(settings: Settings) -> None:
    for warning in settings.engines.warnings:
        logger.warning("GEMINI_MCP_WEB_SEARCH: %s", warning)
    if misspelt := find_misspelt(os.environ, settings.engines.key_variables):
        logger.warning("%s", "; ".join(f"{name}: {text}" for name, text in misspelt.items()))


def _run_terminal_command(settings: Settings, options: Options) -> int:
    from gemini_cli_mcp.cli import commands

    match options.command:
        case "search":
            run = commands.search
        case "deep_search":
            run = commands.deep_search
        case "grounded_search":
            run = commands.grounded_search
        case "web_search":
            run = commands.web_search
        case _:
            run = commands.login
    return run(settings, os.environ, options)


def _serve_http(settings: Settings, options: Options) -> int:
    import anyio

    from gemini_cli_mcp.server.streamable_http import serve_http

    address = (options.host, options.port, options.allowed_host)
    anyio.run(serve_http, settings, os.environ, *address)
    return 0


def _serve_stdio(settings: Settings) -> int:
    import anyio

    if sys.stdin is None or sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ConfigError("stdin or stdout is closed, but MCP needs both.")
    if sys.stdin.isatty():
        # Not a log line: it is for a person, whatever the log level is.
        hint = "Waiting for an MCP client on stdin; for other uses, see gemini-cli-mcp --help"
        print(f"[INFO] {hint}", file=sys.stderr)
    from gemini_cli_mcp.server.stdio import serve_stdio

    anyio.run(serve_stdio, settings, os.environ)
    # Everything is closed, but an abandoned worker thread may still be parsing a reply, and a
    # normal exit would wait for it.
    os._exit(0)


def _serve_gateway(settings: Settings, options: Options) -> int:
    import anyio

    from gemini_cli_mcp.gateway.serve import serve_gateway

    address = (options.host, options.port, options.allowed_host)
    anyio.run(serve_gateway, settings, os.environ, *address)
    return 0


def _doctor(options: Options, limits: Limits | None) -> int:
    from gemini_cli_mcp.cli.doctor.command import doctor

    logs.configure("ERROR")
    return doctor(os.environ, options, limits)


def _report_config_error(error: ConfigError, options: Options) -> int:
    secrets = secret_values(os.environ)
    if options.json and options.command != "doctor":
        from gemini_cli_mcp.cli.output import print_json

        print_json(error.for_terminal(), secrets)
    print(f"[ERROR] {error.code}: {redact(error.message, secrets)}", file=sys.stderr)
    if options.command not in ("serve", "gateway"):  # their logs have one line per event
        print(redact(error.for_terminal().next_step, secrets), file=sys.stderr)
    return 1
