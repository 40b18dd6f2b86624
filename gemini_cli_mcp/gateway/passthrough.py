"""Requests that need no search: passed to the upstream and back, byte for byte."""

import anyio
import httpx2

from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.upstream_client import (
    UpstreamClient,
    UpstreamUnavailable,
    forwardable_headers,
)


async def pass_through(
    method: str,
    upstream: UpstreamClient,
    path: str,
    writer: ResponseWriter,
    content: bytes | None = None,
    *,
    keep_encoding: bool = True,
) -> int:
    """A request and its answer, byte for byte; the status. Or else Refused if it is an error."""
    # Only a coding that we can undo: an error is read as a whole, because it may repeat our key.
    accepted = (upstream.header(b"accept-encoding") or b"").lower() if keep_encoding else b""
    encodings = (b"accept-encoding", b"gzip" if b"gzip" in accepted else b"identity")
    error = UpstreamUnavailable("The upstream did not come to an end.")
    events = False
    with anyio.move_on_after(upstream.limits.upstream_turn_timeout):
        async with upstream.stream_raw(method, path, content, encodings) as response:
            if response.status_code >= 400:
                raise await upstream.read_rejection(response)
            kind = response.headers.get("content-type", "")
            events = kind.startswith("text/event-stream") and (
                "content-encoding" not in response.headers
            )
            await writer.start(response.status_code, forwardable_headers(response))
            if await _pass_body(response, upstream, writer):
                await writer.end()
                return response.status_code
            error = UpstreamUnavailable("The upstream's answer is too large.")
    if events:  # a client of events is told why they stop
        await writer.write(b"\n\n")  # it may have been in the middle of a line
        await writer.send_event({"error": error.error})
    raise error


async def _pass_body(
    response: httpx2.Response, upstream: UpstreamClient, writer: ResponseWriter
) -> bool:
    """Pass it on; whether it has an end."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > upstream.limits.max_upstream_bytes:
            return False
        await writer.write(chunk)
    return True
