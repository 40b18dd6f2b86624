"""Entry point; it imports nothing slow before it can handle Ctrl-C."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemini_cli_mcp.limits import Limits


def main(arguments: list[str] | None = None, limits: "Limits | None" = None) -> int:
    """Run a command and return its exit code."""
    try:
        from gemini_cli_mcp.program import run

        return run(sys.argv[1:] if arguments is None else arguments, limits)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
