"""Log lines: `[LEVEL] message` on stderr, one line each, no secrets and no stack traces.

stdout belongs to the MCP protocol. What users ask and what is answered is in none of them: our
own lines hold codes and numbers, and of a library's line only the place in its code is told.
"""

import logging
import select
import sys
from collections.abc import Sequence
from typing import TextIO

from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import replace_unsafe_chars

PACKAGE = "gemini_cli_mcp"
MAX_LINE_CHARS = 2000
"""Characters of a line: so many a pipe that takes anything takes at once."""


class _LineFormatter(logging.Formatter):
    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.partition(".")[0] == PACKAGE
        message = (
            redact(replace_unsafe_chars(record.getMessage()), self._secrets)
            if ours
            else _log_location(record)
        )
        return f"[{record.levelname}] {' '.join(message.splitlines())[:MAX_LINE_CHARS]}"


class _NonBlockingHandler(logging.StreamHandler["TextIO"]):
    """Drops lines that nobody reads: waiting for that would stop the whole program."""

    def emit(self, record: logging.LogRecord) -> None:
        if _is_writable(self.stream):
            super().emit(record)


def _is_writable(stream: TextIO) -> bool:
    """Whether a line can be written without waiting; where that cannot be known, it can."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # Windows; a stream that is no file
        return True


def _log_location(record: logging.LogRecord) -> str:
    """Where a library complains, and of which kind of failure: its words may quote anything."""
    kind = record.exc_info[0] if record.exc_info else None
    failure = f" ({kind.__name__})" if kind else ""
    return f"{record.name}: line {record.lineno} of {record.filename}{failure}"


def configure(level: str, secrets: Sequence[str] = ()) -> None:
    """Send the logs of this program, and warnings of its libraries, to stderr."""
    logging.raiseExceptions = False  # a log that nobody takes any more is no failure
    handler = _NonBlockingHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(secrets))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(PACKAGE).setLevel(level)
