"""Long work that outlives the call that began it.

A job runs in the background of its server, belongs to its owner, and is kept for an hour when
it is done. Whoever waits for it may go away and come back. This is the seam for an engine that
several machines share: submit, get, wait, cancel.
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
"""Told the outcome."""


class JobTask(Protocol):
    """What a job does."""

    @property
    def dedup_key(self) -> object:
        """Equal for works that are asked the same."""
        ...

    async def run(self, progress: ProgressCallback) -> JsonObject: ...

    def cancel(self) -> None:
        """Let `run` return what there is."""
        ...

    def snapshot(self) -> JsonObject: ...


@dataclass(eq=False)
class Job:
    """One work in the background."""

    owner: str
    task: JobTask | None
    """None when it is done: it holds much, and its outcome is all that is needed."""
    dedup_key: object
    progress: ProgressFeed
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    result: JsonObject | None = None
    """Its result or failure, once it is done."""
    finished_at: float = 0
    id_delivered: bool = False
    """Whether its owner was ever told its id."""
    cancelled: bool = False
    waiter_count: int = 0
    """How many wait for it now."""
    last_wait_at: float = 0
    """When somebody last began or ceased to wait."""
    done: anyio.Event = field(default_factory=anyio.Event)

    def cancel(self) -> None:
        """End it soon, with what it has."""
        if self.task:
            self.cancelled = True
            self.task.cancel()

    def finish(self, result: JsonObject) -> None:
        """It has this outcome from now on."""
        self.result, self.task = result, None
        self.finished_at = time.monotonic()
        self.progress.close()
        self.done.set()


class JobService:
    """All jobs of a server."""

    def __init__(self, tasks: TaskGroup, limits: Limits) -> None:
        self._tasks = tasks
        self._limits = limits
        self._jobs: dict[str, Job] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, limits: Limits) -> "AsyncGenerator[JobService]":
        """While in here, jobs run; those that are not done at the end are ended."""
        async with anyio.create_task_group() as tasks:
            try:
                yield cls(tasks, limits)
            finally:
                tasks.cancel_scope.cancel()

    async def shutdown(self) -> None:
        """End them all, without a result."""
        self._tasks.cancel_scope.cancel()
        for job in list(self._jobs.values()):
            await job.done.wait()

    @property
    def running(self) -> int:
        """How many are not done."""
        return sum(job.result is None for job in self._jobs.values())

    def submit(self, owner: str, task: JobTask, on_done: CompletionCallback) -> Job:
        """Begin; `when_done` is told the outcome, whatever it is.

        Whoever gave up waiting before an id was told comes back with the same question: then it
        is the job that goes on already, or has come to a good end unheard.
        """
        for job in self.list_for_owner(owner):
            usable = not job.cancelled and (job.result is None or job.result["success"])
            if usable and not job.id_delivered and job.dedup_key == task.dedup_key:
                return job
        job = self._add(Job(owner, task, task.dedup_key, self._new_feed()))
        self._tasks.start_soon(self._run, job, task, on_done)
        return job

    def store_result(self, owner: str, result: JsonObject) -> Job:
        """Something that is done already, to be read on in."""
        job = self._add(Job(owner, None, None, self._new_feed(), id_delivered=True))
        job.finish(result)
        return job

    def get(self, job_id: str, owner: str) -> Job:
        """The owner's job of this id; to all others it does not exist."""
        self._expire()
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            raise NotFound(
                "There is no such job. Jobs are kept for an hour, the last "
                f"{self._limits.max_finished_jobs} of them, and end with the server."
            )
        return job

    def list_for_owner(self, owner: str) -> list[Job]:
        """All jobs of an owner, the oldest first."""
        self._expire()
        return [job for job in self._jobs.values() if job.owner == owner]

    async def wait(self, job: Job, seconds: float, sink: ProgressSink) -> None:
        """Wait for its end and tell its news; a cancelled wait does not end the job at once."""
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
        """End it; its outcome is what it has so far."""
        job.cancel()
        await job.done.wait()

    def _new_feed(self) -> ProgressFeed:
        return ProgressFeed(self._limits.progress_interval)

    def _add(self, job: Job) -> Job:
        self._expire()
        self._jobs[job.id] = job
        return job

    async def _run(self, job: Job, task: JobTask, on_done: CompletionCallback) -> None:
        result = failure_result(Cancelled("It was ended with the server."))
        try:
            result = await task.run(job.progress.publish)
        except Exception as error:  # noqa: BLE001 - the owner gets an answer, whatever it is
            result = failure_result(error)
        finally:
            job.finish(result)
        await on_done(result)

    async def _cancel_if_abandoned(self, job: Job) -> None:
        """When nobody has waited for it long enough."""
        timeout = self._limits.job_abandon_timeout
        while job.result is None:
            with anyio.move_on_after(job.last_wait_at + timeout - time.monotonic()):
                await job.done.wait()
            if not job.waiter_count and time.monotonic() >= job.last_wait_at + timeout:
                logger.info("Nobody waits for a deep search any more: it is ended")
                job.cancel()
                return
            if job.waiter_count:
                await anyio.sleep(timeout / 10)

    def _expire(self) -> None:
        """Those that are done too long, and those that are too many."""
        latest_first = sorted(
            (job for job in self._jobs.values() if job.result), key=lambda job: -job.finished_at
        )
        seen: Counter[str] = Counter()
        for job in latest_first:
            seen[job.owner] += 1
            expired = time.monotonic() - job.finished_at > self._limits.job_ttl
            if expired or seen[job.owner] > self._limits.max_finished_jobs:
                del self._jobs[job.id]
