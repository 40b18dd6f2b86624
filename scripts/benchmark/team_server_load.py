"""A team server under load, compared with the same stub CLI runs started directly."""

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

from scripts.benchmark.contenders import ROOT
from scripts.benchmark.memory import resident_megabytes

CALLS, CLIENTS, CONCURRENCY = 1000, 50, 4
STUB = str(ROOT / "scripts/stub-gemini")
SEARCH_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "search", "arguments": {"query": "Why is the sky blue?"}},
}


@dataclass(frozen=True)
class LoadResults:
    """The results of one load test."""

    direct: float
    """Seconds of the stub runs without a server."""
    served: float
    """Seconds of the calls to the server."""
    outcomes: dict[str, int]
    memory: tuple[float, float]
    """Megabytes of the server after a tenth of the calls, and after all of them."""
    leftovers: int
    """Processes and files that remain after SIGTERM."""


async def load(calls: int = CALLS, clients: int = CLIENTS) -> LoadResults:
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
        direct = await _run_stubs(calls, environ, folder)
        with _run_server(environ, Path(folder, "log")) as (url, pid):
            served, outcomes, memory = await _call_server(url, calls, clients, pid)
        left = _count_leftovers(folder)
    return LoadResults(direct, served, outcomes, memory, left)


@contextmanager
def _run_server(environ: dict[str, str], log: Path) -> Generator[tuple[str, int]]:
    """Run a server and yield its URL and pid; on exit, send SIGTERM and wait for it."""
    command = [sys.executable, "-m", "gemini_cli_mcp", "serve", "--http", "--port", "0"]
    with log.open("w") as stderr:
        server = subprocess.Popen(command, env=environ, stderr=stderr, start_new_session=True)
    try:
        while not (match := re.search(r"at (\S+/mcp)", log.read_text())):
            time.sleep(0.05)
        yield match[1], server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


async def _run_stubs(calls: int, environ: dict[str, str], folder: str) -> float:
    """Run the stub as the server would, with the same concurrency but no server."""
    limiter = anyio.CapacityLimiter(CONCURRENCY)
    stub_environ = {**environ, "GEMINI_CLI_HOME": f"{folder}/bare"}

    async def run_stub() -> None:
        async with limiter:
            command = [STUB, "--output-format", "stream-json"]
            await anyio.run_process(command, input=b"Why is the sky blue?", env=stub_environ)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(calls):
            tasks.start_soon(run_stub)
    return time.perf_counter() - started


async def _call_server(
    url: str, calls: int, clients: int, pid: int
) -> tuple[float, dict[str, int], tuple[float, float]]:
    outcomes: dict[str, int] = {}
    memory: list[float] = []
    headers = {"accept": "application/json, text/event-stream"}
    call_numbers = iter(range(calls))

    async def run_client() -> None:
        async with httpx2.AsyncClient(timeout=300, headers=headers) as client:
            for number in call_numbers:
                response = await client.post(url, json=SEARCH_CALL)
                outcome = _outcome(response)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if number in (calls // 10, calls - 1):
                    memory.append(resident_megabytes(pid))

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(clients):
            tasks.start_soon(run_client)
    return time.perf_counter() - started, outcomes, (memory[0], memory[-1])


def _outcome(response: httpx2.Response) -> str:
    """Return "success", the error code, or the HTTP status."""
    if '"success":true' in response.text.replace(" ", "").replace("\\", ""):
        return "success"
    match = re.search(r'"code":\s*"?([A-Z_]+)', response.text)
    return match[1] if match else str(response.status_code)


def _count_leftovers(folder: str) -> int:
    """Count the files in the config folder and the processes with `folder` in their environment."""
    count = sum(path.is_file() for path in Path(folder, "config").rglob("*"))
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += folder.encode() in path.read_bytes()
        except OSError:
            continue
    return count
