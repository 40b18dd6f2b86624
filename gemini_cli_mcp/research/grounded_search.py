"""`grounded_search`: the answer of a dedicated search, never the model's memory.

The result contains only the text and sources of the search itself. A reply without sources is
not an answer: the search is repeated once, then fails with NOT_GROUNDED.
"""

import logging
import re
import time
from dataclasses import asdict

import anyio

from gemini_cli_mcp.errors import (
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotGrounded,
    NotSignedIn,
    TimedOut,
)
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.providers.base import GroundingOptions, Provider, Reply
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.research.citation_gate import check_report, check_text
from gemini_cli_mcp.research.evidence import Ledger, source_domain
from gemini_cli_mcp.research.fallback import first_success
from gemini_cli_mcp.research.question import json_type_name, parse_query
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.retry import Sleep, with_retries
from gemini_cli_mcp.sanitize import markdown_link, replace_unsafe_chars
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import THINKING_TOKENS, ProgressCallback, RecordedSearch

logger = logging.getLogger(__name__)


MAX_TEXT_CHARS = 40_000
"""Maximum characters of a search's own text; longer text is not a single answer."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.:-]{0,99}", re.ASCII)
_HEADING = re.compile(r"^(\s{0,3})(#{1,6}\s)")
_FENCE = re.compile(r"`{3,}")


async def grounded_search(
    researcher: Researcher,
    settings: Settings,
    query: object,
    model: object = None,
    thinking: object = None,
    include_thoughts: object = None,
    *,
    progress: ProgressCallback,
) -> JsonObject:
    """Search and return the success result; raise on failure."""
    question = parse_query(query)
    options = _parse_options(settings, model, thinking, include_thoughts)
    started = time.monotonic()

    async def attempt(provider: Provider) -> tuple[Provider, Reply]:
        if options.include_thoughts and not provider.supports_thoughts:
            name = provider.name
            raise InvalidInput(f"`include_thoughts` is not supported by {name}; use `api`.")
        return provider, await ask_until_grounded(
            provider, question, options, progress, researcher.sleep
        )

    try:
        with anyio.fail_after(settings.timeout):
            (provider, reply), fallbacks = await first_success(researcher.providers, attempt)
    except TimeoutError:
        raise TimedOut(f"There was no answer within {settings.timeout:g} s.") from None
    # Use one search only: the citation marks of several would not match a single source list.
    search = next(search for search in reply.searches if search.sources)
    text = (await check_report(search.text[:MAX_TEXT_CHARS], [reply])).text
    # Searches of one API request belong together; a CLI's other searches returned nothing here.
    ledger = Ledger((search, *(s for s in reply.searches if not s.sources and not s.error)), ())
    queries_used = ledger.queries or [question]
    metadata: JsonObject = {
        "provider": provider.name,
        "model": reply.model or options.model,
        "thinking": options.thinking,
        "duration_ms": round((time.monotonic() - started) * 1000),
        "query": question,
        "usage": asdict(reply.usage) if reply.usage else None,
    }
    if fallbacks:
        metadata["fallback"] = fallbacks
    result: JsonObject = {
        "success": True,
        "result": _result_markdown(
            search, text, [check_text(" ".join(q.split()), [reply]) for q in queries_used]
        ),
        "sources": [
            {
                "title": source.title or source_domain(source),
                "url": source.url,
                "domain": source_domain(source),
            }
            for source in search.sources
        ],
        "search_queries": queries_used,
        "metadata": metadata,
    }
    if reply.thoughts:
        result["thoughts"] = reply.thoughts
    if reply.search_suggestions_html:
        result["search_suggestions"] = reply.search_suggestions_html
    return result


def error_markdown(error: GeminiMcpError) -> str:
    """Format the error as Markdown that an agent can act on."""
    heading = "Search Error"
    if isinstance(error, NotSignedIn):
        heading = "Authentication Error"
    elif error.code in ("RATE_LIMITED", "QUOTA_EXHAUSTED"):
        heading = "Rate Limited"
    elif isinstance(error, NotGrounded):
        heading = "No Results"
    elif isinstance(error, NoProvider):
        heading = "No Providers Available"
    steps = [step for step in (error.next_step, _retry_advice(error)) if step]
    steps.append("In the meantime, use your own web search if you have one.")
    return f"## {heading}\n\n{error.message}\n\n**To fix:**\n" + "".join(
        f"- {step}\n" for step in steps
    )


def _retry_advice(error: GeminiMcpError) -> str:
    if error.retry_after_s:
        return f"Try again in {error.retry_after_s:.0f} s."
    return "Try again." if error.retryable else ""


def _parse_options(
    settings: Settings, model: object, thinking: object, include_thoughts: object
) -> GroundingOptions:
    name = settings.grounded_model if model is None else model
    level = settings.grounded_thinking if thinking is None else thinking
    if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name):
        raise InvalidInput("`model` must be a valid model name.")
    if level not in THINKING_TOKENS:
        raise InvalidInput(f"`thinking` must be one of {', '.join(THINKING_TOKENS)}.")
    if include_thoughts is not None and not isinstance(include_thoughts, bool):
        raise InvalidInput(
            f"`include_thoughts` must be true or false, not {json_type_name(include_thoughts)}."
        )
    return GroundingOptions(name, level, bool(include_thoughts))


async def ask_until_grounded(
    provider: Provider,
    question: str,
    options: GroundingOptions,
    progress: ProgressCallback,
    sleep: Sleep,
) -> Reply:
    """Return a reply with sources; retry transient errors, and once if there are no sources."""
    ungrounded_count = 0

    async def attempt() -> Reply:
        nonlocal ungrounded_count
        while True:
            reply = await provider.grounded_search(question, options, progress)
            ledger = Ledger.from_replies(reply)
            if ledger.has_sources:
                return reply
            if ledger.every_search_failed:
                reason = check_text(
                    replace_unsafe_chars(redact(ledger.errors[0][:2000]))[:300], [reply]
                )
                if re.search(r"\b(?:thinking|budget)\b.*\binvalid\b", reason, re.IGNORECASE):
                    raise InvalidInput(
                        f"This model does not accept the value of `thinking`: {reason}"
                    )
                raise ExecutionFailed(f"The web search failed: {reason}")
            ungrounded_count += 1
            if ungrounded_count > 1:
                raise NotGrounded("The search was tried twice and returned no sources.")
            progress("no sources found; searching again")

    return await with_retries(attempt, sleep)


def _result_markdown(search: RecordedSearch, text: str, queries: list[str]) -> str:
    source_lines = [
        f"- {markdown_link(source.title or domain, source.url)} ({domain})"
        for source in search.sources
        for domain in [source_domain(source)]
    ]
    query_lines = [f'- "{query}"' for query in queries]
    parts = ["## Search Results", "", _escape_headings(text), "", "### Sources", *source_lines, ""]
    return "\n".join([*parts, "### Search Queries Used", *query_lines])


def _escape_headings(text: str) -> str:
    """Escape headings outside code, so that the text cannot imitate the surrounding sections."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        ticks = _FENCE.match(line)
        if ticks and not fence:
            fence = ticks[0]
        elif fence and line == fence:
            fence = ""
        lines.append(line if fence or ticks else _HEADING.sub(r"\1\\\2", line))
    return "\n".join(lines)
