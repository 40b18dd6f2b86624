"""Limits on concurrent runs, queueing, and refusals."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from mcp import Client

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import Busy
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.providers.run_slots import Slot
from tests.support import (
    QUESTION,
    Result,
    Stub,
    Turn,
    eventually,
    is_alive,
    model_answer,
    search_with_sources,
)
from tests.support.mcp_server import in_process_client

SEARCH_TURN: Turn = {"text": model_answer(), "searches": [search_with_sources("sky", "nasa")]}


def set_limits(stub: Stub, *, concurrency: int, queue: int) -> None:
    stub.environ |= {
        "GEMINI_MCP_CONCURRENCY": str(concurrency),
        "GEMINI_MCP_QUEUE": str(queue),
    }


class Calls:
    """Concurrent tool calls of one client."""

    def __init__(self, client: Client, tasks: Any) -> None:
        self._client = client
        self._tasks = tasks
        self.results: dict[str, Result] = {}
        self.progress: dict[str, list[str]] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    def start(self, name: str, tool: str = "search") -> anyio.CancelScope:
        scope = self.scopes[name] = anyio.CancelScope()
        self.progress[name] = []

        async def record_progress(
            progress: float, total: float | None, message: str | None
        ) -> None:
            self.progress[name].append(message or "")

        async def call() -> None:
            with scope:
                arguments = {"query": f"{QUESTION} {name}"}
                result = await self._client.call_tool(
                    tool, arguments, progress_callback=record_progress
                )
                self.results[name] = result.structured_content or {}

        self._tasks.start_soon(call)
        return scope

    def is_cancelled(self, name: str) -> Callable[[], bool]:
        """Return a condition to pass to `eventually`."""
        return lambda: self.scopes[name].cancelled_caught

    def is_waiting(self, name: str) -> Callable[[], bool]:
        return lambda: any("waiting" in message for message in self.progress[name])

    def has_ended(self, name: str) -> Callable[[], bool]:
        return lambda: name in self.results


@asynccontextmanager
async def concurrent_calls(stub: Stub) -> AsyncGenerator[Calls]:
    async with in_process_client(stub) as client, anyio.create_task_group() as tasks:
        yield Calls(client, tasks)


async def test_calls_are_refused_immediately_when_the_queue_is_full(stub: Stub) -> None:
    set_limits(stub, concurrency=1, queue=1)
    stub.plays({**SEARCH_TURN, "hangs": "HANGS"})

    async with concurrent_calls(stub) as calls:
        first = calls.start("HANGS")
        await eventually(lambda: len(stub.runs) == 1)
        calls.start("second")
        await eventually(calls.is_waiting("second"))
        for tool in ("search", "grounded_search", "web_search", "deep_search"):
            calls.start(tool, tool)
            await eventually(calls.has_ended(tool))
        first.cancel()
        await eventually(calls.has_ended("second"))

    for tool in ("search", "grounded_search", "web_search", "deep_search"):
        error = calls.results[tool]["error"]
        assert (error["code"], error["retryable"]) == ("BUSY", True)
        assert 1 <= error["retry_after_s"] <= 300
    assert calls.results["second"]["success"] is True
    assert len(stub.runs) == 2


async def test_a_cancelled_waiting_call_frees_its_queue_entry(stub: Stub) -> None:
    set_limits(stub, concurrency=1, queue=1)
    stub.plays({**SEARCH_TURN, "hangs": "HANGS"})

    async with concurrent_calls(stub) as calls:
        first = calls.start("HANGS")
        await eventually(lambda: len(stub.runs) == 1)
        waiter = calls.start("second")
        await eventually(calls.is_waiting("second"))
        waiter.cancel()
        await eventually(calls.is_cancelled("second"))
        calls.start("third")
        await eventually(calls.is_waiting("third"))
        first.cancel()
        await eventually(calls.has_ended("third"))

    assert calls.results["third"]["success"] is True
    assert len(stub.runs) == 2  # the second call never ran


async def test_concurrent_processes_do_not_exceed_the_limit(stub: Stub) -> None:
    set_limits(stub, concurrency=2, queue=64)
    stub.plays({**SEARCH_TURN, "delay": 0.08})
    max_alive = 0

    async with concurrent_calls(stub) as calls:
        for number in range(8):
            calls.start(f"call {number}")
        while len(calls.results) < 8:
            max_alive = max(max_alive, sum(is_alive(run["pid"]) for run in stub.runs))
            await anyio.sleep(0.02)

    assert all(result["success"] for result in calls.results.values())
    assert max_alive == 2


async def test_an_admitted_call_is_not_refused_later(stub: Stub) -> None:
    set_limits(stub, concurrency=1, queue=0)
    stub.plays({"text": "prose", "correction": {"text": model_answer("prose")}})

    result = await stub.search()
    deep = await stub.deep_search(max_iterations=2)

    assert result["metadata"]["correction"] == "corrected"
    assert deep["metadata"]["iterations"] == 2


class FakeSlot(Slot):
    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def release(self) -> None:
        self._release()


class FakeProcesses:
    """A number of processes started ahead, and of slots in a shared process."""

    def __init__(self, ready: int = 0, shared: int = 0) -> None:
        self.ready = ready
        self.shared = shared

    def take_ready(self) -> FakeSlot | None:
        return self._take("ready")

    def take_shared(self) -> FakeSlot | None:
        return self._take("shared")

    def _take(self, name: str) -> FakeSlot | None:
        count = getattr(self, name)
        if not count:
            return None
        setattr(self, name, count - 1)
        return FakeSlot(lambda: setattr(self, name, getattr(self, name) + 1))


class Runs:
    """Runs that end on request."""

    def __init__(self, limiter: RunLimiter, source: FakeProcesses, tasks: TaskGroup) -> None:
        self._limiter = limiter
        self._source = source
        self._tasks = tasks
        self._finished: dict[str, anyio.Event] = {}
        self.uses: dict[str, str] = {}
        """What each run was granted."""

    async def start(self, *names: str, source: bool = True) -> None:
        for name in names:
            self._finished[name] = anyio.Event()
            self._tasks.start_soon(self._run, name, self._source if source else None)
            await anyio.wait_all_tasks_blocked()

    async def end(self, *names: str) -> None:
        for name in names:
            self._finished[name].set()
            await anyio.wait_all_tasks_blocked()

    async def end_all(self) -> None:
        await self.end(*self._finished)

    async def _run(self, name: str, source: FakeProcesses | None) -> None:
        async with self._limiter.acquire(CallContext(), source) as grant:
            self.uses[name] = grant.process
            await self._finished[name].wait()


async def test_processes_started_ahead_come_first_then_cold_ones_then_shared_ones() -> None:
    limiter, source = RunLimiter(2, 10, max_ready=1), FakeProcesses(ready=1, shared=1)
    async with anyio.create_task_group() as tasks:
        runs = Runs(limiter, source, tasks)
        await runs.start("a", "b", "c", "d", "e")
        assert runs.uses == {"a": "ready", "b": "cold", "c": "cold", "d": "shared"}
        await runs.end("b")
        assert runs.uses["e"] == "cold"
        await runs.end_all()

    assert (limiter.running, source.ready, source.shared) == (0, 1, 1)


async def test_processes_started_ahead_do_not_exceed_the_limits_together_with_cold_ones() -> None:
    limiter, source = RunLimiter(1, 10, max_ready=1), FakeProcesses(ready=5)
    async with anyio.create_task_group() as tasks:
        runs = Runs(limiter, source, tasks)
        await runs.start("a", "b", "c")
        assert runs.uses == {"a": "ready", "b": "ready"}
        await runs.end("a")
        assert runs.uses["c"] == "ready"
        await runs.end_all()


async def test_a_waiting_call_takes_a_process_that_was_started_ahead_meanwhile() -> None:
    limiter, source = RunLimiter(1, 10, max_ready=1), FakeProcesses()
    async with anyio.create_task_group() as tasks:
        runs = Runs(limiter, source, tasks)
        await runs.start("a", "b")
        source.ready = 1
        limiter.dispatch()
        await anyio.wait_all_tasks_blocked()
        assert runs.uses == {"a": "cold", "b": "ready"}
        await runs.end_all()


async def test_in_a_burst_a_shared_process_comes_before_further_cold_starts() -> None:
    limiter, source = RunLimiter(2, 10), FakeProcesses(shared=3)
    async with anyio.create_task_group() as tasks:
        runs = Runs(limiter, source, tasks)
        await runs.start("a", "b", "c", "d")
        await runs.end("a")  # a slot for a cold start is free, and three runs are in progress
        await runs.start("e")
        assert [runs.uses[name] for name in "abcde"] == ["cold", "cold", *["shared"] * 3]
        await runs.end("b", "e")  # the burst is over, although two runs are still in the process
        await runs.start("f")
        assert runs.uses["f"] == "cold"
        await runs.end_all()


async def test_calls_that_wait_for_something_else_do_not_delay_a_ready_process() -> None:
    limiter = RunLimiter(1, 10, max_ready=1)
    async with anyio.create_task_group() as tasks:
        searches = Runs(limiter, FakeProcesses(), tasks)
        await searches.start("a", "b")
        assert searches.uses == {"a": "cold"}
        grounded_searches = Runs(limiter, FakeProcesses(ready=1), tasks)
        await grounded_searches.start("c")
        assert grounded_searches.uses == {"c": "ready"}
        await searches.end_all()
        await grounded_searches.end_all()


async def test_a_full_queue_does_not_refuse_a_call_that_need_not_wait() -> None:
    limiter = RunLimiter(1, 0, max_ready=1)
    async with anyio.create_task_group() as tasks:
        runs = Runs(limiter, FakeProcesses(ready=1), tasks)
        await runs.start("a", "b")
        assert runs.uses == {"a": "ready", "b": "cold"}
        with pytest.raises(Busy):
            async with limiter.acquire(CallContext()):
                pass
        await runs.end_all()

    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_a_call_that_waits_for_a_cold_start_does_not_block_shared_slots() -> None:
    limiter, source = RunLimiter(1, 10), FakeProcesses(shared=1)
    async with anyio.create_task_group() as tasks:
        runs = Runs(limiter, source, tasks)
        await runs.start("a")
        await runs.start("b", source=False)
        await runs.start("c")
        assert runs.uses == {"a": "cold", "c": "shared"}
        await runs.end_all()
        assert runs.uses["b"] == "cold"


async def test_a_slot_granted_during_cancellation_is_released() -> None:
    limiter = RunLimiter(1, 10)
    async with limiter.acquire(CallContext()):
        waiter = asyncio.ensure_future(limiter.acquire(CallContext()).__aenter__())
        await asyncio.sleep(0)
    waiter.cancel()  # it was granted the slot but has not resumed yet
    with pytest.raises(asyncio.CancelledError):
        await waiter

    with anyio.fail_after(10):
        async with limiter.acquire(CallContext()):
            pass


def slot_holder(limiter: RunLimiter, owner: str, finished: anyio.Event, order: list[str]) -> Any:
    async def hold() -> None:
        with contextlib.suppress(Busy):
            async with limiter.acquire(CallContext(owner)):
                order.append(owner)
                await finished.wait()
            return
        order.append(f"{owner} is refused")

    return hold


async def test_an_owner_with_a_hundred_calls_does_not_starve_another() -> None:
    limiter = RunLimiter(4, 64)
    finished = [anyio.Event() for _ in range(103)]
    order: list[str] = []
    refused: list[str] = []
    granted: list[str] = []

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(slot_holder(limiter, "A", finished[number], order))
        await anyio.wait_all_tasks_blocked()
        assert order == ["A"] * 4 + ["A is refused"] * 32
        for number in range(100, 103):
            tasks.start_soon(slot_holder(limiter, "B", finished[number], order))
        await anyio.wait_all_tasks_blocked()
        refused = order[36:]
        for number in range(2):  # two of A's calls end
            finished[number].set()
            await anyio.wait_all_tasks_blocked()
        granted = order[39:]
        finished[2].set()  # a third of A's calls ends
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert refused == ["A is refused"] * 3  # A's last calls in the queue are evicted
    assert granted == ["B", "B"]
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_a_single_owner_may_use_all_slots() -> None:
    limiter = RunLimiter(4, 2)
    finished, order = anyio.Event(), list[str]()

    async with anyio.create_task_group() as tasks:
        for _ in range(7):
            tasks.start_soon(slot_holder(limiter, "A", finished, order))
        await anyio.wait_all_tasks_blocked()
        assert order == ["A"] * 4 + ["A is refused"]
        finished.set()

    assert order.count("A") == 6


async def test_owners_take_turns() -> None:
    limiter = RunLimiter(1, 64)
    finished, order = anyio.Event(), list[str]()

    async with anyio.create_task_group() as tasks:
        for owner in ("A", "A", "A", "B", "B", "C"):
            tasks.start_soon(slot_holder(limiter, owner, finished, order))
        await anyio.wait_all_tasks_blocked()
        finished.set()

    assert order == ["A", "B", "C", "A", "B", "A"]


async def test_owners_without_calls_are_forgotten() -> None:
    limiter = RunLimiter(1, 64)
    order = list[str]()
    finished = anyio.Event()
    finished.set()

    for number in range(50):
        await slot_holder(limiter, f"owner {number}", finished, order)()

    assert len(order) == 50
    assert limiter.owner_count == 0


async def test_an_owner_that_waits_goes_before_owners_that_ran_meanwhile() -> None:
    limiter = RunLimiter(1, 64)
    finished = {name: anyio.Event() for name in "ABCDE"}
    order = list[str]()

    async with anyio.create_task_group() as tasks:
        for owner, event in (("A", "A"), ("A", "E"), ("B", "B"), ("C", "C")):
            tasks.start_soon(slot_holder(limiter, owner, finished[event], order))
        await anyio.wait_all_tasks_blocked()
        finished["A"].set()
        await anyio.wait_all_tasks_blocked()
        finished["B"].set()
        await anyio.wait_all_tasks_blocked()
        # B has no calls now; when it comes back, A has waited for longer.
        tasks.start_soon(slot_holder(limiter, "B", finished["D"], order))
        await anyio.wait_all_tasks_blocked()
        for event in finished.values():
            event.set()

    assert order == ["A", "B", "C", "A", "B"]


async def test_without_a_queue_the_second_call_is_refused() -> None:
    limiter = RunLimiter(1, 0)
    context = asyncio.ensure_future(limiter.acquire(CallContext()).__aenter__())
    await context

    with pytest.raises(Busy):
        async with limiter.acquire(CallContext()):
            pass


async def test_a_cancelled_waiting_call_does_not_block_others() -> None:
    limiter = RunLimiter(1, 10)
    running = limiter.acquire(CallContext())
    await running.__aenter__()
    cancelled = asyncio.ensure_future(limiter.acquire(CallContext()).__aenter__())
    await asyncio.sleep(0)
    cancelled.cancel()
    await running.__aexit__(None, None, None)

    with anyio.fail_after(10):
        async with limiter.acquire(CallContext()):
            pass
    await asyncio.wait({cancelled})


async def test_admitted_calls_take_precedence_over_new_calls() -> None:
    limiter = RunLimiter(1, 10)
    order: list[str] = []
    finished = anyio.Event()

    async def new_call() -> None:
        async with limiter.acquire(CallContext()):
            order.append("new")

    async def admitted_call() -> None:
        context = CallContext()
        async with limiter.acquire(context):
            tasks.start_soon(new_call)
            await finished.wait()
        # Its slot went to a waiting call; its correction precedes all others.
        async with limiter.acquire(context):
            order.append("admitted")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admitted_call)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            tasks.start_soon(new_call)
        await anyio.wait_all_tasks_blocked()
        finished.set()

    assert order[:2] == ["new", "admitted"]
