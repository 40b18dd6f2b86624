"""`grounded_search`: the answer of a dedicated search, never the model's memory.

The result contains only the text and sources of the search itself. A reply without sources is
not an answer: the search is repeated once, then fails with NOT_GROUNDED.
"""

import re
import time
from collections.abc import Sequence

from anyio import to_thread

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import (
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotGrounded,
    NotSignedIn,
)
from gemini_cli_mcp.providers.base import GroundingOptions, Provider, Reply
from gemini_cli_mcp.research.citation_gate import check_report, check_text
from gemini_cli_mcp.research.evidence import Ledger, source_domain
from gemini_cli_mcp.research.model_answer import first_search_error
from gemini_cli_mcp.research.requests import GroundedSearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import GroundedResult
from gemini_cli_mcp.research.retry import Sleep, first_success, with_retries
from gemini_cli_mcp.sanitize import markdown_link
from gemini_cli_mcp.types import RecordedSearch

MAX_TEXT_CHARS = 40_000
"""Maximum characters of a search's own text; longer text is not a single answer."""

_HEADING = re.compile(r"^(\s{0,3})(#{1,6}\s)")
_FENCE = re.compile(r"`{3,}")


async def grounded_search(
    request: GroundedSearchRequest, context: CallContext, researcher: Researcher
) -> GroundedResult:
    """Search once and return the grounded answer; raise GeminiMcpError on failure."""
    started = time.monotonic()
    options = request.options

    async def attempt(provider: Provider, part: CallContext) -> tuple[Provider, Reply]:
        if options.include_thoughts and not provider.supports_thoughts:
            name = provider.name
            raise InvalidInput(f"`include_thoughts` is not supported by {name}; use `api`.")
        reply = await ask_until_grounded(
            provider, request.question, options, part, researcher.sleep
        )
        return provider, reply

    with context.enforce():
        (provider, reply), fallbacks = await first_success(researcher.providers, context, attempt)
    # Use one search only: the citation marks of several would not match a single source list.
    search = next(search for search in reply.searches if search.sources)
    # In a worker thread: a hostile text must not block the event loop.
    checked = await to_thread.run_sync(
        check_report, search.text[:MAX_TEXT_CHARS], [reply], abandon_on_cancel=True
    )
    # Searches of one API request belong together; a CLI's other searches returned nothing here.
    ledger = Ledger((search, *(s for s in reply.searches if not s.sources and not s.error)), ())
    queries = ledger.queries or [request.question]
    shown_queries = [check_text(" ".join(query.split()), [reply]) for query in queries]
    return GroundedResult(
        text=_result_markdown(search, checked.text, shown_queries),
        sources=search.sources,
        queries=tuple(queries),
        provider=provider.name,
        model=reply.model or options.model,
        thinking=options.thinking,
        duration=time.monotonic() - started,
        question=request.question,
        usage=reply.usage,
        fallbacks=fallbacks,
        thoughts=reply.thoughts,
        suggestions_html=reply.search_suggestions_html,
        process=reply.process,
    )


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


async def ask_until_grounded(
    provider: Provider,
    question: str,
    options: GroundingOptions,
    context: CallContext,
    sleep: Sleep,
) -> Reply:
    """Return a reply with sources; retry transient errors, and once if there are no sources."""
    ungrounded_count = 0

    async def attempt() -> Reply:
        nonlocal ungrounded_count
        while True:
            reply = await provider.grounded_search(question, options, context)
            ledger = Ledger.from_replies(reply)
            if ledger.has_sources:
                return reply
            if ledger.every_search_failed:
                raise _failed_search_error(ledger, reply)
            ungrounded_count += 1
            if ungrounded_count > 1:
                raise NotGrounded("The search was tried twice and returned no sources.")
            context.progress("no sources found; searching again")

    return await with_retries(attempt, context, sleep)


def _failed_search_error(ledger: Ledger, reply: Reply) -> GeminiMcpError:
    reason = first_search_error(ledger, [reply])
    if re.search(r"\b(?:thinking|budget)\b.*\binvalid\b", reason, re.IGNORECASE):
        return InvalidInput(f"This model does not accept the value of `thinking`: {reason}")
    return ExecutionFailed(f"The web search failed: {reason}")


def _result_markdown(search: RecordedSearch, text: str, queries: Sequence[str]) -> str:
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
