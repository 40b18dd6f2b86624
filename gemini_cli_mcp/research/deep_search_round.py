"""One round of a deep search: what it is doing, then what came of it."""

import re
import time
from dataclasses import dataclass, field

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.evidence import VerificationIssue
from gemini_cli_mcp.research.researcher import ModelAnswer
from gemini_cli_mcp.sanitize import truncate_line

MAX_SUMMARY_CHARS = 300
"""Characters of a report's beginning that stand for it in the list of rounds."""

ISSUE_TEXT: dict[VerificationIssue, str] = {
    "round_one": "the first round only drafts",
    "no_search": "it did not search",
    "search_failed": "none of its searches found anything",
    "record_only": "its searches are not proven, because the run was cut off",
    "unseen_citation": "it cites what nobody saw",
    "truncated": "its report broke off",
    "rejected": "its report was much shorter than one before, or not its own",
}

_TARGET = re.compile(r"(?<=\])\([^()\s]*\)")
_URL = re.compile(r"\(?<?(?:\b[a-z][a-z0-9+.-]*://|\bwww\.)[^\s)>]*[)>]?", re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6}\s.*$", re.MULTILINE)


@dataclass
class Round:
    """One round: what it is doing, then what came of it."""

    number: int
    steps: list[str] = field(default_factory=list[str])
    answer: ModelAnswer | None = None
    report: str = ""
    citations: dict[str, int] | None = None
    issues: list[VerificationIssue] = field(default_factory=list[VerificationIssue])
    """Why its word that it is verified was not taken."""
    verified: bool = False
    unchanged: bool = False
    error: GeminiMcpError | None = None
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended_at or time.monotonic()) - self.started_at

    @property
    def text_length(self) -> int:
        """Characters of its report that say something: no blanks and no addresses."""
        return len("".join(_TARGET.sub("", self.report).split()))

    @property
    def queries(self) -> list[str]:
        return self.answer.queries if self.answer else []

    @property
    def sources(self) -> list[str]:
        return self.answer.sources if self.answer else []

    @property
    def sites(self) -> list[str]:
        return self.answer.ledger.sites if self.answer else []

    def fail(self, error: GeminiMcpError) -> None:
        """It ended without a report."""
        self.error = error
        self.ended_at = time.monotonic()

    def as_dict(self) -> JsonObject:
        """What `metadata.rounds` tells of it."""
        summary: JsonObject = {
            "round_number": self.number,
            "sources_visited": self.sources,
            "search_queries": self.queries,
            "intermediate_result_summary": _summary(self.report),
            "verified": self.verified,
            "verification": self.issues,
            "duration_ms": round(self.seconds * 1000),
        }
        if self.unchanged:
            summary["unchanged"] = True
        if self.answer and self.answer.correction != "none":
            summary["correction"] = self.answer.correction
        if self.answer and self.answer.correction_overlap is not None:
            summary["correction_overlap"] = self.answer.correction_overlap
        if self.error:
            summary["error"] = self.error.as_dict()
        return summary


def _summary(report: str) -> str:
    """Its beginning in words alone: an address that is cut off would be another one."""
    return truncate_line(_URL.sub("", _TARGET.sub("", _HEADING.sub("", report))), MAX_SUMMARY_CHARS)
