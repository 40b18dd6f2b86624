"""HTTP access control: bearer tokens, and checks of the Host and Origin headers.

Without tokens, every local program may connect, so web pages in a local browser must be kept out:
their requests carry the page's origin or, after DNS rebinding, an unknown host name.
"""

import hashlib
import ipaddress
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.http_common.asgi import raw_headers
from gemini_cli_mcp.http_common.error_responses import ErrorResponseFactory

logger = logging.getLogger(__name__)

TOKENS_VARIABLE = "GEMINI_MCP_HTTP_TOKENS"
MIN_TOKEN_CHARS = 16
APP_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")
"""Origin schemes of local applications, as opposed to web pages."""
ANONYMOUS_OWNER = "anonymous"
"""Owner of all requests when no tokens are configured."""


@dataclass(frozen=True)
class Token:
    """A bearer token and the owner of the calls that use it."""

    value: str
    owner: str

    @classmethod
    def parse(cls, text: str) -> "Token":
        """Parse `name=token` (owned by `name`) or `token` (owned by a hash of it)."""
        name, _, value = text.partition("=")
        if _OWNER_NAME.fullmatch(name) and value.strip(
            "="
        ):  # else `=` is base64 padding of a bare token
            return cls(value, name)
        return cls(text, hashlib.sha256(text.encode("latin-1", "replace")).hexdigest()[:16])


def parse_tokens(environ: Mapping[str, str]) -> tuple[Token, ...]:
    """Return the configured tokens; an empty variable counts as unset."""
    raw_value = environ.get(TOKENS_VARIABLE, "")
    entries = [text.strip() for text in raw_value.split(",") if text.strip()]
    if raw_value and not entries:
        raise ConfigError(
            f"{TOKENS_VARIABLE} contains only blanks and commas. Unset it to serve only this "
            "machine, without tokens."
        )
    tokens = [Token.parse(text) for text in entries]
    if len({token.value for token in tokens}) < len(tokens):
        raise ConfigError(f"{TOKENS_VARIABLE}: tokens must be unique.")
    for number, token in enumerate(tokens, 1):
        value = token.value
        if not value.strip("=") or (value.endswith("=") and len(value) < MIN_TOKEN_CHARS):
            raise ConfigError(f"{TOKENS_VARIABLE}: entry {number} has a name but no token.")
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ConfigError(
                f"{TOKENS_VARIABLE}: token {number} must be printable ASCII without spaces."
            )
        if len(value) < MIN_TOKEN_CHARS:
            logger.warning(
                "%s: token %d is short enough to be guessed; use a longer one",
                TOKENS_VARIABLE,
                number,
            )
    return tuple(tokens)


def load_tokens(
    environ: Mapping[str, str], host: str, allowed_hosts: Sequence[str]
) -> tuple[Token, ...]:
    """Return the configured tokens; raise ConfigError if this server would need some."""
    tokens = parse_tokens(environ)
    require_tokens_if_public(host, tokens)
    require_valid_hosts(allowed_hosts, tokens)
    return tokens


def require_valid_hosts(names: Sequence[str], tokens: Sequence[Token]) -> None:
    """Raise ConfigError for an `--allowed-host` that is malformed or requires tokens."""
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ConfigError(
                f"--allowed-host {name}: must be a host name or address, optionally with a port, "
                "such as mcp.example.com or [2001:db8::1]:8000."
            )
        if not tokens and not is_loopback(_parse_host(f"//{name}")):
            raise ConfigError(
                f"--allowed-host {name} allows requests from other machines, so {TOKENS_VARIABLE} "
                "must be set: comma-separated tokens, one per client."
            )


def require_tokens_if_public(host: str, tokens: Sequence[Token]) -> None:
    """Raise ConfigError if other machines could connect without a token."""
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is reachable from other machines, so {TOKENS_VARIABLE} must be set: "
            "comma-separated tokens, one per client. Without tokens, use --host 127.0.0.1."
        )


_OWNER_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HOST_NAME = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Return whether this host name or address is a loopback one."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class AuthMiddleware:
    """ASGI middleware that rejects requests or sets their `owner` in the scope."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Sequence[Token],
        error_response: ErrorResponseFactory,
        *,
        public_paths: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        """`allowed_hosts` are accepted in addition to loopback names."""
        self._app = app
        self._allowed_hosts = {_parse_host(f"//{host}") for host in allowed_hosts}
        self._tokens = tokens
        self._error_response = error_response
        self._public_paths = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header_list = [(name, value.decode("latin-1")) for name, value in raw_headers(scope)]
        headers = dict(header_list)
        origins = [value for name, value in header_list if name == b"origin"]
        rejection = self._check_host_and_origin(headers, origins)
        if not rejection and scope["path"] not in self._public_paths:
            owner = self._authenticate(headers.get(b"authorization", ""))
            scope["owner"] = owner
            if not owner:
                rejection = self._error_response(
                    401,
                    f"Send `Authorization: Bearer …` with one of the tokens in {TOKENS_VARIABLE}.",
                    "invalid_api_key",
                )
                rejection.headers["www-authenticate"] = "Bearer"
        await (rejection or self._app)(scope, receive, send)

    def _authenticate(self, authorization: str) -> str | None:
        if not self._tokens:
            return ANONYMOUS_OWNER
        scheme, _, credentials = authorization.partition(" ")
        value = credentials.strip().encode("latin-1")
        # Compare with all tokens, so that the duration does not depend on which one matches.
        owners = [
            token.owner
            for token in self._tokens
            if secrets.compare_digest(value, token.value.encode())
        ]
        return owners[0] if owners and scheme.lower() == "bearer" else None

    def _check_host_and_origin(
        self, headers: Mapping[bytes, str], origins: Sequence[str]
    ) -> Response | None:
        """Return the error response for a web page of another site, or None."""
        name = headers.get(b"host", "")
        if not _HOST_NAME.fullmatch(name) or not self._is_allowed_host(_parse_host(f"//{name}")):
            message = "Host not allowed. Start the server with --allowed-host to allow it."
            return self._error_response(421, message, "host_not_allowed")
        if not all(self._is_trusted_origin(origin) for origin in origins):
            return self._error_response(
                403, "Requests from this origin are not allowed.", "origin_not_allowed"
            )
        return None

    def _is_allowed_host(self, host: str) -> bool:
        return is_loopback(host) or host in self._allowed_hosts

    def _is_trusted_origin(self, origin: str) -> bool:
        """Return whether the origin is one of our hosts or a local application."""
        scheme, slashes, _ = origin.lower().partition("://")
        if scheme in ("http", "https"):
            return bool(slashes) and self._is_allowed_host(_parse_host(origin))
        return bool(slashes) and scheme in APP_SCHEMES


def _parse_host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
