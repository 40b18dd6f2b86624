"""`search`: one grounded research run, from the question to the result."""

import secrets
import time
from dataclasses import asdict
from datetime import UTC, datetime

import anyio
import anyio.to_thread

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import InvalidInput, TimedOut
from gemini_cli_mcp.models import MAX_QUERY, Object, Progress, as_list, as_object
from gemini_cli_mcp.research.answer import Answer, Desk
from gemini_cli_mcp.research.citations import check_citations
from gemini_cli_mcp.research.evidence import Ledger
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
            ledger = Ledger.of(answer.reply)
            report, citations = await _checked(answer, ledger)
    except TimeoutError:
        raise TimedOut(f"There was no answer within {timeout:g} s.") from None
    metadata: Object = {
        "duration_ms": round((time.monotonic() - started) * 1000),
        "query": question,
        "model": desk.provider.asked_model or answer.reply.model or "auto-detected",
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        **_evidence(answer, ledger),
        "citations": citations,
        "provider": desk.provider.name,
        "cycles": answer.cycles,
        "correction": answer.correction,
        "usage": asdict(answer.usage) if answer.usage else None,
    }
    if answer.truncated:
        metadata["truncated"] = True
    if answer.correction_overlap is not None:
        metadata["correction_overlap"] = answer.correction_overlap
    return {"success": True, "result": report, "metadata": metadata}


async def _checked(answer: Answer, ledger: Ledger) -> tuple[str, dict[str, int] | None]:
    """The report and how its links stand; without a ledger there is nothing to hold them to."""
    report: str = answer.object["report"]
    if answer.reply.evidence != "ledger":
        return report, None
    checked = await anyio.to_thread.run_sync(
        check_citations, report, ledger, abandon_on_cancel=True
    )
    return checked.text, checked.citations


def _evidence(answer: Answer, ledger: Ledger) -> Object:
    """What was really searched and found; for a plain-text CLI, what the model says."""
    reply = answer.reply
    if reply.evidence == "none":
        told = as_object(answer.object.get("metadata"))
        return {
            "sources_visited": _strings(told.get("sources_visited")),
            "search_queries_used": _strings(told.get("search_queries_used")),
            "evidence": "none",
            "grounded": None,
        }
    evidence: Object = {
        "sources_visited": [source.url for source in ledger.sources],
        "search_queries_used": ledger.queries,
        "evidence": reply.evidence,
        "grounded": ledger.searched,
    }
    if ledger.every_search_failed:
        why = scrub(redact(ledger.errors[0]))[:300]
        evidence["note"] = f"Every web search failed, so the text is from the model's memory: {why}"
    return evidence


def _strings(value: object) -> list[str]:
    return list(dict.fromkeys(item for item in as_list(value) if isinstance(item, str)))


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__
