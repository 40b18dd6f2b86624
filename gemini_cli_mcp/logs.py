"""Logging to stderr as `[LEVEL] message`: one line each, no secrets, no stack traces.

stdout is reserved for the MCP protocol. Queries and answers are never logged: our own lines
contain codes and numbers, and records of libraries are reduced to their source location.
"""

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

from gemini_cli_mcp.platforms.streams import is_writable
from gemini_cli_mcp.sanitize import redact, replace_unsafe_chars

PACKAGE = "gemini_cli_mcp"
MAX_LINE_CHARS = 2000
"""Maximum characters of a line: a pipe that polls as writable accepts this many immediately."""


class _LineFormatter(logging.Formatter):
    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        is_own = record.name.partition(".")[0] == PACKAGE
        message = (
            redact(replace_unsafe_chars(record.getMessage()), self._secrets)
            if is_own
            else _log_location(record)
        )
        return f"[{record.levelname}] {' '.join(message.splitlines())[:MAX_LINE_CHARS]}"


class _NonBlockingHandler(logging.StreamHandler[TextIO]):
    """Drop lines when stderr is not being read; a blocking write would stall the event loop."""

    def emit(self, record: logging.LogRecord) -> None:
        if is_writable(self.stream):
            super().emit(record)


def _log_location(record: logging.LogRecord) -> str:
    """Return the source location and exception type; a library's message may quote user data."""
    exception_type = record.exc_info[0] if record.exc_info else None
    suffix = f" ({exception_type.__name__})" if exception_type else ""
    return f"{record.name}: line {record.lineno} of {record.filename}{suffix}"


def configure(level: str, secrets: Sequence[str] = ()) -> None:
    """Log this package at `level`, and warnings of libraries, to stderr."""
    logging.raiseExceptions = False  # a closed stderr is not an error
    handler = _NonBlockingHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(secrets))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(PACKAGE).setLevel(level)
