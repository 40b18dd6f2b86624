"""GLM web search (Zhipu, Z.ai), through its chat API or its plain search API.

Uses httpx2 rather than the vendor's SDK.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from gemini_cli_mcp.errors import (
    EngineFailed,
    EngineRefused,
    GeminiMcpError,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.json_values import JsonObject, JsonValue
from gemini_cli_mcp.sanitize import error_excerpt
from gemini_cli_mcp.settings.engines import GlmSettings
from gemini_cli_mcp.types import Hit

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx2 import Response

MAX_API_QUERY_CHARS = 70
"""Maximum query length of the plain search API."""
MAX_ANSWER_BYTES = 5_000_000
"""Maximum response size; a larger response is treated as empty."""
SIGN_IN_HINT = (
    "Set ZAI_API_KEY, or the variable configured for the engine's account, to a Z.ai key."
)

_NO_CREDIT_CODES = {"1113"}
_AUTH_CODES = {"1000", "1001", "1002", "1003", "1004"}
_RATE_LIMIT_CODES = {"1302", "1303", "1305"}


@dataclass(frozen=True)
class EngineAnswer:
    """The summary and the hits of one search."""

    summary: str | None
    """None if the engine does not write summaries."""
    hits: tuple[Hit, ...]


class GlmClient:
    """Client for the family `glm`, bound to one account."""

    def __init__(self, settings: GlmSettings, key: str | None, timeout: float) -> None:
        self._settings = settings
        self._key = key
        self._timeout = timeout

    async def search(self, model: str, query: str, recency: str, count: int) -> EngineAnswer:
        """Search the web; the answer may have no hits."""
        if not self._key or not self._key.isascii() or not self._key.isprintable():
            raise NotSignedIn("The GLM API key is missing or malformed.", hint=SIGN_IN_HINT)
        if self._settings.form == "api":
            request = self._api_request(query, recency, count)
            return await self._post("web_search", request, _parse_api_answer)
        request = self._chat_request(model, query, recency, count)
        return await self._post("chat/completions", request, _parse_chat_answer)

    def _api_request(self, query: str, recency: str, count: int) -> JsonObject:
        return {
            "search_query": query[:MAX_API_QUERY_CHARS],
            "search_engine": self._settings.search_engine,
            "search_intent": False,
            "count": count,
            "search_recency_filter": recency,
        }

    def _chat_request(self, model: str, query: str, recency: str, count: int) -> JsonObject:
        tool = {
            "enable": True,
            "search_engine": self._settings.search_engine,
            "search_query": query,
            "search_result": True,
            "search_recency_filter": recency,
            "count": count,
        }
        return {
            "model": model,
            "messages": [{"role": "user", "content": query}],
            "tools": [{"type": "web_search", "web_search": tool}],
            "thinking": {"type": "disabled"},  # it only makes searches slower
            "stream": False,
        }

    async def _post(
        self, path: str, body: JsonObject, parse: Callable[[JsonValue], EngineAnswer | None]
    ) -> EngineAnswer:
        """Send the request and return the answer; raise if `parse` does not find one."""
        import httpx2  # imported late: most deployments do not use this engine

        url = f"{self._settings.base_url.rstrip('/')}/{path}"
        headers = {"Authorization": f"Bearer {self._key}"}
        try:
            async with (
                httpx2.AsyncClient(timeout=self._timeout, verify=_ssl_context()) as client,
                client.stream("POST", url, json=body, headers=headers) as response,
            ):
                content = await _read_body(response)
        except httpx2.TimeoutException:
            raise TimedOut("GLM did not respond in time.") from None
        except httpx2.HTTPError as error:
            raise EngineFailed(f"GLM cannot be reached ({type(error).__name__}).") from None
        except (httpx2.InvalidURL, ValueError) as error:
            raise EngineRefused(f"The GLM request is invalid ({type(error).__name__}).") from None
        try:
            response_body = cast("JsonValue", json.loads(content))
        except (ValueError, RecursionError):
            response_body = None
        error = _parse_error(response_body)
        answer = None if response.status_code != 200 or error.is_explicit else parse(response_body)
        if answer is None:
            raise self._classify_error(response.status_code, error)
        return answer

    def _classify_error(self, status: int, error: "_GlmError") -> GeminiMcpError:
        """Return the matching error, with GLM's own code and message: they say what to do."""
        code = error.code
        message = f"GLM answered {status}" + (f", code {code}" if code else "")
        message += f": {error.reason}" if error.reason else " without the requested data."
        message = error_excerpt(message, [self._key] if self._key else [])
        if code in _NO_CREDIT_CODES:
            return QuotaExhausted(message, hint="Top up the account, or choose another engine.")
        if status in (401, 403) or code in _AUTH_CODES:
            return NotSignedIn(message, hint=SIGN_IN_HINT)
        if status == 429 or code in _RATE_LIMIT_CODES:
            return RateLimited(message)
        is_refused = 300 <= status < 500 or (status == 200 and code)
        return EngineRefused(message) if is_refused else EngineFailed(message)


@dataclass(frozen=True)
class _GlmError:
    """What a response says about an error; code and reason are empty if it says nothing."""

    code: str
    reason: str
    is_explicit: bool
    """Whether the response has an `error` field; a good one may have a `code` as well."""


@cache
def _ssl_context() -> "SSLContext":
    """Load the certificates once: that takes longer than a search on a fast network."""
    import httpx2

    return httpx2.create_ssl_context()


async def _read_body(response: "Response") -> bytes:
    """Return the body; nothing if it is too large."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            return b""
    return bytes(body)


def _parse_error(body: JsonValue) -> _GlmError:
    fields = body if isinstance(body, dict) else {}
    error = fields.get("error")
    details = error if isinstance(error, dict) and error else fields
    reason = details.get("message") or details.get("msg") or error
    return _GlmError(str(details.get("code") or ""), str(reason or ""), bool(error))


def _parse_api_answer(body: JsonValue) -> EngineAnswer | None:
    match body:
        case {"search_result": results}:
            return EngineAnswer(None, _parse_hits(results))
        case _:
            return None


def _parse_chat_answer(body: JsonValue) -> EngineAnswer | None:
    match body:
        case {"choices": [{"message": {"content": str(content)}}, *_], **fields}:
            return EngineAnswer(content.strip(), _parse_hits(fields.get("web_search")))
        case {"choices": _, **fields}:
            return EngineAnswer("", _parse_hits(fields.get("web_search")))
        case _:
            return None


def _parse_hits(value: JsonValue) -> tuple[Hit, ...]:
    # The SDK types the list as a single object. Accept both.
    match value:
        case [*entries]:
            return tuple(map(_parse_hit, entries))
        case {**entry}:
            return (_parse_hit(entry),)
        case _:
            return ()


def _parse_hit(value: JsonValue) -> Hit:
    """Parse a hit; every field may be missing."""
    entry = value if isinstance(value, dict) else {}
    names = ("title", "link", "media", "publish_date", "content")
    values = (entry.get(name) for name in names)
    title, url, source, date, snippet = (
        value.strip() if isinstance(value, str) else "" for value in values
    )
    return Hit(title, url, source, date or None, snippet or None)
