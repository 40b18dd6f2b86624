"""Result metadata common to `search` and `deep_search`."""

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

_EVIDENCE_WEAKEST_FIRST: tuple[Evidence, ...] = ("none", "events", "ledger")


UNCHECKED_NOTES: dict[Evidence, str] = {
    "events": "Nothing was checked: the CLI reported its searches but not their results, so all "
    "links and claims come from the model alone.",
    "none": "Nothing was checked: the CLI reported neither its searches nor their results, so all "
    "links and claims come from the model alone.",
}


def research_metadata(question: str, started: float, answers: Sequence[ModelAnswer]) -> JsonObject:
    """Return the metadata of research that began at `started` and produced these answers."""
    ledger = Ledger.from_replies(*(answer.reply for answer in answers))
    levels = [answer.reply.evidence for answer in answers]
    evidence: Evidence = next(level for level in _EVIDENCE_WEAKEST_FIRST if levels.count(level))
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
    if suggestions := answers[-1].reply.search_suggestions_html:
        metadata["search_suggestions"] = suggestions
    if fallback := [item for answer in answers for item in answer.fallback]:
        metadata["fallback"] = fallback
    if note := _note(evidence, ledger, [answer.reply for answer in answers]):
        metadata["note"] = note
    return metadata


def _note(evidence: Evidence, ledger: Ledger, replies: Sequence[Reply]) -> str:
    """Return what the reader must know about the evidence behind the text."""
    if ledger.every_search_failed:
        reason = check_text(replace_unsafe_chars(redact(ledger.errors[0][:2000]))[:300], replies)
        return (
            "Every web search failed, so the text is from the model's memory. "
            f"First error: {reason}"
        )
    if evidence != "ledger":
        return UNCHECKED_NOTES[evidence]
    return (
        "" if ledger.searches else "No web search was made, so the text is from the model's memory."
    )


def _unique(lists: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(item for items in lists for item in items))
