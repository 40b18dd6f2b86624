"""A client that goes away in the middle of an answer."""

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from tests.support import wait_until


def post_and_disconnect(
    address: str,
    body: Any,
    until: Callable[[], object] = lambda: True,
    *,
    expected_bytes: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Ask, and close the connection when the condition holds and these bytes have come."""
    url = httpx2.URL(address)
    content = json.dumps(body).encode()
    sent = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **(headers or {}),
    }
    lines = [f"POST {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    with socket.create_connection(("127.0.0.1", url.port or 0), timeout=30) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        wait_until(until)
        answer = b""
        while expected_bytes not in answer:
            more = raw.recv(4096)
            assert more, "the answer ended"
            answer += more
