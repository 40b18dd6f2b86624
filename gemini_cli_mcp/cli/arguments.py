"""The command line: all commands, parsed into `Options`."""

from collections.abc import Sequence

from gemini_cli_mcp import __version__
from gemini_cli_mcp.cli import research_arguments, server_arguments, setup_arguments
from gemini_cli_mcp.cli.command_parser import CommandParser
from gemini_cli_mcp.cli.install.clients import CLIENTS
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.cli.wording import PROGRAM
from gemini_cli_mcp.suggestions import closest_name


def parse_options(arguments: Sequence[str]) -> Options:
    """Parse the command line; exit with 2 and a message if it is invalid."""
    parser, commands = build_parsers()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        parser.error(_unknown_command(arguments[0], commands))
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = parser.parse_known_args(arguments[:end], namespace=Options())
    command = commands.get(arguments[0], parser) if arguments else parser
    command.reject_unknown_options(rest)
    rest += arguments[end + 1 :]  # these are words, whatever they start with
    if rest and not command.takes_words:
        command.error(f"unexpected argument {rest[0]!r}")
    options.words = [*options.words, *rest]  # those around the options, in their order
    if command.takes_words and not options.words:
        command.error("QUERY is missing")
    if options.command == "serve" and not options.http:
        given = [name for name in ("host", "port") if name in vars(options)]
        given += ["allowed-host"] if options.allowed_host else []
        if given:
            commands["serve"].error(f"--{given[0]} requires --http")
    if options.project and not CLIENTS[options.client].project_file:
        commands["install"].error(f"{options.client} has no configuration files in projects")
    return options


def build_parsers() -> tuple[CommandParser, dict[str, CommandParser]]:
    """Return the parser of the whole command line, and those of its commands by name."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Google-grounded web research for MCP clients and the terminal, powered by "
        "the official gemini CLI. Without a command, serves MCP over stdio.",
        epilog=f"Run `{PROGRAM} COMMAND --help` for the arguments of a command, and for examples. "
        f"Configuration is read from environment variables (docs/configuration.md); `{PROGRAM} "
        "doctor` checks it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=__version__, help="print the version and exit"
    )
    parser.set_defaults(command="serve")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    server_arguments.add_serve(subparsers)
    research_arguments.add_commands(subparsers)
    server_arguments.add_gateway(subparsers)
    setup_arguments.add_commands(subparsers)
    return parser, dict(subparsers.choices)


def _unknown_command(name: str, commands: dict[str, CommandParser]) -> str:
    if name in ("help", "version"):
        return f"unknown command {name!r}; did you mean `{PROGRAM} --{name}`?"
    if closest := closest_name(name, list(commands)):
        return f"unknown command {name!r}; did you mean `{PROGRAM} {closest}`?"
    return f"unknown command {name!r}; to research a question: `{PROGRAM} search QUERY`"
