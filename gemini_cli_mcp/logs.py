"""Log lines: `[LEVEL] message` on stderr, one line each, no secrets and no stack traces.

stdout belongs to the MCP protocol.
"""

import logging
import sys

from gemini_cli_mcp.text import redact, scrub


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = " ".join(redact(scrub(record.getMessage())).split("\n"))
        return f"[{record.levelname}] {message}"


def configure(level: str) -> None:
    """Send the logs of this program, and warnings of its libraries, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("gemini_cli_mcp").setLevel(level)
