"""Typed access to ASGI scopes and messages, which are untyped mappings."""

from typing import cast

from starlette.types import Message, Scope


def request_owner(scope: Scope) -> str:
    """Return the owner that AuthMiddleware found."""
    return cast("str", scope["owner"])


def raw_headers(scope_or_response: Scope | Message) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request scope or of a response's first message."""
    return list(cast("list[tuple[bytes, bytes]]", scope_or_response["headers"]))
