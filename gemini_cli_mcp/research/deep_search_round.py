"""The state of one deep search round and its entry in the result."""

import re
import time
from dataclasses import dataclass, field

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.evidence import VerificationIssue
from gemini_cli_mcp.research.researcher import ModelAnswer
from gemini_cli_mcp.sanitize import truncate_line

MAX_SUMMARY_CHARS = 300
"""Maximum characters of a report's summary in the list of rounds."""

ISSUE_TEXT: dict[VerificationIssue, str] = {
    "round_one": "the first round is only a draft",
    "no_search": "it did not search",
    "search_failed": "none of its searches returned results",
    "record_only": "its searches could not be confirmed because the run was cut off",
    "unseen_citation": "it cites a source not in the search results",
    "truncated": "its report was truncated",
    "rejected": "its report was much shorter than an earlier one, or its correction added content",
}

_LINK_TARGET = re.compile(r"(?<=\])\([^()\s]*\)")
_URL = re.compile(r"\(?<?(?:\b[a-z][a-z0-9+.-]*://|\bwww\.)[^\s)>]*[)>]?", re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6}\s.*$", re.MULTILINE)


@dataclass
class Round:
    """One round: its progress while it runs, then its outcome."""

    number: int
    steps: list[str] = field(default_factory=list[str])
    answer: ModelAnswer | None = None
    report: str = ""
    citations: dict[str, int] | None = None
    issues: list[VerificationIssue] = field(default_factory=list[VerificationIssue])
    """Why its claim to be verified was rejected."""
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
        """Characters of the report without whitespace and link targets."""
        return len("".join(_LINK_TARGET.sub("", self.report).split()))

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
        """Record that the round ended without a report."""
        self.error = error
        self.ended_at = time.monotonic()

    def as_dict(self) -> JsonObject:
        """Return the round's entry in `metadata.rounds`."""
        entry: JsonObject = {
            "round_number": self.number,
            "sources_visited": self.sources,
            "search_queries": self.queries,
            "intermediate_result_summary": _summarize(self.report),
            "verified": self.verified,
            "verification": self.issues,
            "duration_ms": round(self.seconds * 1000),
        }
        if self.unchanged:
            entry["unchanged"] = True
        if self.answer and self.answer.correction != "none":
            entry["correction"] = self.answer.correction
        if self.answer and self.answer.correction_overlap is not None:
            entry["correction_overlap"] = self.answer.correction_overlap
        if self.error:
            entry["error"] = self.error.as_dict()
        return entry


def _summarize(report: str) -> str:
    """Return the start of the report without URLs: a truncated URL would be a different one."""
    text = _URL.sub("", _LINK_TARGET.sub("", _HEADING.sub("", report)))
    return truncate_line(text, MAX_SUMMARY_CHARS)
