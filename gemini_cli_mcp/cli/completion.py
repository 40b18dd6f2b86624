"""`completion`: a script that completes the command line in a shell."""

import shtab

from gemini_cli_mcp.cli.arguments import build_parsers
from gemini_cli_mcp.cli.options import Options


def print_completion(options: Options) -> int:
    """Print the script for the user's shell and return the exit code."""
    parser, _ = build_parsers()
    print(shtab.complete(parser, shell=options.shell))
    return 0
