"""argparse with errors for people: what is wrong, what was probably meant, where to read on."""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from gemini_cli_mcp.cli.wording import PROGRAM
from gemini_cli_mcp.suggestions import closest_name

if TYPE_CHECKING:
    # The standard library has no public name for what `add_subparsers` returns.
    Subparsers = argparse._SubParsersAction["CommandParser"]  # pyright: ignore[reportPrivateUsage]

BAD_USAGE_EXIT_CODE = 2


class CommandParser(argparse.ArgumentParser):
    """The parser of the program or of one of its commands."""

    file_options: Sequence[argparse.Action] = ()
    """The options whose values are paths."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how to get help, and exit with 2."""
        print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        print(f"Run `{self.prog} --help` for its arguments and examples.", file=sys.stderr)
        sys.exit(BAD_USAGE_EXIT_CODE)

    def reject_unknown_options(self, arguments: Sequence[str]) -> None:
        """Exit with 2 if there is an option among arguments that were not recognised."""
        for argument in arguments:
            if argument.startswith("-") and argument != "-":
                name = argument.partition("=")[0]
                known = re.findall(r"--([a-z-]+)", self.format_usage())
                closest = closest_name(name.lstrip("-"), known)
                meant = f"; did you mean --{closest}?" if closest else ""
                self.error(f"{name}: unknown option{meant}")


def add_command(
    subparsers: "Subparsers", name: str, *, summary: str, description: str, examples: Sequence[str]
) -> CommandParser:
    """Add a command; its help ends with examples, given without the program's name."""
    lines = "\n".join(f"  {PROGRAM} {name} {example}".rstrip() for example in examples)
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, shutil.get_terminal_size().columns - 2),
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name.replace("-", "_"))
    return parser


def whole_number(text: str) -> int:
    """Parse an argument that is a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
