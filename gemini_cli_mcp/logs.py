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
from gemini_cli_mcp.sanitize import scrub

OURS = "gemini_cli_mcp"
LONGEST = 2000
"""Characters of a line: so many a pipe that takes anything takes at once."""


class _OneLine(logging.Formatter):
    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.partition(".")[0] == OURS
        message = redact(scrub(record.getMessage()), self._secrets) if ours else _place_of(record)
        return f"[{record.levelname}] {' '.join(message.splitlines())[:LONGEST]}"


class _Stderr(logging.StreamHandler["TextIO"]):
    """Drops lines that nobody reads: waiting for that would stop the whole program."""

    def emit(self, record: logging.LogRecord) -> None:
        if _takes_more(self.stream):
            super().emit(record)


def _takes_more(stream: TextIO) -> bool:
    """Whether a line can be written without waiting; where that cannot be known, it can."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # Windows; a stream that is no file
        return True


def _place_of(record: logging.LogRecord) -> str:
    """Where a library complains, and of which kind of failure: its words may quote anything."""
    kind = record.exc_info[0] if record.exc_info else None
    failure = f" ({kind.__name__})" if kind else ""
    return f"{record.name}: line {record.lineno} of {record.filename}{failure}"


def configure(level: str, secrets: Sequence[str] = ()) -> None:
    """Send the logs of this program, and warnings of its libraries, to stderr."""
    logging.raiseExceptions = False  # a log that nobody takes any more is no failure
    handler = _Stderr(sys.stderr)
    handler.setFormatter(_OneLine(secrets))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(OURS).setLevel(level)
