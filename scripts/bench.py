"""Ratios, each against a reference of the same run: this says how fast, the tests do not."""

import json
import statistics
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

from gemini_cli_mcp.research.answer import KEYS, fitting
from gemini_cli_mcp.research.json_finder import find

BARE = "from mcp.server import MCPServer; MCPServer('bare').run()"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
HOSTILE = ["{", "}", '"', "{}", '{"', '{"a":', '{"a" ', '{"\\"', "```json\n{", '{"success":']
MEGABYTES = 10


def main() -> None:
    print("Spawn to `initialize` answered, seconds (median of 9, side by side)")
    with TemporaryDirectory() as config_dir:
        ours, bare = started(config_dir)
    print(f"  ours {ours:.3f}   bare MCPServer {bare:.3f}   ratio {ours / bare:.2f}\n")
    print(f"JSON finder: seconds for {MEGABYTES} MB and {2 * MEGABYTES} MB of")
    for unit in HOSTILE:
        once, twice = (looked(unit, size * MEGABYTES * 1_000_000) for size in (1, 2))
        print(f"  {unit!r:14} {once:7.2f} {twice:7.2f}   ratio {twice / max(once, 0.01):.2f}")


def started(config_dir: str) -> tuple[float, float]:
    commands = ([sys.executable, "-m", "gemini_cli_mcp"], [sys.executable, "-c", BARE])
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(10):
        for command, taken in zip(commands, seconds, strict=True):
            taken.append(until_initialized(command, config_dir))
    # The first of each warms the caches.
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


def until_initialized(command: list[str], config_dir: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"GEMINI_MCP_CONFIG_DIR": config_dir, "HOME": config_dir},
    ) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(HELLO).encode() + b"\n")
        server.stdin.flush()
        assert b'"result"' in server.stdout.readline()
        return time.perf_counter() - begin


def looked(unit: str, size: int) -> float:
    text = unit * (size // len(unit))
    begin = time.perf_counter()
    find(text, fitting, KEYS)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
