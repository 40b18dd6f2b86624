"""Command-line interface: one small function per command."""

import argparse
import logging
import os
import sys
from pathlib import Path

from gemini_cli_mcp import __version__, logs
from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.redaction import redact, secret_values
from gemini_cli_mcp.settings.engines_file import DEFAULT_HITS, MAX_HITS, RECENCY_DAYS
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import THINKING_TOKENS


def main(arguments: list[str] | None = None, limits: Limits | None = None) -> int:
    """Run a command and return its exit code."""
    options = build_parser().parse_args(arguments)
    logs.configure("INFO")
    if options.command is _install:  # install and doctor handle a bad configuration themselves
        return _install(options)
    if options.command is _doctor:
        return _doctor(options, limits)
    try:
        settings = Settings.from_env(os.environ, limits)
    except ConfigError as error:
        return _report_config_error(error)
    logs.configure(settings.log_level, settings.secrets)
    for warning in settings.engines.warnings:
        logging.getLogger(__name__).warning("GEMINI_MCP_WEB_SEARCH: %s", warning)
    try:
        code: int = options.command(settings, options)
        if sys.stdout:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`). Redirect stdout, or Python reports the
        # broken pipe again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _report_config_error(error: ConfigError) -> int:
    message = redact(error.message, secret_values(os.environ))
    print(f"[ERROR] {error.code}: {message}", file=sys.stderr)
    return 1


def _serve(settings: Settings, options: argparse.Namespace) -> int:
    import anyio

    if options.http:
        from gemini_cli_mcp.server.streamable_http import serve_http

        try:
            address = (options.host, options.port, options.allowed_host)
            anyio.run(serve_http, settings, os.environ, *address)
        except ConfigError as error:
            return _report_config_error(error)
        return 0
    if sys.stdin is None or sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        return _report_config_error(ConfigError("stdin or stdout is closed, but MCP needs both."))
    from gemini_cli_mcp.server.stdio import serve_stdio

    anyio.run(serve_stdio, settings, os.environ)
    # Everything is closed, but an abandoned worker thread may still be parsing a reply, and a
    # normal exit would wait for it.
    os._exit(0)


def _search(settings: Settings, options: argparse.Namespace) -> int:
    from gemini_cli_mcp.cli import commands

    return commands.search(settings, os.environ, options.query, as_json=options.json)


def _grounded_search(settings: Settings, options: argparse.Namespace) -> int:
    from gemini_cli_mcp.cli import commands

    return commands.grounded_search(
        settings,
        os.environ,
        options.query,
        model=options.model,
        thinking=options.thinking,
        include_thoughts=options.include_thoughts,
        as_json=options.json,
    )


def _web_search(settings: Settings, options: argparse.Namespace) -> int:
    from gemini_cli_mcp.cli import commands

    return commands.web_search(
        settings,
        os.environ,
        options.query,
        engine=options.engine,
        recency=options.recency,
        count=options.count,
        as_json=options.json,
    )


def _gateway(settings: Settings, options: argparse.Namespace) -> int:
    import anyio

    from gemini_cli_mcp.gateway.serve import serve_gateway

    try:
        address = (options.host, options.port, options.allowed_host)
        anyio.run(serve_gateway, settings, os.environ, *address)
    except ConfigError as error:
        return _report_config_error(error)
    return 0


def _login(settings: Settings, options: argparse.Namespace) -> int:
    from gemini_cli_mcp.cli import commands

    return commands.login(settings, os.environ, options.provider)


def _doctor(options: argparse.Namespace, limits: Limits | None) -> int:
    from gemini_cli_mcp.cli.doctor.command import doctor

    logs.configure("ERROR")
    return doctor(os.environ, live=options.live, as_json=options.json, limits=limits)


def _install(options: argparse.Namespace) -> int:
    from gemini_cli_mcp.cli.install import install

    return install(
        os.environ,
        options.client,
        variables=options.env,
        only_print=options.print,
        uninstall=options.uninstall,
    )


def _deep_search(settings: Settings, options: argparse.Namespace) -> int:
    from gemini_cli_mcp.cli import commands

    return commands.deep_search(
        settings,
        os.environ,
        options.query,
        max_iterations=options.max_iterations,
        as_json=options.json,
        output=options.output,
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemini-cli-mcp",
        description="Google-grounded web research for MCP clients and the terminal, powered by "
        "the official gemini CLI. Without a command, serves MCP over stdio.",
        epilog="Run `gemini-cli-mcp COMMAND --help` for the options of a command. Configuration "
        "is read from environment variables (docs/configuration.md); `gemini-cli-mcp doctor` "
        "checks it.",
    )
    parser.add_argument(
        "--version", action="version", version=__version__, help="print the version and exit"
    )
    parser.set_defaults(command=_serve, http=False)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    serve = subparsers.add_parser(
        "serve",
        help="serve MCP over stdio (the default command) or HTTP",
        description="Serve MCP over stdio, or over streamable HTTP with --http.",
    )
    serve.add_argument(
        "--http", action="store_true", help="serve streamable HTTP at /mcp instead of stdio"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    serve.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="port to listen on (default: %(default)s); 0 picks a free port",
    )
    _add_allowed_host(serve)
    serve.set_defaults(command=_serve)
    search = subparsers.add_parser(
        "search",
        help="research a question and print the report",
        description="Research a question on the web and print a report with its sources.",
    )
    search.add_argument("query", metavar="QUERY", help="the question to research")
    search.add_argument(
        "--json", action="store_true", help="print the structured result instead of the report"
    )
    search.set_defaults(command=_search)
    deep_search = subparsers.add_parser(
        "deep-search",
        help="research in rounds until the report is verified or the rounds are used up",
        description="Research a question in rounds until the report is verified. This takes "
        "minutes; press Ctrl-C to stop early and print the best report so far.",
    )
    deep_search.add_argument("query", metavar="QUERY", help="the question to research")
    deep_search.add_argument(
        "--max-iterations",
        type=int,
        metavar="N",
        help="maximum number of rounds, from 2 to DEEP_SEARCH_MAX_ITERATIONS (the default)",
    )
    deep_search.add_argument(
        "--json", action="store_true", help="print the structured result instead of the report"
    )
    deep_search.add_argument(
        "--output", type=Path, metavar="FILE.md", help="also write the report to this file"
    )
    deep_search.set_defaults(command=_deep_search)
    grounded = subparsers.add_parser(
        "grounded-search",
        help="answer a question with a single grounded Google search",
        description="Answer a question with a single grounded Google search, and list its sources.",
    )
    grounded.add_argument("query", metavar="QUERY", help="the question to answer")
    grounded.add_argument(
        "--model", help="model that runs the search (default: GEMINI_MCP_GROUNDED_MODEL)"
    )
    grounded.add_argument(
        "--thinking",
        choices=list(THINKING_TOKENS),
        help="thinking level (default: GEMINI_MCP_GROUNDED_THINKING)",
    )
    grounded.add_argument(
        "--include-thoughts",
        action="store_true",
        help="include the model's thoughts; requires provider `api`",
    )
    grounded.add_argument(
        "--json", action="store_true", help="print the structured result instead of the answer"
    )
    grounded.set_defaults(command=_grounded_search)
    web = subparsers.add_parser(
        "web-search",
        help="search the web and list the hits",
        description="Search the web and list the hits.",
    )
    web.add_argument("query", metavar="QUERY", help="what to search for")
    web.add_argument("--engine", help="id of an engine in the engines file (GEMINI_MCP_WEB_SEARCH)")
    web.add_argument(
        "--recency",
        choices=list(RECENCY_DAYS),
        help="only list pages at most this old (default: noLimit)",
    )
    web.add_argument(
        "--count",
        type=int,
        metavar="N",
        help=f"maximum number of hits, from 1 to {MAX_HITS} (default: {DEFAULT_HITS})",
    )
    web.add_argument(
        "--json", action="store_true", help="print the structured result instead of the list"
    )
    web.set_defaults(command=_web_search)
    gateway = subparsers.add_parser(
        "gateway",
        help="add web search to the models of an OpenAI-compatible server",
        description="Serve an OpenAI-compatible API that forwards requests to an upstream server "
        "and lets its models search the web. Set GEMINI_MCP_UPSTREAM_URL, or `gateway.upstreams` "
        "in the engines file (GEMINI_MCP_WEB_SEARCH).",
    )
    gateway.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    gateway.add_argument(
        "--port",
        type=_port,
        default=8399,
        help="port to listen on (default: %(default)s); 0 picks a free port",
    )
    _add_allowed_host(gateway)
    gateway.set_defaults(command=_gateway)
    login = subparsers.add_parser(
        "login",
        help="sign in with a provider's official CLI",
        description="Start a provider's official CLI in this terminal, to sign in there.",
    )
    login.add_argument("provider", choices=["gemini", "antigravity"], help="the provider")
    login.set_defaults(command=_login)
    doctor = subparsers.add_parser(
        "doctor",
        help="check everything a search needs and explain how to fix problems",
        description="Check everything a search needs and print a fix for each problem. Exits "
        "with 0 only if a search can work.",
    )
    doctor.add_argument("--live", action="store_true", help="also run one small real search")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)
    install = subparsers.add_parser(
        "install",
        help="add this server to the configuration of an MCP client",
        description="Add this server to the configuration of an MCP client. Other entries are "
        "left unchanged.",
    )
    install.add_argument(
        "client",
        choices=["claude-desktop", "claude-code", "cursor", "vscode"],
        help="the client to configure",
    )
    install.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set an environment variable for the server; without =VALUE, the value from the "
        "current environment (repeatable)",
    )
    mode = install.add_mutually_exclusive_group()
    mode.add_argument("--print", action="store_true", help="print the entry instead of writing it")
    mode.add_argument(
        "--uninstall", action="store_true", help="remove this server from the configuration"
    )
    install.set_defaults(command=_install)
    return parser


def _add_allowed_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name or address that clients use, such as the public name of a "
        "reverse proxy; loopback names are always allowed, any other name requires "
        "GEMINI_MCP_HTTP_TOKENS (repeatable)",
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("the port must be a number from 0 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
