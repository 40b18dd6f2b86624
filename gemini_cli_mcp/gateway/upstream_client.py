"""HTTP client for one upstream: requests, responses and failures."""

import json
import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import anyio
import httpx2

from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.http_common.request_body import parse_json_object
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.settings.upstreams import Upstream

DECODED_ENCODINGS = ("identity", "gzip", "deflate")
"""Content encodings that are decoded when a body is read completely."""
MAX_JSON_VALUES = 1_000_000
"""Maximum commas in one JSON text; parsing more would block all other requests."""
HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
}
_DROPPED_REQUEST_HEADERS = HOP_BY_HOP | {
    *("host", "content-length", "accept-encoding", "expect"),
    # Client credentials are for the gateway only.
    *("authorization", "cookie", "api-key", "x-api-key", "x-goog-api-key"),
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

    @classmethod
    def from_response(cls, response: httpx2.Response, body: bytes) -> "UpstreamRejected":
        """Return the rejection that a response with this body is."""
        content_type = response.headers.get("content-type", "application/json")
        headers = [
            *metadata_headers(response),
            (b"content-type", content_type.encode("utf-8", "replace")),
        ]
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding not in DECODED_ENCODINGS:  # the body is passed on still encoded
            headers.append((b"content-encoding", encoding.encode("latin-1", "replace")))
        return cls(response.status_code, headers, body)

    @property
    def error(self) -> ApiError:
        """The error in the body, or one of our own."""
        return self.error_in_body or ApiError.of(
            f"The upstream answered with status {self.status}."
        )

    @property
    def error_in_body(self) -> ApiError | None:
        return ApiError.parse((parse_json_object(self.body) or {}).get("error"))


class UpstreamUnavailable(Exception):
    """The upstream is unreachable, disconnected mid-answer, or sent an invalid answer."""

    def __init__(self, message: str, error: ApiError | None = None) -> None:
        super().__init__(message)
        self.error = error or ApiError.of(message)


@dataclass(frozen=True)
class UpstreamClient:
    """One upstream, with the headers and query of a client's request."""

    upstream: Upstream
    http: httpx2.AsyncClient
    headers: Headers
    limits: Limits
    query: str = ""
    turn_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends a turn that takes too long, inside `limit_turns`."""

    def header(self, name: bytes) -> bytes | None:
        """Return this header of the client's request, if present."""
        return next((value for header_name, value in self.headers if header_name == name), None)

    @asynccontextmanager
    async def post_json(self, path: str, body: JsonObject) -> AsyncGenerator["UpstreamResponse"]:
        """Send a request of our own and yield the response.

        Raise UpstreamRejected unless its status is 200, UpstreamUnavailable if sending or reading
        fails.
        """
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        # Each turn is a separate request.
        client = replace(
            self, headers=[header for header in self.headers if header[0] != b"idempotency-key"]
        )
        self.turn_scope.deadline = anyio.current_time() + self.limits.upstream_turn_timeout
        try:
            async with client.stream_raw("POST", path, content) as response:
                upstream_response = UpstreamResponse(response, self.limits)
                if response.status_code != 200:
                    raise upstream_response.rejection(await upstream_response.read_all())
                yield upstream_response
        finally:
            self.turn_scope.deadline = math.inf

    @contextmanager
    def limit_turns(self) -> Generator["UpstreamClient"]:
        """Yield a client whose turns have to end in time; raise UpstreamUnavailable otherwise.

        The scope belongs to whoever consumes the events of a tool loop, not to the loop: a
        generator must not yield inside a scope (PEP 789). Each turn sets its deadline, so that a
        client that stops reading cannot hold the upstream's response; between turns it has none.
        """
        with anyio.CancelScope() as scope:
            yield replace(self, turn_scope=scope)
        if scope.cancelled_caught:
            timeout = self.limits.upstream_turn_timeout
            raise UpstreamUnavailable(
                f"The upstream {self.upstream.id!r} did not finish within {timeout:g} s."
            )

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


@dataclass(frozen=True)
class UpstreamResponse:
    """The response to a request of our own."""

    http: httpx2.Response
    limits: Limits

    @property
    def headers(self) -> Headers:
        """The headers for the client."""
        return metadata_headers(self.http)

    @property
    def is_json(self) -> bool:
        return self.http.headers.get("content-type", "").lower().startswith("application/json")

    def rejection(self, body: bytes) -> UpstreamRejected:
        """Return the error that passes this response to the client as it is."""
        return UpstreamRejected.from_response(self.http, body)

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        return self.http.aiter_bytes()

    async def read_all(self) -> bytes:
        return await read_all(self.chunks(), self.limits)


async def read_all(chunks: AsyncIterable[bytes], limits: Limits) -> bytes:
    """Return the complete body of a response, up to the size limit."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limits.max_upstream_bytes:
            raise UpstreamUnavailable("The upstream's answer is too large.")
    return bytes(body)


def parse_json(data: str | bytes) -> JsonObject:
    """Parse an upstream's JSON object; raise UpstreamUnavailable if it is not valid JSON."""
    text = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    if text.count(b",") > MAX_JSON_VALUES:
        raise UpstreamUnavailable(f"The upstream sent more than {MAX_JSON_VALUES:,} values.")
    try:
        return object_or_empty(cast("object", json.loads(data)))
    except (ValueError, RecursionError):
        raise UpstreamUnavailable("The upstream sent invalid JSON.") from None


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
