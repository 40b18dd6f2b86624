"""Background jobs that outlive the call that started them.

A job belongs to its owner and is kept for an hour after it finishes. Callers may stop waiting for
it and come back later. The interface takes and returns plain data (submit, wait, cancel), so it
can be implemented on a queue that several machines share.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import anyio
from anyio.abc import TaskGroup

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import Cancelled, NotFound, to_public_error
from gemini_cli_mcp.jobs.snapshot import (
    CancelRequested,
    JobEvent,
    JobFailed,
    JobSnapshot,
    JobState,
    advance,
)
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.progress import ProgressFeed, ProgressSink
from gemini_cli_mcp.research.deep_search import DeepSearchEvent, RoundStep
from gemini_cli_mcp.research.requests import DeepSearchRequest
from gemini_cli_mcp.research.results import Report

logger = logging.getLogger(__name__)

RunDeepSearch = Callable[[DeepSearchRequest, CallContext], AsyncGenerator[DeepSearchEvent]]
"""Does the work of a job."""
CreateContext = Callable[[str], CallContext]
"""Returns the context of a deep search that starts now for this owner."""
FinishedCallback = Callable[[JobSnapshot], Awaitable[None]]
"""Called when a deep search has ended, with a report or not."""


class _Job:
    """What the service keeps about a job."""

    def __init__(self, snapshot: JobSnapshot, context: CallContext | None, heartbeat: float):
        self.snapshot = snapshot
        self.context = context
        """None once the job has ended."""
        self.progress = ProgressFeed(heartbeat)
        self.done = anyio.Event()
        self.is_id_delivered = False
        """Whether the owner has received the job id."""
        self.waiter_count = 0
        """Number of calls that are waiting for the job."""
        self.last_wait_at = 0.0
        """When a wait last started or ended."""
        self._wake_if_finished()

    def apply(self, event: JobEvent) -> None:
        """Advance the job, tell its progress, and wake up all waiters when it has ended."""
        self.snapshot = advance(self.snapshot, event, time.monotonic())
        if isinstance(event, RoundStep):
            self.progress.publish(self.snapshot.step)
        self._wake_if_finished()

    def _wake_if_finished(self) -> None:
        if self.snapshot.is_finished:
            self.context = None
            self.progress.close()
            self.done.set()

    def cancel(self) -> None:
        """Ask the job to end with the best report so far."""
        self.apply(CancelRequested())
        if self.context:
            self.context.cancel(Cancelled("The deep search was cancelled."))


class JobService:
    """The jobs of one server."""

    def __init__(
        self,
        tasks: TaskGroup,
        limits: Limits,
        run: RunDeepSearch,
        create_context: CreateContext,
        on_finished: FinishedCallback,
    ) -> None:
        """Jobs run in `tasks`; those that are unfinished when it is cancelled have failed."""
        self._tasks = tasks
        self._limits = limits
        self._run_deep_search = run
        self._create_context = create_context
        self._on_finished = on_finished
        self._jobs: dict[str, _Job] = {}

    @property
    def running(self) -> int:
        """Number of unfinished jobs."""
        return sum(not job.snapshot.is_finished for job in self._jobs.values())

    def find_same(self, owner: str, request: DeepSearchRequest) -> JobSnapshot | None:
        """Return the owner's job for an equal request, if it is still running.

        A client that timed out before it received the job id repeats its request. It gets the
        same job even if that has succeeded meanwhile.
        """
        self._remove_expired()
        for job in self._jobs.values():
            snapshot = job.snapshot
            is_same = (snapshot.owner, snapshot.request) == (owner, request)
            is_needed = not snapshot.is_finished or not job.is_id_delivered
            if is_same and is_needed and _is_reusable(snapshot):
                return snapshot
        return None

    def submit(self, owner: str, request: DeepSearchRequest) -> JobSnapshot:
        """Start a job."""
        context = self._create_context(owner)
        job = _Job(JobSnapshot(owner, request), context, self._limits.progress_interval)
        self._tasks.start_soon(self._run, job, request, context)
        self._jobs[job.snapshot.id] = job
        return job.snapshot

    def store_result(self, owner: str, result: Report) -> JobSnapshot:
        """Store an existing result as a finished job, so that the rest of it can be read later."""
        now = time.monotonic()
        snapshot = JobSnapshot(
            owner, None, state=JobState.DONE, result=result, started_at=now, finished_at=now
        )
        self._remove_expired()
        self._jobs[snapshot.id] = _Job(snapshot, None, self._limits.progress_interval)
        return snapshot

    def list_for_owner(self, owner: str) -> list[JobSnapshot]:
        """Return all jobs of an owner, oldest first."""
        self._remove_expired()
        snapshots = (job.snapshot for job in self._jobs.values())
        return [snapshot for snapshot in snapshots if snapshot.owner == owner]

    def mark_delivered(self, job_id: str) -> None:
        """Record that the owner gets the job id now."""
        if job := self._jobs.get(job_id):
            job.is_id_delivered = True

    async def wait(
        self, job_id: str, owner: str, seconds: float, sink: ProgressSink
    ) -> JobSnapshot:
        """Wait for the job, forward its progress, and return it as it then is.

        If the wait is cancelled, the job continues until the abandon timeout.
        """
        job = self._get(job_id, owner)
        job.waiter_count += 1
        job.last_wait_at = time.monotonic()
        try:
            with anyio.move_on_after(seconds):
                await job.progress.forward_to(sink)
                await job.done.wait()
        except anyio.get_cancelled_exc_class():
            self._tasks.start_soon(self._cancel_if_abandoned, job)
            raise
        finally:
            job.waiter_count -= 1
            job.last_wait_at = time.monotonic()
        return job.snapshot

    async def cancel(self, job_id: str, owner: str) -> JobSnapshot:
        """Cancel the job and return it with its best result so far."""
        job = self._get(job_id, owner)
        job.cancel()
        await job.done.wait()
        return job.snapshot

    def _get(self, job_id: str, owner: str) -> _Job:
        """Return the job; NotFound if it does not exist or belongs to another owner."""
        self._remove_expired()
        job = self._jobs.get(job_id)
        if job is None or job.snapshot.owner != owner:
            raise NotFound(
                "No such job. Finished jobs are kept for an hour, at most "
                f"{self._limits.max_finished_jobs} per owner, and are lost when the server stops."
            )
        return job

    async def _run(self, job: _Job, request: DeepSearchRequest, context: CallContext) -> None:
        try:
            async with aclosing(self._run_deep_search(request, context)) as events:
                async for event in events:
                    job.apply(event)
        except Exception as error:  # noqa: BLE001 - becomes the result of the job
            job.apply(JobFailed(to_public_error(error)))
        finally:  # changes nothing if the job has ended
            job.apply(JobFailed(Cancelled("The server was shut down.")))
        await self._on_finished(job.snapshot)

    async def _cancel_if_abandoned(self, job: _Job) -> None:
        """Cancel the job once no call has waited for it during the abandon timeout."""
        timeout = self._limits.job_abandon_timeout
        while not job.snapshot.is_finished:
            with anyio.move_on_after(job.last_wait_at + timeout - time.monotonic()):
                await job.done.wait()
            if not job.waiter_count and time.monotonic() >= job.last_wait_at + timeout:
                logger.info("Cancelling abandoned deep search")
                job.cancel()
                return
            if job.waiter_count:
                await anyio.sleep(timeout / 10)

    def _remove_expired(self) -> None:
        """Drop finished jobs that are too old, and the oldest of each owner beyond the maximum."""
        # Reversed: of jobs that finished in the same tick of the clock, the last is the newest.
        snapshots = [job.snapshot for job in reversed(self._jobs.values())]
        finished = [snapshot for snapshot in snapshots if snapshot.is_finished]
        count_by_owner: Counter[str] = Counter()
        for snapshot in sorted(finished, key=lambda item: -item.finished_at):
            count_by_owner[snapshot.owner] += 1
            is_expired = time.monotonic() - snapshot.finished_at > self._limits.job_ttl
            if is_expired or count_by_owner[snapshot.owner] > self._limits.max_finished_jobs:
                del self._jobs[snapshot.id]


def _is_reusable(snapshot: JobSnapshot) -> bool:
    return snapshot.state is not JobState.FAILED and not snapshot.was_cancelled
