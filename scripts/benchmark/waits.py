"""Measure how long a user waits: for searches in a turn, tools, first calls and bursts.

Contenders take turns, so that a noisy moment of the machine hits all of them.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from mcp.types import CallToolResult

from scripts.benchmark.api import INSTANT, ApiProcess, Behaviour
from scripts.benchmark.contenders import (
    OUR_DEEP_SEARCH,
    OURS,
    OURS_COLD,
    Ask,
    BenchHome,
    Contender,
    our_server,
)
from scripts.benchmark.memory import cli_processes, processes, track_peak
from scripts.benchmark.samples import Samples

PAUSE = 3.0
"""Seconds before a call: a client's model thinks, or a user reads."""
SEARCHES_PER_TURN = (1, 3, 6)
MODEL_DELAY, SEARCH_DELAY = 2.0, 5.0
"""Seconds of a real API, about."""
BURST_DELAY = 1.0
"""Seconds of each request to the API in a burst of calls."""
SECONDS_AFTER_START = (0, 1, 2, 3)
UNUSED_SECONDS = 125.0
"""After two minutes without a call, a server must have given its processes back."""


def realistic(searches: int = 1) -> Behaviour:
    return Behaviour(MODEL_DELAY, SEARCH_DELAY, searches)


@asynccontextmanager
async def connect_all(
    contenders: Sequence[Contender], api: ApiProcess
) -> AsyncGenerator[dict[str, Ask]]:
    """Connect to all contenders, and make one call to each, which fills the machine's caches."""
    api.set(INSTANT)
    async with AsyncExitStack() as stack:
        asks: dict[str, Ask] = {}
        for contender in contenders:
            folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
            ask = await stack.enter_async_context(contender.connect(BenchHome(Path(folder), api)))
            await ask()
            asks[contender.name] = ask
        yield asks


async def measure_turns(
    contenders: Sequence[Contender], api: ApiProcess, repetitions: int = 3
) -> dict[str, dict[int, Samples]]:
    """Measure a call with several searches in one turn, by contender and number of searches."""
    results = {
        contender.name: {n: Samples() for n in SEARCHES_PER_TURN} for contender in contenders
    }
    async with connect_all(contenders, api) as asks:
        for _ in range(repetitions):
            for searches in SEARCHES_PER_TURN:
                api.set(realistic(searches))
                for name, ask in asks.items():
                    await anyio.sleep(PAUSE)
                    await results[name][searches].measure(ask)
    return results


@dataclass
class SingleCalls:
    """Calls of one contender, one after another."""

    samples: Samples = field(default_factory=Samples)
    request_count: int = 0
    bytes_sent: int = 0
    processes: Counter[str] = field(default_factory=Counter[str])

    @property
    def kilobytes(self) -> float:
        """Sent per call."""
        return self.bytes_sent / len(self.samples.seconds) / 1000


async def measure_single_calls(
    contenders: Sequence[Contender], api: ApiProcess, repetitions: int = 9
) -> dict[str, SingleCalls]:
    """Measure calls that follow each other after a pause, by contender; the API is instant."""
    results = {contender.name: SingleCalls() for contender in contenders}
    async with connect_all(contenders, api) as asks:
        for _ in range(repetitions):
            for name, ask in asks.items():
                await anyio.sleep(PAUSE)
                api.take_counts()
                result = results[name]
                reply = await result.samples.measure(ask)
                count, size = api.take_counts()
                result.request_count += count
                result.bytes_sent += size
                result.processes[process_of(reply)] += 1
    return results


async def measure_memory(contender: Contender, api: ApiProcess) -> float:
    """Return the peak megabytes of all processes of a contender, with one call at a time."""
    async with connect_all([contender], api) as asks:
        with track_peak(api.pid) as memory:
            for _ in range(3):
                await anyio.sleep(PAUSE)
                await asks[contender.name]()
    return memory.total


def process_of(reply: object) -> str:
    """Return how a call to our server got its process, or an empty text."""
    content: Any = reply.structured_content if isinstance(reply, CallToolResult) else None
    return content["metadata"].get("process", "") if content and "metadata" in content else ""


@dataclass
class CallsAfterStart:
    """Calls to a server that was just started."""

    first: dict[int, Samples]
    """By the number of seconds after the handshake."""
    tenth: Samples = field(default_factory=Samples)
    """The tenth of ten calls without pauses."""


async def measure_calls_after_start(
    api: ApiProcess, repetitions: int = 5
) -> dict[str, CallsAfterStart]:
    """Compare the first calls to our server with those of a server that starts nothing ahead."""
    contenders = [OURS, OURS_COLD]
    results = {
        contender.name: CallsAfterStart({seconds: Samples() for seconds in SECONDS_AFTER_START})
        for contender in contenders
    }
    api.set(INSTANT)
    for _ in range(repetitions):
        for seconds in SECONDS_AFTER_START:
            contenders.reverse()  # whoever starts second finds a warmer machine
            for contender in contenders:
                with TemporaryDirectory(prefix="bench-") as folder:
                    async with contender.connect(BenchHome(Path(folder), api)) as ask:
                        await anyio.sleep(seconds)
                        result = results[contender.name]
                        await result.first[seconds].measure(ask)
                        if not seconds:
                            for _ in range(8):
                                await ask()
                            await result.tenth.measure(ask)
    return results


async def measure_alternating_calls(
    api: ApiProcess, repetitions: int = 12
) -> dict[str, SingleCalls]:
    """Measure calls that alternate between two tools, by the number of processes kept ready."""
    contenders = [
        Contender(str(count), our_server("search", "grounded_search", GEMINI_MCP_READY=str(count)))
        for count in (0, 1, 2)
    ]
    return await measure_single_calls(contenders, api, repetitions)


@dataclass
class Bursts:
    """Seconds until all calls of a burst are answered."""

    first: Samples = field(default_factory=Samples)
    second: Samples = field(default_factory=Samples)
    """Of a burst right after the first."""
    cli_memory: float = 0
    """Peak megabytes of the gemini processes."""


async def measure_bursts(
    contender: Contender, counts: Sequence[int], api: ApiProcess, repetitions: int = 3
) -> dict[int, Bursts]:
    """Measure calls at the same time, by their number; each pair of bursts has a new server."""
    results = {count: Bursts() for count in counts}
    for _ in range(repetitions):
        for count, bursts in results.items():
            async with connect_all([contender], api) as asks:
                ask = asks[contender.name]
                api.set(Behaviour(BURST_DELAY, BURST_DELAY))
                await anyio.sleep(PAUSE)
                with track_peak(api.pid) as memory:
                    for samples in (bursts.first, bursts.second):
                        await samples.measure(partial(_ask_at_once, ask, count))
                bursts.cli_memory = max(bursts.cli_memory, memory.cli)
    return results


async def _ask_at_once(ask: Ask, count: int) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(ask)


async def measure_deep_search(api: ApiProcess) -> tuple[Samples, int]:
    """Measure deep searches at realistic latencies; return also the number of rounds of each."""
    samples, rounds = Samples(), 0
    async with connect_all([OUR_DEEP_SEARCH], api) as asks:
        api.set(realistic())
        for _ in range(3):
            reply = await samples.measure(asks[OUR_DEEP_SEARCH.name])
            rounds = reply.structured_content["metadata"]["iterations"]
    return samples, rounds


@dataclass(frozen=True)
class IdleServer:
    """Megabytes of a server that nobody asks anything, and of its gemini processes."""

    server: float
    gemini: float
    late_server: float
    """After two minutes."""
    late_gemini: float
    late_count: int
    """Number of gemini processes after two minutes."""


async def measure_idle_server(api: ApiProcess) -> IdleServer:
    with TemporaryDirectory(prefix="bench-") as folder:
        async with OURS.connect(BenchHome(Path(folder), api)):
            await anyio.sleep(PAUSE * 2)
            early, early_cli = processes(api.pid), cli_processes(api.pid)
            await anyio.sleep(UNUSED_SECONDS - PAUSE * 2)
            late, late_cli = processes(api.pid), cli_processes(api.pid)
    return IdleServer(
        sum(early.values()) - sum(early_cli.values()),
        sum(early_cli.values()),
        sum(late.values()) - sum(late_cli.values()),
        sum(late_cli.values()),
        len(late_cli),
    )
