"""The arguments of the commands that serve."""

import argparse
from typing import TYPE_CHECKING

from gemini_cli_mcp.cli.command_parser import CommandParser, add_command
from gemini_cli_mcp.cli.options import Options

if TYPE_CHECKING:
    from gemini_cli_mcp.cli.command_parser import Subparsers


def add_serve(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "serve",
        summary="serve MCP over stdio (the default command) or HTTP",
        description="Serve MCP over stdio, or over streamable HTTP with --http.",
        examples=[
            "$",
            "GEMINI_MCP_HTTP_TOKENS=... $ --http --host 0.0.0.0 --port 8000 "
            "--allowed-host mcp.example.com",
        ],
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


def add_gateway(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "gateway",
        summary="add web search to the models of an OpenAI-compatible server",
        description="Serve an OpenAI-compatible API that forwards requests to an upstream server "
        "and lets its models search the web. Set GEMINI_MCP_UPSTREAM_URL, or `gateway.upstreams` "
        "in the engines file (GEMINI_MCP_WEB_SEARCH).",
        examples=[
            "GEMINI_MCP_UPSTREAM_URL=http://localhost:11434/v1 $",
            "GEMINI_MCP_HTTP_TOKENS=... $ --host 0.0.0.0 --port 8399 "
            "--allowed-host models.example.com",
        ],
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


def _add_allowed_host(parser: CommandParser) -> None:
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
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)
