"""Twelve ways in which a child process misbehaves, and checks that nothing of it remains."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemini_cli_mcp.process import child
from tests.support import PROC, Stub, Turn, eventually, model_answer, ps_rows, search_with_sources

SEARCHES = [search_with_sources("blue sky", "nasa")]
FAULTS: dict[str, Turn] = {
    "hangs before any output": {"hang": "start"},
    "hangs in a search": {"searches": SEARCHES, "hang": "middle"},
    "hangs after its answer": {"text": model_answer(), "hang": "end"},
    "trickles": {"hang": "trickle"},
    "does not read": {"deaf": True, "hang": "start"},
    "closes its stdout": {"mute": True, "hang": "start"},
    "ignores SIGTERM": {"stubborn": True, "hang": "start"},
    "has a child": {"children": 1, "hang": "start"},
    "has a child in another session": {"children": 1, "escape": "session", "hang": "start"},
    "has an untracked child": {"children": 1, "escape": "scrubbed", "hang": "start"},
    "has twenty stubborn children": {"children": 20, "stubborn": True, "hang": "start"},
    "leaves a stubborn child behind": {
        "text": model_answer(),
        "searches": SEARCHES,
        "hang": "middle",
        "children": 1,
        "escape": "session",
        "stubborn": True,
    },
}


def fault_reached(stub: Stub, fault: Turn) -> Callable[[], bool]:
    """Return a condition: the stub has reached its fault and started all its children."""
    return lambda: bool(stub.hanging_pids) and len(stub.live_pids()) == 1 + fault.get("children", 0)


async def wait_until_nothing_left(stub: Stub) -> None:
    """Wait until no process or file remains; otherwise fail and show what does."""
    with suppress(TimeoutError):
        await eventually(lambda: not leftovers(stub))
    assert not leftovers(stub)


def leftovers(stub: Stub) -> list[object]:
    return [
        *stub.live_pids(),
        *stub.leftover_files(),
        *guardian_pids(),
        *["a running command"] * child.running_count(),
    ]


def guardian_pids() -> list[int]:
    """Return the pids of the guardians that this process has started."""
    if not PROC.exists():
        rows = [row for row in ps_rows() if row[1] == os.getpid()]
        return [pid for pid, _, command in rows if "guardian_main.py" in command]
    pids: list[int] = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):  # the process has exited
            if b"guardian_main.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.append(int(pid))
    return pids
