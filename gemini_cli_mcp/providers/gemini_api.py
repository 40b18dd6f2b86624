"""Ask the Gemini API itself, with the user's key, through google-genai (the extra `api`)."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from gemini_cli_mcp import prompts
from gemini_cli_mcp.config import Config
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
from gemini_cli_mcp.models import (
    THINKING_TOKENS,
    Evidence,
    Fetch,
    Grounding,
    Object,
    Progress,
    Reply,
    Search,
    Source,
    Thinking,
    Usage,
    as_list,
    as_object,
)
from gemini_cli_mcp.text import redact

LATEST = {
    "flash": "gemini-flash-latest",
    "flash-lite": "gemini-flash-lite-latest",
    "pro": "gemini-pro-latest",
    "auto": "gemini-flash-latest",
}
"""The API's names for what the CLI calls by these."""
LONGEST_WAIT = 300.0
"""Seconds; whoever must wait longer has used up a quota."""

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")


class GeminiApi:
    """The provider `api`."""

    name = "api"
    evidence: Evidence = "ledger"
    fetches = True
    thoughts = True

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self.asked_model: str | None = _latest(config.model or "flash")
        self._correction_model = _latest(config.correction_model or config.model or "flash")
        self._environ = environ

    async def ask(self, prompt: str, progress: Progress, file: Path | None = None) -> Reply:
        """Answer with Google Search and URL context at hand; a correction gets no tool."""
        progress("asking the model")
        if file:
            text = file.read_text(encoding="utf-8")  # noqa: ASYNC240 - small, and our own
            prompt = prompt.replace(f"@{file.name}", text)
            return await self._generate(self._correction_model, prompt, {})
        tools: list[Object] = [{"google_search": {}}, {"url_context": {}}]
        system = prompts.path("system-prompt").read_text(encoding="utf-8")
        config: Object = {"tools": tools, "system_instruction": system}
        return await self._generate(self.asked_model or "", prompt, config, links=True)

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
        client = self._client
        from google.genai import errors
        from httpx2 import HTTPError, TimeoutException

        try:
            response = await client.aio.models.generate_content(
                model=model, contents=prompt, config=config
            )
        except errors.APIError as error:
            raise _named(error) from None
        except TimeoutException:
            raise TimedOut("The Gemini API did not answer in time.") from None
        except HTTPError as error:
            what = type(error).__name__
            raise ExecutionFailed(f"The Gemini API cannot be reached ({what}).") from None
        return _reply(response.model_dump(exclude_none=True, mode="json"), model, links=links)

    @cached_property
    def _client(self) -> Any:
        try:
            from google import genai
        except ImportError:
            raise NoProvider(
                "The provider `api` needs the package google-genai.",
                hint="Install it with `pip install 'gemini-cli-mcp[api]'`.",
            ) from None
        key = self._environ.get("GEMINI_API_KEY") or self._environ.get("GOOGLE_API_KEY")
        vertex = self._environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
        if not key and not vertex:
            raise NotSignedIn(
                "The provider `api` has no key.",
                hint="Set GEMINI_API_KEY in the server's environment, or Vertex AI's variables.",
            )
        options = genai.types.HttpOptions(
            base_url=self._environ.get("GOOGLE_GEMINI_BASE_URL") or None,
            # Our own cycles own the retries.
            retry_options=genai.types.HttpRetryOptions(attempts=1),
        )
        if key or not vertex:
            return genai.Client(vertexai=vertex, api_key=key, http_options=options)
        return genai.Client(
            vertexai=True,
            project=self._environ.get("GOOGLE_CLOUD_PROJECT"),
            location=self._environ.get("GOOGLE_CLOUD_LOCATION"),
            http_options=options,
        )


def _latest(model: str) -> str:
    return LATEST.get(model) or (LATEST["auto"] if model.startswith("auto") else model)


def _thinking(model: str, thinking: Thinking) -> Object:
    """In the words of the model's generation: 2.5 counts tokens, later ones know levels."""
    if model.startswith("gemini-2.5"):
        return {"thinking_budget": THINKING_TOKENS[thinking]}
    return {"thinking_level": "minimal" if thinking == "off" else thinking}


def _reply(response: Object, model: str, *, links: bool) -> Reply:
    """What the response says, and what its grounding metadata proves."""
    candidate = as_object(next(iter(as_list(response.get("candidates"))), None))
    parts = [as_object(part) for part in as_list(as_object(candidate.get("content")).get("parts"))]
    text = "".join(str(part.get("text", "")) for part in parts if not part.get("thought"))
    thoughts = "".join(str(part.get("text", "")) for part in parts if part.get("thought"))
    grounding = as_object(candidate.get("grounding_metadata"))
    sources = _sources(grounding)
    # Where each citation belongs; the offsets are bytes of the text.
    supports = [as_object(support) for support in as_list(grounding.get("grounding_supports"))]
    cited = _cited(text, supports, sources, links=links)
    queries = [str(query) for query in as_list(grounding.get("web_search_queries"))]
    searches = [Search(query) for query in queries or ([""] if sources else [])]
    if searches:  # which of them found what, it does not say
        searches[0] = Search(searches[0].query, None, tuple(sources), cited)
    if not text.strip():
        reason = str(candidate.get("finish_reason") or "no reason given")
        raise ExecutionFailed(f"The Gemini API gave an empty answer ({reason}).")
    suggestions = as_object(grounding.get("search_entry_point")).get("rendered_content")
    return Reply(
        cited,
        str(response.get("model_version") or model),
        "ledger",
        tuple(searches),
        _fetches(candidate),
        _usage(response, len(searches)),
        thoughts or None,
        str(suggestions) if suggestions else None,
    )


def _sources(grounding: Object) -> list[Source]:
    """Every chunk in its place, so that indexes into them stay right."""
    chunks = [as_object(chunk) for chunk in as_list(grounding.get("grounding_chunks"))]
    webs = [as_object(chunk.get("web")) for chunk in chunks]
    return [
        Source(str(web.get("uri", "")), str(web.get("title") or web.get("domain") or ""))
        for web in webs
    ]


def _cited(text: str, supports: list[Object], sources: list[Source], *, links: bool) -> str:
    """The text with a mark or link behind each supported passage.

    With `links` the text is JSON, so what is put into its strings is escaped.
    """
    raw = text.encode()
    for support in sorted(supports, key=_end, reverse=True):
        end = _end(support)
        while end < len(raw) and raw[end] & 0xC0 == 0x80:
            end += 1  # not into the middle of a character
        indexes = [
            index
            for index in as_list(support.get("grounding_chunk_indices"))
            if isinstance(index, int) and 0 <= index < len(sources)
        ]
        if links:
            mark = "".join(f" ([{sources[i].title}]({sources[i].url}))" for i in indexes)
            mark = json.dumps(mark)[1:-1]
        else:
            mark = "".join(f"[{index + 1}]" for index in indexes)
        if 0 < end <= len(raw):
            raw = raw[:end] + mark.encode() + raw[end:]
    cited = raw.decode(errors="replace")
    return cited if not links or _parses(cited) or not _parses(text) else text


def _end(support: Object) -> int:
    end = as_object(support.get("segment")).get("end_index")
    return end if isinstance(end, int) else 0


def _parses(text: str) -> bool:
    start, end = text.find("{"), text.rfind("}")
    try:
        json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return False
    return True


def _fetches(candidate: Object) -> tuple[Fetch, ...]:
    fetched = as_object(candidate.get("url_context_metadata")).get("url_metadata")
    pages = [as_object(page) for page in as_list(fetched)]
    return tuple(
        Fetch(pages=(Source(str(page.get("retrieved_url", "")), ""),))
        if str(page.get("url_retrieval_status")).endswith("SUCCESS")
        else Fetch(error=str(page.get("url_retrieval_status")))
        for page in pages
    )


def _usage(response: Object, searches: int) -> Usage:
    counts = as_object(response.get("usage_metadata"))

    def count(name: str) -> int:
        value = counts.get(name)
        return value if isinstance(value, int) else 0

    return Usage(
        count("prompt_token_count"),
        count("candidates_token_count"),
        count("cached_content_token_count"),
        count("total_token_count"),
        searches,
    )


def _named(error: Any) -> GeminiMcpError:
    """The API's failure as one of ours."""
    code, status = int(error.code or 0), str(error.status or "")
    said = redact(str(error.message or ""))[:300]
    details = json.dumps(as_object(error.details))
    if code in (401, 403) or "API key" in said or "API_KEY_INVALID" in details:
        return NotSignedIn(f"The Gemini API refuses the key: {said}")
    if code == 429 or status == "RESOURCE_EXHAUSTED":
        delays = [float(found) for found in _SECONDS.findall(details)]
        delay = max(delays, default=None)
        if "PerDay" in details or "limit: 0" in said or (delay or 0) > LONGEST_WAIT:
            return QuotaExhausted("The Gemini quota of the day is used up.", retry_after_s=delay)
        return RateLimited("The Gemini API takes no more requests for now.", retry_after_s=delay)
    if code == 404:
        return ConfigError(
            f"The Gemini API does not know the model: {said}",
            hint="Name a model that your key may use in GEMINI_MODEL, GEMINI_MCP_GROUNDED_MODEL "
            "or `model`.",
        )
    if code == 400 and "hinking" in said:
        return InvalidInput(f"`thinking`: this model does not take it: {said}")
    return ExecutionFailed(f"The Gemini API failed ({code} {status}): {said}")
