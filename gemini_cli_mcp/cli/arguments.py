"""The command line: each command with its arguments and their help, parsed into `Options`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gemini_cli_mcp import __version__
from gemini_cli_mcp.cli.install.clients import CLIENTS
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.settings.engines import DEFAULT_HITS, MAX_HITS, RECENCY_DAYS
from gemini_cli_mcp.types import THINKING_TOKENS

if TYPE_CHECKING:
    # The standard library has no public name for what `add_subparsers` returns.
    Subparsers = argparse._SubParsersAction[  # pyright: ignore[reportPrivateUsage]
        argparse.ArgumentParser
    ]


def parse_options(arguments: list[str] | None) -> Options:
    """Parse the command line; exit with 2 and a message if it is invalid."""
    parser = build_parser()
    options = parser.parse_args(arguments, namespace=Options())
    if options.command == "serve" and not options.http:
        given = [name for name in ("host", "port") if name in vars(options)]
        given += ["allowed-host"] if options.allowed_host else []
        if given:
            parser.error(f"serve: --{given[0]} requires --http")
    if options.project and not CLIENTS[options.client].project_file:
        parser.error(f"install: {options.client} has no configuration files in projects")
    return options


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
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
    parser.set_defaults(command="serve")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_command in (
        _add_serve,
        _add_search,
        _add_deep_search,
        _add_grounded_search,
        _add_web_search,
        _add_gateway,
        _add_login,
        _add_doctor,
        _add_install,
    ):
        add_command(subparsers)
    return parser


def _add_serve(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve MCP over stdio (the default command) or HTTP",
        description="Serve MCP over stdio, or over streamable HTTP with --http.",
    )
    parser.add_argument(
        "--http", action="store_true", help="serve streamable HTTP at /mcp instead of stdio"
    )
    # Without a default here, `parse_options` can tell whether they were given.
    parser.add_argument(
        "--host",
        default=argparse.SUPPRESS,
        help=f"address to listen on, with --http (default: {Options.host})",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=argparse.SUPPRESS,
        help=f"port to listen on, with --http (default: {Options.port}); 0 picks a free port",
    )
    _add_allowed_host(parser)
    parser.set_defaults(command="serve")


def _add_search(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "search",
        help="research a question and print the report",
        description="Research a question on the web and print a report with its sources.",
    )
    parser.add_argument("query", metavar="QUERY", help="the question to research")
    parser.add_argument(
        "--json", action="store_true", help="print the structured result instead of the report"
    )
    parser.set_defaults(command="search")


def _add_deep_search(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "deep-search",
        help="research in rounds until the report is verified or the rounds are used up",
        description="Research a question in rounds until the report is verified. This takes "
        "minutes; press Ctrl-C to stop early and print the best report so far.",
    )
    parser.add_argument("query", metavar="QUERY", help="the question to research")
    parser.add_argument(
        "--max-iterations",
        type=int,
        metavar="N",
        help="maximum number of rounds, from 2 to DEEP_SEARCH_MAX_ITERATIONS (the default)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the structured result instead of the report"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.md", help="also write the report to this file"
    )
    parser.set_defaults(command="deep_search")


def _add_grounded_search(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "grounded-search",
        help="answer a question with a single grounded Google search",
        description="Answer a question with a single grounded Google search, and list its sources.",
    )
    parser.add_argument("query", metavar="QUERY", help="the question to answer")
    parser.add_argument(
        "--model", help="model that runs the search (default: GEMINI_MCP_GROUNDED_MODEL)"
    )
    parser.add_argument(
        "--thinking",
        choices=list(THINKING_TOKENS),
        help="thinking level (default: GEMINI_MCP_GROUNDED_THINKING)",
    )
    parser.add_argument(
        "--include-thoughts",
        action="store_true",
        help="include the model's thoughts; requires provider `api`",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the structured result instead of the answer"
    )
    parser.set_defaults(command="grounded_search")


def _add_web_search(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "web-search",
        help="search the web and list the hits",
        description="Search the web and list the hits.",
    )
    parser.add_argument("query", metavar="QUERY", help="what to search for")
    parser.add_argument(
        "--engine", help="id of an engine in the engines file (GEMINI_MCP_WEB_SEARCH)"
    )
    parser.add_argument(
        "--recency",
        choices=list(RECENCY_DAYS),
        help="only list pages at most this old (default: noLimit)",
    )
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help=f"maximum number of hits, from 1 to {MAX_HITS} (default: {DEFAULT_HITS})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the structured result instead of the list"
    )
    parser.set_defaults(command="web_search")


def _add_gateway(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "gateway",
        help="add web search to the models of an OpenAI-compatible server",
        description="Serve an OpenAI-compatible API that forwards requests to an upstream server "
        "and lets its models search the web. Set GEMINI_MCP_UPSTREAM_URL, or `gateway.upstreams` "
        "in the engines file (GEMINI_MCP_WEB_SEARCH).",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=8399,
        help="port to listen on (default: %(default)s); 0 picks a free port",
    )
    _add_allowed_host(parser)
    parser.set_defaults(command="gateway")


def _add_login(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "login",
        help="sign in with a provider's official CLI",
        description="Start a provider's official CLI in this terminal, to sign in there.",
    )
    parser.add_argument("provider", choices=["gemini", "antigravity"], help="the provider")
    parser.set_defaults(command="login")


def _add_doctor(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check everything a search needs and explain how to fix problems",
        description="Check everything a search needs and print a fix for each problem. Exits "
        "with 0 only if a search can work.",
    )
    network = parser.add_mutually_exclusive_group()
    network.add_argument("--live", action="store_true", help="also run one small real search")
    network.add_argument(
        "--offline", action="store_true", help="do not try the sign-in, which needs the network"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(command="doctor")


def _add_install(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "install",
        help="add this server to the configuration of an MCP client",
        description="Add this server to the configuration of an MCP client. Other entries are "
        "left unchanged.",
    )
    parser.add_argument(
        "client",
        choices=list(CLIENTS),
        help="the client to configure",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set an environment variable for the server; without =VALUE, the value from the "
        "current environment (repeatable)",
    )
    parser.add_argument(
        "--project",
        action="store_true",
        help="use the client's file in the current folder, for this project only",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace or remove an entry of this name even if it is another server",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--print", action="store_true", help="print the entry instead of writing it")
    mode.add_argument(
        "--uninstall", action="store_true", help="remove this server from the configuration"
    )
    parser.set_defaults(command="install")


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
