"""Nothing survives a call: twelve ways to be a bad child, six ways for a call to end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import product

import pytest

from gemini_cli_mcp.errors import GeminiMcpError
from tests.support import Clock, Stub, command, eventually, is_alive, parent_pid
from tests.support.faults import FAULTS, is_reached, wait_until_nothing_left
from tests.support.matrix import representatives
from tests.support.mcp_server import SEARCH_FRAMES, start_server

HARD = ("ignores SIGTERM", "has a child nobody knows", "has twenty stubborn children")
"""What a plain kill of the process or of its group would leave."""
ESCAPED = {name for name, turn in FAULTS.items() if turn.get("escape")}


@pytest.mark.parametrize("fault", representatives(FAULTS, [*HARD, "trickles"]))
async def test_a_timeout_leaves_nothing(stub: Stub, clock: Clock, fault: str) -> None:
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(is_reached(stub, FAULTS[fault]))

    clock.skip(stub.settings.timeout)
    with pytest.raises(GeminiMcpError) as caught:
        await call

    assert caught.value.code == "TIMEOUT"
    await wait_until_nothing_left(stub)


@pytest.mark.parametrize(
    ("fault", "cancels"),
    representatives(
        product(FAULTS, (1, 2)), [*product(FAULTS, (1,)), *((fault, 2) for fault in HARD)]
    ),
)
async def test_a_cancel_leaves_nothing(stub: Stub, fault: str, cancels: int) -> None:
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(is_reached(stub, FAULTS[fault]))

    for _ in range(cancels):
        call.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await call

    await wait_until_nothing_left(stub)


@pytest.mark.parametrize(
    ("fault", "number"),
    representatives(
        product(FAULTS, (signal.SIGTERM, signal.SIGKILL)),
        [
            *product(HARD, (signal.SIGTERM, signal.SIGKILL)),
            *product(
                ("hangs in a search", "closes its stdout", "leaves a stubborn child behind"),
                (signal.SIGKILL,),
            ),
        ],
    ),
)
async def test_a_signal_to_the_server_leaves_nothing(
    stub: Stub, fault: str, number: signal.Signals
) -> None:
    stub.plays(FAULTS[fault])

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(is_reached(stub, FAULTS[fault]))
        server.send_signal(number)
        await eventually(lambda: server.poll() is not None)

    assert server.returncode == (-9 if number == signal.SIGKILL else 0)
    await wait_until_nothing_left(stub)


@pytest.mark.parametrize("fault", representatives(FAULTS, HARD))
async def test_a_client_that_is_gone_leaves_nothing(stub: Stub, fault: str) -> None:
    stub.plays(FAULTS[fault])

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(is_reached(stub, FAULTS[fault]))
        assert server.stdin
        server.stdin.close()
        await eventually(lambda: server.poll() is not None)

    await wait_until_nothing_left(stub)


async def killed_guardian(stub: Stub, fault: str) -> list[int]:
    """What is left of a run whose guardian was killed."""
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(is_reached(stub, FAULTS[fault]))

    os.kill(parent_pid(stub.runs[0]["pid"]), signal.SIGKILL)
    with pytest.raises(GeminiMcpError, match="killed by signal 9"):
        await call
    with suppress(TimeoutError):
        await eventually(lambda: not stub.live_pids(), 1 if fault in ESCAPED else 30)
    return stub.live_pids()


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - ESCAPED))
async def test_a_killed_guardian_leaves_nothing(stub: Stub, fault: str) -> None:
    assert await killed_guardian(stub, fault) == []


@pytest.mark.parametrize("fault", sorted(ESCAPED))
async def test_a_killed_guardian_leaves_at_most_who_left_the_session(
    stub: Stub, fault: str
) -> None:
    """The one exception: nobody is there to adopt it."""
    left = await killed_guardian(stub, fault)

    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert stub.runs[0]["pid"] not in left and len(left) <= 1


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
        [sys.executable, "-c", CLIENT, json.dumps(command()), json.dumps(SEARCH_FRAMES)],
        stdout=subprocess.PIPE,
        env=stub.environ,
        text=True,
    )
    assert client.stdout
    server, keeper = map(int, client.stdout.readline().split())
    try:
        await eventually(is_reached(stub, fault))
        client.kill()
        client.wait()
        await eventually(lambda: not is_alive(server))
        await wait_until_nothing_left(stub)
    finally:
        os.kill(keeper, signal.SIGKILL)
        client.stdout.close()


async def test_a_server_that_is_ending_takes_no_more_calls(stub: Stub) -> None:
    stub.plays({"hang": "start", "stubborn": True})

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(lambda: stub.hanging_pids)
        server.send_signal(signal.SIGTERM)
        assert server.stdin and server.stdout
        with suppress(BrokenPipeError):
            server.stdin.write(SEARCH_FRAMES[-1].replace('"id": 2', '"id": 3') + "\n")
            server.stdin.flush()
        answers = {
            answer["id"]: answer["result"]
            for line in server.stdout
            if "id" in (answer := json.loads(line))
        }

    assert 3 not in answers or "shutting down" in answers[3]["content"][0]["text"]
    assert len(stub.runs) == 1
