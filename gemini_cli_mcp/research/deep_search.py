"""`deep_search`: rounds of research, each of which checks and improves what the last one left.

Round 1 drafts, the others try to refute, verify and update. `verified` is the model's word and
the proof that the round searched. Nothing finished is ever lost: whatever ends the rounds, the
best report so far is the result. Only without any report there is a failure.
"""

import json
import logging
import time

import anyio
import anyio.lowlevel

from gemini_cli_mcp.errors import (
    Cancelled,
    CliNotFound,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotSignedIn,
    QuotaExhausted,
    TimedOut,
    to_public_error,
)
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import CheckedReport, check_report
from gemini_cli_mcp.research.deep_search_round import ISSUE_TEXT, Round
from gemini_cli_mcp.research.evidence import VerificationIssue, search_issue
from gemini_cli_mcp.research.question import json_type_name, parse_query, render_prompt
from gemini_cli_mcp.research.researcher import MIN_TRUSTED_OVERLAP, Researcher
from gemini_cli_mcp.research.results import research_metadata
from gemini_cli_mcp.settings.env import MIN_ROUNDS, Settings
from gemini_cli_mcp.types import ProgressCallback

logger = logging.getLogger(__name__)

FATAL_ERRORS = (NotSignedIn, QuotaExhausted, CliNotFound, NoProvider)
"""Failures that the next round would meet again."""
MIN_LENGTH_RATIO = 0.5
"""Part of the longest report so far that a new one must have to take the best one's place."""


class DeepSearch:
    """One deep search. What it has so far can be looked at, and it can be cancelled, any time."""

    def __init__(
        self,
        researcher: Researcher,
        settings: Settings,
        query: object,
        max_iterations: object = None,
    ) -> None:
        self.question = parse_query(query)
        self.max_rounds = _parse_max_rounds(max_iterations, settings.max_rounds)
        self.rounds: list[Round] = []
        self.best: Round | None = None
        self.stop_reason: str | None = None
        """None while it goes on."""
        self._researcher = researcher
        self._settings = settings
        self._started = time.monotonic()
        self._max_length = 0
        """Length of the longest report that was the best."""
        self._scope = anyio.CancelScope()
        self._cancelled = False

    def cancel(self) -> None:
        """End it: `run` returns what there is."""
        self._cancelled = True
        self._scope.cancel()

    @property
    def dedup_key(self) -> tuple[str, int]:
        """What it was asked; another with the same would do the same."""
        return self.question, self.max_rounds

    async def run(self, progress: ProgressCallback) -> JsonObject:
        """Do all the rounds and return the result; raise only if there is none."""
        self._scope.deadline = anyio.current_time() + self._settings.deep_timeout
        with self._scope:
            self.stop_reason = await self._run_rounds(progress)
        if self._scope.cancelled_caught:
            self._record_interruption()
        logger.info(
            "Deep search completed: %d rounds, verified: %s",
            len(self.rounds),
            _bool_text(self.is_verified),
        )
        return self.result()

    @property
    def is_verified(self) -> bool:
        return self.best is not None and self.best.verified

    def result(self) -> JsonObject:
        """The success result, as far as it has come. There must be a report."""
        if self.best is None or self.best.answer is None:
            raise LookupError("there is no report yet")
        answers = [round_.answer for round_ in self.rounds if round_.answer]
        metadata: JsonObject = {
            **research_metadata(self.question, self._started, answers),
            "iterations": len(self.rounds),
            "rounds": [round_.as_dict() for round_ in self.rounds],
            "stop_reason": self.stop_reason,
            "verification": [] if self.is_verified else self._issues(),
            "citations": self.best.citations,
        }
        if note := " ".join(filter(None, (self._note(), metadata.get("note")))):
            metadata["note"] = note
        if self.best.answer.truncated:
            metadata["truncated"] = True
        return {
            "success": True,
            "result": self.best.report,
            "verified": self.is_verified,
            "metadata": metadata,
        }

    def snapshot(self) -> JsonObject:
        """The round it is in and, once there is a report, the result as far as it has come."""
        return {"round": len(self.rounds), **(self.result() if self.best else {})}

    async def _run_rounds(self, progress: ProgressCallback) -> str:
        """Why it ended."""
        for number in range(1, self.max_rounds + 1):
            await anyio.lowlevel.checkpoint_if_cancelled()
            round_ = Round(number)
            self.rounds.append(round_)
            logger.info("Deep search round %d/%d...", number, self.max_rounds)

            def report_step(message: str, round_: Round = round_) -> None:
                round_.steps.append(message)
                progress(f"round {round_.number}/{self.max_rounds}: {message}")

            try:
                await self._run_round(round_, report_step)
            except Exception as failure:  # noqa: BLE001 - finished rounds are not lost to it
                error = to_public_error(failure)
                round_.fail(error)
                logger.error("Deep search round %d failed: %s", number, error.code)
                report_step(f"failed with {error.code}")
                if self.best is None:
                    raise error from None
                if isinstance(error, FATAL_ERRORS):
                    return error.code
                continue
            logger.info("Round %d completed, verified: %s", number, _bool_text(round_.verified))
            report_step(
                "verified" if round_.verified else ", ".join(("not verified", *round_.issues))
            )
            if round_.verified:
                return "verified"
        return "max_iterations"

    async def _run_round(self, round_: Round, progress: ProgressCallback) -> None:
        """One round: ask, hold the answer to what was seen, and take it if it is no loss."""
        seconds = self._settings.round_timeout
        replies = [earlier.answer.reply for earlier in self.rounds if earlier.answer]
        try:
            with anyio.fail_after(seconds):
                answer = await self._researcher.ask(self._prompt(round_), progress)
                replies.append(answer.reply)
                grace = self._settings.limits.citation_check_grace
                checked = await _check_despite_cancel(answer.object["report"], replies, grace)
        except TimeoutError:
            raise TimedOut(
                f"The round was not done within {seconds:g} s.",
                hint="Ask a narrower question, or raise GEMINI_MCP_ROUND_TIMEOUT.",
            ) from None
        round_.answer, round_.report, round_.citations = answer, checked.text, checked.citations
        is_better = self._may_replace_best(round_)
        if answer.claims_verified:
            reasons: dict[VerificationIssue | None, bool] = {
                "round_one": self.best is None,
                search_issue(answer.reply): True,
                "unseen_citation": checked.has_unseen,
                "truncated": answer.truncated,
                "rejected": not is_better,
            }
            round_.issues = [issue for issue, holds in reasons.items() if issue and holds]
            round_.verified = not round_.issues
        if self.best:
            round_.unchanged = round_.report.split() == self.best.report.split()
        round_.ended_at = time.monotonic()
        if is_better:
            self.best = round_
            self._max_length = max(self._max_length, round_.text_length)

    def _may_replace_best(self, round_: Round) -> bool:
        """Whether its report may take the best one's place: whole, its own, not much shorter."""
        answer, best = round_.answer, self.best and self.best.answer
        if answer is None or best is None:
            return True
        if answer.truncated and not best.truncated:
            return False
        overlap = answer.correction_overlap
        if overlap is not None and overlap < MIN_TRUSTED_OVERLAP:
            return False
        return round_.text_length >= MIN_LENGTH_RATIO * self._max_length

    def _prompt(self, round_: Round) -> str:
        if self.best is None:
            return render_prompt("deep-search-prompt", self.question)
        queries = dict.fromkeys(query for earlier in self.rounds for query in earlier.queries)
        return render_prompt(
            "verify-prompt",
            self.question,
            round=str(round_.number),
            rounds=str(self.max_rounds),
            current_result=self.best.report,
            queries="\n".join(json.dumps(query, ensure_ascii=False) for query in queries) or "none",
        )

    def _record_interruption(self) -> None:
        """By `cancel` or by the deadline, in the midst of a round."""
        seconds = self._settings.deep_timeout
        error: GeminiMcpError
        running = [round_ for round_ in self.rounds if round_.ended_at is None]
        if self._cancelled:
            self.stop_reason = "cancelled"
            error = Cancelled("The deep search was cancelled.")
        else:
            self.stop_reason = "timeout"
            error = TimedOut(
                f"The deep search was not done within {seconds:g} s.",
                hint="Ask a narrower question, or raise GEMINI_MCP_DEEP_TIMEOUT.",
            )
        for round_ in running:
            round_.fail(error)
            if not self._cancelled:
                logger.error("Deep search round %d failed: %s", round_.number, error.code)
        if self.best is None:
            raise error

    def _issues(self) -> list[VerificationIssue]:
        return list(dict.fromkeys(issue for round_ in self.rounds for issue in round_.issues))

    def _note(self) -> str:
        """Why it is not verified, for the reader of the report."""
        if self.is_verified or self.stop_reason is None:
            return ""
        count = len(self.rounds)
        note = f"Verification was not completed in {count} round{'' if count == 1 else 's'}."
        for round_ in self.rounds:
            if error := round_.error:
                note += f" Round {round_.number} failed with {error.code}: {error.message}"
        if reasons := self._issues():
            explanation = "; ".join(ISSUE_TEXT[reason] for reason in reasons)
            note += f" A round that called itself verified was not believed: {explanation}."
        return note


async def _check_despite_cancel(report: str, replies: list[Reply], seconds: float) -> CheckedReport:
    """The report behind the gate; a finished one is not lost to a cancel in this moment."""
    with anyio.move_on_after(seconds, shield=True):
        return await check_report(report, replies)
    return await check_report(report, replies)


def _parse_max_rounds(value: object, limit: int) -> int:
    """How many rounds there may be; what is out of range is clamped."""
    if value is None:
        return limit
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        shown = value if isinstance(value, float) else json_type_name(value)
        raise InvalidInput(f"`max_iterations` must be a whole number, not {shown}.")
    return int(min(max(value, MIN_ROUNDS), limit))


def _bool_text(flag: bool) -> str:
    return "true" if flag else "false"
