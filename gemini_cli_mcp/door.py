"""Who may come in over HTTP: bearers of a token, and only through an address that we know.

Without tokens everything on this machine may come in, so a web page in its browser must not:
its requests carry the page's origin, or the name that an evil resolver pointed to us.
"""

import hashlib
import ipaddress
import secrets
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gemini_cli_mcp.errors import ConfigError

TOKENS = "GEMINI_MCP_HTTP_TOKENS"
SHORTEST_TOKEN = 8
ANYONE = "anyone"
"""The owner of what comes in where there are no tokens."""

Refusal = Callable[[int, str, str], Response]
"""Makes an answer of a status, what happened, and a code, in the edge's own form."""


def tokens_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The tokens that the environment holds."""
    found = [token.strip() for token in environ.get(TOKENS, "").split(",") if token.strip()]
    for number, token in enumerate(found, 1):
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
            raise ConfigError(
                f"{TOKENS}: token {number} should be {SHORTEST_TOKEN} or more printable "
                "ASCII characters."
            )
    return tuple(found)


def checked_host(host: str, tokens: Sequence[str]) -> None:
    """Refuse to listen where strangers can come in without a token."""
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so {TOKENS} must be set: "
            "comma-separated tokens, one for each client. Without any, 127.0.0.1 it is."
        )


def is_loopback(host: str) -> bool:
    """Whether this name or address is this very machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class Door:
    """In front of an application: whoever comes through has an owner's name in its scope."""

    def __init__(
        self, app: ASGIApp, tokens: Sequence[str], refusal: Refusal, open_paths: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._tokens = [token.encode() for token in tokens]
        self._refusal = refusal
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._stranger(headers)
        if not refused and scope["path"] not in self._open_paths:
            scope["owner"] = self._owner(headers.get(b"authorization", ""))
            if not scope["owner"]:
                refused = self._refusal(
                    401,
                    f"A token is needed: `Authorization: Bearer …` with one of {TOKENS}.",
                    "invalid_api_key",
                )
                refused.headers["www-authenticate"] = "Bearer"
        await (refused or self._app)(scope, receive, send)

    def _owner(self, authorization: str) -> str | None:
        if not self._tokens:
            return ANYONE
        scheme, _, given = authorization.partition(" ")
        token = given.strip().encode("latin-1")
        # All are compared, so that time tells nothing.
        fits = [secrets.compare_digest(token, known) for known in self._tokens]
        if scheme.lower() != "bearer" or not any(fits):
            return None
        return hashlib.sha256(token).hexdigest()[:16]

    def _stranger(self, headers: Mapping[bytes, str]) -> Response | None:
        """What a web page of somebody else's gets; a token is proof that it is none."""
        if self._tokens:
            return None
        if not is_loopback(_host(f"//{headers.get(b'host', '')}")):
            return self._refusal(403, "This address is not ours.", "host_not_allowed")
        origin = headers.get(b"origin")
        if origin is not None and not _is_local(origin):
            return self._refusal(403, "Web pages may not call this.", "origin_not_allowed")
        return None


def _is_local(origin: str) -> bool:
    """A page of this machine, or an application: their origins have schemes of their own."""
    if origin == "null":
        return False
    scheme = origin.partition(":")[0].lower()
    return scheme not in ("http", "https") or is_loopback(_host(origin))


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
