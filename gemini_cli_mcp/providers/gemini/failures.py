"""Name every way a run of the CLI can fail: by its exit code, its events, then its words.

Measured on 0.61 (each has a recorded run in tests/recorded): API errors end with the HTTP
status modulo 256, an empty answer with exit code 0, a killed run with exit code 0 and no
`result` event, a missing sign-in with 41 and text on stderr only.
"""

import re
from collections.abc import Sequence

from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import replace_unsafe_chars

MAX_RATE_LIMIT_DELAY = 300.0
"""Seconds; the CLI too takes a longer delay for an exhausted quota."""

_CONSUMER_LOGIN = re.compile(r"IneligibleTierError|UNSUPPORTED_CLIENT|no longer supported for Gem")
_KEY_REFUSED = re.compile(
    r"API_KEY_INVALID|API key (?:not valid|expired)|UNAUTHENTICATED|PERMISSION_DENIED|invalid_grant"
    r"|\b(?:code|status)\W{1,3}40[13]\b|Please set an Auth method|FatalAuthenticationError"
)
_QUOTA = re.compile(
    r"TerminalQuotaError|daily quota|PerDay|limit: 0\b|INSUFFICIENT_G1_CREDITS"
    r"|exhausted your capacity"
)
_RATE = re.compile(
    r"RetryableQuotaError|RESOURCE_EXHAUSTED|exceeded your current quota|Too Many Requests"
    r"|\b(?:code|status)\W{1,3}429\b"
)
_DELAY = re.compile(
    r"(?:(?:retry|reset) (?:in|after)|retryDelay\W{1,5}) ?"
    r"(?=\d)(?:(\d{1,4})h)?(?:(\d{1,4})m(?!s))?(?:(\d{1,9}(?:\.\d+)?)(ms|s)\b)?",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"ModelNotFoundError|models/\S+ is not found")
_USAGE = re.compile(
    r"^usage\b"
    r"|(?:unknown|unrecognized|unexpected|illegal|bad|invalid|no such) (?:argument|option|flag)"
    r"|flag provided but not defined|not enough arguments|invalid values:",
    re.IGNORECASE | re.MULTILINE,
)

_FAILED_SEARCH = re.compile(r"^.*Error during web search for query.*$", re.MULTILINE)
_REPORT_FILE = re.compile(r"Full report available at: \S+ ?")

_EXIT_CODES = {
    42: "gemini says that it got no input",
    44: "gemini could not start its sandbox",
    53: "gemini reached the limit of turns in one run",
    54: "a tool of gemini failed for good",
    55: "gemini does not trust the folder it was run in",
    130: "gemini was interrupted",
}


def is_usage_error(completed: Completed, transcript: EventLog) -> bool:
    """Whether the program did not understand our flags."""
    return (
        completed.ended == "exited"
        and completed.exit_code not in (0, None)
        and not transcript.is_stream
        and _USAGE.search(completed.stderr + "\n" + transcript.text) is not None
    )


def classify_failure(
    completed: Completed, transcript: EventLog, secrets: Sequence[str] = ()
) -> GeminiMcpError | None:
    """Why this run failed, without any of the secrets; None if it did not."""
    details = _stderr_tail(completed.stderr, secrets)
    match completed.ended:
        case "idle" if transcript.is_searching:
            return TimedOut(
                "A web search of gemini did not come back, and the run was ended.",
                hint="Set GEMINI_MODEL to a full model name such as gemini-2.5-flash: then the "
                "search uses that model too, and one that fails does so at once.",
                details=details,
            )
        case "idle":
            return TimedOut("gemini said nothing for too long and was ended.", details=details)
        case "timeout":
            return TimedOut("gemini did not finish in time and was ended.", details=details)
        case "output_limit":
            return ExecutionFailed("gemini wrote without end and was ended.", details=details)
        case "exited" | "finished":
            pass
    if completed.exit_code != 0 or object_or_empty(transcript.result).get("status") == "error":
        error_message = redact(_error_message(transcript), secrets)
        return _classify_message(completed.exit_code or 0, error_message, completed.stderr, details)
    if transcript.is_stream and transcript.result is None:
        return ExecutionFailed("gemini stopped in the middle of its answer.", details=details)
    if not transcript.text.strip():
        return ExecutionFailed("gemini gave an empty answer.", details=details)
    return None


def _classify_message(
    code: int, error_message: str, stderr: str, details: str | None
) -> GeminiMcpError:
    # stderr speaks of searches that failed on the way, and quotes their queries; so it counts
    # only where the CLI's last word is missing.
    text = error_message or _FAILED_SEARCH.sub("", stderr)
    if code == 127 and "node" in stderr:
        return CliNotFound(
            "gemini is there, but the `node` that it runs on is not on PATH.",
            hint="Install Node 20 or newer, or add its folder to PATH in the server's environment.",
            details=details,
        )
    if _CONSUMER_LOGIN.search(text):
        return NotSignedIn(
            "Google no longer serves personal Google logins in the gemini CLI (since June 2026).",
            hint="Create a key in Google AI Studio and set GEMINI_API_KEY, or sign in with Vertex "
            "AI or an enterprise Code Assist licence.",
            details=details,
        )
    if _QUOTA.search(text):
        return QuotaExhausted(
            "The Gemini quota of the day is used up.",
            details=details,
            retry_after_s=_retry_delay(text),
        )
    if code == 173 or _RATE.search(text):
        return _rate_limited(text, details)
    if code in (41, 145, 147) or _KEY_REFUSED.search(text):
        return NotSignedIn("gemini is not signed in, or its key was refused.", details=details)
    if _NO_MODEL.search(text):
        return ConfigError(
            "The Gemini API does not know the model that was asked for.",
            hint="Set GEMINI_MODEL (and GEMINI_CORRECTION_MODEL) to a model that your key may use, "
            "or unset it.",
            details=details,
        )
    if code == 52:
        return ConfigError(
            "gemini refuses its settings.",
            hint="Upgrade it with `npm install -g @google/gemini-cli@latest`.",
            details=details,
        )
    return ExecutionFailed(_describe_exit(code, error_message), details=details)


def _retry_delay(text: str) -> float | None:
    """The seconds that Google asked to wait."""
    delays = [
        int(hours or 0) * 3600
        + int(minutes or 0) * 60
        + float(number or 0) / (1000 if unit == "ms" else 1)
        for hours, minutes, number, unit in _DELAY.findall(text)
    ]
    return max(filter(None, delays), default=None)


def _rate_limited(text: str, details: str | None) -> GeminiMcpError:
    delay = _retry_delay(text)
    if delay is not None and delay > MAX_RATE_LIMIT_DELAY:
        return QuotaExhausted("The Gemini quota is used up.", details=details, retry_after_s=delay)
    return RateLimited(
        "The Gemini API takes no more requests for now.", details=details, retry_after_s=delay
    )


def _describe_exit(code: int, error_message: str) -> str:
    if code < 0:
        return f"gemini was killed by signal {-code}."
    what = _EXIT_CODES.get(code) or (
        f"gemini failed with exit code {code}" if code else "gemini failed"
    )
    first_line = replace_unsafe_chars(error_message.strip().partition("\n")[0])[:300]
    return f"{what}: {first_line}" if first_line else f"{what}."


def _error_message(transcript: EventLog) -> str:
    error = object_or_empty(object_or_empty(transcript.result).get("error"))
    return str(error.get("message") or transcript.error or "")


def _stderr_tail(stderr: str, secrets: Sequence[str]) -> str | None:
    """The end of stderr that may be shown: no stack frames, no secrets, no control characters."""
    lines = [
        line.rstrip()
        for line in _REPORT_FILE.sub("", replace_unsafe_chars(redact(stderr, secrets))).splitlines()
        if line.strip() and not line.startswith(("    at ", "[STARTUP]"))
    ]
    return "\n".join(lines)[-2000:] or None
