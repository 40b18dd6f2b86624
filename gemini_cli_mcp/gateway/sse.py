"""Server-sent events from bytes that may be cut anywhere, also inside a character."""

from collections.abc import AsyncIterable, AsyncIterator

from gemini_cli_mcp.gateway.line import Broken

LONGEST = 16 << 20
"""Bytes of one event; an upstream that sends more is not one."""
KEEP_ALIVE = b": keep-alive\n\n"
DONE = "[DONE]"


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """The `data` of each event. Comments, names and ids are nobody's business here."""
    pieces: list[bytes] = []
    data: list[str] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > LONGEST:
            raise Broken("The upstream sent an event without end.")
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


def event(data: str, name: str | None = None) -> bytes:
    """One event of our own."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")
