"""How many runs there are at once, who waits, and who is refused."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client

from gemini_cli_mcp.errors import Busy
from gemini_cli_mcp.owner import CURRENT_OWNER
from gemini_cli_mcp.providers.run_limiter import RunLimiter, Slot
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

SEARCHED: Turn = {"text": model_answer(), "searches": [search_with_sources("sky", "nasa")]}


def limited(stub: Stub, *, concurrency: int, queue: int) -> None:
    stub.environ |= {
        "GEMINI_MCP_CONCURRENCY": str(concurrency),
        "GEMINI_MCP_QUEUE": str(queue),
    }


class Calls:
    """Searches of one client that go on side by side."""

    def __init__(self, client: Client, tasks: Any) -> None:
        self._client = client
        self._tasks = tasks
        self.results: dict[str, Result] = {}
        self.told: dict[str, list[str]] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    def start(self, name: str, tool: str = "search") -> anyio.CancelScope:
        scope = self.scopes[name] = anyio.CancelScope()
        self.told[name] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.told[name].append(message or "")

        async def call() -> None:
            with scope:
                asked = {"query": f"{QUESTION} {name}"}
                answer = await self._client.call_tool(tool, asked, progress_callback=note)
                self.results[name] = answer.structured_content or {}

        self._tasks.start_soon(call)
        return scope

    def left(self, name: str) -> Callable[[], bool]:
        """Whether its client has taken it back."""
        return lambda: self.scopes[name].cancelled_caught

    def waits(self, name: str) -> Callable[[], bool]:
        return lambda: any("waiting" in message for message in self.told[name])

    def ended(self, name: str) -> Callable[[], bool]:
        return lambda: name in self.results


@asynccontextmanager
async def calling(stub: Stub) -> AsyncGenerator[Calls]:
    async with in_process_client(stub) as client, anyio.create_task_group() as tasks:
        yield Calls(client, tasks)


async def test_beyond_the_queue_a_call_is_refused_at_once(stub: Stub) -> None:
    limited(stub, concurrency=1, queue=1)
    stub.plays({**SEARCHED, "hangs": "HANGS"})

    async with calling(stub) as calls:
        first = calls.start("HANGS")
        await eventually(lambda: len(stub.runs) == 1)
        calls.start("second")
        await eventually(calls.waits("second"))
        for tool in ("search", "grounded_search", "web_search", "deep_search"):
            calls.start(tool, tool)
            await eventually(calls.ended(tool))
        first.cancel()
        await eventually(calls.ended("second"))

    for tool in ("search", "grounded_search", "web_search", "deep_search"):
        error = calls.results[tool]["error"]
        assert (error["code"], error["retryable"]) == ("BUSY", True)
        assert 1 <= error["retry_after_s"] <= 300
    assert calls.results["second"]["success"] is True
    assert len(stub.runs) == 2


async def test_a_cancelled_waiter_frees_its_place(stub: Stub) -> None:
    limited(stub, concurrency=1, queue=1)
    stub.plays({**SEARCHED, "hangs": "HANGS"})

    async with calling(stub) as calls:
        first = calls.start("HANGS")
        await eventually(lambda: len(stub.runs) == 1)
        waiter = calls.start("second")
        await eventually(calls.waits("second"))
        waiter.cancel()
        await eventually(calls.left("second"))
        calls.start("third")
        await eventually(calls.waits("third"))
        first.cancel()
        await eventually(calls.ended("third"))

    assert calls.results["third"]["success"] is True
    assert len(stub.runs) == 2  # never the second


async def test_no_more_processes_than_allowed_run_at_once(stub: Stub) -> None:
    limited(stub, concurrency=2, queue=64)
    stub.plays({**SEARCHED, "delay": 0.08})
    most = 0

    async with calling(stub) as calls:
        for number in range(8):
            calls.start(f"call {number}")
        while len(calls.results) < 8:
            most = max(most, sum(is_alive(run["pid"]) for run in stub.runs))
            await anyio.sleep(0.02)

    assert all(result["success"] for result in calls.results.values())
    assert most == 2


async def test_who_was_let_in_is_not_refused_later(stub: Stub) -> None:
    limited(stub, concurrency=1, queue=0)
    stub.plays({"text": "prose", "correction": {"text": model_answer("prose")}})

    result = await stub.search()
    deep = await stub.deep_search(max_iterations=2)

    assert result["metadata"]["correction"] == "corrected"
    assert deep["metadata"]["iterations"] == 2


class Chair(Slot):
    def __init__(self, room: "Room") -> None:
        self._room = room

    def release(self) -> None:
        self._room.chairs += 1


class Room:
    """Stands for a warm process."""

    def __init__(self, chairs: int) -> None:
        self.chairs = chairs

    def find(self) -> Chair | None:
        if not self.chairs:
            return None
        self.chairs -= 1
        return Chair(self)


async def test_a_process_of_its_own_comes_before_a_seat_and_whoever_is_first_gets_it() -> None:
    places, room = RunLimiter(1, 10), Room(1)
    order: list[str] = []
    over = anyio.Event()

    async def one(name: str, *, warm: bool) -> None:
        async with places.acquire(lambda _: None, room.find if warm else None) as seat:
            order.append(f"{name} {'seat' if seat else 'single'}")
            await over.wait()

    async with anyio.create_task_group() as tasks:
        for name in ("a", "b", "c"):
            tasks.start_soon(lambda name=name: one(name, warm=name != "c"))
        await eventually(lambda: len(order) == 2)
        # A seat is free while somebody waits who cannot use one.
        room.chairs += 1
        await one_now(places, room)
        over.set()

    assert order == ["a single", "b seat", "c single"]


async def one_now(places: RunLimiter, room: Room) -> None:
    with anyio.fail_after(10):
        async with places.acquire(lambda _: None, room.find) as seat:
            assert seat


async def test_a_place_that_comes_with_the_cancel_is_not_lost() -> None:
    places = RunLimiter(1, 10)
    async with places.acquire(lambda _: None):
        waiter = asyncio.ensure_future(places.acquire(lambda _: None).__aenter__())
        await asyncio.sleep(0)
    waiter.cancel()  # its turn has come, but it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await waiter

    with anyio.fail_after(10):
        async with places.acquire(lambda _: None):
            pass


def holding(places: RunLimiter, owner: str, over: anyio.Event, order: list[str]) -> Any:
    async def hold() -> None:
        CURRENT_OWNER.set(owner)
        with contextlib.suppress(Busy):
            async with places.acquire(lambda _: None):
                order.append(owner)
                await over.wait()
            return
        order.append(f"{owner} is refused")

    return hold


async def test_an_owner_with_a_hundred_calls_does_not_starve_another() -> None:
    places = RunLimiter(4, 64)
    over = [anyio.Event() for _ in range(103)]
    order: list[str] = []
    refused: list[str] = []
    taken: list[str] = []

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(holding(places, "A", over[number], order))
        await anyio.wait_all_tasks_blocked()
        assert order == ["A"] * 4 + ["A is refused"] * 32
        for number in range(100, 103):
            tasks.start_soon(holding(places, "B", over[number], order))
        await anyio.wait_all_tasks_blocked()
        refused = order[36:]
        for number in range(2):  # of A's, two end
            over[number].set()
            await anyio.wait_all_tasks_blocked()
        taken = order[39:]
        over[2].set()  # now both have two, and of equals the one who waited longer is next
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert refused == ["A is refused"] * 3  # the last of A's in the queue give way
    assert taken == ["B", "B"]
    assert (places.running, places.waiting) == (0, 0)


async def test_an_owner_alone_may_have_everything() -> None:
    places = RunLimiter(4, 2)
    over, order = anyio.Event(), list[str]()

    async with anyio.create_task_group() as tasks:
        for _ in range(7):
            tasks.start_soon(holding(places, "A", over, order))
        await anyio.wait_all_tasks_blocked()
        assert order == ["A"] * 4 + ["A is refused"]
        over.set()

    assert order.count("A") == 6


async def test_owners_take_turns() -> None:
    places = RunLimiter(1, 64)
    over, order = anyio.Event(), list[str]()

    async with anyio.create_task_group() as tasks:
        for owner in ("A", "A", "A", "B", "B", "C"):
            tasks.start_soon(holding(places, owner, over, order))
        await anyio.wait_all_tasks_blocked()
        over.set()

    assert order == ["A", "B", "C", "A", "B", "A"]


async def test_without_a_queue_the_second_call_is_refused() -> None:
    places = RunLimiter(1, 0)
    context = asyncio.ensure_future(places.acquire(lambda _: None).__aenter__())
    await context

    with pytest.raises(Busy):
        async with places.acquire(lambda _: None):
            pass


async def test_a_cancelled_waiter_stands_in_nobodys_way() -> None:
    places = RunLimiter(1, 10)
    running = places.acquire(lambda _: None)
    await running.__aenter__()
    corpse = asyncio.ensure_future(places.acquire(lambda _: None).__aenter__())
    await asyncio.sleep(0)
    corpse.cancel()
    await running.__aexit__(None, None, None)

    with anyio.fail_after(10):
        async with places.acquire(lambda _: None):
            pass
    await asyncio.wait({corpse})


async def test_work_that_is_half_done_goes_first() -> None:
    places = RunLimiter(1, 10)
    order: list[str] = []
    over = anyio.Event()

    async def stranger() -> None:
        async with places.acquire(lambda _: None):
            order.append("stranger")

    async def half_done() -> None:
        async with places.acquire(lambda _: None):
            tasks.start_soon(stranger)
            await over.wait()
        # Its place went to whoever waited; its correction comes before all others.
        async with places.acquire(lambda _: None):
            order.append("half done")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(half_done)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            tasks.start_soon(stranger)
        await anyio.wait_all_tasks_blocked()
        over.set()

    assert order[:2] == ["stranger", "half done"]
