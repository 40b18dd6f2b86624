"""Nothing survives a call: twelve ways to be a bad child, six ways for a call to end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from gemini_cli_mcp.errors import GeminiMcpError
from tests.support import Stub, Turn, command, eventually, found, is_alive, report
from tests.test_server import SEARCH, parent, start

SEARCHES = [found("blue sky", "nasa")]
FAULTS: dict[str, Turn] = {
    "hangs before a word": {"hang": "start"},
    "hangs in a search": {"searches": SEARCHES, "hang": "middle"},
    "hangs after its answer": {"text": report(), "hang": "end"},
    "trickles": {"hang": "trickle"},
    "does not read": {"deaf": True, "hang": "start"},
    "closes its stdout": {"mute": True, "hang": "start"},
    "ignores SIGTERM": {"stubborn": True, "hang": "start"},
    "has a child": {"children": 1, "hang": "start"},
    "has a child that left": {"children": 1, "escape": "session", "hang": "start"},
    "has a child nobody knows": {"children": 1, "escape": "scrubbed", "hang": "start"},
    "has twenty stubborn children": {"children": 20, "stubborn": True, "hang": "start"},
    "leaves a stubborn child behind": {
        "text": report(),
        "searches": SEARCHES,
        "hang": "middle",
        "children": 1,
        "escape": "session",
        "stubborn": True,
    },
}

faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


def is_ready(stub: Stub, fault: Turn) -> Callable[[], bool]:
    """Whether the stub and all the children it is to have are there."""
    return lambda: len(stub.alive()) == 1 + fault.get("children", 0)


async def gone(stub: Stub) -> None:
    with suppress(TimeoutError):
        await eventually(lambda: not left(stub), seconds=5)
    assert not left(stub)
    await anyio.sleep(0.05)  # the event loop hears of a dead guardian a moment later


def left(stub: Stub) -> list[object]:
    return [*stub.alive(), *stub.files_left(), *guardians()]


def guardians() -> list[int]:
    """Those that this process has started."""
    found: list[int] = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):  # it is gone already
            if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


@faults
async def test_a_timeout_leaves_nothing(stub: Stub, fault: Turn) -> None:
    stub.environ["GEMINI_MCP_TIMEOUT"] = "1"
    stub.plays(fault)

    with anyio.fail_after(10), pytest.raises(GeminiMcpError) as caught:
        await stub.search()

    assert caught.value.code == "TIMEOUT"
    await gone(stub)


@faults
@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancel_leaves_nothing(stub: Stub, fault: Turn, cancels: int) -> None:
    stub.plays(fault)
    call = asyncio.ensure_future(stub.search())
    await eventually(is_ready(stub, fault))

    for _ in range(cancels):
        call.cancel()
        await asyncio.sleep(0.01)
    with suppress(asyncio.CancelledError):
        await call

    await gone(stub)


@faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_the_server_leaves_nothing(
    stub: Stub, fault: Turn, number: signal.Signals
) -> None:
    stub.plays(fault)

    with start(stub, *SEARCH) as server:
        await eventually(is_ready(stub, fault))
        server.send_signal(number)
        await eventually(lambda: server.poll() is not None, seconds=5)

    assert server.returncode == (-9 if number == signal.SIGKILL else 0)
    await gone(stub)


@faults
async def test_a_client_that_is_gone_leaves_nothing(stub: Stub, fault: Turn) -> None:
    stub.plays(fault)

    with start(stub, *SEARCH) as server:
        await eventually(is_ready(stub, fault))
        assert server.stdin
        server.stdin.close()
        await eventually(lambda: server.poll() is not None, seconds=5)

    await gone(stub)


@faults
async def test_a_killed_guardian_is_no_hang(stub: Stub, fault: Turn) -> None:
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays(fault)
    call = asyncio.ensure_future(stub.search())
    await eventually(is_ready(stub, fault))

    os.kill(parent(stub.runs[0]["pid"]), signal.SIGKILL)
    with anyio.fail_after(5), pytest.raises(GeminiMcpError, match="killed by signal 9"):
        await call

    survivors = stub.alive()
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    # The one exception: who left the session while nobody was there to adopt it.
    assert not survivors or fault.get("escape")


CLIENT = """
import json, os, subprocess, sys, time
server = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
keeper = os.fork()
if keeper == 0:
    time.sleep(3600)  # holds the server's stdin open beyond our death
for frame in json.loads(sys.argv[2]):
    server.stdin.write(frame.encode() + b"\\n")
server.stdin.flush()
print(server.pid, keeper, flush=True)
time.sleep(3600)
"""


async def test_the_server_leaves_with_its_client_even_if_stdin_stays_open(stub: Stub) -> None:
    fault = FAULTS["hangs in a search"]
    stub.plays(fault)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, json.dumps(command()), json.dumps(SEARCH)],
        stdout=subprocess.PIPE,
        env=stub.environ,
        text=True,
    )
    assert client.stdout
    server, keeper = map(int, client.stdout.readline().split())
    try:
        await eventually(is_ready(stub, fault))
        client.kill()
        client.wait(5)
        await eventually(lambda: not is_alive(server), seconds=5)
        await gone(stub)
    finally:
        os.kill(keeper, signal.SIGKILL)
        client.stdout.close()


async def test_a_server_that_is_ending_takes_no_more_calls(stub: Stub) -> None:
    stub.plays({"hang": "start", "stubborn": True})

    with start(stub, *SEARCH) as server:
        await eventually(lambda: len(stub.runs) == 1)
        server.send_signal(signal.SIGTERM)
        assert server.stdin and server.stdout
        with suppress(BrokenPipeError):
            server.stdin.write(SEARCH[-1].replace('"id": 2', '"id": 3') + "\n")
            server.stdin.flush()
        answers = {
            answer["id"]: answer["result"]
            for line in server.stdout
            if "id" in (answer := json.loads(line))
        }

    assert 3 not in answers or "ending" in answers[3]["content"][0]["text"]
    assert len(stub.runs) == 1
