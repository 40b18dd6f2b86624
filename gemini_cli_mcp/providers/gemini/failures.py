"""Classify failed runs of the CLI by exit code, events, and error text.

Measured on 0.61 (tests/recorded has a run of each): an API error exits with the HTTP status
modulo 256, an empty answer with 0, a killed run with 0 and no `result` event, and a missing
sign-in with 41 and text on stderr only.
"""

import json
import re
from collections.abc import Sequence
from typing import cast

from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    ConnectionFailed,
    ExecutionFailed,
    GeminiMcpError,
    ModelNotFound,
    NotSignedIn,
    SignInMissing,
    TimedOut,
)
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.quota_errors import is_quota_error, quota_error
from gemini_cli_mcp.sanitize import error_excerpt, redact, replace_unsafe_chars

_PERSONAL_LOGIN = re.compile(r"IneligibleTierError|UNSUPPORTED_CLIENT|no longer supported for Gem")
_KEY_REJECTED = re.compile(
    r"API_KEY_INVALID|API key (?:not valid|expired)|UNAUTHENTICATED|PERMISSION_DENIED|invalid_grant"
    r"|\b(?:code|status)\W{1,3}40[13]\b|Please set an Auth method|FatalAuthenticationError"
)
_ACCESS_DENIED = re.compile(r"PERMISSION_DENIED|\b(?:code|status)\W{1,3}403\b")
_NO_CONNECTION = re.compile(r"\bfetch failed\b")
_NO_CLOUD_CREDENTIALS = re.compile(r"Could not load the default credentials")
_API_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*+)"')
_MODEL_NOT_FOUND = re.compile(r"ModelNotFoundError|models/\S+ is not found")
_USAGE_ERROR = re.compile(
    r"^usage\b"
    r"|(?:unknown|unrecognized|unexpected|illegal|bad|invalid|no such) (?:argument|option|flag)"
    r"|flag provided but not defined|not enough arguments|invalid values:",
    re.IGNORECASE | re.MULTILINE,
)

_FAILED_SEARCH_LINE = re.compile(r"^.*Error during web search for query.*$", re.MULTILINE)
_ERROR_REPORT_PATH = re.compile(r"Full report available at: \S+ ?")

_EXIT_DESCRIPTIONS = {
    42: "gemini reported missing input",
    44: "gemini could not start its sandbox",
    53: "gemini reached its turn limit",
    54: "a gemini tool failed permanently",
    55: "gemini does not trust its working folder",
    130: "gemini was interrupted",
}


def is_usage_error(completed: Completed, events: EventLog) -> bool:
    """Whether the binary rejected our flags."""
    return (
        completed.end_reason == "exited"
        and completed.exit_code not in (0, None)
        and not events.is_stream
        and _USAGE_ERROR.search(completed.stderr + "\n" + events.text) is not None
    )


def classify_failure(
    completed: Completed, events: EventLog, secrets: Sequence[str] = ()
) -> GeminiMcpError | None:
    """Return the error of a failed run, with secrets redacted; None if it succeeded."""
    details = _stderr_tail(completed.stderr, secrets)
    match completed.end_reason:
        case "idle" if events.is_searching:
            return TimedOut(
                "A gemini web search did not return, so the run was stopped.",
                hint="Set GEMINI_MODEL to a full model name such as gemini-2.5-flash. Searches "
                "then use that model too, and a failing search fails immediately.",
                details=details,
            )
        case "idle":
            return TimedOut(
                "gemini produced no output for too long and was stopped.", details=details
            )
        case "timeout":
            return TimedOut("gemini did not finish in time and was stopped.", details=details)
        case "output_limit":
            return ExecutionFailed(
                "gemini exceeded the output limit and was stopped.", details=details
            )
        case "exited" | "finished":
            pass
    if completed.exit_code != 0 or (events.result and events.result.failed):
        error_message = redact(_error_message(events), secrets)
        return _classify_message(
            completed.exit_code or 0, error_message, completed.stderr, details, secrets
        )
    if events.is_stream and events.result is None:
        return ExecutionFailed("gemini exited before completing its answer.", details=details)
    if not events.text.strip():
        return ExecutionFailed("gemini returned an empty answer.", details=details)
    return None


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
            details=details,
        )
    if _PERSONAL_LOGIN.search(text):
        return NotSignedIn(
            "Google no longer supports personal Google logins in the gemini CLI (since June 2026).",
            hint="Create a key in Google AI Studio and set GEMINI_API_KEY, or sign in with Vertex "
            "AI or an enterprise Code Assist licence.",
            details=details,
        )
    if exit_code == 173 or is_quota_error(text):
        return quota_error(text, details)
    if exit_code == 41:
        return SignInMissing("gemini found no sign-in that it can use.", details=details)
    if _NO_CLOUD_CREDENTIALS.search(text):
        return SignInMissing(
            "Vertex AI has no credentials on this machine.",
            hint="Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the path of a key file.",
            details=details,
        )
    if exit_code in (145, 147) or _KEY_REJECTED.search(text):
        return NotSignedIn(_describe_rejection(exit_code, text, secrets), details=details)
    if _MODEL_NOT_FOUND.search(text):
        return ModelNotFound(
            "The Gemini API does not recognize the requested model.",
            hint="Set GEMINI_MODEL (and GEMINI_CORRECTION_MODEL) to a model that your key can use, "
            "or unset it.",
            details=details,
        )
    if exit_code == 52:
        return ConfigError(
            "gemini rejected its settings.",
            hint="Upgrade it with `npm install -g @google/gemini-cli@latest`.",
            details=details,
        )
    if _NO_CONNECTION.search(error_message):
        return ConnectionFailed(_describe_exit(exit_code, error_message), details=details)
    return ExecutionFailed(_describe_exit(exit_code, error_message), details=details)


def _describe_rejection(exit_code: int, text: str, secrets: Sequence[str]) -> str:
    """Say whether Google refused the sign-in or denied access, in the API's own words."""
    is_denied = exit_code == 147 or _ACCESS_DENIED.search(text)
    verdict = "Google denied access (403)" if is_denied else "Google refused the sign-in"
    message = _api_message(text)
    return f"{verdict}: {error_excerpt(message, secrets)}" if message else f"{verdict}."


def _api_message(text: str) -> str:
    """Return the message of the API's error, which may be JSON inside other errors' messages."""
    message = ""
    while match := _API_MESSAGE.search(text):
        try:
            message = text = str(cast("object", json.loads(match[0].partition(":")[2])))
        except ValueError:
            return message or match[1]
    return message


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
        if line.strip() and not line.startswith(("    at ", "[STARTUP]"))
    ]
    return "\n".join(lines)[-2000:] or None
