"""A job as immutable data: what every poll shows is a function of its snapshot."""

import secrets
import time
from dataclasses import dataclass, field, replace
from enum import Enum

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.research.deep_search import (
    DeepSearchEvent,
    DeepSearchFinished,
    RoundFindings,
    RoundFinished,
    RoundStarted,
    RoundStep,
)
from gemini_cli_mcp.research.deep_search_state import DeepSearchState
from gemini_cli_mcp.research.requests import DeepSearchRequest
from gemini_cli_mcp.research.results import DeepSearchResult, Report, RoundSummary


class JobState(Enum):
    """RUNNING -> [CANCELLING] -> DONE or FAILED."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    """Asked to end with the best report so far."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class CancelRequested:
    """The owner no longer wants the job, or nobody waits for it any more."""


@dataclass(frozen=True)
class JobFailed:
    """The job has ended without a report."""

    error: GeminiMcpError


JobEvent = DeepSearchEvent | CancelRequested | JobFailed


@dataclass(frozen=True)
class JobSnapshot:
    """A job at one moment; times are those of the monotonic clock."""

    owner: str
    request: DeepSearchRequest | None
    """None if the job only holds the long result of another tool."""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: JobState = JobState.RUNNING
    started_at: float = field(default_factory=time.monotonic)
    round_number: int = 0
    round_started_at: float = 0.0
    step: str = "starting"
    """What it does now, for people."""
    research: DeepSearchState | None = None
    """The rounds that have ended, from which the job could go on; None once it has ended."""
    result: Report | None = None
    error: GeminiMcpError | None = None
    finished_at: float = 0.0
    was_cancelled: bool = False

    @property
    def is_finished(self) -> bool:
        return self.state in (JobState.DONE, JobState.FAILED)

    @property
    def is_verified(self) -> bool:
        return isinstance(self.result, DeepSearchResult) and self.result.verified

    def draft(self, now: float) -> DeepSearchResult | None:
        """Return the report so far; None if there is none yet, or the job has ended."""
        if self.research is None:
            return None
        is_between_rounds = len(self.research.rounds) == self.round_number
        running = RoundSummary(self.round_number, now - self.round_started_at)
        return self.research.result(
            now - self.started_at, None, None if is_between_rounds else running
        )


def advance(job: JobSnapshot, event: JobEvent, now: float) -> JobSnapshot:
    """Return the job after an event, which changes nothing once the job has ended."""
    if job.is_finished:
        return job
    match event:
        case RoundStarted(number):
            return replace(job, round_number=number, round_started_at=now)
        case RoundStep(number, message):
            max_rounds = job.request.max_rounds if job.request else number
            return replace(job, step=f"round {number}/{max_rounds}: {message}")
        case RoundFindings():
            return job
        case RoundFinished(state):
            return replace(job, research=state)
        case CancelRequested():
            return replace(job, state=JobState.CANCELLING, was_cancelled=True)
        case DeepSearchFinished(result):
            return replace(job, state=JobState.DONE, result=result, research=None, finished_at=now)
        case JobFailed(error):
            return replace(job, state=JobState.FAILED, error=error, research=None, finished_at=now)
