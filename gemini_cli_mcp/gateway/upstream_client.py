"""HTTP client for one upstream: requests, responses and failures."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy

import anyio
import httpx2

from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.upstreams import Upstream

HTTP_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
"""Seconds without a byte; models that reason, or are loaded first, take minutes."""
DECODED_ENCODINGS = ("identity", "gzip", "deflate")
"""Content encodings that are decoded when a body is read completely."""
HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_DROPPED_REQUEST_HEADERS = HOP_BY_HOP | {
    "host",
    "content-length",
    "accept-encoding",
    "expect",
    # Client credentials are for the gateway only.
    "authorization",
    "cookie",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
}
_DROPPED_RESPONSE_HEADERS = HOP_BY_HOP | {"date", "server", "set-cookie"}
_BODY_HEADERS = {"content-length", "content-encoding", "content-type"}


Headers = list[tuple[bytes, bytes]]
"""Raw headers: lowercase names, repeated as often as they were sent."""


class UpstreamRejected(Exception):
    """The upstream sent an error or an unexpected response, to be passed to the client as is."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> JsonObject:
        """The error object in the body, or one of our own."""
        return self._error_in_body or upstream_error(
            f"The upstream answered with status {self.status}."
        )

    @property
    def error_message(self) -> str | None:
        """The message of the error in the body; None if there is no error."""
        return str(self._error_in_body.get("message") or "") if self._error_in_body else None

    @property
    def _error_in_body(self) -> JsonObject:
        try:
            return error_object(object_or_empty(json.loads(self.body)).get("error"))
        except (ValueError, RecursionError):
            return {}


class UpstreamUnavailable(Exception):
    """The upstream is unreachable, disconnected mid-answer, or sent an invalid answer."""

    def __init__(self, message: str, error: JsonObject | None = None) -> None:
        super().__init__(message)
        self.error = error or upstream_error(message)


def upstream_error(message: str) -> JsonObject:
    """Return the error object for an upstream failure."""
    return {"message": message, "type": "api_error", "param": None, "code": "upstream_failed"}


def error_object(error: object) -> JsonObject:
    """Normalize an upstream's error to an object; some send only a string."""
    return upstream_error(error) if isinstance(error, str) and error else object_or_empty(error)


class _NoCookies(DefaultCookiePolicy):
    """Rejects all cookies, so that none leaks from one client to another."""

    def set_ok(self, cookie: object, request: object) -> bool:
        return False


def create_http_client() -> httpx2.AsyncClient:
    """Create the HTTP client for all requests of a gateway; loopback bypasses proxies."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    direct = dict.fromkeys(["all://localhost", "all://127.0.0.1", "all://[::1]"])
    return httpx2.AsyncClient(
        timeout=HTTP_TIMEOUT, limits=limits, mounts=direct, cookies=CookieJar(_NoCookies())
    )


@dataclass(frozen=True)
class UpstreamClient:
    """One upstream, with the headers and query of a client's request."""

    upstream: Upstream
    http: httpx2.AsyncClient
    headers: Headers
    limits: Limits
    query: str = ""

    def header(self, name: bytes) -> bytes | None:
        """Return this header of the client's request, if present."""
        return next((value for header_name, value in self.headers if header_name == name), None)

    @asynccontextmanager
    async def post_json(self, path: str, body: JsonObject) -> AsyncGenerator[httpx2.Response]:
        """Send a request of our own and yield the response.

        Raise UpstreamRejected unless its status is 200, UpstreamUnavailable if sending or reading
        fails.
        """
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        # Each turn is a separate request.
        client = replace(
            self, headers=[header for header in self.headers if header[0] != b"idempotency-key"]
        )
        timeout = self.limits.upstream_turn_timeout
        try:
            with anyio.fail_after(timeout):
                async with client.stream_raw("POST", path, content) as response:
                    if response.status_code != 200:
                        raise await self.read_rejection(response)
                    yield response
        except TimeoutError:
            message = f"The upstream {self.upstream.id!r} did not finish within {timeout:g} s."
            raise UpstreamUnavailable(message) from None

    @asynccontextmanager
    async def stream_raw(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *extra_headers: tuple[bytes, bytes],
    ) -> AsyncGenerator[httpx2.Response]:
        """Send a request unchanged, with extra headers, and yield the response of any status."""
        if self.upstream.key_variable and not self.upstream.key:
            raise UpstreamUnavailable(
                f"The upstream {self.upstream.id!r} has no key: set {self.upstream.key_variable} "
                "in the gateway's environment and restart it."
            )
        url = f"{self.upstream.base_url}{path}" + (f"?{self.query}" if self.query else "")
        headers = [*self._request_headers(), *extra_headers]
        try:
            async with self.http.stream(method, url, content=content, headers=headers) as response:
                yield response
        except httpx2.TimeoutException:
            raise UpstreamUnavailable(
                f"The upstream {self.upstream.id!r} did not answer in time."
            ) from None
        except httpx2.ConnectError:
            raise UpstreamUnavailable(
                f"The upstream {self.upstream.id!r} cannot be reached."
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            name = type(error).__name__
            raise UpstreamUnavailable(
                f"The connection to the upstream {self.upstream.id!r} failed ({name})."
            ) from None

    def _request_headers(self) -> Headers:
        connection_headers = (self.header(b"connection") or b"").lower().split(b",")
        dropped = {
            *_DROPPED_REQUEST_HEADERS,
            *(header.strip().decode("latin-1") for header in connection_headers),
        }
        headers = [
            (name, value) for name, value in self.headers if name.decode("latin-1") not in dropped
        ]
        authorization = self.header(b"authorization")
        if self.upstream.pass_authorization and authorization:
            headers.append((b"authorization", authorization))
        elif self.upstream.key:
            headers.append((b"authorization", f"Bearer {self.upstream.key}".encode()))
        return headers

    async def read_rejection(self, response: httpx2.Response) -> UpstreamRejected:
        """Read a complete response to pass to the client."""
        content_type = response.headers.get("content-type", "application/json")
        headers = [
            *metadata_headers(response),
            (b"content-type", content_type.encode("utf-8", "replace")),
        ]
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding not in DECODED_ENCODINGS:  # the body is passed on still encoded
            headers.append((b"content-encoding", encoding.encode("latin-1", "replace")))
        return UpstreamRejected(response.status_code, headers, await self.read_all(response))

    async def read_all(self, response: httpx2.Response) -> bytes:
        """Read the complete body, up to the size limit."""
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self.limits.max_upstream_bytes:
                raise UpstreamUnavailable("The upstream's answer is too large.")
        return bytes(body)


def metadata_headers(response: httpx2.Response) -> Headers:
    """Return the headers that do not describe the body: request ids, rate limits."""
    return [
        (name, value)
        for name, value in forwardable_headers(response)
        if name.decode() not in _BODY_HEADERS
    ]


def forwardable_headers(response: httpx2.Response) -> Headers:
    """Return the response headers that may be passed to the client."""
    headers = [(name.lower(), value) for name, value in response.headers.raw]
    return [
        (name, value)
        for name, value in headers
        if name.decode("latin-1") not in _DROPPED_RESPONSE_HEADERS
    ]
