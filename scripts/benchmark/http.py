"""A team's server under load, against the same runs of the stub CLI started bare."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx2

from scripts.benchmark.memory import resident
from scripts.benchmark.subjects import ROOT

CALLS, CLIENTS, CONCURRENCY = 1000, 50, 4
STUB = str(ROOT / "scripts/stub-gemini")
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "search", "arguments": {"query": "Why is the sky blue?"}},
}


@dataclass(frozen=True)
class Load:
    """What came of it."""

    bare: float
    """Seconds of the runs alone."""
    served: float
    """Seconds of the calls."""
    outcomes: dict[str, int]
    memory: tuple[float, float]
    """Megabytes of the server after a tenth of the calls, and after all."""
    left: int
    """Processes and files that were there after SIGTERM."""


async def load(calls: int = CALLS, clients: int = CLIENTS) -> Load:
    with TemporaryDirectory(prefix="bench-") as folder:
        environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": folder,
            "PYTHONPATH": str(ROOT),
            "GEMINI_MCP_CONFIG_DIR": f"{folder}/config",
            "GEMINI_MCP_CLI_PATH": STUB,
            "GEMINI_MCP_WARM": "0",
            "GEMINI_MCP_CONCURRENCY": str(CONCURRENCY),
        }
        bare = await _bare(calls, environ, folder)
        with _running(environ, Path(folder, "log")) as (address, pid):
            served, outcomes, memory = await _served(address, calls, clients, pid)
        left = _left(folder)
    return Load(bare, served, outcomes, memory, left)


@contextmanager
def _running(environ: dict[str, str], log: Path) -> Generator[tuple[str, int]]:
    """A server; at the end it gets SIGTERM, and has left."""
    command = [sys.executable, "-m", "gemini_cli_mcp", "serve", "--http", "--port", "0"]
    with log.open("w") as stderr:
        server = subprocess.Popen(command, env=environ, stderr=stderr, start_new_session=True)
    try:
        while not (found := re.search(r"at (\S+/mcp)", log.read_text())):
            time.sleep(0.05)
        yield found[1], server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


async def _bare(calls: int, environ: dict[str, str], folder: str) -> float:
    """The stub as the server would start it, so many at a time and nothing around it."""
    limit = anyio.CapacityLimiter(CONCURRENCY)
    home = {**environ, "GEMINI_CLI_HOME": f"{folder}/bare"}

    async def one() -> None:
        async with limit:
            command = [STUB, "--output-format", "stream-json"]
            await anyio.run_process(command, input=b"Why is the sky blue?", env=home)

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(calls):
            tasks.start_soon(one)
    return time.perf_counter() - begin


async def _served(
    address: str, calls: int, clients: int, pid: int
) -> tuple[float, dict[str, int], tuple[float, float]]:
    outcomes: dict[str, int] = {}
    memory: list[float] = []
    headers = {"accept": "application/json, text/event-stream"}
    left = iter(range(calls))

    async def client() -> None:
        async with httpx2.AsyncClient(timeout=300, headers=headers) as http:
            for number in left:
                answer = await http.post(address, json=CALL)
                found = re.search(r'"code":\s*"?([A-Z_]+)', answer.text)
                good = '"success":true' in answer.text.replace(" ", "").replace("\\", "")
                outcome = "success" if good else found[1] if found else str(answer.status_code)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if number in (calls // 10, calls - 1):
                    memory.append(resident(pid))

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(clients):
            tasks.start_soon(client)
    return time.perf_counter() - begin, outcomes, (memory[0], memory[-1])


def _left(folder: str) -> int:
    """How many processes still have this folder in their environment, and files in it."""
    count = sum(path.is_file() for path in Path(folder, "config").rglob("*"))
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += folder.encode() in path.read_bytes()
        except OSError:
            continue
    return count
