"""A model's answer with the evidence behind it, and the metadata of one or more answers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import check_text
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.research.model_report import ModelReport
from gemini_cli_mcp.research.results import FallbackReason, Repair, RunMetadata
from gemini_cli_mcp.sanitize import error_excerpt
from gemini_cli_mcp.types import Evidence, Source, Usage

UNCHECKED_NOTES: dict[Evidence, str] = {
    "events": "Nothing was checked: the CLI reported its searches but not their results, so all "
    "links and claims come from the model alone.",
    "none": "Nothing was checked: the CLI reported neither its searches nor their results, so all "
    "links and claims come from the model alone.",
}

_EVIDENCE_WEAKEST_FIRST: tuple[Evidence, ...] = ("none", "events", "ledger")
_VERIFIED_FLAG = re.compile(r"[,{]\s*\"verified\"\s*:\s*(true|false)\b")
_ANSWER_START = re.compile(r"\{\s*[\"'\u201c]?success\b")


@dataclass(frozen=True)
class ModelAnswer:
    """The model's validated report and how it was obtained; plain data, so it can be stored."""

    report: ModelReport
    reply: Reply
    """Reply of the main run; its records are the evidence."""
    repair: Repair
    provider: str
    """Name of the provider that answered."""
    configured_model: str | None
    """The model that this provider was told to use, if any."""
    cycles: int = 1
    usages: tuple[Usage, ...] = ()
    """Usage of all runs that replied, the corrections among them."""
    fallbacks: tuple[FallbackReason, ...] = ()
    """Providers that failed before this one."""

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_replies(self.reply)

    @property
    def sources(self) -> tuple[Source, ...]:
        """What was found or fetched; for a plain-text CLI, the URLs that the model claims."""
        if self.reply.evidence == "none":
            return tuple(Source(url, "") for url in self.report.sources)
        return tuple(self.ledger.sources)

    @property
    def queries(self) -> tuple[str, ...]:
        """Queries that were searched; for a plain-text CLI, those the model claims."""
        if self.reply.evidence == "none":
            return self.report.queries
        return tuple(self.ledger.queries)

    @property
    def claims_verified(self) -> bool:
        """Whether the model claims that its report is verified.

        A correction may repeat the claim but not introduce it: the original output must contain
        it exactly once, as a key, and must not quote another answer object.
        """
        text = self.reply.text
        flags = _VERIFIED_FLAG.findall(text)
        if len(set(flags)) > 1:  # several objects disagree
            return False
        if self.repair.correction == "corrected" and (
            flags != ["true"] or len(_ANSWER_START.findall(text)) > 1
        ):
            return False
        return self.report.verified


def run_metadata(
    question: str,
    duration: float,
    answers: Sequence[ModelAnswer],
    failed: Sequence[Reply] = (),
) -> RunMetadata:
    """Return the metadata of research that took `duration` seconds and had these answers.

    `failed` is what failed runs had found before they failed.
    """
    replies = [answer.reply for answer in answers]
    ledger = Ledger.from_replies(*replies, *failed)
    failed_ledger = Ledger.from_replies(*failed)
    levels = {reply.evidence for reply in replies}
    evidence: Evidence = next(level for level in _EVIDENCE_WEAKEST_FIRST if level in levels)
    last = answers[-1]
    usages = [usage for answer in answers for usage in answer.usages]
    models = [reply.model for reply in reversed(replies) if reply.model]
    return RunMetadata(
        duration=duration,
        question=question,
        model=last.configured_model or next(iter(models), "auto-detected"),
        finished_at=datetime.now(UTC),
        sources=_unique_sources(
            [
                *(source for answer in answers for source in answer.sources),
                *failed_ledger.sources,
            ]
        ),
        queries=_unique(
            [
                *(query for answer in answers for query in answer.queries),
                *failed_ledger.queries,
            ]
        ),
        evidence=evidence,
        grounded=None if evidence == "none" else ledger.has_sources,
        provider=last.provider,
        usage=sum(usages, start=Usage()) if usages else None,
        suggestions_html=last.reply.search_suggestions_html,
        fallbacks=tuple(reason for answer in answers for reason in answer.fallbacks),
        process=last.reply.process,
        note=_evidence_note(evidence, ledger, replies),
    )


def first_search_error(ledger: Ledger, replies: Sequence[Reply]) -> str:
    """Return the error of the first failed search or fetch, safe to show."""
    return check_text(error_excerpt(ledger.errors[0]), replies)


def _evidence_note(evidence: Evidence, ledger: Ledger, replies: Sequence[Reply]) -> str:
    """Return what the reader must know about the evidence behind the text."""
    if ledger.every_search_failed:
        return (
            "Every web search failed, so the text is from the model's memory. "
            f"First error: {first_search_error(ledger, replies)}"
        )
    if evidence != "ledger":
        return UNCHECKED_NOTES[evidence]
    if not ledger.searches:
        return "No web search was made, so the text is from the model's memory."
    if not ledger.has_sources:
        return "No web search returned sources, so nothing supports the text."
    return ""


def _unique_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    return tuple({source.url: source for source in sources}.values())


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
