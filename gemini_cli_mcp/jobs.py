"""Background jobs that outlive the call that started them.

A job belongs to its owner and is kept for an hour after it finishes. Callers may stop waiting for
it and come back later. The interface (submit, get, wait, cancel) is small enough to be implemented
on a queue that several machines share.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from gemini_cli_mcp.errors import Cancelled, NotFound, failure_result
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.progress import ProgressFeed, ProgressSink
from gemini_cli_mcp.types import ProgressCallback

logger = logging.getLogger(__name__)

CompletionCallback = Callable[[JsonObject], Awaitable[None]]
"""Called with the result of a job."""


class JobTask(Protocol):
    """The work of a job."""

    @property
    def dedup_key(self) -> object:
        """Equal for tasks with the same request."""
        ...

    async def run(self, progress: ProgressCallback) -> JsonObject: ...

    def cancel(self) -> None:
        """Make `run` return the best result so far."""
        ...

    def snapshot(self) -> JsonObject: ...


@dataclass(eq=False)
class Job:
    """A running or finished background task."""

    owner: str
    task: JobTask | None
    """None once the job has finished, to free its memory: only the result is needed then."""
    dedup_key: object
    progress: ProgressFeed
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    result: JsonObject | None = None
    """The success or failure result, once the job has finished."""
    finished_at: float = 0
    id_delivered: bool = False
    """Whether the owner has received the job id."""
    cancelled: bool = False
    waiter_count: int = 0
    """Number of calls that are waiting for the job."""
    last_wait_at: float = 0
    """When a wait last started or ended."""
    done: anyio.Event = field(default_factory=anyio.Event)

    def cancel(self) -> None:
        """Ask the task to finish early with the best result so far."""
        if self.task:
            self.cancelled = True
            self.task.cancel()

    def finish(self, result: JsonObject) -> None:
        """Store the result and wake up all waiters."""
        self.result, self.task = result, None
        self.finished_at = time.monotonic()
        self.progress.close()
        self.done.set()


class JobService:
    """The jobs of one server."""

    def __init__(self, tasks: TaskGroup, limits: Limits) -> None:
        self._tasks = tasks
        self._limits = limits
        self._jobs: dict[str, Job] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, limits: Limits) -> "AsyncGenerator[JobService]":
        """Run jobs inside the context; on exit, unfinished ones are cancelled."""
        async with anyio.create_task_group() as tasks:
            try:
                yield cls(tasks, limits)
            finally:
                tasks.cancel_scope.cancel()

    async def shutdown(self) -> None:
        """Cancel all jobs, without partial results."""
        self._tasks.cancel_scope.cancel()
        for job in list(self._jobs.values()):
            await job.done.wait()

    @property
    def running(self) -> int:
        """Number of unfinished jobs."""
        return sum(job.result is None for job in self._jobs.values())

    def submit(self, owner: str, task: JobTask, on_done: CompletionCallback) -> Job:
        """Start a job; `on_done` is called with its result, success or failure.

        A client that timed out before it received the job id repeats its request. It then gets
        the existing job, if that is still running or has succeeded.
        """
        for job in self.list_for_owner(owner):
            is_reusable = not job.cancelled and (job.result is None or job.result["success"])
            if is_reusable and not job.id_delivered and job.dedup_key == task.dedup_key:
                return job
        job = self._add(Job(owner, task, task.dedup_key, self._new_feed()))
        self._tasks.start_soon(self._run, job, task, on_done)
        return job

    def store_result(self, owner: str, result: JsonObject) -> Job:
        """Store an existing result as a finished job, so that the rest of it can be read later."""
        job = self._add(Job(owner, None, None, self._new_feed(), id_delivered=True))
        job.finish(result)
        return job

    def get(self, job_id: str, owner: str) -> Job:
        """Return the job; NotFound if it does not exist or belongs to another owner."""
        self._remove_expired()
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            raise NotFound(
                "No such job. Finished jobs are kept for an hour, at most "
                f"{self._limits.max_finished_jobs} per owner, and are lost when the server stops."
            )
        return job

    def list_for_owner(self, owner: str) -> list[Job]:
        """Return all jobs of an owner, oldest first."""
        self._remove_expired()
        return [job for job in self._jobs.values() if job.owner == owner]

    async def wait(self, job: Job, seconds: float, sink: ProgressSink) -> None:
        """Wait for the job and forward its progress.

        If the wait is cancelled, the job continues until the abandon timeout.
        """
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

    async def cancel(self, job: Job) -> None:
        """Cancel the job and wait until it has stored its best result so far."""
        job.cancel()
        await job.done.wait()

    def _new_feed(self) -> ProgressFeed:
        return ProgressFeed(self._limits.progress_interval)

    def _add(self, job: Job) -> Job:
        self._remove_expired()
        self._jobs[job.id] = job
        return job

    async def _run(self, job: Job, task: JobTask, on_done: CompletionCallback) -> None:
        result = failure_result(Cancelled("The server was shut down."))
        try:
            result = await task.run(job.progress.publish)
        except Exception as error:  # noqa: BLE001 - becomes the result of the job
            result = failure_result(error)
        finally:
            job.finish(result)
        await on_done(result)

    async def _cancel_if_abandoned(self, job: Job) -> None:
        """Cancel the job once no call has waited for it during the abandon timeout."""
        timeout = self._limits.job_abandon_timeout
        while job.result is None:
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
        latest_first = sorted(
            (job for job in self._jobs.values() if job.result), key=lambda job: -job.finished_at
        )
        count_by_owner: Counter[str] = Counter()
        for job in latest_first:
            count_by_owner[job.owner] += 1
            is_expired = time.monotonic() - job.finished_at > self._limits.job_ttl
            if is_expired or count_by_owner[job.owner] > self._limits.max_finished_jobs:
                del self._jobs[job.id]
