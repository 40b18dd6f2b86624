"""The error of a failed response, with one of the codes that the Responses API defines."""

from gemini_cli_mcp.gateway.api_errors import ApiError

ERROR_CODES = (
    *("server_error", "rate_limit_exceeded", "invalid_prompt", "invalid_image"),
    *("image_content_policy_violation", "vector_store_timeout"),
)
"""The codes that an upstream failure may map to."""


def response_error(error: ApiError) -> dict[str, str]:
    """Return the error of a response for an error of an upstream."""
    return {"code": _error_code(error), "message": error.message or "The upstream failed."}


def _error_code(error: ApiError) -> str:
    """Return one of the codes that clients know."""
    text = f"{error.code} {error.type}".lower()
    if "rate_limit" in text or "429" in text:
        return "rate_limit_exceeded"
    return error.code if error.code in ERROR_CODES else "server_error"
