"""Server-sent events from bytes that may be cut anywhere, also inside a character."""

from collections.abc import AsyncIterable, AsyncIterator

import anyio.lowlevel

from gemini_cli_mcp.gateway.upstream_client import UpstreamUnavailable
from gemini_cli_mcp.limits import Limits

MAX_EVENT_BYTES = 16 << 20
"""Bytes of one event; an upstream that sends more is not one."""
KEEP_ALIVE = b": keep-alive\n\n"
DONE = "[DONE]"
EVENTS_PER_YIELD = 100
"""Events after which others get a turn: a fast upstream must not stop the whole gateway."""


async def parse_events(chunks: AsyncIterable[bytes], limits: Limits) -> AsyncIterator[str]:
    """The `data` of each event. Comments, names and ids are nobody's business here."""
    count = 0
    async for data in _events(_bounded(chunks, limits.max_upstream_bytes)):
        count += 1
        if count > limits.max_upstream_events:
            raise UpstreamUnavailable(
                f"The upstream sent more than {limits.max_upstream_events:,} events."
            )
        if count % EVENTS_PER_YIELD == 0:
            await anyio.lowlevel.checkpoint()
        yield data


async def _bounded(chunks: AsyncIterable[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise UpstreamUnavailable(f"The upstream sent more than {max_bytes >> 20} MiB.")
        yield chunk


async def _events(chunks: AsyncIterable[bytes]) -> AsyncIterator[str]:
    pieces: list[bytes] = []
    data: list[str] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_EVENT_BYTES:
            raise UpstreamUnavailable("The upstream sent an event without end.")
        if b"\n" not in chunk:
            pieces.append(chunk)
            continue
        *lines, rest = b"".join([*pieces, chunk]).split(b"\n")
        pieces = [rest]
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
            elif not text and data:
                yield "\n".join(data)
                data.clear()
                size = len(rest)
    last = b"".join(pieces)
    if last.startswith(b"data:"):
        data.append(last[5:].decode("utf-8", "replace").strip())
    if data:
        yield "\n".join(data)


def format_event(data: str, name: str | None = None) -> bytes:
    """One event of our own."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")
