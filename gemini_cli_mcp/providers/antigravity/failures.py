"""Classify failed runs of `agy` by its error text; the exit code is not meaningful."""

import re
from collections.abc import Sequence

from gemini_cli_mcp.errors import (
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.execution_errors import PermissionDenied
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.antigravity.events import AgyEventLog
from gemini_cli_mcp.sanitize import redact, replace_unsafe_chars

SIGN_IN_HINT = "Run `gemini-cli-mcp login antigravity` in a terminal and sign in."

_PERMISSION_DENIED = re.compile(
    r"auto-denied|permission that headless mode cannot prompt", re.IGNORECASE
)
_AUTH = re.compile(
    r"authentication (?:failed|required|timed out)|to log in|not logged in|o/oauth2/",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"quota|out of credits|AI credits|RESOURCE_EXHAUSTED", re.IGNORECASE)
_OVERLOADED = re.compile(r"MODEL_CAPACITY_EXHAUSTED|\b503\b|overloaded", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(r"(?:unknown|invalid|unsupported) (?:model|effort)", re.IGNORECASE)


def classify_failure(
    completed: Completed, events: AgyEventLog, secrets: Sequence[str]
) -> GeminiMcpError | None:
    """Return why the run failed, with secrets redacted; None if it succeeded."""
    result = events.result
    succeeded = result is not None and result.status == "SUCCESS"
    error_message = redact(result.error if result else "", secrets)
    text = f"{error_message}\n{redact(completed.stderr, secrets)}"
    details = replace_unsafe_chars(text).strip()[-2000:] or None
    if succeeded and events.text.strip():
        return None
    if error := _classify_text(text, details):
        return error
    if completed.end_reason in ("idle", "timeout"):
        return TimedOut("agy did not finish in time and was stopped.", details=details)
    if completed.end_reason == "output_limit":
        return ExecutionFailed("agy exceeded the output limit and was stopped.", details=details)
    if result is None:
        return ExecutionFailed("agy exited before completing its answer.", details=details)
    if succeeded:
        return ExecutionFailed("agy returned an empty answer.", details=details)
    first_line = replace_unsafe_chars(error_message.partition("\n")[0])[:300] or "no reason given"
    return ExecutionFailed(f"agy failed: {first_line}", details=details)


def _classify_text(text: str, details: str | None) -> GeminiMcpError | None:
    """Return the error that the text describes, if it is a known one."""
    if _AUTH.search(text):
        return NotSignedIn("agy is not signed in.", hint=SIGN_IN_HINT, details=details)
    if _PERMISSION_DENIED.search(text):
        message = "agy needed permission for a tool and could not ask for it in headless mode."
        return PermissionDenied(message, details=details)
    if _OVERLOADED.search(text):
        return RateLimited("The model is overloaded.", details=details)
    if _QUOTA.search(text):
        return QuotaExhausted("The Antigravity quota is exhausted.", details=details)
    if _UNKNOWN_MODEL.search(text):
        return ConfigError("agy does not support the model or the effort level.", details=details)
    return None
