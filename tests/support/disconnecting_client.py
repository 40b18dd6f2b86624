"""A client that disconnects in the middle of a response."""

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
    """POST the body; disconnect once the condition holds and the expected bytes have arrived."""
    url = httpx2.URL(address)
    content = json.dumps(body).encode()
    all_headers = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **(headers or {}),
    }
    lines = [
        f"POST {url.path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in all_headers.items()),
    ]
    with socket.create_connection(("127.0.0.1", url.port or 0), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        wait_until(until)
        response = b""
        while expected_bytes not in response:
            data = connection.recv(4096)
            assert data, "the response ended early"
            response += data
