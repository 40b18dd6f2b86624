"""Turn a prompt into a validated answer: ask, find the JSON, repair or correct it, retry.

A cycle is a main run and, if its output is unusable, a correction run on that output.
Cycling stops early when another cycle could not help.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import anyio
import anyio.to_thread
import tenacity

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import ExecutionFailed, GeminiMcpError
from gemini_cli_mcp.providers.base import Provider, Reply
from gemini_cli_mcp.research.citation_gate import check_text
from gemini_cli_mcp.research.json_correction import correct, word_overlap
from gemini_cli_mcp.research.json_finder import FoundAnswer, find_answer
from gemini_cli_mcp.research.model_answer import ModelAnswer
from gemini_cli_mcp.research.model_report import ANSWER_KEYS, ModelReport, parse_model_report
from gemini_cli_mcp.research.results import Repair
from gemini_cli_mcp.research.retry import Sleep, first_success, with_retries
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Usage
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

CYCLE_DELAYS = (1.0, 2.0, 5.0)
"""Seconds between cycles; the last value applies to all later ones."""
MIN_TRUSTED_OVERLAP = 0.8
"""Minimum share of a correction's words that occur in its source; below this, the correction may
contain invented content."""


class Researcher:
    """Sends prompts to the providers and returns validated answers."""

    def __init__(
        self,
        settings: Settings,
        providers: Sequence[Provider],
        workspace: Workspace,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        self.settings = settings
        self.providers = providers
        self.sleep = sleep
        self._workspace = workspace

    async def ask(self, prompt: str, context: CallContext) -> ModelAnswer:
        """Return the answer of the first provider that succeeds."""

        async def attempt(provider: Provider, part: CallContext) -> ModelAnswer:
            return await self._run_cycles(provider, prompt, part)

        answer, fallbacks = await first_success(self.providers, context, attempt)
        return replace(answer, fallbacks=fallbacks)

    async def _run_cycles(
        self, provider: Provider, prompt: str, context: CallContext
    ) -> ModelAnswer:
        """Repeat cycles until one yields an answer or another would not help."""
        max_cycles = self.settings.max_cycles
        usages: list[Usage] = []
        cycles = 0

        async def run_next_cycle() -> ModelAnswer:
            nonlocal cycles
            cycles += 1
            return await self._run_cycle(provider, prompt, context, usages)

        try:
            answer = await with_retries(
                run_next_cycle,
                context,
                self.sleep,
                delays=CYCLE_DELAYS,
                max_attempts=max_cycles,
                before_sleep=_log_retry,
            )
        except ExecutionFailed as error:
            if error.is_final:
                raise
            raise error.with_message(
                "All retry and correction attempts were exhausted "
                f"({cycles} of {max_cycles} cycles). Last error: {error.message}"
            ) from None
        return replace(answer, cycles=cycles, usages=tuple(usages))

    async def _run_cycle(
        self, provider: Provider, prompt: str, context: CallContext, usages: list[Usage]
    ) -> ModelAnswer:
        """Run one cycle; add the usage of each reply to `usages`, even if the cycle fails."""
        reply = await provider.ask(prompt, context)
        usages += [reply.usage] if reply.usage else []
        found = await _find_report(reply)
        if found:
            repair = Repair("repaired" if found.repaired else "none", found.truncated)
        else:
            context.progress("the answer is not valid JSON; requesting a correction")
            found = await self._correct(provider, reply.text, context, usages)
            overlap = word_overlap(found.answer.text, reply.text)
            if overlap < MIN_TRUSTED_OVERLAP:
                logger.warning(
                    "Only %.0f %% of a correction's words occur in its source", 100 * overlap
                )
            repair = Repair("corrected", found.truncated, round(overlap, 2))
        report = _require_success(found.answer, reply)
        return ModelAnswer(report, reply, repair, provider.name, provider.configured_model)

    async def _correct(
        self, provider: Provider, invalid_output: str, context: CallContext, usages: list[Usage]
    ) -> FoundAnswer[ModelReport]:
        try:
            reply = await correct(provider, self._workspace, invalid_output, context)
        except GeminiMcpError as error:
            logger.error("JSON correction failed: %s", error.code)
            raise
        usages += [reply.usage] if reply.usage else []
        if found := await _find_report(reply):
            return found
        logger.error("JSON correction failed: the corrected output is not valid JSON")
        raise ExecutionFailed("The answer was not valid JSON, and neither was the correction.")


async def _find_report(reply: Reply) -> FoundAnswer[ModelReport] | None:
    # In a thread: megabytes of hostile text must not block the event loop.
    return await anyio.to_thread.run_sync(
        find_answer, reply.text, parse_model_report, ANSWER_KEYS, abandon_on_cancel=True
    )


def _require_success(report: ModelReport, reply: Reply) -> ModelReport:
    if report.success:
        return report
    raise ExecutionFailed(
        f"The model could not complete the research: {check_text(report.failure[:500], [reply])}"
    )


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, GeminiMcpError):
        logger.warning(
            "Cycle %d failed (%s); retrying in %g s",
            state.attempt_number,
            error.code,
            state.upcoming_sleep,
        )
