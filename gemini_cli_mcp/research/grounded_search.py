"""`grounded_search`: the answer of a dedicated search, never the model's memory.

What is returned is what the search itself said and found. Without sources there is no answer:
the search is asked for once more, then it is NOT_GROUNDED.
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
from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.providers.base import Grounding, Provider, Reply
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.research.citation_gate import gate, gated
from gemini_cli_mcp.research.evidence import Ledger, domain_of
from gemini_cli_mcp.research.fallback import first_of
from gemini_cli_mcp.research.question import checked_query, type_name
from gemini_cli_mcp.research.researcher import Desk
from gemini_cli_mcp.research.retry import Sleep, patiently
from gemini_cli_mcp.sanitize import markdown_link, scrub
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.types import THINKING_TOKENS, Progress, Search

logger = logging.getLogger(__name__)


LONGEST_TEXT = 40_000
"""Characters of a search's own text; more is not one answer."""

_MODEL = re.compile(r"[A-Za-z0-9][\w.:-]{0,99}", re.ASCII)
_HEADING = re.compile(r"^(\s{0,3})(#{1,6}\s)")
_FENCE = re.compile(r"`{3,}")


async def grounded_search(
    desk: Desk,
    config: Config,
    query: object,
    model: object = None,
    thinking: object = None,
    include_thoughts: object = None,
    *,
    progress: Progress,
) -> Object:
    """Search and return the success result; failures are raised."""
    question = checked_query(query)
    how = _checked(config, model, thinking, include_thoughts)
    started = time.monotonic()

    async def attempt(provider: Provider) -> tuple[Provider, Reply]:
        if how.include_thoughts and not provider.thoughts:
            name = provider.name
            raise InvalidInput(f"`include_thoughts`: {name} does not tell them; `api` can.")
        return provider, await grounded_reply(provider, question, how, progress, desk.sleep)

    try:
        with anyio.fail_after(config.timeout):
            (provider, reply), failed = await first_of(desk.providers, attempt)
    except TimeoutError:
        raise TimedOut(f"There was no answer within {config.timeout:g} s.") from None
    # One search is asked for; of more, the marks in the text would not fit one list of sources.
    found = next(search for search in reply.searches if search.sources)
    text = (await gate(found.text[:LONGEST_TEXT], [reply])).text
    # Those of one request to the API belong together; a CLI's other searches gave nothing here.
    queries = Ledger((found, *(s for s in reply.searches if not s.sources and not s.error)), ())
    asked = queries.queries or [question]
    metadata: Object = {
        "provider": provider.name,
        "model": reply.model or how.model,
        "thinking": how.thinking,
        "duration_ms": round((time.monotonic() - started) * 1000),
        "query": question,
        "usage": asdict(reply.usage) if reply.usage else None,
    }
    if failed:
        metadata["fallback"] = failed
    result: Object = {
        "success": True,
        "result": _markdown(found, text, [gated(" ".join(q.split()), [reply]) for q in asked]),
        "sources": [
            {
                "title": source.title or domain_of(source),
                "url": source.url,
                "domain": domain_of(source),
            }
            for source in found.sources
        ],
        "search_queries": asked,
        "metadata": metadata,
    }
    if reply.thoughts:
        result["thoughts"] = reply.thoughts
    if reply.suggestions:
        result["search_suggestions"] = reply.suggestions
    return result


def failure_text(error: GeminiMcpError) -> str:
    """The failure as Markdown that an agent can act on."""
    heading = "Search Error"
    if isinstance(error, NotSignedIn):
        heading = "Authentication Error"
    elif error.code in ("RATE_LIMITED", "QUOTA_EXHAUSTED"):
        heading = "Rate Limited"
    elif isinstance(error, NotGrounded):
        heading = "No Results"
    elif isinstance(error, NoProvider):
        heading = "No Providers Available"
    steps = [step for step in (error.next_step, _when(error)) if step]
    steps.append("Use your own web search meanwhile, if you have one.")
    return f"## {heading}\n\n{error.message}\n\n**To fix:**\n" + "".join(
        f"- {step}\n" for step in steps
    )


def _when(error: GeminiMcpError) -> str:
    if error.retry_after_s:
        return f"Call again in {error.retry_after_s:.0f} s."
    return "Call again." if error.retryable else ""


def _checked(config: Config, model: object, thinking: object, thoughts: object) -> Grounding:
    name = config.grounded_model if model is None else model
    level = config.grounded_thinking if thinking is None else thinking
    if not isinstance(name, str) or not _MODEL.fullmatch(name):
        raise InvalidInput("`model` must be the name of a model.")
    if level not in THINKING_TOKENS:
        raise InvalidInput(f"`thinking` must be one of {', '.join(THINKING_TOKENS)}.")
    if thoughts is not None and not isinstance(thoughts, bool):
        raise InvalidInput(f"`include_thoughts` must be true or false, not {type_name(thoughts)}.")
    return Grounding(name, level, bool(thoughts))


async def grounded_reply(
    provider: Provider, question: str, how: Grounding, progress: Progress, sleep: Sleep
) -> Reply:
    """A reply with sources; asked again after what will pass, and once if it did not search."""
    ungrounded = 0

    async def attempt() -> Reply:
        nonlocal ungrounded
        while True:
            reply = await provider.ground(question, how, progress)
            ledger = Ledger.of(reply)
            if ledger.searched:
                return reply
            if ledger.every_search_failed:
                why = gated(scrub(redact(ledger.errors[0][:2000]))[:300], [reply])
                if re.search(r"\b(?:thinking|budget)\b.*\binvalid\b", why, re.IGNORECASE):
                    raise InvalidInput(f"`thinking`: this model does not take it: {why}")
                raise ExecutionFailed(f"The web search failed: {why}")
            ungrounded += 1
            if ungrounded > 1:
                raise NotGrounded("The model was asked twice, and no search found sources.")
            progress("no search was made: asking again")

    return await patiently(attempt, sleep)


def _markdown(found: Search, text: str, queries: list[str]) -> str:
    listed = [
        f"- {markdown_link(source.title or domain_of(source), source.url)} ({domain_of(source)})"
        for source in found.sources
    ]
    asked = [f'- "{query}"' for query in queries]
    parts = ["## Search Results", "", _tame(text), "", "### Sources", *listed, ""]
    return "\n".join([*parts, "### Search Queries Used", *asked])


def _tame(text: str) -> str:
    """The search's own text, which must not look like the frame around it; code stays."""
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
