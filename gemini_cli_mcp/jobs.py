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
from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.progress import News, Tell
from gemini_cli_mcp.types import Progress

logger = logging.getLogger(__name__)

Done = Callable[[Object], Awaitable[None]]
"""Told the outcome."""


class Work(Protocol):
    """What a job does."""

    @property
    def asked(self) -> object:
        """Equal for works that are asked the same."""
        ...

    async def run(self, progress: Progress) -> Object: ...

    def cancel(self) -> None:
        """Let `run` return what there is."""
        ...

    def so_far(self) -> Object: ...


@dataclass(eq=False)
class Job:
    """One work in the background."""

    owner: str
    work: Work | None
    """None when it is done: it holds much, and its outcome is all that is needed."""
    asked: object
    news: News
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    outcome: Object | None = None
    """Its result or failure, once it is done."""
    ended: float = 0
    known: bool = False
    """Whether its owner was ever told its id."""
    cancelled: bool = False
    waiting: int = 0
    """How many wait for it now."""
    last_wait: float = 0
    """When somebody last began or ceased to wait."""
    done: anyio.Event = field(default_factory=anyio.Event)

    def cancel(self) -> None:
        """End it soon, with what it has."""
        if self.work:
            self.cancelled = True
            self.work.cancel()

    def finish(self, outcome: Object) -> None:
        """It has this outcome from now on."""
        self.outcome, self.work = outcome, None
        self.ended = time.monotonic()
        self.news.end()
        self.done.set()


class Jobs:
    """All jobs of a server."""

    def __init__(self, tasks: TaskGroup, limits: Limits) -> None:
        self._tasks = tasks
        self._limits = limits
        self._jobs: dict[str, Job] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, limits: Limits) -> "AsyncGenerator[Jobs]":
        """While in here, jobs run; those that are not done at the end are ended."""
        async with anyio.create_task_group() as tasks:
            try:
                yield cls(tasks, limits)
            finally:
                tasks.cancel_scope.cancel()

    async def end(self) -> None:
        """End them all, without a result."""
        self._tasks.cancel_scope.cancel()
        for job in list(self._jobs.values()):
            await job.done.wait()

    @property
    def running(self) -> int:
        """How many are not done."""
        return sum(job.outcome is None for job in self._jobs.values())

    def submit(self, owner: str, work: Work, when_done: Done) -> Job:
        """Begin; `when_done` is told the outcome, whatever it is.

        Whoever gave up waiting before an id was told comes back with the same question: then it
        is the job that goes on already, or has come to a good end unheard.
        """
        for job in self.of(owner):
            usable = not job.cancelled and (job.outcome is None or job.outcome["success"])
            if usable and not job.known and job.asked == work.asked:
                return job
        job = self._add(Job(owner, work, work.asked, self._news()))
        self._tasks.start_soon(self._run, job, work, when_done)
        return job

    def keep(self, owner: str, outcome: Object) -> Job:
        """Something that is done already, to be read on in."""
        job = self._add(Job(owner, None, None, self._news(), known=True))
        job.finish(outcome)
        return job

    def get(self, job_id: str, owner: str) -> Job:
        """The owner's job of this id; to all others it does not exist."""
        self._forget()
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            raise NotFound(
                "There is no such job. Jobs are kept for an hour, the last "
                f"{self._limits.jobs_kept} of them, and end with the server."
            )
        return job

    def of(self, owner: str) -> list[Job]:
        """All jobs of an owner, the oldest first."""
        self._forget()
        return [job for job in self._jobs.values() if job.owner == owner]

    async def wait(self, job: Job, seconds: float, tell: Tell) -> None:
        """Wait for its end and tell its news; a cancelled wait does not end the job at once."""
        job.waiting += 1
        job.last_wait = time.monotonic()
        try:
            with anyio.move_on_after(seconds):
                await job.news.follow(tell)
                await job.done.wait()
        except anyio.get_cancelled_exc_class():
            self._tasks.start_soon(self._end_if_abandoned, job)
            raise
        finally:
            job.waiting -= 1
            job.last_wait = time.monotonic()

    async def cancel(self, job: Job) -> None:
        """End it; its outcome is what it has so far."""
        job.cancel()
        await job.done.wait()

    def _news(self) -> News:
        return News(self._limits.heartbeat)

    def _add(self, job: Job) -> Job:
        self._forget()
        self._jobs[job.id] = job
        return job

    async def _run(self, job: Job, work: Work, when_done: Done) -> None:
        outcome = failure_result(Cancelled("It was ended with the server."))
        try:
            outcome = await work.run(job.news.add)
        except Exception as error:  # noqa: BLE001 - the owner gets an answer, whatever it is
            outcome = failure_result(error)
        finally:
            job.finish(outcome)
        await when_done(outcome)

    async def _end_if_abandoned(self, job: Job) -> None:
        """When nobody has waited for it long enough."""
        abandoned = self._limits.job_abandoned
        while job.outcome is None:
            with anyio.move_on_after(job.last_wait + abandoned - time.monotonic()):
                await job.done.wait()
            if not job.waiting and time.monotonic() >= job.last_wait + abandoned:
                logger.info("Nobody waits for a deep search any more: it is ended")
                job.cancel()
                return
            if job.waiting:
                await anyio.sleep(abandoned / 10)

    def _forget(self) -> None:
        """Those that are done too long, and those that are too many."""
        latest_first = sorted(
            (job for job in self._jobs.values() if job.outcome), key=lambda job: -job.ended
        )
        seen: Counter[str] = Counter()
        for job in latest_first:
            seen[job.owner] += 1
            expired = time.monotonic() - job.ended > self._limits.job_kept
            if expired or seen[job.owner] > self._limits.jobs_kept:
                del self._jobs[job.id]
