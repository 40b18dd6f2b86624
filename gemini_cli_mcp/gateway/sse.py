"""Server-sent events, parsed from bytes that may be split anywhere, even inside a character."""

from collections.abc import AsyncIterable, AsyncIterator

import anyio.lowlevel

from gemini_cli_mcp.gateway.upstream_client import UpstreamUnavailable
from gemini_cli_mcp.limits import Limits

MAX_EVENT_BYTES = 16 << 20
"""Maximum bytes of one event; no legitimate upstream sends more."""
KEEP_ALIVE = b": keep-alive\n\n"
DONE = "[DONE]"
EVENTS_PER_YIELD = 100
"""Events between checkpoints: a fast upstream must not block the whole gateway."""


async def parse_events(chunks: AsyncIterable[bytes], limits: Limits) -> AsyncIterator[str]:
    """Yield the `data` of each event; comments, names and ids are ignored."""
    count = 0
    async for data in _split_events(_limit_bytes(chunks, limits.max_upstream_bytes)):
        count += 1
        if count > limits.max_upstream_events:
            raise UpstreamUnavailable(
                f"The upstream sent more than {limits.max_upstream_events:,} events."
            )
        if count % EVENTS_PER_YIELD == 0:
            await anyio.lowlevel.checkpoint()
        yield data


async def _limit_bytes(chunks: AsyncIterable[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise UpstreamUnavailable(f"The upstream sent more than {max_bytes >> 20} MiB.")
        yield chunk


async def _split_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[str]:
    pieces: list[bytes] = []
    data: list[str] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_EVENT_BYTES:
            raise UpstreamUnavailable("The upstream sent an event that is too large.")
        if b"\n" not in chunk:
            pieces.append(chunk)
            continue
        *lines, remainder = b"".join([*pieces, chunk]).split(b"\n")
        pieces = [remainder]
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
            elif not text and data:
                yield "\n".join(data)
                data.clear()
                size = len(remainder)
    tail = b"".join(pieces)
    if tail.startswith(b"data:"):
        data.append(tail[5:].decode("utf-8", "replace").strip())
    if data:
        yield "\n".join(data)


def format_event(data: str, name: str | None = None) -> bytes:
    name_line = f"event: {name}\n" if name else ""
    return f"{name_line}data: {data}\n\n".encode("utf-8", "replace")
