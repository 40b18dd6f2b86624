"""Finished deep searches as data, and a job service whose deep searches tests control."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.jobs.service import JobService
from gemini_cli_mcp.jobs.snapshot import JobSnapshot
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.research.deep_search import DeepSearchEvent, DeepSearchFinished
from gemini_cli_mcp.research.requests import DeepSearchRequest
from gemini_cli_mcp.research.results import DeepSearchResult, RoundSummary, RunMetadata
from gemini_cli_mcp.types import Source

REQUEST = DeepSearchRequest("Why is the sky blue?", 5)


async def ignore_progress(step: int, message: str) -> None:
    """Discard the progress of a job."""


def deep_search_result(
    report: str = "Blue.",
    *,
    question: str = REQUEST.question,
    sources: tuple[str, ...] = (),
    rounds: tuple[RoundSummary, ...] = (),
    note: str = "",
) -> DeepSearchResult:
    """Return a verified result."""
    metadata = RunMetadata(
        duration=1.0,
        question=question,
        model="test-model",
        finished_at=datetime.now(UTC),
        sources=tuple(Source(url, "") for url in sources),
        queries=tuple(query for round_summary in rounds for query in round_summary.queries),
        evidence="ledger",
        grounded=True,
        provider="gemini",
        usage=None,
        note=note,
    )
    return DeepSearchResult(report, True, metadata, rounds, "verified", (), None)


class ControlledSearches:
    """Deep searches that end when a test says so, or when they are cancelled."""

    def __init__(self) -> None:
        self.finished_jobs: list[JobSnapshot] = []
        self._ended = anyio.Event()
        self._failure: GeminiMcpError | None = None

    async def run(
        self, request: DeepSearchRequest, context: CallContext
    ) -> AsyncGenerator[DeepSearchEvent]:
        try:
            with context.enforce():
                await self._ended.wait()
        except GeminiMcpError:
            pass  # like a real one, it ends with the best report so far
        if self._failure:
            raise self._failure
        yield DeepSearchFinished(deep_search_result())

    def end_all(self, failure: GeminiMcpError | None = None) -> None:
        """End all running searches, with a failure or a report; later ones run again."""
        self._failure = failure
        self._ended.set()

    def restart(self) -> None:
        """Let the searches that start from now on run until they are ended."""
        self._failure, self._ended = None, anyio.Event()

    async def record_finished(self, job: JobSnapshot) -> None:
        self.finished_jobs.append(job)


@asynccontextmanager
async def job_service(
    searches: ControlledSearches, limits: Limits | None = None
) -> AsyncGenerator[JobService]:
    """A job service; its unfinished jobs are cancelled at the end."""
    async with anyio.create_task_group() as tasks:
        yield JobService(
            tasks, limits or Limits(), searches.run, CallContext, searches.record_finished
        )
        tasks.cancel_scope.cancel()
