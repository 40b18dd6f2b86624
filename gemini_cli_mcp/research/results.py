"""What a result tells beside the report: of every kind of research alike."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.research.citation_gate import check_text
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.research.researcher import ModelAnswer
from gemini_cli_mcp.sanitize import replace_unsafe_chars
from gemini_cli_mcp.types import Evidence, Usage

_WEAKEST_FIRST: tuple[Evidence, ...] = ("none", "events", "ledger")


UNCHECKED_NOTES: dict[Evidence, str] = {
    "events": "Nothing was checked: the CLI told that it searched but not what it found, so links "
    "and their claims are the model's own.",
    "none": "Nothing was checked: the CLI told neither what it searched nor what it found, so "
    "links and their claims are the model's own.",
}


def research_metadata(question: str, started: float, answers: Sequence[ModelAnswer]) -> JsonObject:
    """The metadata of a research that began at `started` and got these answers."""
    ledger = Ledger.from_replies(*(answer.reply for answer in answers))
    kinds = [answer.reply.evidence for answer in answers]
    evidence: Evidence = next(kind for kind in _WEAKEST_FIRST if kinds.count(kind))
    provider = answers[-1].provider
    models = [answer.reply.model for answer in reversed(answers) if answer.reply.model]
    usages = [answer.usage for answer in answers if answer.usage]
    metadata: JsonObject = {
        "duration_ms": round((time.monotonic() - started) * 1000),
        "query": question,
        "model": provider.configured_model or next(iter(models), "auto-detected"),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources_visited": _unique(answer.sources for answer in answers),
        "search_queries_used": _unique(answer.queries for answer in answers),
        "evidence": evidence,
        "grounded": None if evidence == "none" else ledger.has_sources,
        "provider": provider.name,
        "usage": asdict(sum(usages, start=Usage())) if usages else None,
    }
    if suggestions := answers[-1].reply.suggestions:
        metadata["search_suggestions"] = suggestions
    if fallback := [item for answer in answers for item in answer.fallback]:
        metadata["fallback"] = fallback
    if note := _note(evidence, ledger, [answer.reply for answer in answers]):
        metadata["note"] = note
    return metadata


def _note(evidence: Evidence, ledger: Ledger, replies: Sequence[Reply]) -> str:
    """What a reader must know of what the text rests on."""
    if ledger.every_search_failed:
        reason = check_text(replace_unsafe_chars(redact(ledger.errors[0][:2000]))[:300], replies)
        return f"Every web search failed, so the text is from the model's memory: {reason}"
    if evidence != "ledger":
        return UNCHECKED_NOTES[evidence]
    return "" if ledger.searches else "No web search was made: the text is from the model's memory."


def _unique(lists: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(item for items in lists for item in items))
