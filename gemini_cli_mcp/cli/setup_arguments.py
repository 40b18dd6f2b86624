"""The arguments of the commands that set up this program and what it needs."""

from typing import TYPE_CHECKING, get_args

from gemini_cli_mcp.cli.command_parser import add_command
from gemini_cli_mcp.cli.install.clients import CLIENTS
from gemini_cli_mcp.cli.options import Shell
from gemini_cli_mcp.cli.wording import PROGRAM

if TYPE_CHECKING:
    from gemini_cli_mcp.cli.command_parser import Subparsers


def add_commands(subparsers: "Subparsers") -> None:
    """Add the commands that set up this program."""
    _add_login(subparsers)
    _add_doctor(subparsers)
    _add_install(subparsers)
    _add_completion(subparsers)


def _add_login(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "login",
        summary="sign in with a provider's official CLI",
        description="Start a provider's official CLI in this terminal, to sign in there.",
        examples=["$ gemini"],
    )
    parser.add_argument("provider", choices=["gemini", "antigravity"], help="the provider")


def _add_doctor(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "doctor",
        summary="check everything a search needs and explain how to fix problems",
        description="Check everything a search needs and print a fix for each problem. Exits "
        "with 0 only if a search can work.",
        examples=["$", "$ --live", "$ --offline --json"],
    )
    network = parser.add_mutually_exclusive_group()
    network.add_argument("--live", action="store_true", help="also run one small real search")
    network.add_argument(
        "--offline", action="store_true", help="do not try the sign-in, which needs the network"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _add_install(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "install",
        summary="add this server to the configuration of an MCP client",
        description="Add this server to the configuration of an MCP client. Other entries are "
        "left unchanged.",
        examples=[
            "$ claude-desktop --env GEMINI_API_KEY",
            "$ cursor --project --env GEMINI_MODEL=flash",
            "$ vscode --print",
            "$ zed --force",
            "$ claude-desktop --uninstall",
        ],
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


def _add_completion(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "completion",
        summary="print a script that completes commands and options in your shell",
        description="Print a script that completes commands, options and their values when you "
        "press Tab. The examples install it; open a new shell afterwards. zsh finds it if "
        "~/.zshrc has the line `fpath+=~/.zfunc` before `compinit`.",
        examples=[
            f"mkdir -p {folder} && $ {shell} > {folder}/{file}"
            for shell, folder, file in (
                ("bash", "~/.local/share/bash-completion/completions", PROGRAM),
                ("zsh", "~/.zfunc", f"_{PROGRAM}"),
                ("fish", "~/.config/fish/completions", f"{PROGRAM}.fish"),
            )
        ],
    )
    parser.add_argument("shell", choices=list(get_args(Shell)), help="your shell")
