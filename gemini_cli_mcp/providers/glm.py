"""GLM's web search (Zhipu, Z.ai): by its chat form, or by the plain search API. httpx2, no SDK."""

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
"""Characters that the plain search API takes."""
MAX_ANSWER_BYTES = 5_000_000
"""Bytes of an answer that are read."""
SIGN_IN_HINT = "Set ZAI_API_KEY, or the variable that the engine's account names, to a key of Z.ai."

_NO_MONEY = {"1113"}
_NO_KEY = {"1000", "1001", "1002", "1003", "1004"}
_TOO_MANY = {"1302", "1303", "1305"}


@dataclass(frozen=True)
class EngineAnswer:
    """What an engine says and found."""

    summary: str | None
    """None: nobody wrote one."""
    hits: tuple[Hit, ...]


class GlmClient:
    """The family `glm`, with one account."""

    def __init__(self, settings: GlmSettings, key: str | None, timeout: float) -> None:
        self._settings = settings
        self._key = key
        self._timeout = timeout

    async def search(self, model: str, query: str, recency: str, count: int) -> EngineAnswer:
        """Search; hits may be none."""
        if not self._key or not self._key.isascii() or not self._key.isprintable():
            raise NotSignedIn(
                "There is no key for GLM, or none that can be one.", hint=SIGN_IN_HINT
            )
        if self._settings.form == "api":
            request = self._api_request(query, recency, count)
            answer = await self._post("web_search", request, "search_result")
            return EngineAnswer(None, _hits(answer["search_result"]))
        request = self._chat_request(model, query, recency, count)
        answer = await self._post("chat/completions", request, "choices")
        choice = object_or_empty(next(iter(list_or_empty(answer.get("choices"))), None))
        content = object_or_empty(choice.get("message")).get("content")
        summary = content.strip() if isinstance(content, str) else ""
        return EngineAnswer(summary, _hits(answer.get("web_search")))

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
            "thinking": {"type": "disabled"},  # it only adds time to a search
            "stream": False,
        }

    async def _post(self, path: str, body: JsonObject, required_key: str) -> JsonObject:
        """The answer, which must have the key `wanted`."""
        import httpx2  # late: most deployments have no such engine

        url = f"{self._settings.base_url.rstrip('/')}/{path}"
        try:
            async with httpx2.AsyncClient(timeout=self._timeout, verify=_certificates()) as client:
                response = await client.post(
                    url, json=body, headers={"Authorization": f"Bearer {self._key}"}
                )
        except httpx2.TimeoutException:
            raise TimedOut("GLM did not answer in time.") from None
        except httpx2.HTTPError as error:
            raise EngineFailed(f"GLM cannot be reached ({type(error).__name__}).") from None
        except (httpx2.InvalidURL, ValueError) as error:
            raise EngineRefused(f"GLM cannot be asked ({type(error).__name__}).") from None
        answer = _json(response)
        if response.status_code != 200 or answer.get("error") or required_key not in answer:
            raise self._failure(response.status_code, answer)
        return answer

    def _failure(self, status: int, answer: JsonObject) -> GeminiMcpError:
        """Its code and words are passed on: they say what to do."""
        error = object_or_empty(answer.get("error")) or answer
        code = str(error.get("code") or "")
        words = str(error.get("message") or error.get("msg") or answer.get("error") or "")
        said = f"GLM answered {status}" + (f", code {code}" if code else "")
        said += f": {words}" if words else " without what was asked for."
        said = replace_unsafe_chars(redact(said, [self._key] if self._key else []))[:300]
        if code in _NO_MONEY:
            return QuotaExhausted(said, hint="Top up the account, or choose another engine.")
        if status in (401, 403) or code in _NO_KEY:
            return NotSignedIn(said, hint=SIGN_IN_HINT)
        if status == 429 or code in _TOO_MANY:
            return RateLimited(said)
        refused = 300 <= status < 500 or (status == 200 and code)
        return EngineRefused(said) if refused else EngineFailed(said)


@cache
def _certificates() -> "SSLContext":
    """Read once: it takes longer than a search on a fast network."""
    import httpx2

    return httpx2.create_ssl_context()


def _json(response: Any) -> JsonObject:
    """The object in the body; an empty one if there is none."""
    try:
        return object_or_empty(response.json()) if len(response.content) <= MAX_ANSWER_BYTES else {}
    except (ValueError, RecursionError):
        return {}


def _hits(value: object) -> tuple[Hit, ...]:
    # Its SDK types the list as one object; either is taken, and every field may be missing.
    entries = list_or_empty(value) or ([value] if isinstance(value, dict) else [])
    return tuple(
        Hit(
            title=_text(entry, "title"),
            url=_text(entry, "link"),
            source=_text(entry, "media"),
            date=_text(entry, "publish_date") or None,
            snippet=_text(entry, "content") or None,
        )
        for entry in map(object_or_empty, entries)
    )


def _text(entry: JsonObject, name: str) -> str:
    value = entry.get(name)
    return value.strip() if isinstance(value, str) else ""
