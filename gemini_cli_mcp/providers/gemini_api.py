"""Call the Gemini API directly with the user's key, through google-genai (the extra `api`)."""

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
from gemini_cli_mcp.json_values import JsonObject, int_or_zero, object_or_empty
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.grounding_metadata import (
    CitationOffsets,
    citation_offsets,
    first_candidate,
    part_texts,
    recorded_fetches,
    recorded_search,
    web_sources,
)
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import markdown_link, replace_unsafe_chars
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback, Thinking, Usage, thinking_setting

MODEL_ALIASES = {
    "flash": "gemini-flash-latest",
    "flash-lite": "gemini-flash-lite-latest",
    "pro": "gemini-pro-latest",
    "auto": "gemini-flash-latest",
}
"""API model names for the aliases of the CLI."""
MAX_RATE_LIMIT_DELAY = 300.0
"""Seconds; a longer delay means that a quota is exhausted."""

SIGN_IN_HINT = "Set GEMINI_API_KEY or the Vertex AI variables in the server's environment."

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")


class GeminiApiProvider:
    """The provider `api`."""

    name = "api"
    supports_thoughts = True

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], breakers: QuotaBreakers
    ) -> None:
        # At most an alias is configured; the response contains the actual model name.
        self.configured_model: str | None = None
        self._model = _resolve_alias(settings.model or "flash")
        self._correction_model = _resolve_alias(
            settings.correction_model or settings.model or "flash"
        )
        self._environ = environ
        self._breakers = breakers
        self._secrets = settings.secrets

    async def ask(self, prompt: str, progress: ProgressCallback, file: Path | None = None) -> Reply:
        """Answer with Google Search and URL context; a correction gets no tools."""
        progress("asking the model")
        if file:
            return await self._generate(
                self._correction_model, prompts.inline_file(prompt, file), {}
            )
        tools: list[JsonObject] = [{"google_search": {}}, {"url_context": {}}]
        system_prompt = prompts.template_path("system-prompt").read_text(encoding="utf-8")
        config: JsonObject = {"tools": tools, "system_instruction": system_prompt}
        return await self._generate(self._model, prompt, config, links=True)

    async def grounded_search(
        self, query: str, options: GroundingOptions, progress: ProgressCallback
    ) -> Reply:
        """Send one request whose only tool is Google Search."""
        progress("searching")
        model = _resolve_alias(options.model)
        thinking_config = {
            **_thinking_config(model, options.thinking),
            "include_thoughts": options.include_thoughts,
        }
        search_options: JsonObject = {}
        if options.since:
            search_options["time_range_filter"] = {
                "start_time": options.since,
                "end_time": datetime.now(UTC),
            }
        config: JsonObject = {
            "tools": [{"google_search": search_options}],
            "thinking_config": thinking_config,
        }
        return await self._generate(model, query, config)

    async def _generate(
        self, model: str, prompt: str, config: JsonObject, *, links: bool = False
    ) -> Reply:
        names = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT")
        key = breaker_key("api", *map(self._environ.get, names), model)
        with self._breakers.guard(key):
            return await self._request(model, prompt, config, links=links)

    async def _request(self, model: str, prompt: str, config: JsonObject, *, links: bool) -> Reply:
        # In a thread, because the import takes more than a second.
        genai = await anyio.to_thread.run_sync(_import_genai)
        try:
            # One client per request: a client is bound to the event loop that it was used in.
            async with self._create_client(genai).aio as client:
                response = await client.models.generate_content(
                    model=model, contents=prompt, config=config
                )
        except GeminiMcpError:
            raise
        except Exception as error:  # noqa: BLE001 - the library's errors are translated here
            raise _translate_error(error, self._secrets) from None
        return _parse_reply(
            response.model_dump(exclude_none=True, mode="json", by_alias=True), model, links=links
        )

    def _create_client(self, genai: Any) -> Any:
        """Create a client that interprets the variables as the gemini CLI does."""
        key = self._environ.get("GEMINI_API_KEY")
        vertex_key = self._environ.get("GOOGLE_API_KEY")
        vertex = self._environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
        if not (key or vertex_key or vertex):
            raise NotSignedIn("The provider `api` has no API key.", hint=SIGN_IN_HINT)
        options = genai.types.HttpOptions(
            base_url=self._environ.get("GOOGLE_GEMINI_BASE_URL") or None,
            # Retries are handled by the research layer.
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


def _import_genai() -> Any:
    try:
        from google import genai
    except ImportError:
        raise NoProvider(
            "The provider `api` requires the package google-genai.",
            hint="Install it with `pip install 'gemini-cli-mcp[api]'`.",
        ) from None
    return genai


def _resolve_alias(model: str) -> str:
    return MODEL_ALIASES.get(model) or (
        MODEL_ALIASES["auto"] if model.startswith("auto") else model
    )


def _thinking_config(model: str, thinking: Thinking) -> JsonObject:
    setting = thinking_setting(thinking, model)
    return {"thinking_budget" if isinstance(setting, int) else "thinking_level": setting}


def _parse_reply(response: JsonObject, model: str, *, links: bool) -> Reply:
    """Parse the response's text and grounding metadata."""
    candidate = first_candidate(response)
    texts, thoughts = part_texts(candidate)
    text = "".join(texts)
    if not text.strip():
        block_reason = object_or_empty(response.get("promptFeedback")).get("blockReason")
        reason = block_reason or candidate.get("finishReason") or "no reason given"
        raise ExecutionFailed(f"The Gemini API returned an empty answer ({reason}).")
    grounding = object_or_empty(candidate.get("groundingMetadata"))
    cited_text = _insert_citations(
        text, citation_offsets(grounding, texts, web_sources(grounding)), links=links
    )
    search = replace(recorded_search(candidate), text=cited_text)
    searches = (search,) if search.sources or search.google_queries else ()
    suggestions = object_or_empty(grounding.get("searchEntryPoint")).get("renderedContent")
    return Reply(
        cited_text,
        str(response.get("modelVersion") or model),
        "ledger",
        searches,
        recorded_fetches(candidate),
        _parse_usage(response, len(search.google_queries) or len(searches)),
        thoughts or None,
        search_suggestions_html=str(suggestions) if suggestions else None,
    )


def _insert_citations(text: str, citations: CitationOffsets, *, links: bool) -> str:
    """Insert a mark such as [1], or links, after each supported passage.

    With `links` the text is JSON: the links are escaped for JSON strings, and an insertion that
    would make the JSON invalid is skipped.
    """
    raw = text.encode()
    is_json = links and _is_json(text)
    for end, cited in sorted(citations.items(), reverse=True):
        offset = end
        while offset < len(raw) and raw[offset] & 0xC0 == 0x80:
            offset += 1  # never split a character
        if not 0 < offset <= len(raw):
            continue
        if links:
            markdown = "".join(
                f" ({markdown_link(source.title, source.url)})" for _, source in cited
            )
            mark = json.dumps(markdown)[1:-1]
        else:
            mark = "".join(f"[{number}]" for number, _ in cited)
        updated = raw[:offset] + mark.encode() + raw[offset:]
        if not is_json or _is_json(updated.decode(errors="replace")):
            raw = updated
    return raw.decode(errors="replace")


def _is_json(text: str) -> bool:
    start, end = text.find("{"), text.rfind("}")
    try:
        json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return False
    return True


def _parse_usage(response: JsonObject, searches: int) -> Usage:
    counts = object_or_empty(response.get("usageMetadata"))
    return Usage(
        int_or_zero(counts.get("promptTokenCount")),
        int_or_zero(counts.get("candidatesTokenCount")),
        int_or_zero(counts.get("cachedContentTokenCount")),
        int_or_zero(counts.get("totalTokenCount")),
        searches,
    )


def _translate_error(error: Any, secrets: Sequence[str]) -> GeminiMcpError:
    """Translate an error of the library or the API, with all secrets redacted."""
    from google.auth.exceptions import GoogleAuthError
    from google.genai.errors import APIError
    from httpx2 import HTTPError, TimeoutException

    type_name = type(error).__name__
    if isinstance(error, GoogleAuthError):
        return NotSignedIn(f"Vertex AI authentication failed ({type_name}).", hint=SIGN_IN_HINT)
    if isinstance(error, TimeoutException):
        return TimedOut("The Gemini API did not respond in time.")
    if isinstance(error, HTTPError):
        return ExecutionFailed(f"The Gemini API cannot be reached ({type_name}).")
    if not isinstance(error, APIError):
        return ExecutionFailed(f"The Gemini API returned an unreadable response ({type_name}).")
    code, status = int(error.code or 0), str(error.status or "")
    message = replace_unsafe_chars(redact(str(error.message or ""), secrets))[:300]
    details = json.dumps(object_or_empty(cast("object", error.details)))
    if code == 429 or status == "RESOURCE_EXHAUSTED":
        delay = max((float(seconds) for seconds in _SECONDS.findall(details)), default=None)
        if "PerDay" in details or "limit: 0" in message or (delay or 0) > MAX_RATE_LIMIT_DELAY:
            return QuotaExhausted("The daily Gemini quota is exhausted.", retry_after_s=delay)
        return RateLimited("The Gemini API is rate limiting requests.", retry_after_s=delay)
    if code in (401, 403) or (
        code == 400 and ("API key" in message or "API_KEY_INVALID" in details)
    ):
        return NotSignedIn(f"The Gemini API rejected the key: {message}", hint=SIGN_IN_HINT)
    if code == 404:
        return ConfigError(
            f"The Gemini API does not recognize the model: {message}",
            hint="Set GEMINI_MODEL, GEMINI_MCP_GROUNDED_MODEL or `model` to a model that your key "
            "can use.",
        )
    if code == 400 and re.search("thinking|budget", message, re.IGNORECASE):
        return InvalidInput(
            f"`thinking`: no provider supports this level for this model: {message}"
        )
    return ExecutionFailed(f"The Gemini API failed ({code} {status}): {message}")
