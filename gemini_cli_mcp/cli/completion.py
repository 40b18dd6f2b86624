"""`completion`: a script that completes the command line in a shell."""

import shtab

from gemini_cli_mcp.cli.arguments import build_parsers
from gemini_cli_mcp.cli.options import Options


def print_completion(options: Options) -> int:
    """Print the script for the user's shell and return the exit code."""
    parser, commands = build_parsers()
    for command in commands.values():
        # Shells show one line per command.
        command.description = " ".join((command.description or "").split()).partition(". ")[0]
        for action in command.file_options:
            setattr(action, "complete", shtab.FILE)  # noqa: B010 - only shtab knows it
    print(shtab.complete(parser, shell=options.shell))
    return 0
