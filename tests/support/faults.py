"""Twelve ways to be a bad child, and how to see that nothing of one is left."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemini_cli_mcp.process import child
from tests.support import Stub, Turn, eventually, model_answer, search_with_sources

SEARCHES = [search_with_sources("blue sky", "nasa")]
FAULTS: dict[str, Turn] = {
    "hangs before a word": {"hang": "start"},
    "hangs in a search": {"searches": SEARCHES, "hang": "middle"},
    "hangs after its answer": {"text": model_answer(), "hang": "end"},
    "trickles": {"hang": "trickle"},
    "does not read": {"deaf": True, "hang": "start"},
    "closes its stdout": {"mute": True, "hang": "start"},
    "ignores SIGTERM": {"stubborn": True, "hang": "start"},
    "has a child": {"children": 1, "hang": "start"},
    "has a child that left": {"children": 1, "escape": "session", "hang": "start"},
    "has a child nobody knows": {"children": 1, "escape": "scrubbed", "hang": "start"},
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


def is_reached(stub: Stub, fault: Turn) -> Callable[[], bool]:
    """Whether the stub has come to its fault, with all the children that it is to have."""
    return lambda: bool(stub.hanging_pids) and len(stub.live_pids()) == 1 + fault.get("children", 0)


async def wait_until_nothing_left(stub: Stub) -> None:
    """Wait until nothing is left; what is, is told."""
    with suppress(TimeoutError):
        await eventually(lambda: not leftovers(stub))
    assert not leftovers(stub)


def leftovers(stub: Stub) -> list[object]:
    return [
        *stub.live_pids(),
        *stub.leftover_files(),
        *guardian_pids(),
        *["a pipe"] * child.running_count(),
    ]


def guardian_pids() -> list[int]:
    """Those that this process has started."""
    found: list[int] = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):  # it is gone already
            if b"guardian_main.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found
