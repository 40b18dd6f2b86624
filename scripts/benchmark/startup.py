"""Measure the time from the start of our server to its `initialize` response."""

import json
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

from scripts.benchmark.contenders import SERVER_COMMAND
from scripts.benchmark.samples import Samples
from tests.support.mcp_server import INITIALIZE_REQUEST

BARE_SERVER_COMMAND = [
    sys.executable,
    "-c",
    "from mcp.server import MCPServer; MCPServer('bare').run()",
]


def measure_startup(runs: int = 15) -> tuple[Samples, Samples]:
    """Measure our server and a bare MCPServer, alternating."""
    ours, bare = Samples(), Samples()
    with TemporaryDirectory(prefix="bench-") as folder:
        for run in range(runs + 1):
            for command, samples in ((SERVER_COMMAND, ours), (BARE_SERVER_COMMAND, bare)):
                seconds = _initialize_seconds(command, folder)
                if run:  # the first run of each fills the machine's caches
                    samples.seconds.append(seconds)
    return ours, bare


def _initialize_seconds(command: list[str], folder: str) -> float:
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"GEMINI_MCP_CONFIG_DIR": f"{folder}/config", "HOME": folder},
    ) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(INITIALIZE_REQUEST).encode() + b"\n")
        server.stdin.flush()
        assert b'"result"' in server.stdout.readline()
        return time.perf_counter() - started
