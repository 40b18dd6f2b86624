"""Who may come in over HTTP: bearers of a token, and only through an address that we know.

Without tokens everything on this machine may come in, so a web page in its browser must not:
its requests carry the page's origin, or the name that an evil resolver pointed to us.
"""

import hashlib
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.owner import CURRENT_OWNER

logger = logging.getLogger(__name__)

TOKENS_VARIABLE = "GEMINI_MCP_HTTP_TOKENS"
MIN_TOKEN_CHARS = 16
APP_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")
"""Schemes of applications on this machine, which are no pages of somebody else's."""
ANONYMOUS_OWNER = "anyone"
"""The owner of what comes in where there are no tokens."""

ErrorResponseFactory = Callable[[int, str, str], Response]
"""Makes an answer of a status, what happened, and a code, in the edge's own form."""


@dataclass(frozen=True)
class Token:
    """What lets a client in, and whose calls it makes."""

    value: str
    owner: str

    @classmethod
    def parse(cls, text: str) -> "Token":
        """`name=token`, whose owner is the name, or a token, whose owner is named by its hash."""
        name, _, value = text.partition("=")
        if _OWNER_NAME.fullmatch(name) and value.strip("="):  # else the `=` are the token's own end
            return cls(value, name)
        return cls(text, hashlib.sha256(text.encode("latin-1", "replace")).hexdigest()[:16])


def parse_tokens(environ: Mapping[str, str]) -> tuple[Token, ...]:
    """The tokens that the environment holds; an empty variable counts as unset."""
    value_of_variable = environ.get(TOKENS_VARIABLE, "")
    entries = [text.strip() for text in value_of_variable.split(",") if text.strip()]
    if value_of_variable and not entries:
        raise ConfigError(
            f"{TOKENS_VARIABLE} contains only blanks and commas. Unset it to serve this machine "
            "without tokens."
        )
    tokens = [Token.parse(text) for text in entries]
    if len({token.value for token in tokens}) < len(tokens):
        raise ConfigError(f"{TOKENS_VARIABLE}: a token is there twice.")
    for number, token in enumerate(tokens, 1):
        value = token.value
        if not value.strip("=") or (value.endswith("=") and len(value) < MIN_TOKEN_CHARS):
            raise ConfigError(f"{TOKENS_VARIABLE}: token {number} has a name and no token.")
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ConfigError(
                f"{TOKENS_VARIABLE}: token {number} should be printable ASCII without spaces."
            )
        if len(value) < MIN_TOKEN_CHARS:
            logger.warning("%s: token %d is short enough to be guessed", TOKENS_VARIABLE, number)
    return tuple(tokens)


def require_valid_hosts(names: Sequence[str], tokens: Sequence[Token]) -> None:
    """Refuse names for `--allowed-host` that no client could send, or that need a token."""
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ConfigError(
                f"--allowed-host {name}: should be a name or an address, with a port or without, "
                "such as mcp.example.com or [2001:db8::1]:8000."
            )
        if not tokens and not is_loopback(_host(f"//{name}")):
            raise ConfigError(
                f"--allowed-host {name} admits everyone who comes through a proxy, so "
                f"{TOKENS_VARIABLE} must be set: comma-separated tokens, one per client."
            )


def require_tokens_if_public(host: str, tokens: Sequence[Token]) -> None:
    """Refuse to listen where strangers can come in without a token."""
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so {TOKENS_VARIABLE} must be set: "
            "comma-separated tokens, one for each client. Without any, 127.0.0.1 it is."
        )


_OWNER_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HOST_NAME = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether this name or address is this very machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class AuthMiddleware:
    """In front of an application: whoever comes through has an owner's name in its scope."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Sequence[Token],
        error_response: ErrorResponseFactory,
        *,
        public_paths: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        """`hosts` are names that we have beside this machine's."""
        self._app = app
        self._allowed_hosts = {_host(f"//{host}") for host in allowed_hosts}
        self._tokens = tokens
        self._error_response = error_response
        self._public_paths = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        rejection = self._check_host_and_origin(headers, origins)
        if not rejection and scope["path"] not in self._public_paths:
            scope["owner"] = self._owner(headers.get(b"authorization", ""))
            if not scope["owner"]:
                rejection = self._error_response(
                    401,
                    f"A token is needed: `Authorization: Bearer …` with one of {TOKENS_VARIABLE}.",
                    "invalid_api_key",
                )
                rejection.headers["www-authenticate"] = "Bearer"
            else:
                CURRENT_OWNER.set(scope["owner"])
        await (rejection or self._app)(scope, receive, send)

    def _owner(self, authorization: str) -> str | None:
        if not self._tokens:
            return ANONYMOUS_OWNER
        scheme, _, credentials = authorization.partition(" ")
        value = credentials.strip().encode("latin-1")
        # All are compared, so that time tells nothing.
        owners = [
            token.owner
            for token in self._tokens
            if secrets.compare_digest(value, token.value.encode())
        ]
        return owners[0] if owners and scheme.lower() == "bearer" else None

    def _check_host_and_origin(
        self, headers: Mapping[bytes, str], origins: Sequence[str]
    ) -> Response | None:
        """What a web page of somebody else's gets."""
        name = headers.get(b"host", "")
        if not _HOST_NAME.fullmatch(name) or not self._is_known_host(_host(f"//{name}")):
            message = "This server is not known by that name; --allowed-host tells it others."
            return self._error_response(421, message, "host_not_allowed")
        if not all(self._is_trusted_origin(origin) for origin in origins):
            return self._error_response(
                403, "Pages of this origin may not call.", "origin_not_allowed"
            )
        return None

    def _is_known_host(self, host: str) -> bool:
        return is_loopback(host) or host in self._allowed_hosts

    def _is_trusted_origin(self, origin: str) -> bool:
        """A page of ours, or an application: their origins have schemes of their own."""
        scheme, slashes, _ = origin.lower().partition("://")
        if scheme in ("http", "https"):
            return bool(slashes) and self._is_known_host(_host(origin))
        return bool(slashes) and scheme in APP_SCHEMES


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
