"""`deep_search`: rounds of research, each of which checks and improves the previous report.

Round 1 drafts; later rounds try to refute, verify and update. `verified` requires both the
model's claim and proof that the round searched. Completed work is never lost: however the rounds
end, the best report so far is the result. The search fails only if there is no report at all.
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
"""Errors that would recur in the next round."""
MIN_LENGTH_RATIO = 0.5
"""Minimum length of a new best report, relative to the longest best report so far."""


class DeepSearch:
    """One deep search; it can be inspected and cancelled at any time."""

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
        """None while the search is running."""
        self._researcher = researcher
        self._settings = settings
        self._started = time.monotonic()
        self._max_length = 0
        """Length of the longest report that has been the best."""
        self._scope = anyio.CancelScope()
        self._cancelled = False

    def cancel(self) -> None:
        """Stop the search; `run` returns the best report so far, if there is one."""
        self._cancelled = True
        self._scope.cancel()

    @property
    def dedup_key(self) -> tuple[str, int]:
        """Question and round limit; searches with equal keys do the same work."""
        return self.question, self.max_rounds

    async def run(self, progress: ProgressCallback) -> JsonObject:
        """Run all rounds and return the result; raise only if there is no report."""
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
        """Return the success result so far; raise LookupError if there is no report yet."""
        if self.best is None or self.best.answer is None:
            raise LookupError("no report yet")
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
        """Return the current round and, once there is a report, the result so far."""
        return {"round": len(self.rounds), **(self.result() if self.best else {})}

    async def _run_rounds(self, progress: ProgressCallback) -> str:
        """Run the rounds and return the stop reason."""
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
            except Exception as failure:  # noqa: BLE001 - completed rounds must survive any failure
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
        """Run one round: ask, check the citations, and keep the report if it is no worse."""
        timeout = self._settings.round_timeout
        replies = [earlier.answer.reply for earlier in self.rounds if earlier.answer]
        try:
            with anyio.fail_after(timeout):
                answer = await self._researcher.ask(self._round_prompt(round_), progress)
                replies.append(answer.reply)
                grace = self._settings.limits.citation_check_grace
                report = await _check_shielded(answer.object["report"], replies, grace)
        except TimeoutError:
            raise TimedOut(
                f"The round did not finish within {timeout:g} s.",
                hint="Ask a narrower question, or raise GEMINI_MCP_ROUND_TIMEOUT.",
            ) from None
        round_.answer, round_.report, round_.citations = answer, report.text, report.citations
        replaces_best = self._can_replace_best(round_)
        if answer.claims_verified:
            conditions: dict[VerificationIssue | None, bool] = {
                "round_one": self.best is None,
                search_issue(answer.reply): True,
                "unseen_citation": report.has_unseen,
                "truncated": answer.truncated,
                "rejected": not replaces_best,
            }
            round_.issues = [issue for issue, applies in conditions.items() if issue and applies]
            round_.verified = not round_.issues
        if self.best:
            round_.unchanged = round_.report.split() == self.best.report.split()
        round_.ended_at = time.monotonic()
        if replaces_best:
            self.best = round_
            self._max_length = max(self._max_length, round_.text_length)

    def _can_replace_best(self, round_: Round) -> bool:
        """Whether the report is complete, faithful to its source and not much shorter."""
        answer, best = round_.answer, self.best and self.best.answer
        if answer is None or best is None:
            return True
        if answer.truncated and not best.truncated:
            return False
        overlap = answer.correction_overlap
        if overlap is not None and overlap < MIN_TRUSTED_OVERLAP:
            return False
        return round_.text_length >= MIN_LENGTH_RATIO * self._max_length

    def _round_prompt(self, round_: Round) -> str:
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
        """Record that `cancel` or the deadline interrupted a round."""
        timeout = self._settings.deep_timeout
        error: GeminiMcpError
        running = [round_ for round_ in self.rounds if round_.ended_at is None]
        if self._cancelled:
            self.stop_reason = "cancelled"
            error = Cancelled("The deep search was cancelled.")
        else:
            self.stop_reason = "timeout"
            error = TimedOut(
                f"The deep search did not finish within {timeout:g} s.",
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
        """Explain to the reader why the report is not verified."""
        if self.is_verified or self.stop_reason is None:
            return ""
        count = len(self.rounds)
        note = f"Verification was not completed in {count} round{'' if count == 1 else 's'}."
        for round_ in self.rounds:
            if error := round_.error:
                note += f" Round {round_.number} failed with {error.code}: {error.message}"
        if issues := self._issues():
            explanation = "; ".join(ISSUE_TEXT[issue] for issue in issues)
            note += f" A round claimed to be verified, but the claim was rejected: {explanation}."
        return note


async def _check_shielded(report: str, replies: list[Reply], grace: float) -> CheckedReport:
    """Check the report, shielded for `grace` seconds so that a cancellation cannot discard it."""
    with anyio.move_on_after(grace, shield=True):
        return await check_report(report, replies)
    return await check_report(report, replies)


def _parse_max_rounds(value: object, limit: int) -> int:
    """Return the maximum number of rounds; out-of-range values are clamped."""
    if value is None:
        return limit
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        description = value if isinstance(value, float) else json_type_name(value)
        raise InvalidInput(f"`max_iterations` must be a whole number, not {description}.")
    return int(min(max(value, MIN_ROUNDS), limit))


def _bool_text(flag: bool) -> str:
    return "true" if flag else "false"
