"""Causes of EXECUTION_ERROR that have a next step of their own."""

from gemini_cli_mcp.errors import ExecutionFailed


class Overloaded(ExecutionFailed):
    """The Gemini API has no capacity for the request now."""

    hint = "Try again in a few minutes, or set GEMINI_MODEL to another model."


class ConnectionFailed(ExecutionFailed):
    """The CLI could not connect to the Gemini API."""

    is_final = True
    hint = "Check the network or HTTPS_PROXY. `gemini-cli-mcp doctor` shows the route."


class SafetyBlocked(ExecutionFailed):
    """The model's safety filter blocked the question or the answer."""

    retryable = False
    is_final = True
    hint = "Reword the question; the same words would be blocked again."


class RequestRejected(ExecutionFailed):
    """The Gemini API rejected the request as invalid."""

    retryable = False
    is_final = True
    hint = "Reword the question, or set GEMINI_MODEL to another model."


class PermissionDenied(ExecutionFailed):
    """The CLI requested a permission that cannot be granted in a non-interactive run."""

    retryable = False
    is_final = True
    hint = "Ask for something that only requires a web search."
