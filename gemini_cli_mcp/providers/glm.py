"""GLM web search (Zhipu, Z.ai), through its chat API or its plain search API.

Uses httpx2 rather than the vendor's SDK.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from gemini_cli_mcp.errors import (
    EngineFailed,
    EngineRefused,
    GeminiMcpError,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import replace_unsafe_chars
from gemini_cli_mcp.settings.engines_file import GlmSettings
from gemini_cli_mcp.types import Hit

if TYPE_CHECKING:
    from ssl import SSLContext

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
            answer = await self._post("web_search", request, "search_result")
            return EngineAnswer(None, _parse_hits(answer["search_result"]))
        request = self._chat_request(model, query, recency, count)
        answer = await self._post("chat/completions", request, "choices")
        choice = object_or_empty(next(iter(list_or_empty(answer.get("choices"))), None))
        content = object_or_empty(choice.get("message")).get("content")
        summary = content.strip() if isinstance(content, str) else ""
        return EngineAnswer(summary, _parse_hits(answer.get("web_search")))

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

    async def _post(self, path: str, body: JsonObject, required_key: str) -> JsonObject:
        """Send the request and return the answer; raise if it lacks `required_key`."""
        import httpx2  # imported late: most deployments do not use this engine

        url = f"{self._settings.base_url.rstrip('/')}/{path}"
        try:
            async with httpx2.AsyncClient(timeout=self._timeout, verify=_ssl_context()) as client:
                response = await client.post(
                    url, json=body, headers={"Authorization": f"Bearer {self._key}"}
                )
        except httpx2.TimeoutException:
            raise TimedOut("GLM did not respond in time.") from None
        except httpx2.HTTPError as error:
            raise EngineFailed(f"GLM cannot be reached ({type(error).__name__}).") from None
        except (httpx2.InvalidURL, ValueError) as error:
            raise EngineRefused(f"The GLM request is invalid ({type(error).__name__}).") from None
        answer = _parse_json(response)
        if response.status_code != 200 or answer.get("error") or required_key not in answer:
            raise self._classify_error(response.status_code, answer)
        return answer

    def _classify_error(self, status: int, answer: JsonObject) -> GeminiMcpError:
        """Return the matching error, with GLM's own code and message: they say what to do."""
        error = object_or_empty(answer.get("error")) or answer
        code = str(error.get("code") or "")
        reason = str(error.get("message") or error.get("msg") or answer.get("error") or "")
        message = f"GLM answered {status}" + (f", code {code}" if code else "")
        message += f": {reason}" if reason else " without the requested data."
        message = replace_unsafe_chars(redact(message, [self._key] if self._key else []))[:300]
        if code in _NO_CREDIT_CODES:
            return QuotaExhausted(message, hint="Top up the account, or choose another engine.")
        if status in (401, 403) or code in _AUTH_CODES:
            return NotSignedIn(message, hint=SIGN_IN_HINT)
        if status == 429 or code in _RATE_LIMIT_CODES:
            return RateLimited(message)
        is_refused = 300 <= status < 500 or (status == 200 and code)
        return EngineRefused(message) if is_refused else EngineFailed(message)


@cache
def _ssl_context() -> "SSLContext":
    """Load the certificates once: that takes longer than a search on a fast network."""
    import httpx2

    return httpx2.create_ssl_context()


def _parse_json(response: Any) -> JsonObject:
    """Return the JSON object in the body, or an empty one if there is none."""
    try:
        return object_or_empty(response.json()) if len(response.content) <= MAX_ANSWER_BYTES else {}
    except (ValueError, RecursionError):
        return {}


def _parse_hits(value: object) -> tuple[Hit, ...]:
    # The SDK types the list as a single object. Accept both; every field may be missing.
    entries = list_or_empty(value) or ([value] if isinstance(value, dict) else [])
    return tuple(
        Hit(
            title=_string_field(entry, "title"),
            url=_string_field(entry, "link"),
            source=_string_field(entry, "media"),
            date=_string_field(entry, "publish_date") or None,
            snippet=_string_field(entry, "content") or None,
        )
        for entry in map(object_or_empty, entries)
    )


def _string_field(entry: JsonObject, name: str) -> str:
    value = entry.get(name)
    return value.strip() if isinstance(value, str) else ""
