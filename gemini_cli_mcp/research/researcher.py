"""Turn a prompt into a validated answer: ask, find the JSON, repair or correct it, retry.

A cycle is a main run and, if its output is unusable, a correction run on that output.
Cycling stops early when another cycle could not help.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import anyio
import anyio.to_thread
import tenacity

from gemini_cli_mcp.errors import ExecutionFailed, GeminiMcpError, PermissionDenied
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.providers.base import Provider, Reply
from gemini_cli_mcp.research.citation_gate import check_text
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.research.fallback import first_success
from gemini_cli_mcp.research.json_correction import correct, word_overlap
from gemini_cli_mcp.research.json_finder import ExtractedObject, find_object
from gemini_cli_mcp.research.retry import Sleep, is_retryable_now, retry_delay
from gemini_cli_mcp.types import ProgressCallback, Usage
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

CYCLE_DELAYS = (1.0, 2.0, 5.0)
"""Seconds between cycles; the last value applies to all later ones."""
MIN_TRUSTED_OVERLAP = 0.8
"""Minimum share of a correction's words that occur in its source; below this, the correction may
contain invented content."""

ANSWER_KEYS = frozenset({"success", "report", "result", "verified", "metadata", "error"})
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["success"],
    "properties": {
        "success": {"type": "boolean"},
        "verified": {"type": "boolean"},
        "metadata": {"type": "object"},
    },
    "if": {"properties": {"success": {"const": True}}},
    "then": {
        "required": ["report"],
        "properties": {"report": {"type": "string", "pattern": r"\S"}},
    },
}

_VERIFIED_FLAG = re.compile(r"[,{]\s*\"verified\"\s*:\s*(true|false)\b")
_ANSWER_START = re.compile(r"\{\s*[\"'\u201c]?success\b")

Correction = Literal["none", "repaired", "corrected"]


@dataclass(frozen=True)
class ModelAnswer:
    """The model's validated answer object and how it was obtained."""

    object: JsonObject
    provider: Provider
    """The provider that answered."""
    reply: Reply
    """Reply of the main run; its records are the evidence."""
    correction: Correction
    truncated: bool
    correction_overlap: float | None
    cycles: int = 1
    usage: Usage | None = None
    """Total of all runs that replied."""
    fallback: tuple[JsonObject, ...] = ()
    """Providers that failed before this one, and why."""

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_replies(self.reply)

    @property
    def sources(self) -> list[str]:
        """URLs that were found or fetched; for a plain-text CLI, those the model claims."""
        if self.reply.evidence == "none":
            return self._claimed_list("sources_visited")
        return [source.url for source in self.ledger.sources]

    @property
    def queries(self) -> list[str]:
        """Queries that were searched; for a plain-text CLI, those the model claims."""
        if self.reply.evidence == "none":
            return self._claimed_list("search_queries_used")
        return self.ledger.queries

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
        if self.correction == "corrected" and (
            flags != ["true"] or len(_ANSWER_START.findall(text)) > 1
        ):
            return False
        return self.object.get("verified") is True

    def _claimed_list(self, name: str) -> list[str]:
        items = list_or_empty(object_or_empty(self.object.get("metadata")).get(name))
        return list(dict.fromkeys(item for item in items if isinstance(item, str)))


class Researcher:
    """Sends prompts to the providers and returns validated answers."""

    def __init__(
        self,
        providers: Sequence[Provider],
        workspace: Workspace,
        *,
        max_cycles: int,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        self.providers = providers
        self.workspace = workspace
        self._max_cycles = max_cycles
        self.sleep = sleep

    async def ask(self, prompt: str, progress: ProgressCallback) -> ModelAnswer:
        """Return the answer of the first provider that succeeds."""
        answer, fallbacks = await first_success(
            self.providers, lambda provider: self._run_cycles(provider, prompt, progress)
        )
        return replace(answer, fallback=tuple(fallbacks))

    async def _run_cycles(
        self, provider: Provider, prompt: str, progress: ProgressCallback
    ) -> ModelAnswer:
        """Repeat cycles until one yields an answer or another would not help."""
        usages: list[Usage] = []
        cycles = 0
        try:
            async for attempt in tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(self._max_cycles),
                retry=tenacity.retry_if_exception(is_retryable_now),
                wait=lambda state: retry_delay(state, CYCLE_DELAYS),
                sleep=self.sleep,
                before_sleep=_log_retry,
                reraise=True,
            ):
                cycles += 1
                with attempt:
                    answer = await self._run_cycle(provider, prompt, progress, usages)
                    usage = sum(usages, start=Usage()) if usages else None
                    return replace(answer, cycles=cycles, usage=usage)
        except PermissionDenied:
            raise
        except ExecutionFailed as error:
            raise ExecutionFailed(
                "All retry and correction attempts were exhausted "
                f"({cycles} of {self._max_cycles} cycles). Last error: {error.message}",
                details=error.details,
            ) from None
        raise AssertionError("unreachable: tenacity returns or raises")

    async def _run_cycle(
        self, provider: Provider, prompt: str, progress: ProgressCallback, usages: list[Usage]
    ) -> ModelAnswer:
        reply = await provider.ask(prompt, progress)
        usages += [reply.usage] if reply.usage else []
        match = await _find_answer(reply)
        if match:
            correction: Correction = "repaired" if match.repaired else "none"
            answer = _require_success(match.object, reply)
            return ModelAnswer(answer, provider, reply, correction, match.truncated, None)
        progress("the answer is not valid JSON; requesting a correction")
        match = await self._correct(provider, reply.text, progress, usages)
        overlap = word_overlap(str(match.object.get("report", "")), reply.text)
        if overlap < MIN_TRUSTED_OVERLAP:
            logger.warning(
                "Only %.0f %% of a correction's words occur in its source", 100 * overlap
            )
        answer = _require_success(match.object, reply)
        return ModelAnswer(answer, provider, reply, "corrected", match.truncated, round(overlap, 2))

    async def _correct(
        self,
        provider: Provider,
        invalid_output: str,
        progress: ProgressCallback,
        usages: list[Usage],
    ) -> ExtractedObject:
        try:
            reply = await correct(provider, self.workspace, invalid_output, progress)
        except GeminiMcpError as error:
            logger.error("JSON correction failed: %s", error.code)
            raise
        usages += [reply.usage] if reply.usage else []
        if match := await _find_answer(reply):
            return match
        logger.error("JSON correction failed: the corrected output is not valid JSON")
        raise ExecutionFailed("The answer was not valid JSON, and neither was the correction.")


async def _find_answer(reply: Reply) -> ExtractedObject | None:
    # In a thread: megabytes of hostile text must not block the event loop.
    return await anyio.to_thread.run_sync(
        find_object, reply.text, match_schema, ANSWER_KEYS, abandon_on_cancel=True
    )


def match_schema(candidate: JsonObject) -> JsonObject | None:
    """Return the candidate normalized to the schema, or None if it does not match."""
    if "report" not in candidate and "result" in candidate:
        candidate["report"] = candidate.pop("result")
    # Cheap checks first: hostile text can contain a million candidates.
    if not isinstance(candidate.get("report"), str) and candidate.get("success") is not False:
        return None
    return candidate if _validator().is_valid(candidate) else None


@cache
def _validator() -> Any:
    import jsonschema  # deferred: the import alone would exceed the startup budget

    return jsonschema.Draft202012Validator(ANSWER_SCHEMA)


def _require_success(answer: JsonObject, reply: Reply) -> JsonObject:
    if answer["success"]:
        return answer
    message = str(answer.get("error") or answer.get("report") or "no reason given").strip()
    raise ExecutionFailed(
        f"The model could not complete the research: {check_text(message[:500], [reply])}"
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
