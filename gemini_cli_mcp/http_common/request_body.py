"""Read and parse the bodies of requests."""

import json
from typing import cast

import anyio
from starlette.types import Receive

from gemini_cli_mcp.json_values import JsonObject


class BodyError(Exception):
    """The body of a request was rejected."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


async def read_body(receive: Receive, max_bytes: int, timeout: float) -> bytes:
    """Read the body of a request, with limits on its size and duration."""
    body = bytearray()
    try:
        with anyio.fail_after(timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BodyError(400, "The client disconnected.", "left")
                body += cast("bytes", message.get("body", b""))
                if len(body) > max_bytes:
                    limit = f"{max_bytes >> 20} MiB"
                    raise BodyError(
                        413, f"The request body must be at most {limit}.", "body_too_large"
                    )
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise BodyError(408, "Timed out waiting for the request body.", "timeout") from None


def parse_json_object(body: bytes) -> JsonObject | None:
    """Return the JSON object in a body; None if it is anything else."""
    try:
        value = cast("object", json.loads(body))
    except (ValueError, RecursionError):
        return None
    return cast("JsonObject", value) if isinstance(value, dict) else None
