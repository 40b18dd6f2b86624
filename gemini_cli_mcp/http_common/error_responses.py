"""Error responses, in the format of each server."""

from collections.abc import Callable

from starlette.responses import JSONResponse, Response

ErrorResponseFactory = Callable[[int, str, str], Response]
"""Builds a response from a status, a message and a code, in the format of the server."""


def json_error(status: int, message: str, code: str) -> Response:
    """Return the error response to a request that does not reach MCP."""
    return JSONResponse({"error": {"code": code, "message": message}}, status)


def openai_error(status: int, message: str, code: str) -> Response:
    """Return an error response in the format that the OpenAI SDKs parse."""
    error_type = "invalid_request_error" if status < 500 else "api_error"
    error = {"message": message, "type": error_type, "param": None, "code": code}
    return JSONResponse({"error": error}, status)
