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
MIN_HELP_COLUMNS = 20


class CommandParser(argparse.ArgumentParser):
    """The parser of the program or of one of its commands."""

    file_options: Sequence[argparse.Action] = ()
    """The options whose values are paths."""
    takes_words: bool = False
    """Whether it takes a question as words."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how to get help, and exit with 2."""
        print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        print(f"Run `{self.prog} --help` for its arguments and examples.", file=sys.stderr)
        sys.exit(BAD_USAGE_EXIT_CODE)

    def reject_unknown_options(self, arguments: Sequence[str]) -> None:
        """Exit with 2 if there is an option among arguments that were not recognised."""
        for argument in arguments:
            if not argument.startswith("-") or argument == "-" or " " in argument:
                continue  # a word
            name = argument.partition("=")[0]
            known = re.findall(r"^  +(?:-\w, )?--([a-z-]+)", self.format_help(), re.MULTILINE)
            closest = closest_name(name.lstrip("-"), known)
            advice = f"did you mean --{closest}?" if closest else ""
            if not closest and self.takes_words:
                advice = "put -- before words that start with a dash"
            self.error(f"{name}: unknown option" + (f"; {advice}" if advice else ""))


def add_command(
    subparsers: "Subparsers", name: str, *, summary: str, description: str, examples: Sequence[str]
) -> CommandParser:
    """Add a command; its help ends with examples, in which $ stands for the command itself."""
    lines = "\n".join(f"  {item.replace('$', f'{PROGRAM} {name}', 1)}" for item in examples)
    width = max(MIN_HELP_COLUMNS, shutil.get_terminal_size().columns - 2)
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, width),
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=name.replace("-", "_"))
    return parser


def whole_number(text: str) -> int:
    """Parse an argument that is a whole number."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)
