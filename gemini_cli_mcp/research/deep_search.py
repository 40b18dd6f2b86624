"""`deep_search`: rounds of research, each of which checks and improves the previous report.

Round 1 drafts; later rounds try to refute, verify and update. `verified` requires both the
model's claim and proof that the round searched. Completed work is never lost: however the rounds
end, the best report so far is the result. The search fails only if there is no report at all.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import anyio
from anyio import to_thread

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import (
    Cancelled,
    CliNotFound,
    GeminiMcpError,
    NoProvider,
    NotSignedIn,
    QuotaExhausted,
    to_public_error,
)
from gemini_cli_mcp.prompts import render_question
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import CheckedReport, check_report
from gemini_cli_mcp.research.deep_search_state import DeepSearchState, FailedRound
from gemini_cli_mcp.research.model_answer import ModelAnswer
from gemini_cli_mcp.research.requests import DeepSearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import DeepSearchResult
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Findings

logger = logging.getLogger(__name__)

FATAL_ERRORS = (NotSignedIn, QuotaExhausted, CliNotFound, NoProvider)
"""Errors that would recur in the next round."""


@dataclass(frozen=True)
class RoundStarted:
    """A round has begun."""

    number: int


@dataclass(frozen=True)
class RoundStep:
    """What the running round does now, such as a search."""

    number: int
    message: str


@dataclass(frozen=True)
class RoundFindings:
    """What the running round has found and used since the last such event."""

    number: int
    findings: Findings


@dataclass(frozen=True)
class RoundFinished:
    """A round has ended; with this state the search can go on, also in another process."""

    state: DeepSearchState


@dataclass(frozen=True)
class DeepSearchFinished:
    """The search has ended with a report."""

    result: DeepSearchResult


DeepSearchEvent = RoundStarted | RoundStep | RoundFindings | RoundFinished | DeepSearchFinished


def deep_search_context(owner: str, settings: Settings) -> CallContext:
    """Return the context of a deep search that starts now; its events tell the progress."""
    return CallContext(
        owner,
        timeout=settings.deep_timeout,
        timeout_message="The deep search did not finish",
        timeout_hint="Ask a narrower question, or raise GEMINI_MCP_DEEP_TIMEOUT.",
    )


async def deep_search(
    request: DeepSearchRequest, context: CallContext, researcher: Researcher
) -> AsyncGenerator[DeepSearchEvent]:
    """Run the rounds; raise only if there is no report.

    Cancelling the context ends the search with the best report so far.
    """
    started = time.monotonic()
    state = DeepSearchState(request)
    stop_reason: str | None = None
    while stop_reason is None:
        number = len(state.rounds) + 1
        logger.info("Deep search round %d/%d...", number, request.max_rounds)
        yield RoundStarted(number)
        async with aclosing(_run_round(state, context, researcher)) as events:
            async for event in events:
                if isinstance(event, RoundFinished):
                    state = event.state
                yield event
        stop_reason = _stop_reason(state, context)
    verified = _bool_text(state.is_verified)
    logger.info("Deep search completed: %d rounds, verified: %s", len(state.rounds), verified)
    if result := state.result(time.monotonic() - started, stop_reason):
        yield DeepSearchFinished(result)


def _stop_reason(state: DeepSearchState, context: CallContext) -> str | None:
    """Return why the search ends after its last round, or None; raise if there is no report."""
    last = state.rounds[-1]
    error = last.error if isinstance(last, FailedRound) else None
    if error and state.best is None:
        raise error
    if state.is_verified:
        return "verified"
    if isinstance(error, FATAL_ERRORS):
        return error.code
    has_rounds_left = len(state.rounds) < state.request.max_rounds
    if error or has_rounds_left:
        if context.cancel_error:
            return "cancelled"
        if context.has_expired:
            return "timeout"
    return None if has_rounds_left else "max_iterations"


async def _run_round(
    state: DeepSearchState, context: CallContext, researcher: Researcher
) -> AsyncGenerator[RoundStep | RoundFindings | RoundFinished]:
    """Run one round; it ends with the next state, whether it succeeded or failed."""
    number = len(state.rounds) + 1
    started = time.monotonic()
    progress: asyncio.Queue[RoundStep | RoundFindings | None] = asyncio.Queue()
    # A task of its own: while the round runs, its progress is yielded. No cancel scope may be open
    # when a generator yields, so the time limits and the scope that stops it are inside the task.
    stop = anyio.CancelScope()
    task = asyncio.create_task(
        _ask_and_check(state, context, researcher, progress.put_nowait, stop)
    )
    task.add_done_callback(lambda _: progress.put_nowait(None))
    try:
        while (event := await progress.get()) is not None:
            yield event
    finally:
        stop.cancel()  # not task.cancel(): that would also interrupt shielded clean-up
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
    duration = time.monotonic() - started
    outcome = task.result()
    if isinstance(outcome, GeminiMcpError):
        yield RoundFinished(state.with_failure(outcome, duration))
        if not isinstance(outcome, Cancelled):
            logger.error("Deep search round %d failed: %s", number, outcome.code)
            if not context.has_expired:
                yield RoundStep(number, f"failed with {outcome.code}")
        return
    state = state.with_answer(*outcome, duration)
    finished = state.finished_rounds[-1]
    logger.info("Round %d completed, verified: %s", number, _bool_text(finished.verified))
    yield RoundFinished(state)
    yield RoundStep(
        number, "verified" if finished.verified else ", ".join(("not verified", *finished.issues))
    )


async def _ask_and_check(
    state: DeepSearchState,
    context: CallContext,
    researcher: Researcher,
    report: Callable[[RoundStep | RoundFindings], None],
    stop: anyio.CancelScope,
) -> tuple[ModelAnswer, CheckedReport] | GeminiMcpError:
    """Ask for the report of the next round and check its citations; return any failure."""
    settings = researcher.settings
    number = len(state.rounds) + 1
    part = context.part(
        settings.round_timeout,
        progress=lambda message: report(RoundStep(number, message)),
        report_findings=lambda findings: report(RoundFindings(number, findings)),
        timeout_message="The round did not finish",
        timeout_hint="Ask a narrower question, or raise GEMINI_MCP_ROUND_TIMEOUT.",
    )
    try:
        with stop, part.enforce():
            answer = await researcher.ask(_round_prompt(state), part)
            grace = settings.limits.citation_check_grace
            checked = await _check_shielded(
                answer.report.text, [*state.replies, answer.reply], grace
            )
            return answer, checked
    except Exception as error:  # noqa: BLE001 - completed rounds must survive any failure
        return to_public_error(error)
    return Cancelled("The deep search was stopped.")


async def _check_shielded(report: str, replies: list[Reply], grace: float) -> CheckedReport:
    """Check the report, shielded for `grace` seconds so that a cancellation cannot discard it."""
    with anyio.move_on_after(grace, shield=True):
        return await _check(report, replies)
    return await _check(report, replies)


async def _check(report: str, replies: list[Reply]) -> CheckedReport:
    # In a worker thread: a hostile report must not block the event loop.
    return await to_thread.run_sync(check_report, report, replies, abandon_on_cancel=True)


def _round_prompt(state: DeepSearchState) -> str:
    question = state.request.question
    if state.best is None:
        return render_question("deep-search-prompt", question)
    return render_question(
        "verify-prompt",
        question,
        round=str(len(state.rounds) + 1),
        rounds=str(state.request.max_rounds),
        current_result=state.best.report.text,
        queries="\n".join(json.dumps(query, ensure_ascii=False) for query in state.queries)
        or "none",
    )


def _bool_text(flag: bool) -> str:
    return "true" if flag else "false"
