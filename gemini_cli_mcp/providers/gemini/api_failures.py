"""Name the errors of the Gemini API: one class per cause, with the API's own words."""

import json
import re
from collections.abc import Sequence
from typing import cast

from gemini_cli_mcp.errors import ExecutionFailed, GeminiMcpError, ModelNotFound
from gemini_cli_mcp.execution_errors import ConnectionFailed, Overloaded, RequestRejected
from gemini_cli_mcp.providers.quota_errors import is_quota_error, quota_error
from gemini_cli_mcp.sanitize import error_excerpt
from gemini_cli_mcp.sign_in_errors import (
    AccessDenied,
    KeyRejected,
    LoginRejected,
    PersonalLoginEnded,
    SignInMissing,
)

MIN_SILENCE = 30.0
"""Seconds after which a lost connection means that the server did not answer: the CLI itself ends a
request after a minute without one, with the same words as if there were no connection."""

STATUS_WORDS = {
    429: "rate limited",
    500: "internal error",
    502: "bad gateway",
    503: "overloaded",
    504: "timed out",
}
"""What a status means, for people."""

_PERSONAL_LOGIN = re.compile(r"IneligibleTierError|UNSUPPORTED_CLIENT|no longer supported for Gem")
_INVALID_KEY = re.compile(r"API_KEY_INVALID|API key (?:not valid|expired)")
_LOGIN_REJECTED = re.compile(
    r"UNAUTHENTICATED|invalid_grant|Please set an Auth method|FatalAuthenticationError"
)
_NO_CONNECTION = re.compile(r"\bfetch failed\b")
_NO_CLOUD_CREDENTIALS = re.compile(r"Could not load the default credentials")
_MODEL_NOT_FOUND = re.compile(r"ModelNotFoundError|models/\S+ is not found|\bmodel\b.*not found")
_NOT_OFFERED = re.compile(r"User location is not supported|FAILED_PRECONDITION")
_STATUS = re.compile(r"\b(?:code|status)\W{1,3}([45]\d\d)\b")
_CLI_MESSAGE = re.compile(r"\[API Error: ([^\[\]{}]{1,300})\]")
_API_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*+)"')


def classify_api_error(
    status: int | None,
    text: str,
    *,
    subject: str = "Gemini",
    details: str | None = None,
    secrets: Sequence[str] = (),
) -> GeminiMcpError | None:
    """Return the error for an API error with this text; None if it is not one.

    `status` is the HTTP status, if known; `subject` is what failed.
    """
    if _PERSONAL_LOGIN.search(text):
        return PersonalLoginEnded(
            "Google no longer supports personal Google logins in the gemini CLI (since June 2026).",
            details=details,
        )
    if status == 429 or (status is None and is_quota_error(text)):
        return quota_error(text, details)
    if _NO_CLOUD_CREDENTIALS.search(text):
        return SignInMissing(
            "Vertex AI has no credentials on this machine.",
            hint="Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the path of a key file.",
            details=details,
        )
    found_status = _STATUS.search(text)
    status = status or (int(found_status[1]) if found_status else None)
    words = api_message(text)
    reason = f": {error_excerpt(words, secrets)}" if words else "."
    if _INVALID_KEY.search(text):
        return KeyRejected(f"Google refused the API key ({status or 400}){reason}", details=details)
    if status == 403 or "PERMISSION_DENIED" in text:
        return AccessDenied(f"Google denied access (403){reason}", details=details)
    if status == 401 or _LOGIN_REJECTED.search(text):
        return LoginRejected(f"Google refused the sign-in (401){reason}", details=details)
    if status == 400 and _NOT_OFFERED.search(text):
        return AccessDenied(
            f"Google does not offer the Gemini API to this account or at this place (400){reason}",
            hint="Use Vertex AI, or an API key of a project with billing; the API's words say why.",
            details=details,
        )
    if _MODEL_NOT_FOUND.search(text):
        return ModelNotFound(
            f"The Gemini API does not know the requested model (404){reason}",
            hint="Set GEMINI_MODEL (and GEMINI_CORRECTION_MODEL) to a model that your key can use.",
            details=details,
        )
    if _NO_CONNECTION.search(text):
        return ConnectionFailed("No connection to the Gemini API.", details=details)
    return _classify_status(status, reason, subject, details)


def _classify_status(
    status: int | None, reason: str, subject: str, details: str | None
) -> GeminiMcpError | None:
    if status is None:
        return None
    if status == 503:
        return Overloaded(f"{subject} is overloaded (503){reason}", details=details)
    if status == 404:
        return RequestRejected(
            f"{subject} is not at the requested address (404){reason}",
            hint="Check GOOGLE_GEMINI_BASE_URL, and GEMINI_MODEL.",
            details=details,
        )
    if status >= 500:
        words = STATUS_WORDS.get(status)
        code = f"{status} {words}" if words else str(status)
        return ExecutionFailed(f"{subject} failed ({code}){reason}", details=details)
    return RequestRejected(f"{subject} rejected the request ({status}){reason}", details=details)


def connection_lost(details: str | None = None) -> ExecutionFailed:
    """Return the error for a connection that was there before."""
    return ExecutionFailed("The connection to the Gemini API was lost.", details=details)


def api_message(text: str) -> str:
    """Return the message of the API's error, which may be JSON inside other errors' messages."""
    plain = _CLI_MESSAGE.search(text)
    message = plain[1] if plain else ""
    while match := _API_MESSAGE.search(text):
        try:
            message = text = str(cast("object", json.loads(match[0].partition(":")[2])))
        except ValueError:
            return message or match[1]
    return message
