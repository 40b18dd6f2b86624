"""Classify failed runs of the CLI by exit code, events, and error text.

Measured on 0.61 (tests/recorded has a run of each): an API error exits with the HTTP status
modulo 256, an empty answer with 0, a killed run with 0 and no `result` event, and a missing
sign-in with 41 and text on stderr only.
"""

import re
from collections.abc import Sequence

from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    TimedOut,
)
from gemini_cli_mcp.execution_errors import ConnectionFailed, SafetyBlocked
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.api_failures import (
    MIN_SILENCE,
    classify_api_error,
    connection_lost,
)
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.sanitize import redact, replace_unsafe_chars
from gemini_cli_mcp.sign_in_errors import LoginRejected, SignInMissing

_BLOCKED = re.compile(r"response was blocked due to")
_USAGE_ERROR = re.compile(
    r"^usage\b"
    r"|(?:unknown|unrecognized|unexpected|illegal|bad|invalid|no such) (?:argument|option|flag)"
    r"|flag provided but not defined|not enough arguments|invalid values:",
    re.IGNORECASE | re.MULTILINE,
)

_FAILED_SEARCH_LINE = re.compile(r"^.*Error during web search for query.*$", re.MULTILINE)
_NOISE = ("    at ", "[STARTUP]", "The 'metricReader' option is deprecated.")
_ERROR_REPORT_PATH = re.compile(r"Full report available at: \S+ ?")

_NO_ANSWER_HINT = (
    "Nothing came from the Gemini API at all: check the network or HTTPS_PROXY. If the model "
    "thinks for minutes, set GEMINI_MODEL to a faster one."
)

_EXIT_DESCRIPTIONS = {
    42: "gemini reported missing input",
    44: "gemini could not start its sandbox",
    53: "gemini reached its turn limit",
    54: "a gemini tool failed permanently",
    55: "gemini does not trust its working folder",
    130: "gemini was interrupted",
}


_API_STATUSES = {status % 256: status for status in (400, 401, 403, 429, 500, 502, 503, 504)}
"""The HTTP status behind an exit code of the official CLI."""


def is_usage_error(completed: Completed, events: EventLog) -> bool:
    """Whether the binary rejected our flags."""
    return (
        completed.end_reason == "exited"
        and completed.exit_code not in (0, None)
        and not events.is_stream
        and _USAGE_ERROR.search(completed.stderr + "\n" + events.text) is not None
    )


def classify_failure(
    completed: Completed,
    events: EventLog,
    secrets: Sequence[str] = (),
    *,
    was_blocked: bool = False,
) -> GeminiMcpError | None:
    """Return the error of a failed run, with secrets redacted; None if it succeeded.

    `was_blocked`: the telemetry says that the safety filter blocked the last answer.
    """
    details = _stderr_tail(completed.stderr, secrets)
    match completed.end_reason:
        case "idle":
            return TimedOut(
                "gemini produced no output for too long and was stopped.",
                hint=None if events.has_answered else _NO_ANSWER_HINT,
                details=details,
            )
        case "timeout":
            return TimedOut("gemini did not finish in time and was stopped.", details=details)
        case "output_limit":
            return ExecutionFailed(
                "gemini exceeded the output limit and was stopped.", details=details
            )
        case "exited" | "finished" | "stopped":
            pass
    if was_blocked or _BLOCKED.search(events.error or ""):
        return SafetyBlocked("The request was blocked by the model's safety filter.")
    if completed.exit_code != 0 or (events.result and events.result.failed):
        return _classify_error(completed, events, details, secrets)
    if events.is_stream and events.result is None:
        return ExecutionFailed("gemini exited before completing its answer.", details=details)
    if not events.text.strip():
        return ExecutionFailed("gemini returned an empty answer.", details=details)
    return None


def _classify_error(
    completed: Completed, events: EventLog, details: str | None, secrets: Sequence[str]
) -> GeminiMcpError:
    error_message = redact(_error_message(events), secrets)
    error = _classify_message(
        completed.exit_code or 0, error_message, completed.stderr, details, secrets
    )
    if isinstance(error, ConnectionFailed):  # if it was there, another run may succeed
        if events.has_answered:
            return connection_lost(details)
        if completed.duration >= MIN_SILENCE:
            return ExecutionFailed("The Gemini API did not answer.", details=details)
    return error


def _classify_message(
    exit_code: int, error_message: str, stderr: str, details: str | None, secrets: Sequence[str]
) -> GeminiMcpError:
    # stderr also reports searches that failed during the run and quotes their queries, so use it
    # only if the CLI reported no final error.
    text = error_message or _FAILED_SEARCH_LINE.sub("", stderr)
    if exit_code == 127 and "node" in stderr:
        return CliNotFound(
            "gemini is installed, but the `node` it runs on is not on PATH.",
            hint="Install Node 20 or newer, or add its folder to PATH in the server's environment.",
            terminal_hint="Install Node 20 or newer, or add its folder to PATH.",
            details=details,
        )
    error = classify_api_error(_API_STATUSES.get(exit_code), text, details=details, secrets=secrets)
    if exit_code == 41 and (error is None or isinstance(error, LoginRejected)):
        return SignInMissing("gemini found no sign-in that it can use.", details=details)
    if error:
        return error
    if exit_code == 52:
        return ConfigError(
            "gemini rejected its settings.",
            hint="Upgrade it with `npm install -g @google/gemini-cli@latest`.",
            details=details,
        )
    return ExecutionFailed(_describe_exit(exit_code, error_message), details=details)


def _describe_exit(exit_code: int, error_message: str) -> str:
    if exit_code < 0:
        return f"gemini was killed by signal {-exit_code}."
    description = _EXIT_DESCRIPTIONS.get(exit_code) or (
        f"gemini failed with exit code {exit_code}" if exit_code else "gemini failed"
    )
    first_line = replace_unsafe_chars(error_message.strip().partition("\n")[0])[:300]
    return f"{description}: {first_line}" if first_line else f"{description}."


def _error_message(events: EventLog) -> str:
    return (events.result.error if events.result else "") or events.error or ""


def _stderr_tail(stderr: str, secrets: Sequence[str]) -> str | None:
    """Return the end of stderr without stack frames, secrets and control characters."""
    lines = [
        line.rstrip()
        for line in _ERROR_REPORT_PATH.sub(
            "", replace_unsafe_chars(redact(stderr, secrets))
        ).splitlines()
        if line.strip() and not line.startswith(_NOISE)
    ]
    return "\n".join(lines)[-2000:] or None
