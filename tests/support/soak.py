"""Run many concurrent calls with every fault, and kill servers and guardians at random moments.

scripts/soak runs it in full; the tests run a small version.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from mcp import Client, MCPError

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.process import child
from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.workspace import Workspace
from tests.support import (
    Result,
    Stub,
    Turn,
    command,
    eventually,
    is_alive,
    model_answer,
    parent_pid,
    search_with_sources,
    use_real_cli,
)
from tests.support.acp import AcpProgram, acp_program
from tests.support.fake_api import fake_api
from tests.support.faults import FAULTS, guardian_pids
from tests.support.mcp_server import DEEP_SEARCH_FRAMES, SEARCH_FRAMES, start_server

ANSWERS: dict[str, Turn] = {
    "good": {"text": model_answer()},
    "prose": {"text": "prose", "correction": {"text": model_answer("prose")}},
    "exits 41": {"exit_code": 41, "stderr": "no"},
    "is cut off": {"text": model_answer()[:20], "cut": True},
    "writes nothing": {"text": ""},
}
EXPECTED = {
    **dict.fromkeys(FAULTS, "TIMEOUT"),
    "good": "success",
    "prose": "success",
    "exits 41": "AUTH_ERROR",
    "is cut off": "EXECUTION_ERROR",
    "writes nothing": "EXECUTION_ERROR",
}
"""The outcome of each call that is not cancelled."""
ESCAPED_CHILD_FAULTS = {
    "has a child in another session",
    "has an untracked child",
    "leaves a stubborn child behind",
}


@dataclass
class Tally:
    """The outcomes of the calls, and what remained of them."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    unexpected: list[str] = field(default_factory=list[str])
    reached: int = 0
    """The number of faults that the CLI has reached."""
    leftovers: list[str] = field(default_factory=list[str])
    slowest: float = 0
    descriptors: tuple[int, int] = (0, 0)
    kilobytes: tuple[int, int] = (0, 0)


async def many_calls(calls: int, concurrency: int, seed: int = 1) -> Tally:
    """Run each fault and each answer in turn; cancel a third of the calls."""
    rng = random.Random(seed)
    tally = Tally()
    limit = anyio.CapacityLimiter(concurrency)
    turns = itertools.cycle({**FAULTS, **ANSWERS}.items())

    async def run_call(name: str, turn: Turn, cancel_after: float | None) -> None:
        async with limit:
            with TemporaryDirectory() as folder:
                stub = Stub(Path(folder))
                stub.environ |= {
                    "GEMINI_MCP_TIMEOUT": "5" if name in FAULTS else "60",
                    "GEMINI_MCP_MAX_CYCLES": "1",
                }
                stub.plays(turn)
                started = time.monotonic()
                outcome = await _run_search(stub, cancel_after)
                tally.outcomes[outcome] += 1
                tally.reached += bool(stub.hanging_pids)
                tally.slowest = max(tally.slowest, time.monotonic() - started)
                if outcome not in (EXPECTED[name], "cancelled"):
                    tally.unexpected.append(f"{name}: {outcome}")
                try:
                    await eventually(lambda: not stub.live_pids() and not stub.leftover_files())
                except TimeoutError:
                    tally.leftovers.append(name)

    before = count_descriptors(), resident_kilobytes()
    async with anyio.create_task_group() as tasks:
        for name, turn in itertools.islice(turns, calls):
            cancel_after = rng.uniform(0, 1) if rng.random() < 1 / 3 else None
            tasks.start_soon(run_call, name, turn, cancel_after)
    await eventually(lambda: not guardian_pids() and not child.running_count())
    tally.descriptors = before[0], count_descriptors()
    tally.kilobytes = before[1], resident_kilobytes()
    return tally


async def _run_search(stub: Stub, cancel_after: float | None) -> str:
    return await _outcome(stub.search(), cancel_after)


async def _outcome(call: Coroutine[Any, Any, object], cancel_after: float | None) -> str:
    task = asyncio.ensure_future(call)
    try:
        if cancel_after is not None:
            await asyncio.sleep(cancel_after)
            task.cancel()
        with anyio.fail_after(30):
            await task
    except GeminiMcpError as error:
        return error.code
    except asyncio.CancelledError:
        return "cancelled"
    except TimeoutError:
        return "HANG"
    return "success"


async def kill_servers(victim: str, times: int, seed: int = 1) -> Tally:
    """Kill a server, or its guardian, at a random moment of a call that hangs."""
    rng = random.Random(seed)
    tally = Tally()
    for _ in range(times):
        name, turn = rng.choice(list(FAULTS.items()))
        with TemporaryDirectory() as folder:
            stub = Stub(Path(folder))
            stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
            stub.plays(turn)
            seconds = await _seconds_until_cleaned_up(stub, victim, rng.uniform(0, 0.3))
        tally.outcomes[victim] += 1
        if seconds is not None:
            tally.slowest = max(tally.slowest, seconds)
        elif victim == "server" or name not in ESCAPED_CHILD_FAULTS:
            tally.leftovers.append(name)
    return tally


async def many_jobs(count: int, limits: Limits, seed: int = 1) -> Tally:
    """Run deep searches in one server: a third cancelled, a third abandoned, a third finished."""
    rng = random.Random(seed)
    tally = Tally()
    with TemporaryDirectory() as folder:
        stub = Stub(Path(folder))
        stub.plays(
            {
                "text": model_answer(),
                "searches": [search_with_sources("sky", "nasa")],
                "delay": 0.1,
                "hangs": "hangs",
                "rounds": [
                    {
                        "text": model_answer(verified=True),
                        "searches": [search_with_sources("b", "esa")],
                    }
                ],
            }
        )
        stub.limits = limits
        stub.environ["GEMINI_MCP_WARM"] = "0"  # its tasks would count as left behind
        app = McpApp(stub.settings, stub.environ, Workspace(stub.config_dir))

        async def run_job(client: Client, number: int) -> None:
            arguments = {"query": f"question {number}"}
            if number % 3 == 2:
                arguments["query"] += " hangs"
                with suppress(MCPError):
                    seconds = rng.uniform(0.1, 2)
                    await client.call_tool("deep_search", arguments, read_timeout_seconds=seconds)
                tally.outcomes["abandoned"] += 1
                return
            response = await client.call_tool("deep_search", {**arguments, "wait_seconds": 0})
            started: Result = response.structured_content or {}
            job = {"job_id": started["job_id"]}
            await anyio.sleep(rng.uniform(0, 2))
            tool = "deep_search_cancel" if number % 3 else "deep_search_result"
            result: Result = (await client.call_tool(tool, job)).structured_content or {}
            tally.outcomes[result["error"]["code"] if "error" in result else result["status"]] += 1

        before = count_descriptors(), resident_kilobytes()
        async with Client(app.server) as client:
            task_count = len(asyncio.all_tasks())
            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(run_job, client, number)
            try:
                await eventually(
                    lambda: not stub.live_pids() and len(asyncio.all_tasks()) <= task_count, 20
                )
            except TimeoutError:
                tally.leftovers.append(f"{stub.live_pids()} {len(asyncio.all_tasks())} tasks")
            if records := [path for path in stub.leftover_files() if path.suffix == ".jsonl"]:
                tally.leftovers.append(f"{records}")
        tally.leftovers += map(str, stub.leftover_files())
        tally.descriptors = before[0], count_descriptors()
        tally.kilobytes = before[1], resident_kilobytes()
    return tally


async def shared_process_calls(
    calls: int, concurrency: int, kill_every: int, seed: int = 1
) -> Tally:
    """Run searches in shared processes; cancel a fifth, and kill the processes now and then."""
    rng = random.Random(seed)
    tally = Tally()
    limit = anyio.CapacityLimiter(concurrency)
    with TemporaryDirectory() as folder, fake_api() as api:
        stub = use_real_cli(Stub(Path(folder)), api)
        api.calls = [("google_web_search", {"query": "sky"})]
        api.texts = [model_answer()]

        async def run_call(program: AcpProgram, cancel_after: float | None) -> None:
            async with limit:
                started = time.monotonic()
                call = program.search(progress=lambda _: None)
                tally.outcomes[await _outcome(call, cancel_after)] += 1
                tally.slowest = max(tally.slowest, time.monotonic() - started)

        async with acp_program(stub) as program:
            await program.wait_ready()
            before = count_descriptors(), resident_kilobytes()
            for number in range(0, calls, kill_every):
                async with anyio.create_task_group() as tasks:
                    for _ in range(min(kill_every, calls - number)):
                        cancel_after = rng.uniform(0, 0.2) if rng.random() < 1 / 5 else None
                        tasks.start_soon(run_call, program, cancel_after)
                    await anyio.sleep(rng.uniform(0, 1))
                    for pid in program.pids():
                        os.kill(pid, signal.SIGKILL)
                api.requests.clear()
                with suppress(TimeoutError):
                    await program.wait_ready()
            tally.descriptors = before[0], count_descriptors()
            tally.kilobytes = before[1], resident_kilobytes()
        tally.leftovers += [*map(str, program.pids()), *map(str, stub.leftover_files())]
    return tally


CLIENT = """
import subprocess, sys
frames, *command = sys.argv[1:]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(server.pid, flush=True)
server.stdin.write(frames.encode())
server.stdin.flush()
server.wait()
"""


async def kill_clients(times: int, seed: int = 1) -> Tally:
    """Kill a client at a random moment of a running deep search."""
    rng = random.Random(seed)
    tally = Tally()
    for number in range(times):
        with TemporaryDirectory() as folder:
            stub = Stub(Path(folder))
            stub.plays(
                {
                    "text": model_answer(),
                    "searches": [search_with_sources("sky", "nasa")],
                    "delay": 0.05,
                }
            )
            client = await anyio.open_process(
                [sys.executable, "-c", CLIENT, "\n".join([*DEEP_SEARCH_FRAMES, ""]), *command()],
                env=stub.environ,
            )
            assert client.stdout
            server = int(await client.stdout.receive())
            await eventually(lambda stub=stub: bool(stub.runs), 30)
            await anyio.sleep(rng.uniform(0, 3))
            client.kill()
            started = time.monotonic()
            try:
                await eventually(
                    lambda stub=stub, server=server: (
                        not is_alive(server) and not stub.live_pids() and not stub.leftover_files()
                    ),
                    seconds=10,
                )
            except TimeoutError:
                leftovers = (
                    f"server {is_alive(server)}, runs {stub.live_pids()}, {stub.leftover_files()}"
                )
                tally.leftovers.append(f"client {number}: {leftovers}")
            tally.outcomes[f"in round {len(stub.runs)}"] += 1
            tally.slowest = max(tally.slowest, time.monotonic() - started)
            await client.aclose()
    return tally


async def _seconds_until_cleaned_up(stub: Stub, victim: str, delay: float) -> float | None:
    """Return the seconds until all processes of the call exited; None if it takes more than 10."""
    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(lambda: len(stub.runs) == 1)
        await anyio.sleep(delay)
        guardian = parent_pid(stub.runs[0]["pid"])
        os.kill(server.pid if victim == "server" else guardian, signal.SIGKILL)
        started = time.monotonic()
        try:
            await eventually(lambda: not stub.live_pids(), seconds=10)
        except TimeoutError:
            return None
        else:
            return time.monotonic() - started
        finally:
            server.kill()
            for pid in stub.live_pids():
                os.kill(pid, signal.SIGKILL)


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_kilobytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def main() -> None:
    for victim in ("server", "guardian"):
        tally = await kill_servers(victim, 50)
        print(
            f"50 kills of the {victim}: leftovers {tally.leftovers}, slowest {tally.slowest:.2f} s"
        )
    tally = await many_jobs(30, Limits(job_abandon_timeout=3))
    print(
        f"30 jobs: {dict(tally.outcomes)}, leftovers {tally.leftovers}, "
        f"descriptors {tally.descriptors}"
    )
    tally = await kill_clients(30)
    print(
        f"30 clients killed, {dict(tally.outcomes)}: leftovers {tally.leftovers}, "
        f"{tally.slowest:.2f} s"
    )
    for part in range(2):  # 2,000 in total; the first thousand are the warm-up
        tally = await shared_process_calls(1000, 20, 100, seed=part)
        print(
            f"1000 calls in shared processes: {dict(tally.outcomes)}, slowest {tally.slowest:.1f} s"
        )
        print(
            f"  leftovers {tally.leftovers}; descriptors {tally.descriptors}; kB {tally.kilobytes}"
        )
    for part in range(3):  # the first part is the warm-up: memory must not grow after it
        tally = await many_calls(250, 20, seed=part)
        print(f"250 calls, 20 concurrent: {dict(tally.outcomes)}, slowest {tally.slowest:.1f} s")
        print(f"  unexpected {tally.unexpected}; {tally.reached} faults reached")
        print(
            f"  leftovers {tally.leftovers}; descriptors {tally.descriptors}; kB {tally.kilobytes}"
        )


if __name__ == "__main__":
    anyio.run(main)
