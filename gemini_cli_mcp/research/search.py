"""`search`: one grounded research run, from the question to the result."""

import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime

import anyio

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import InvalidInput, TimedOut
from gemini_cli_mcp.models import MAX_QUERY, Object, Progress, Search, as_list, as_object
from gemini_cli_mcp.research.answer import Answer, Desk
from gemini_cli_mcp.text import redact, scrub


def checked_query(query: object) -> str:
    """The question, if it is one."""
    if not isinstance(query, str):
        raise InvalidInput(f"`query` must be a string, not {_type_name(query)}.")
    if not query.strip():
        raise InvalidInput("`query` is blank.", hint="Put the question into `query`.")
    if len(query) > MAX_QUERY:
        raise InvalidInput(
            f"`query` has {len(query)} characters; at most {MAX_QUERY} are taken.",
            hint="Ask the question itself and leave the material out.",
        )
    if "\0" in query:
        raise InvalidInput("`query` contains a NUL character.")
    return scrub(query)


async def search(desk: Desk, query: object, *, timeout: float, progress: Progress) -> Object:
    """Research the question and return the success result; failures are raised."""
    question = checked_query(query)
    started = time.monotonic()
    prompt = prompts.fill(
        "search-prompt",
        query=question,
        date=datetime.now().astimezone().date().isoformat(),
        mark=secrets.token_hex(4),
    )
    try:
        with anyio.fail_after(timeout):
            answer = await desk.ask(prompt, progress)
    except TimeoutError:
        raise TimedOut(f"There was no answer within {timeout:g} s.") from None
    metadata: Object = {
        "duration_ms": round((time.monotonic() - started) * 1000),
        "query": question,
        "model": desk.provider.asked_model or answer.reply.model or "auto-detected",
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        **_evidence(answer),
        "provider": desk.provider.name,
        "cycles": answer.cycles,
        "correction": answer.correction,
        "usage": asdict(answer.usage) if answer.usage else None,
    }
    if answer.truncated:
        metadata["truncated"] = True
    if answer.correction_overlap is not None:
        metadata["correction_overlap"] = answer.correction_overlap
    return {"success": True, "result": answer.object["report"], "metadata": metadata}


def _evidence(answer: Answer) -> Object:
    """What was really searched and found; for a plain-text CLI, what the model says."""
    reply = answer.reply
    if reply.evidence == "none":
        told = as_object(answer.object.get("metadata"))
        sources = _strings(told.get("sources_visited"))
        queries = _strings(told.get("search_queries_used"))
        grounded = None
    else:
        sources = [source.url for search in reply.searches for source in search.sources]
        queries = [search.query for search in reply.searches]
        grounded = any(search.sources for search in reply.searches)
    evidence: Object = {
        "sources_visited": _unique(sources),
        "search_queries_used": _unique(queries),
        "evidence": reply.evidence,
        "grounded": grounded,
        "citations": None,
    }
    if reply.searches and all(search.error for search in reply.searches):
        evidence["note"] = _all_failed(reply.searches[-1])
    return evidence


def _all_failed(last: Search) -> str:
    why = scrub(redact(last.error or ""))[:300]
    return f"Every web search of this run failed, so the text is from the model's memory: {why}"


def _strings(value: object) -> list[str]:
    return [item for item in as_list(value) if isinstance(item, str)]


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__
