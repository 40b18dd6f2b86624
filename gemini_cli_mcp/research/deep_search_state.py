"""What a deep search has found so far: plain data, from which drafts and results are built.

The state after a finished round is all that is needed to go on from there, also in another process.
"""

import re
from dataclasses import dataclass, replace

from gemini_cli_mcp.errors import Cancelled, GeminiMcpError
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import CheckedReport
from gemini_cli_mcp.research.evidence import Ledger, VerificationIssue, search_issue
from gemini_cli_mcp.research.model_answer import ModelAnswer, run_metadata
from gemini_cli_mcp.research.requests import DeepSearchRequest
from gemini_cli_mcp.research.researcher import MIN_TRUSTED_OVERLAP
from gemini_cli_mcp.research.results import DeepSearchResult, RoundSummary
from gemini_cli_mcp.sanitize import truncate_line

MIN_LENGTH_RATIO = 0.5
"""Minimum length of a new best report, relative to the longest best report so far."""
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


@dataclass(frozen=True)
class FinishedRound:
    """A round that returned a report."""

    number: int
    duration: float
    answer: ModelAnswer
    report: CheckedReport
    is_best: bool
    """Whether its report replaced the best one before it."""
    unchanged: bool
    """Whether its report equals the best one before it."""
    issues: tuple[VerificationIssue, ...]
    """Why its claim to be verified was rejected."""

    @property
    def verified(self) -> bool:
        return self.answer.claims_verified and not self.issues

    @property
    def text_length(self) -> int:
        """Characters of the report without whitespace and link targets."""
        return len("".join(_LINK_TARGET.sub("", self.report.text).split()))

    def summarize(self) -> RoundSummary:
        return RoundSummary(
            self.number,
            self.duration,
            tuple(source.url for source in self.answer.sources),
            self.answer.queries,
            tuple(self.answer.ledger.sites),
            _summary(self.report.text),
            self.verified,
            self.issues,
            self.unchanged,
            self.answer.repair,
        )


@dataclass(frozen=True)
class FailedRound:
    """A round that ended without a report."""

    number: int
    duration: float
    error: GeminiMcpError

    @property
    def reply(self) -> Reply:
        """What its searches found before it failed."""
        return Reply("", None, "ledger", self.error.searches)

    def summarize(self) -> RoundSummary:
        ledger = Ledger.from_replies(self.reply)
        return RoundSummary(
            self.number,
            self.duration,
            tuple(source.url for source in ledger.sources),
            tuple(ledger.queries),
            tuple(ledger.sites),
            error=self.error,
        )


@dataclass(frozen=True)
class DeepSearchState:
    """The rounds of a deep search that have ended."""

    request: DeepSearchRequest
    rounds: tuple[FinishedRound | FailedRound, ...] = ()

    @property
    def finished_rounds(self) -> tuple[FinishedRound, ...]:
        return tuple(round_ for round_ in self.rounds if isinstance(round_, FinishedRound))

    @property
    def replies(self) -> list[Reply]:
        """The evidence of all rounds, also of those that failed after some searches."""
        return [
            round_.answer.reply if isinstance(round_, FinishedRound) else round_.reply
            for round_ in self.rounds
        ]

    @property
    def best(self) -> FinishedRound | None:
        """The round with the best report; None if there is no report yet."""
        return next((round_ for round_ in reversed(self.finished_rounds) if round_.is_best), None)

    @property
    def is_verified(self) -> bool:
        return self.best is not None and self.best.verified

    @property
    def queries(self) -> list[str]:
        """All queries so far, without duplicates."""
        summaries = [round_.summarize() for round_ in self.rounds]
        return list(dict.fromkeys(query for summary in summaries for query in summary.queries))

    def with_answer(
        self, answer: ModelAnswer, report: CheckedReport, duration: float
    ) -> "DeepSearchState":
        """Return the state after a round with this answer; keep its report if it is no worse."""
        best = self.best
        finished = FinishedRound(
            number=len(self.rounds) + 1,
            duration=duration,
            answer=answer,
            report=report,
            is_best=True,
            unchanged=best is not None and report.text.split() == best.report.text.split(),
            issues=(),
        )
        finished = replace(finished, is_best=self._can_replace_best(finished))
        if answer.claims_verified:
            finished = replace(finished, issues=self._verification_issues(finished))
        return replace(self, rounds=(*self.rounds, finished))

    def with_failure(self, error: GeminiMcpError, duration: float) -> "DeepSearchState":
        """Return the state after a round that failed."""
        failed = FailedRound(len(self.rounds) + 1, duration, error)
        return replace(self, rounds=(*self.rounds, failed))

    def result(
        self, duration: float, stop_reason: str | None, running: RoundSummary | None = None
    ) -> DeepSearchResult | None:
        """Return the result so far; None if there is no report yet.

        `stop_reason` is None while it runs; `running` is the round in progress.
        """
        best = self.best
        if best is None:
            return None
        answers = [round_.answer for round_ in self.finished_rounds]
        failed = [round_.reply for round_ in self.rounds if isinstance(round_, FailedRound)]
        metadata = run_metadata(self.request.question, duration, answers, failed)
        notes = [self._verification_note() if stop_reason else "", metadata.note]
        summaries = tuple(round_.summarize() for round_ in self.rounds)
        return DeepSearchResult(
            report=best.report.text,
            verified=self.is_verified,
            metadata=replace(metadata, note=" ".join(filter(None, notes))),
            rounds=(*summaries, running) if running else summaries,
            stop_reason=stop_reason,
            issues=() if self.is_verified else self._all_issues(),
            citations=best.report.citations,
            truncated=best.answer.repair.truncated,
            clamped_rounds=self.request.clamped_rounds,
        )

    def _can_replace_best(self, new: FinishedRound) -> bool:
        """Whether the report is complete, faithful to its source and not much shorter."""
        best = self.best
        if best is None:
            return True
        if new.answer.repair.truncated and not best.answer.repair.truncated:
            return False
        overlap = new.answer.repair.overlap
        if overlap is not None and overlap < MIN_TRUSTED_OVERLAP:
            return False
        longest = max(round_.text_length for round_ in self.finished_rounds if round_.is_best)
        return new.text_length >= MIN_LENGTH_RATIO * longest

    def _verification_issues(self, new: FinishedRound) -> tuple[VerificationIssue, ...]:
        """Return why a round's claim to be verified is rejected; empty if it is accepted."""
        issues: list[VerificationIssue | None] = [
            "round_one" if self.best is None else None,
            search_issue(new.answer.reply),
            "unseen_citation" if new.report.has_unseen else None,
            "truncated" if new.answer.repair.truncated else None,
            None if new.is_best else "rejected",
        ]
        return tuple(issue for issue in issues if issue)

    def _all_issues(self) -> tuple[VerificationIssue, ...]:
        return tuple(
            dict.fromkeys(issue for round_ in self.finished_rounds for issue in round_.issues)
        )

    def _verification_note(self) -> str:
        """Explain to the reader why the report is not verified."""
        if self.is_verified:
            return ""
        count = len(self.rounds)
        note = f"Verification was not completed in {count} round{'' if count == 1 else 's'}."
        for round_ in self.rounds:
            if isinstance(round_, FailedRound):
                error, name = round_.error, f"Round {round_.number}"
                is_cancelled = isinstance(error, Cancelled)
                outcome = (
                    "was stopped." if is_cancelled else f"failed with {error.code}: {error.message}"
                )
                note += f" {name} {outcome}"
        if issues := self._all_issues():
            explanation = "; ".join(ISSUE_TEXT[issue] for issue in issues)
            note += f" A round claimed to be verified, but the claim was rejected: {explanation}."
        return note


def _summary(report: str) -> str:
    """Return the start of the report without URLs: a truncated URL would be a different one."""
    text = _URL.sub("", _LINK_TARGET.sub("", _HEADING.sub("", report)))
    return truncate_line(text, MAX_SUMMARY_CHARS)
