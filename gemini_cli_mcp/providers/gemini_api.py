"""Ask the Gemini API itself, with the user's key, through google-genai (the extra `api`)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import anyio.to_thread

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import (
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.json_values import Object, as_count, as_object
from gemini_cli_mcp.providers.base import Grounding, Reply
from gemini_cli_mcp.providers.grounding_metadata import (
    Ends,
    candidate_of,
    ends_of,
    fetches_of,
    search_of,
    sources_of,
    texts_of,
)
from gemini_cli_mcp.providers.quota_breaker import Quotas, name_of
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import markdown_link, scrub
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.types import Evidence, Progress, Thinking, Usage, amount_of

LATEST = {
    "flash": "gemini-flash-latest",
    "flash-lite": "gemini-flash-lite-latest",
    "pro": "gemini-pro-latest",
    "auto": "gemini-flash-latest",
}
"""The API's names for what the CLI calls by these."""
LONGEST_WAIT = 300.0
"""Seconds; whoever must wait longer has used up a quota."""

SIGN_IN = "Set GEMINI_API_KEY in the server's environment, or Vertex AI's variables."

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")


class GeminiApi:
    """The provider `api`."""

    name = "api"
    evidence: Evidence = "ledger"
    fetches = True
    thoughts = True

    def __init__(self, config: Config, environ: Mapping[str, str], quotas: Quotas) -> None:
        self.asked_model: str | None = None  # an alias at most: the response tells the real one
        self._model = _latest(config.model or "flash")
        self._correction_model = _latest(config.correction_model or config.model or "flash")
        self._environ = environ
        self._quotas = quotas
        self._secrets = config.secrets

    async def ask(self, prompt: str, progress: Progress, file: Path | None = None) -> Reply:
        """Answer with Google Search and URL context at hand; a correction gets no tool."""
        progress("asking the model")
        if file:
            return await self._generate(self._correction_model, prompts.inlined(prompt, file), {})
        tools: list[Object] = [{"google_search": {}}, {"url_context": {}}]
        system = prompts.path("system-prompt").read_text(encoding="utf-8")
        config: Object = {"tools": tools, "system_instruction": system}
        return await self._generate(self._model, prompt, config, links=True)

    async def ground(self, query: str, how: Grounding, progress: Progress) -> Reply:
        """One request whose only tool is Google Search."""
        progress("searching")
        model = _latest(how.model)
        thinking = {**_thinking(model, how.thinking), "include_thoughts": how.include_thoughts}
        search: Object = {}
        if how.since:
            search["time_range_filter"] = {"start_time": how.since, "end_time": datetime.now(UTC)}
        config: Object = {"tools": [{"google_search": search}], "thinking_config": thinking}
        return await self._generate(model, query, config)

    async def _generate(
        self, model: str, prompt: str, config: Object, *, links: bool = False
    ) -> Reply:
        names = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT")
        quota = name_of("api", *map(self._environ.get, names), model)
        with self._quotas.asking(quota):
            return await self._asked(model, prompt, config, links=links)

    async def _asked(self, model: str, prompt: str, config: Object, *, links: bool) -> Reply:
        # In a thread: the import takes more than a second.
        genai = await anyio.to_thread.run_sync(_library)
        try:
            # A client for each request: one is bound to the loop it was used in.
            async with self._client(genai).aio as client:
                response = await client.models.generate_content(
                    model=model, contents=prompt, config=config
                )
        except GeminiMcpError:
            raise
        except Exception as error:  # noqa: BLE001 - what comes out of the library is named here
            raise _named(error, self._secrets) from None
        return _reply(
            response.model_dump(exclude_none=True, mode="json", by_alias=True), model, links=links
        )

    def _client(self, genai: Any) -> Any:
        """As the gemini CLI signs in with the same variables."""
        key = self._environ.get("GEMINI_API_KEY")
        vertex_key = self._environ.get("GOOGLE_API_KEY")
        vertex = self._environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
        if not (key or vertex_key or vertex):
            raise NotSignedIn("The provider `api` has no key.", hint=SIGN_IN)
        options = genai.types.HttpOptions(
            base_url=self._environ.get("GOOGLE_GEMINI_BASE_URL") or None,
            # Our own cycles own the retries.
            retry_options=genai.types.HttpRetryOptions(attempts=1),
        )
        if key:
            return genai.Client(vertexai=False, api_key=key, http_options=options)
        if vertex_key:
            return genai.Client(vertexai=vertex, api_key=vertex_key, http_options=options)
        return genai.Client(
            vertexai=True,
            project=self._environ.get("GOOGLE_CLOUD_PROJECT"),
            location=self._environ.get("GOOGLE_CLOUD_LOCATION"),
            http_options=options,
        )


def _library() -> Any:
    try:
        from google import genai
    except ImportError:
        raise NoProvider(
            "The provider `api` needs the package google-genai.",
            hint="Install it with `pip install 'gemini-cli-mcp[api]'`.",
        ) from None
    return genai


def _latest(model: str) -> str:
    return LATEST.get(model) or (LATEST["auto"] if model.startswith("auto") else model)


def _thinking(model: str, thinking: Thinking) -> Object:
    amount = amount_of(thinking, model)
    return {"thinking_budget" if isinstance(amount, int) else "thinking_level": amount}


def _reply(response: Object, model: str, *, links: bool) -> Reply:
    """What the response says, and what its grounding metadata proves."""
    candidate = candidate_of(response)
    texts, thoughts = texts_of(candidate)
    text = "".join(texts)
    if not text.strip():
        blocked = as_object(response.get("promptFeedback")).get("blockReason")
        reason = blocked or candidate.get("finishReason") or "no reason given"
        raise ExecutionFailed(f"The Gemini API gave an empty answer ({reason}).")
    grounding = as_object(candidate.get("groundingMetadata"))
    cited = _cited(text, ends_of(grounding, texts, sources_of(grounding)), links=links)
    search = replace(search_of(candidate), text=cited)
    searches = (search,) if search.sources or search.google_queries else ()
    suggestions = as_object(grounding.get("searchEntryPoint")).get("renderedContent")
    return Reply(
        cited,
        str(response.get("modelVersion") or model),
        "ledger",
        searches,
        fetches_of(candidate),
        _usage(response, len(search.google_queries) or len(searches)),
        thoughts or None,
        suggestions=str(suggestions) if suggestions else None,
    )


def _cited(text: str, ends: Ends, *, links: bool) -> str:
    """The text with a mark or link behind each supported passage.

    With `links` the text is JSON: what is put into its strings is escaped, and what would break
    it is left out.
    """
    raw = text.encode()
    parses = links and _parses(text)
    for end, cited in sorted(ends.items(), reverse=True):
        place = end
        while place < len(raw) and raw[place] & 0xC0 == 0x80:
            place += 1  # not into the middle of a character
        if not 0 < place <= len(raw):
            continue
        if links:
            written = "".join(
                f" ({markdown_link(source.title, source.url)})" for _, source in cited
            )
            mark = json.dumps(written)[1:-1]
        else:
            mark = "".join(f"[{number}]" for number, _ in cited)
        new = raw[:place] + mark.encode() + raw[place:]
        if not parses or _parses(new.decode(errors="replace")):
            raw = new
    return raw.decode(errors="replace")


def _parses(text: str) -> bool:
    start, end = text.find("{"), text.rfind("}")
    try:
        json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return False
    return True


def _usage(response: Object, searches: int) -> Usage:
    counts = as_object(response.get("usageMetadata"))

    return Usage(
        as_count(counts.get("promptTokenCount")),
        as_count(counts.get("candidatesTokenCount")),
        as_count(counts.get("cachedContentTokenCount")),
        as_count(counts.get("totalTokenCount")),
        searches,
    )


def _named(error: Any, secrets: Sequence[str]) -> GeminiMcpError:
    """A failure of the library or the API as one of ours, without any of the secrets."""
    from google.auth.exceptions import GoogleAuthError
    from google.genai.errors import APIError
    from httpx2 import HTTPError, TimeoutException

    what = type(error).__name__
    if isinstance(error, GoogleAuthError):
        return NotSignedIn(f"Vertex AI is not signed in ({what}).", hint=SIGN_IN)
    if isinstance(error, TimeoutException):
        return TimedOut("The Gemini API did not answer in time.")
    if isinstance(error, HTTPError):
        return ExecutionFailed(f"The Gemini API cannot be reached ({what}).")
    if not isinstance(error, APIError):
        return ExecutionFailed(f"The Gemini API gave an answer that cannot be read ({what}).")
    code, status = int(error.code or 0), str(error.status or "")
    said = scrub(redact(str(error.message or ""), secrets))[:300]
    details = json.dumps(as_object(cast("object", error.details)))
    if code == 429 or status == "RESOURCE_EXHAUSTED":
        delay = max((float(found) for found in _SECONDS.findall(details)), default=None)
        if "PerDay" in details or "limit: 0" in said or (delay or 0) > LONGEST_WAIT:
            return QuotaExhausted("The Gemini quota of the day is used up.", retry_after_s=delay)
        return RateLimited("The Gemini API takes no more requests for now.", retry_after_s=delay)
    if code in (401, 403) or (code == 400 and ("API key" in said or "API_KEY_INVALID" in details)):
        return NotSignedIn(f"The Gemini API refuses the key: {said}", hint=SIGN_IN)
    if code == 404:
        return ConfigError(
            f"The Gemini API does not know the model: {said}",
            hint="Name a model that your key may use in GEMINI_MODEL, GEMINI_MCP_GROUNDED_MODEL "
            "or `model`.",
        )
    if code == 400 and re.search("thinking|budget", said, re.IGNORECASE):
        return InvalidInput(f"`thinking`: this model does not take it, from no provider: {said}")
    return ExecutionFailed(f"The Gemini API failed ({code} {status}): {said}")
