"""No process or file outlives a call: twelve misbehaving CLIs, six ways for a call to end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.process import guardian_main
from tests.support import Clock, Stub, command, eventually, is_alive, parent_pid
from tests.support.binaries import make_executable
from tests.support.faults import FAULTS, fault_reached, wait_until_nothing_left
from tests.support.matrix import representatives
from tests.support.mcp_server import SEARCH_FRAMES, start_server

HARD_FAULTS = ("ignores SIGTERM", "has an untracked child", "has twenty stubborn children")
"""Faults that killing only the process or its process group would not clean up."""
ESCAPING_FAULTS = {name for name, turn in FAULTS.items() if turn.get("escape")}


@pytest.mark.parametrize("fault", representatives(FAULTS, [*HARD_FAULTS, "trickles"]))
async def test_a_timeout_leaves_nothing_behind(stub: Stub, clock: Clock, fault: str) -> None:
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(fault_reached(stub, FAULTS[fault]))

    clock.skip(stub.settings.timeout)
    with pytest.raises(GeminiMcpError) as caught:
        await call

    assert caught.value.code == "TIMEOUT"
    await wait_until_nothing_left(stub)


@pytest.mark.parametrize(
    ("fault", "cancel_count"),
    representatives(
        product(FAULTS, (1, 2)), [*product(FAULTS, (1,)), *((fault, 2) for fault in HARD_FAULTS)]
    ),
)
async def test_a_cancellation_leaves_nothing_behind(
    stub: Stub, fault: str, cancel_count: int
) -> None:
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(fault_reached(stub, FAULTS[fault]))

    for _ in range(cancel_count):
        call.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await call

    await wait_until_nothing_left(stub)


@pytest.mark.parametrize(
    ("fault", "signal_number"),
    representatives(
        product(FAULTS, (signal.SIGTERM, signal.SIGKILL)),
        [
            *product(HARD_FAULTS, (signal.SIGTERM, signal.SIGKILL)),
            *product(
                ("hangs in a search", "closes its stdout", "leaves a stubborn child behind"),
                (signal.SIGKILL,),
            ),
        ],
    ),
)
async def test_a_signal_to_the_server_leaves_nothing_behind(
    stub: Stub, fault: str, signal_number: signal.Signals
) -> None:
    stub.plays(FAULTS[fault])

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(fault_reached(stub, FAULTS[fault]))
        server.send_signal(signal_number)
        await eventually(lambda: server.poll() is not None)

    assert server.returncode == (-9 if signal_number == signal.SIGKILL else 0)
    await wait_until_nothing_left(stub)


MACOS_PROGRAM = """
import sys
import mcp.server.stdio  # libraries take this for Linux
sys.platform = "darwin"
from gemini_cli_mcp.__main__ import main
sys.exit(main())
"""


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="needs ps, as on macOS")
@pytest.mark.parametrize(
    "fault",
    representatives(
        (fault for fault in FAULTS if fault not in ESCAPING_FAULTS),
        ["hangs in a search", "has twenty stubborn children"],
    ),
)
async def test_on_macos_a_killed_server_leaves_nothing_behind(stub: Stub, fault: str) -> None:
    """With its guardian, which finds processes with `ps`, and so misses those that escaped."""
    stub.plays(FAULTS[fault])

    with start_server(stub, *SEARCH_FRAMES, program=["-c", MACOS_PROGRAM]) as server:
        await eventually(fault_reached(stub, FAULTS[fault]))
        server.kill()

    await wait_until_nothing_left(stub)


@pytest.mark.parametrize(
    "ps", representatives(["sleep 100", "echo a b c d", "exit 1", ""], ["sleep 100"])
)
async def test_on_macos_a_run_ends_even_if_ps_fails(
    stub: Stub, mocker: MockerFixture, tmp_path: Path, ps: str
) -> None:
    program = make_executable(tmp_path / "ps")
    program.write_text(f"#!/bin/sh\n{ps}\n")
    text = Path(guardian_main.__file__).read_text()
    changed = tmp_path / "guardian_main.py"
    changed.write_text(text.replace(f'PS = "{guardian_main.PS}"', f'PS = "{program}"'))
    assert changed.read_text() != text
    if not ps:
        program.unlink()
    mocker.patch.object(guardian_main, "__file__", str(changed))
    mocker.patch.object(sys, "platform", "darwin")
    fault = FAULTS["has twenty stubborn children"]
    stub.plays(fault)
    call = asyncio.ensure_future(stub.search())
    await eventually(fault_reached(stub, fault))

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await wait_until_nothing_left(stub)


@pytest.mark.parametrize("fault", representatives(FAULTS, HARD_FAULTS))
async def test_a_client_disconnect_leaves_nothing_behind(stub: Stub, fault: str) -> None:
    stub.plays(FAULTS[fault])

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(fault_reached(stub, FAULTS[fault]))
        assert server.stdin
        server.stdin.close()
        await eventually(lambda: server.poll() is not None)

    await wait_until_nothing_left(stub)


async def kill_guardian(stub: Stub, fault: str) -> list[int]:
    """Kill the guardian of a run and return the pids that survive."""
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(fault_reached(stub, FAULTS[fault]))

    os.kill(parent_pid(stub.runs[0]["pid"]), signal.SIGKILL)
    with pytest.raises(GeminiMcpError, match="killed by signal 9"):
        await call
    with suppress(TimeoutError):
        await eventually(lambda: not stub.live_pids(), 1 if fault in ESCAPING_FAULTS else 30)
    return stub.live_pids()


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - ESCAPING_FAULTS))
async def test_a_killed_guardian_leaves_nothing_behind(stub: Stub, fault: str) -> None:
    assert await kill_guardian(stub, fault) == []


@pytest.mark.parametrize("fault", sorted(ESCAPING_FAULTS))
async def test_only_a_child_in_another_session_survives_a_killed_guardian(
    stub: Stub, fault: str
) -> None:
    """The one exception: without the guardian, no process adopts such a child."""
    survivors = await kill_guardian(stub, fault)

    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert stub.runs[0]["pid"] not in survivors and len(survivors) <= 1


CLIENT_PROGRAM = """
import json, os, subprocess, sys, time
server = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
stdin_holder = os.fork()
if stdin_holder == 0:
    time.sleep(3600)  # keeps the server's stdin open after this client is killed
for frame in json.loads(sys.argv[2]):
    server.stdin.write(frame.encode() + b"\\n")
server.stdin.flush()
print(server.pid, stdin_holder, flush=True)
time.sleep(3600)
"""


async def test_the_server_exits_with_its_client_even_if_stdin_stays_open(stub: Stub) -> None:
    fault = FAULTS["hangs in a search"]
    stub.plays(fault)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT_PROGRAM, json.dumps(command()), json.dumps(SEARCH_FRAMES)],
        stdout=subprocess.PIPE,
        env=stub.environ,
        text=True,
    )
    assert client.stdout
    server_pid, stdin_holder_pid = map(int, client.stdout.readline().split())
    try:
        await eventually(fault_reached(stub, fault))
        client.kill()
        client.wait()
        await eventually(lambda: not is_alive(server_pid))
        await wait_until_nothing_left(stub)
    finally:
        os.kill(stdin_holder_pid, signal.SIGKILL)
        client.stdout.close()


async def test_a_server_that_is_shutting_down_rejects_new_calls(stub: Stub) -> None:
    stub.plays({"hang": "start", "stubborn": True})

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(lambda: stub.hanging_pids)
        server.send_signal(signal.SIGTERM)
        assert server.stdin and server.stdout
        with suppress(BrokenPipeError):
            server.stdin.write(SEARCH_FRAMES[-1].replace('"id": 2', '"id": 3') + "\n")
            server.stdin.flush()
        results = {
            reply["id"]: reply["result"]
            for line in server.stdout
            if "id" in (reply := json.loads(line))
        }

    assert 3 not in results or "shutting down" in results[3]["content"][0]["text"]
    assert len(stub.runs) == 1
