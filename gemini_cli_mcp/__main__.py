"""The command line: one small function per command."""

import argparse
import logging
import os
import sys
from pathlib import Path

from gemini_cli_mcp import __version__, logs
from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.redaction import redact, secret_values
from gemini_cli_mcp.settings.engines_file import MAX_HITS, RECENCY_DAYS
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import THINKING_TOKENS


def main(arguments: list[str] | None = None, limits: Limits | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
    logs.configure("INFO")
    if options.command is _install:  # these two deal with a bad configuration themselves
        return _install(options)
    if options.command is _doctor:
        return _doctor(options, limits)
    try:
        settings = Settings.from_env(os.environ, limits)
    except ConfigError as error:
        return _report_config_error(error)
    logs.configure(settings.log_level, settings.secrets)
    for note in settings.engines.warnings:
        logging.getLogger(__name__).warning("GEMINI_MCP_WEB_SEARCH: %s", note)
    try:
        code: int = options.command(settings, options)
        if sys.stdout:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain of it at exit.
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
            where = (options.host, options.port, options.allowed_host)
            anyio.run(serve_http, settings, os.environ, *where)
        except ConfigError as error:
            return _report_config_error(error)
        return 0
    if sys.stdin is None or sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        return _report_config_error(ConfigError("stdin or stdout is closed, and MCP needs both."))
    from gemini_cli_mcp.server.stdio import serve_stdio

    anyio.run(serve_stdio, settings, os.environ)
    # All is closed; only a thread may still be reading an answer that nobody waits for.
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
        where = (options.host, options.port, options.allowed_host)
        anyio.run(serve_gateway, settings, os.environ, *where)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemini-cli-mcp",
        description="Google-grounded web research for MCP clients and for your terminal, "
        "by the official gemini CLI.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(command=_serve, http=False)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    serve = subparsers.add_parser(
        "serve", help="MCP over stdio (also without any command), or HTTP"
    )
    serve.add_argument("--http", action="store_true", help="streamable HTTP, at /mcp")
    serve.add_argument("--host", default="127.0.0.1", help="where to listen; default %(default)s")
    serve.add_argument(
        "--port", type=_port, default=8000, help="default %(default)s; 0: any that is free"
    )
    _add_allowed_host(serve)
    serve.set_defaults(command=_serve)
    search = subparsers.add_parser("search", help="research a question and print the report")
    search.add_argument("query", metavar="QUERY")
    search.add_argument("--json", action="store_true", help="print the structured result")
    search.set_defaults(command=_search)
    deep_search = subparsers.add_parser(
        "deep-search",
        help="research in rounds until the report is verified",
        description="Research in rounds until the report is verified. Takes minutes; Ctrl-C ends "
        "it and prints the best report so far.",
    )
    deep_search.add_argument("query", metavar="QUERY")
    deep_search.add_argument(
        "--max-iterations",
        type=int,
        metavar="N",
        help="rounds at most: from 2 to DEEP_SEARCH_MAX_ITERATIONS, which is the default",
    )
    deep_search.add_argument("--json", action="store_true", help="print the structured result")
    deep_search.add_argument(
        "--output", type=Path, metavar="FILE.md", help="write the report to this file too"
    )
    deep_search.set_defaults(command=_deep_search)
    grounded = subparsers.add_parser("grounded-search", help="ask Google Search one thing")
    grounded.add_argument("query", metavar="QUERY")
    grounded.add_argument("--model", help="the model that searches")
    grounded.add_argument("--thinking", choices=list(THINKING_TOKENS))
    grounded.add_argument("--include-thoughts", action="store_true", help="where the provider can")
    grounded.add_argument("--json", action="store_true", help="print the structured result")
    grounded.set_defaults(command=_grounded_search)
    web = subparsers.add_parser("web-search", help="list pages of the web")
    web.add_argument("query", metavar="QUERY")
    web.add_argument("--engine", help="one of the engines of GEMINI_MCP_WEB_SEARCH")
    web.add_argument("--recency", choices=list(RECENCY_DAYS))
    web.add_argument("--count", type=int, metavar="N", help=f"hits at most, 1 to {MAX_HITS}")
    web.add_argument("--json", action="store_true", help="print the structured result")
    web.set_defaults(command=_web_search)
    gateway = subparsers.add_parser(
        "gateway", help="web_search for any model, in front of an OpenAI-compatible server"
    )
    gateway.add_argument("--host", default="127.0.0.1", help="where to listen; default %(default)s")
    gateway.add_argument(
        "--port", type=_port, default=8399, help="default %(default)s; 0: any that is free"
    )
    _add_allowed_host(gateway)
    gateway.set_defaults(command=_gateway)
    login = subparsers.add_parser("login", help="sign in with the official CLI, in this terminal")
    login.add_argument("provider", choices=["gemini", "antigravity"])
    login.set_defaults(command=_login)
    doctor = subparsers.add_parser(
        "doctor", help="what a search needs, and how to mend what is missing"
    )
    doctor.add_argument("--live", action="store_true", help="make one tiny real search too")
    doctor.add_argument("--json", action="store_true", help="print the structured result")
    doctor.set_defaults(command=_doctor)
    install = subparsers.add_parser(
        "install", help="write this server into the configuration of an MCP client"
    )
    install.add_argument("client", choices=["claude-desktop", "claude-code", "cursor", "vscode"])
    install.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for the server; without a value, the one it has here",
    )
    instead = install.add_mutually_exclusive_group()
    instead.add_argument("--print", action="store_true", help="print it instead of writing it")
    instead.add_argument("--uninstall", action="store_true", help="remove it again")
    install.set_defaults(command=_install)
    return parser


def _add_allowed_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address by which clients reach the server, beside this machine's own; "
        "needs GEMINI_MCP_HTTP_TOKENS",
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
