"""The way to one upstream: what goes there, what comes back, and how that fails."""

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
"""Seconds without a byte; models that think, or are loaded first, take minutes."""
DECODED_ENCODINGS = ("identity", "gzip", "deflate")
"""Codings of a body that are undone when it is read as a whole."""
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
    # What clients identify themselves with is for us.
    "authorization",
    "cookie",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
}
_DROPPED_RESPONSE_HEADERS = HOP_BY_HOP | {"date", "server", "set-cookie"}
_BODY_HEADERS = {"content-length", "content-encoding", "content-type"}


Headers = list[tuple[bytes, bytes]]
"""As they are on the wire: names in small letters, each as often as it was sent."""


class UpstreamRejected(Exception):
    """The upstream answered something else than was asked for: the client's to see as it is."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> JsonObject:
        """The error object inside, or one of our own."""
        return self._error_in_body or upstream_error(
            f"The upstream answered with status {self.status}."
        )

    @property
    def error_message(self) -> str | None:
        """What the error inside says; None if there is none."""
        return str(self._error_in_body.get("message") or "") if self._error_in_body else None

    @property
    def _error_in_body(self) -> JsonObject:
        try:
            return error_object(object_or_empty(json.loads(self.body)).get("error"))
        except (ValueError, RecursionError):
            return {}


class UpstreamUnavailable(Exception):
    """The upstream cannot be reached, went away in the middle, or sent what is no answer."""

    def __init__(self, message: str, error: JsonObject | None = None) -> None:
        super().__init__(message)
        self.error = error or upstream_error(message)


def upstream_error(message: str) -> JsonObject:
    """The error object for a failure of an upstream."""
    return {"message": message, "type": "api_error", "param": None, "code": "upstream_failed"}


def error_object(error: object) -> JsonObject:
    """What an upstream calls its error, as an object; some send words alone."""
    return upstream_error(error) if isinstance(error, str) and error else object_or_empty(error)


class _NoCookies(DefaultCookiePolicy):
    """What an upstream wants to remember of one client is nothing for the next."""

    def set_ok(self, cookie: object, request: object) -> bool:
        return False


def create_http_client() -> httpx2.AsyncClient:
    """For all requests of one gateway; proxies are for the world, not for this machine."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    direct = dict.fromkeys(["all://localhost", "all://127.0.0.1", "all://[::1]"])
    return httpx2.AsyncClient(
        timeout=HTTP_TIMEOUT, limits=limits, mounts=direct, cookies=CookieJar(_NoCookies())
    )


@dataclass(frozen=True)
class UpstreamClient:
    """One upstream, and what a client's request said beside its body."""

    upstream: Upstream
    http: httpx2.AsyncClient
    headers: Headers
    limits: Limits
    query: str = ""

    def header(self, name: bytes) -> bytes | None:
        """What the client's request said of this."""
        return next((value for known, value in self.headers if known == name), None)

    @asynccontextmanager
    async def post_json(self, path: str, body: JsonObject) -> AsyncGenerator[httpx2.Response]:
        """A request of ours; Refused if it is, Broken if it cannot be made or read."""
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        # Each round is another request.
        own = replace(self, headers=[h for h in self.headers if h[0] != b"idempotency-key"])
        seconds = self.limits.upstream_turn_timeout
        try:
            with anyio.fail_after(seconds):
                async with own.stream_raw("POST", path, content) as response:
                    if response.status_code != 200:
                        raise await self.read_rejection(response)
                    yield response
        except TimeoutError:
            message = f"The upstream {self.upstream.id!r} did not come to an end in {seconds:g} s."
            raise UpstreamUnavailable(message) from None

    @asynccontextmanager
    async def stream_raw(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *extra_headers: tuple[bytes, bytes],
    ) -> AsyncGenerator[httpx2.Response]:
        """A request as it is, with more headers, and whatever comes back."""
        if self.upstream.key_variable and not self.upstream.key:
            raise UpstreamUnavailable(
                f"The upstream {self.upstream.id!r} has no key: set {self.upstream.key_variable} "
                "in the gateway's environment and start it again."
            )
        url = f"{self.upstream.base_url}{path}" + (f"?{self.query}" if self.query else "")
        headers = [*self._headers(), *extra_headers]
        try:
            async with self.http.stream(method, url, content=content, headers=headers) as answer:
                yield answer
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
                f"The upstream {self.upstream.id!r} broke off ({name})."
            ) from None

    def _headers(self) -> Headers:
        hops = (self.header(b"connection") or b"").lower().split(b",")
        dropped = {*_DROPPED_REQUEST_HEADERS, *(hop.strip().decode("latin-1") for hop in hops)}
        sent = [
            (name, value) for name, value in self.headers if name.decode("latin-1") not in dropped
        ]
        authorization = self.header(b"authorization")
        if self.upstream.pass_authorization and authorization:
            sent.append((b"authorization", authorization))
        elif self.upstream.key:
            sent.append((b"authorization", f"Bearer {self.upstream.key}".encode()))
        return sent

    async def read_rejection(self, response: httpx2.Response) -> UpstreamRejected:
        """The whole of an answer, for the client."""
        kind = response.headers.get("content-type", "application/json")
        headers = [*metadata_headers(response), (b"content-type", kind.encode("utf-8", "replace"))]
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding not in DECODED_ENCODINGS:  # then it is as it came
            headers.append((b"content-encoding", coding.encode("latin-1", "replace")))
        return UpstreamRejected(response.status_code, headers, await self.read_all(response))

    async def read_all(self, response: httpx2.Response) -> bytes:
        """All of a response, which must have an end."""
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self.limits.max_upstream_bytes:
                raise UpstreamUnavailable("The upstream's answer is too large.")
        return bytes(body)


def metadata_headers(response: httpx2.Response) -> Headers:
    """What an answer's headers say beside its body: request ids, rate limits."""
    return [
        (name, value)
        for name, value in forwardable_headers(response)
        if name.decode() not in _BODY_HEADERS
    ]


def forwardable_headers(response: httpx2.Response) -> Headers:
    """The headers of an answer that are the client's."""
    raw = [(name.lower(), value) for name, value in response.headers.raw]
    return [
        (name, value)
        for name, value in raw
        if name.decode("latin-1") not in _DROPPED_RESPONSE_HEADERS
    ]
