"""Tell an exhausted quota from a rate limit, in the error texts of the Gemini API and the CLI."""

import re

from gemini_cli_mcp.errors import QuotaExhausted, RateLimited

MAX_RATE_LIMIT_DELAY = 300.0
"""Seconds; like the CLI, we treat a longer delay as an exhausted quota."""

_DAILY_QUOTA = re.compile(
    r"TerminalQuotaError|daily quota|PerDay|limit: 0\b|INSUFFICIENT_G1_CREDITS"
    r"|exhausted your capacity"
)
_RATE_LIMITED = re.compile(
    r"RetryableQuotaError|RESOURCE_EXHAUSTED|exceeded your current quota|Too Many Requests"
    r"|\b(?:code|status)\W{1,3}429\b"
)
_RETRY_DELAY = re.compile(
    r"(?:(?:retry|reset) (?:in|after)|retryDelay\W{1,5}) ?"
    r"(?=\d)(?:(?P<hours>\d{1,4})h)?(?:(?P<minutes>\d{1,4})m(?!s))?"
    r"(?:(?P<amount>\d{1,9}(?:\.\d+)?)(?P<unit>ms|s)\b)?",
    re.IGNORECASE,
)


def is_quota_error(text: str) -> bool:
    """Whether the error text is about a quota or a rate limit."""
    return bool(_DAILY_QUOTA.search(text) or _RATE_LIMITED.search(text))


def quota_error(text: str, details: str | None = None) -> QuotaExhausted | RateLimited:
    """Return the error for the text of a response with status 429."""
    delay = parse_retry_delay(text)
    if _DAILY_QUOTA.search(text):
        return QuotaExhausted(
            "The daily Gemini quota is exhausted.", details=details, retry_after_s=delay
        )
    if delay is not None and delay > MAX_RATE_LIMIT_DELAY:
        return QuotaExhausted(
            "The Gemini quota is exhausted.", details=details, retry_after_s=delay
        )
    return RateLimited(
        "The Gemini API is rate limiting requests.", details=details, retry_after_s=delay
    )


def parse_retry_delay(text: str) -> float | None:
    """Return the longest delay in seconds that Google requested, if any."""
    delays = [
        int(match["hours"] or 0) * 3600
        + int(match["minutes"] or 0) * 60
        + float(match["amount"] or 0) / (1000 if match["unit"] == "ms" else 1)
        for match in _RETRY_DELAY.finditer(text)
    ]
    return max(filter(None, delays), default=None)
