"""Pass requests that need no search through to the upstream, byte for byte."""

import anyio
import httpx2

from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.upstream_client import (
    UpstreamClient,
    UpstreamRejected,
    UpstreamUnavailable,
    forwardable_headers,
    read_all,
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
    """Pass a request and its response through; return the status.

    Raise UpstreamRejected for an error status.
    """
    # Only an encoding that we can decode: errors are read completely, as they may echo our key.
    accepted = (upstream.header(b"accept-encoding") or b"").lower() if keep_encoding else b""
    encoding_header = (b"accept-encoding", b"gzip" if b"gzip" in accepted else b"identity")
    problem = "The upstream did not finish in time."
    is_event_stream = False
    with anyio.move_on_after(upstream.limits.upstream_turn_timeout):
        async with upstream.stream_raw(method, path, content, encoding_header) as response:
            if response.status_code >= 400:
                body = await read_all(response.aiter_bytes(), upstream.limits)
                raise UpstreamRejected.from_response(response, body)
            content_type = response.headers.get("content-type", "")
            is_event_stream = content_type.startswith("text/event-stream") and (
                "content-encoding" not in response.headers
            )
            await writer.start(response.status_code, forwardable_headers(response))
            if await _pass_body(response, upstream, writer):
                await writer.end()
                return response.status_code
            problem = "The upstream's answer is too large."
    error = UpstreamUnavailable(problem)
    if is_event_stream:  # report why the stream ends
        await writer.write(b"\n\n")  # the last chunk may have ended mid-line
        await writer.send_event({"error": error.error.fields})
    raise error


async def _pass_body(
    response: httpx2.Response, upstream: UpstreamClient, writer: ResponseWriter
) -> bool:
    """Forward the body; return False if it exceeds the size limit."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > upstream.limits.max_upstream_bytes:
            return False
        await writer.write(chunk)
    return True
