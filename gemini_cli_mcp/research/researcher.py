"""From a prompt to a validated answer: ask, find the JSON, repair, correct, and start over.

One cycle is a main run and, if its output cannot be used, the correction of that output.
Cycles end early where another one could not help.
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
from gemini_cli_mcp.research.correction import correct, word_overlap
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.research.fallback import first_success
from gemini_cli_mcp.research.json_finder import FoundObject, find_object
from gemini_cli_mcp.research.retry import Sleep, is_retryable_now, retry_delay
from gemini_cli_mcp.types import ProgressCallback, Usage
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

CYCLE_DELAYS = (1.0, 2.0, 5.0)
"""Seconds between the cycles; the last one stands for all that follow."""
MIN_TRUSTED_OVERLAP = 0.8
"""A correction with fewer known words than this may hold things that were never found."""

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

_VERIFIED = re.compile(r"[,{]\s*\"verified\"\s*:\s*(true|false)\b")
_OBJECT = re.compile(r"\{\s*[\"'\u201c]?success\b")

Correction = Literal["none", "repaired", "corrected"]


@dataclass(frozen=True)
class ModelAnswer:
    """The model's object, validated, and the story of how we came by it."""

    object: JsonObject
    provider: Provider
    """Who answered."""
    reply: Reply
    """Of the main run, whose records are the evidence."""
    correction: Correction
    truncated: bool
    correction_overlap: float | None
    cycles: int = 1
    usage: Usage | None = None
    """Of all runs that answered."""
    fallback: tuple[JsonObject, ...] = ()
    """Which providers failed before, and why."""

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_replies(self.reply)

    @property
    def sources(self) -> list[str]:
        """What was really found and read; for a plain-text CLI, what the model says."""
        if self.reply.evidence == "none":
            return self._claimed_list("sources_visited")
        return [source.url for source in self.ledger.sources]

    @property
    def queries(self) -> list[str]:
        """What was really searched; for a plain-text CLI, what the model says."""
        if self.reply.evidence == "none":
            return self._claimed_list("search_queries_used")
        return self.ledger.queries

    @property
    def claims_verified(self) -> bool:
        """The model's own word. A correction may repeat it, but not say it first.

        What it repeats must stand once, as a key, in an output that quotes no other object.
        """
        text = self.reply.text
        flags = _VERIFIED.findall(text)
        if len(set(flags)) > 1:  # several objects that disagree
            return False
        if self.correction == "corrected" and (flags != ["true"] or len(_OBJECT.findall(text)) > 1):
            return False
        return self.object.get("verified") is True

    def _claimed_list(self, name: str) -> list[str]:
        items = list_or_empty(object_or_empty(self.object.get("metadata")).get(name))
        return list(dict.fromkeys(item for item in items if isinstance(item, str)))


class Researcher:
    """Where prompts go out to the providers and validated answers come back."""

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
        """The answer of the first provider that has one."""
        answer, fallbacks = await first_success(
            self.providers, lambda provider: self._cycles(provider, prompt, progress)
        )
        return replace(answer, fallback=tuple(fallbacks))

    async def _cycles(
        self, provider: Provider, prompt: str, progress: ProgressCallback
    ) -> ModelAnswer:
        """Cycle until there is an answer, or until another cycle would not help."""
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
                    answer = await self._attempt(provider, prompt, progress, usages)
                    usage = sum(usages, start=Usage()) if usages else None
                    return replace(answer, cycles=cycles, usage=usage)
        except PermissionDenied:
            raise
        except ExecutionFailed as error:
            raise ExecutionFailed(
                "All retry and correction attempts were exhausted "
                f"({cycles} of {self._max_cycles} cycles). The last one: {error.message}",
                details=error.details,
            ) from None
        raise AssertionError("tenacity returns or raises")

    async def _attempt(
        self, provider: Provider, prompt: str, progress: ProgressCallback, usages: list[Usage]
    ) -> ModelAnswer:
        reply = await provider.ask(prompt, progress)
        usages += [reply.usage] if reply.usage else []
        found = await _find_answer(reply)
        if found:
            kind: Correction = "repaired" if found.repaired else "none"
            answer = _require_success(found.object, reply)
            return ModelAnswer(answer, provider, reply, kind, found.truncated, None)
        progress("the answer is not valid JSON: correcting it")
        found = await self._correct(provider, reply.text, progress, usages)
        overlap = word_overlap(str(found.object.get("report", "")), reply.text)
        if overlap < MIN_TRUSTED_OVERLAP:
            logger.warning(
                "Only %.0f %% of a correction's words stand in its source", 100 * overlap
            )
        answer = _require_success(found.object, reply)
        return ModelAnswer(answer, provider, reply, "corrected", found.truncated, round(overlap, 2))

    async def _correct(
        self, provider: Provider, invalid: str, progress: ProgressCallback, usages: list[Usage]
    ) -> FoundObject:
        try:
            reply = await correct(provider, self.workspace, invalid, progress)
        except GeminiMcpError as error:
            logger.error("JSON correction failed: %s", error.code)
            raise
        usages += [reply.usage] if reply.usage else []
        if found := await _find_answer(reply):
            return found
        logger.error("JSON correction failed: its output is no valid JSON either")
        raise ExecutionFailed("The answer was not valid JSON, and neither was its correction.")


async def _find_answer(reply: Reply) -> FoundObject | None:
    # In a thread: megabytes of hostile text must not stop the server.
    return await anyio.to_thread.run_sync(
        find_object, reply.text, match_schema, ANSWER_KEYS, abandon_on_cancel=True
    )


def match_schema(candidate: JsonObject) -> JsonObject | None:
    """The candidate as the schema wants it; None if it does not fit."""
    if "report" not in candidate and "result" in candidate:
        candidate["report"] = candidate.pop("result")
    # First what is cheap to see: hostile text has a million candidates.
    if not isinstance(candidate.get("report"), str) and candidate.get("success") is not False:
        return None
    return candidate if _validator().is_valid(candidate) else None


@cache
def _validator() -> Any:
    import jsonschema  # late: it takes longer to import than our whole start may cost

    return jsonschema.Draft202012Validator(ANSWER_SCHEMA)


def _require_success(answer: JsonObject, reply: Reply) -> JsonObject:
    if answer["success"]:
        return answer
    message = str(answer.get("error") or answer.get("report") or "it gave no reason").strip()
    raise ExecutionFailed(
        f"The model could not do the research: {check_text(message[:500], [reply])}"
    )


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, GeminiMcpError):
        logger.warning(
            "Cycle %d failed (%s), the next one starts in %g s",
            state.attempt_number,
            error.code,
            state.upcoming_sleep,
        )
