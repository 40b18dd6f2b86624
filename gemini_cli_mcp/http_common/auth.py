"""Who may come in over HTTP: bearers of a token, and only through an address that we know.

Without tokens everything on this machine may come in, so a web page in its browser must not:
its requests carry the page's origin, or the name that an evil resolver pointed to us.
"""

import hashlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.owner import OWNER
from gemini_cli_mcp.sanitize import one_line

logger = logging.getLogger(__name__)

TOKENS = "GEMINI_MCP_HTTP_TOKENS"
SHORTEST_GOOD_TOKEN = 16
APPS = ("app", "file", "tauri", "vscode-webview", "vscode-file")
"""Schemes of applications on this machine, which are no pages of somebody else's."""
ANYONE = "anyone"
"""The owner of what comes in where there are no tokens."""

Refusal = Callable[[int, str, str], Response]
"""Makes an answer of a status, what happened, and a code, in the edge's own form."""


@dataclass(frozen=True)
class Token:
    """What lets a client in, and whose calls it makes."""

    value: str
    owner: str

    @classmethod
    def of(cls, text: str) -> "Token":
        """`name=token`, whose owner is the name, or a token, whose owner is named by its hash."""
        name, _, value = text.partition("=")
        if _OWNER.fullmatch(name) and value.strip("="):  # else the `=` are the token's own end
            return cls(value, name)
        return cls(text, hashlib.sha256(text.encode("latin-1", "replace")).hexdigest()[:16])


def tokens_of(environ: Mapping[str, str]) -> tuple[Token, ...]:
    """The tokens that the environment holds; an empty variable counts as unset."""
    given = environ.get(TOKENS, "")
    listed = [text.strip() for text in given.split(",") if text.strip()]
    if given and not listed:
        raise ConfigError(
            f"{TOKENS} holds no token, only blanks and commas. Unset it to serve this machine "
            "without tokens."
        )
    found = [Token.of(text) for text in listed]
    if len({token.value for token in found}) < len(found):
        raise ConfigError(f"{TOKENS}: a token is there twice.")
    for number, token in enumerate(found, 1):
        value = token.value
        if not value.strip("=") or (value.endswith("=") and len(value) < SHORTEST_GOOD_TOKEN):
            raise ConfigError(f"{TOKENS}: token {number} has a name and no token.")
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ConfigError(f"{TOKENS}: token {number} should be printable ASCII without spaces.")
        if len(value) < SHORTEST_GOOD_TOKEN:
            logger.warning("%s: token %d is short enough to be guessed", TOKENS, number)
    return tuple(found)


def checked_names(names: Sequence[str], tokens: Sequence[Token]) -> None:
    """Refuse names for `--allowed-host` that no client could send, or that need a token."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--allowed-host {name}: should be a name or an address, with a port or without, "
                "such as mcp.example.com or [2001:db8::1]:8000."
            )
        if not tokens and not is_loopback(_host(f"//{name}")):
            raise ConfigError(
                f"--allowed-host {name} lets in whoever comes through a proxy, so {TOKENS} must be "
                "set: comma-separated tokens, one for each client."
            )


def checked_host(host: str, tokens: Sequence[Token]) -> None:
    """Refuse to listen where strangers can come in without a token."""
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so {TOKENS} must be set: "
            "comma-separated tokens, one for each client. Without any, 127.0.0.1 it is."
        )


_OWNER = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_NAME = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether this name or address is this very machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class Door:
    """In front of an application: whoever comes through has an owner's name in its scope."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Sequence[Token],
        refusal: Refusal,
        *,
        open_paths: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        """`hosts` are names that we have beside this machine's."""
        self._app = app
        self._hosts = {_host(f"//{host}") for host in hosts}
        self._tokens = tokens
        self._refusal = refusal
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        raw = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        refused = self._stranger(headers, raw)
        if not refused and scope["path"] not in self._open_paths:
            scope["owner"] = self._owner(headers.get(b"authorization", ""))
            if not scope["owner"]:
                refused = self._refusal(
                    401,
                    f"A token is needed: `Authorization: Bearer …` with one of {TOKENS}.",
                    "invalid_api_key",
                )
                refused.headers["www-authenticate"] = "Bearer"
            else:
                OWNER.set(scope["owner"])
        await (refused or self._app)(scope, receive, send)

    def _owner(self, authorization: str) -> str | None:
        if not self._tokens:
            return ANYONE
        scheme, _, given = authorization.partition(" ")
        value = given.strip().encode("latin-1")
        # All are compared, so that time tells nothing.
        fits = [
            token.owner
            for token in self._tokens
            if secrets.compare_digest(value, token.value.encode())
        ]
        return fits[0] if fits and scheme.lower() == "bearer" else None

    def _stranger(self, headers: Mapping[bytes, str], origins: Sequence[str]) -> Response | None:
        """What a web page of somebody else's gets."""
        name = headers.get(b"host", "")
        if not _NAME.fullmatch(name) or not self._knows(_host(f"//{name}")):
            said = "This server is not known by that name; --allowed-host tells it others."
            return self._refusal(421, said, "host_not_allowed")
        if not all(self._trusts(origin) for origin in origins):
            return self._refusal(403, "Pages of this origin may not call.", "origin_not_allowed")
        return None

    def _knows(self, host: str) -> bool:
        return is_loopback(host) or host in self._hosts

    def _trusts(self, origin: str) -> bool:
        """A page of ours, or an application: their origins have schemes of their own."""
        scheme, slashes, _ = origin.lower().partition("://")
        if scheme in ("http", "https"):
            return bool(slashes) and self._knows(_host(origin))
        return bool(slashes) and scheme in APPS


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


class AccessLog:
    """A line for every request: who asked for what, what came of it, and how long that took.

    Neither queries nor headers nor bodies are in it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            seconds = time.monotonic() - begin
            path = one_line(scope["path"], 100)
            owner = scope.get("owner") or "nobody"
            said = "%s %s: %s for %s in %.2f s"
            outcome = status or "left"
            logger.info(said, scope["method"], path, outcome, owner, seconds)
