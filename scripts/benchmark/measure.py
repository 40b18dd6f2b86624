"""Measure the contenders, deep search, startup, telemetry, citation gate and JSON finder."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from markdown_it import MarkdownIt

from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import check_citations
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.research.json_finder import find_answer
from gemini_cli_mcp.research.model_report import ANSWER_KEYS, parse_model_report
from gemini_cli_mcp.types import RecordedSearch, Source
from scripts.benchmark.api import ApiProcess
from scripts.benchmark.contenders import (
    OURS_DEEP_SEARCH,
    ROOT,
    SERVER_COMMAND,
    BenchHome,
    Contender,
    cold_cli,
)
from scripts.benchmark.memory import track_peak
from tests.support import model_answer

API_DELAY = 1.0
"""Seconds that each request to the API takes in the benchmark of concurrent calls."""


@dataclass
class Measurement:
    """The results of one contender."""

    name: str
    median: float
    worst: float
    requests: float
    kilobytes: float
    memory: float
    """Peak megabytes of all processes that it started, during sequential calls."""
    concurrent: dict[int, float] = field(default_factory=dict[int, float])
    """Seconds until the last of N concurrent calls is answered, by N."""
    cli_memory: dict[int, float] = field(default_factory=dict[int, float])
    """Peak megabytes of the gemini processes alone during those calls, by N."""


async def measure_contender(contender: Contender, api: ApiProcess) -> Measurement:
    with TemporaryDirectory(prefix="bench-") as folder:
        api.set_delay(0)
        async with contender.connect(BenchHome(Path(folder), api)) as ask:
            await ask()  # the first call warms the machine's caches
            api.take_counts()
            seconds: list[float] = []
            with track_peak(api.pid) as memory:
                for _ in range(contender.calls):
                    started = time.perf_counter()
                    await ask()
                    seconds.append(time.perf_counter() - started)
            requests, size = api.take_counts()
            result = Measurement(
                contender.name,
                statistics.median(seconds),
                max(seconds),
                requests / contender.calls,
                size / contender.calls / 1000,
                memory.total,
            )
            api.set_delay(API_DELAY)
            for count in contender.concurrency:
                with track_peak(api.pid) as memory:
                    started = time.perf_counter()
                    async with anyio.create_task_group() as tasks:
                        for _ in range(count):
                            tasks.start_soon(ask)
                    result.concurrent[count] = time.perf_counter() - started
                result.cli_memory[count] = memory.cli
    return result


async def measure_deep_search(api: ApiProcess) -> tuple[float, int]:
    """Return the seconds per round in addition to API time, and the number of rounds."""
    with TemporaryDirectory(prefix="bench-") as folder:
        async with OURS_DEEP_SEARCH(BenchHome(Path(folder), api)) as ask:
            api.set_delay(API_DELAY / 2)
            api.take_counts()
            started = time.perf_counter()
            result = await ask()
            seconds = time.perf_counter() - started
    rounds: int = result.structured_content["metadata"]["iterations"]
    requests, _ = api.take_counts()
    return (seconds - requests * API_DELAY / 2) / rounds, rounds


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
BARE_SERVER_COMMAND = [
    sys.executable,
    "-c",
    "from mcp.server import MCPServer; MCPServer('bare').run()",
]


def measure_startup(runs: int = 15) -> tuple[float, float]:
    """Return the median seconds from spawn to `initialize` response: ours, a bare MCPServer's."""
    ours: list[float] = []
    bare: list[float] = []
    with TemporaryDirectory(prefix="bench-") as folder:
        for _ in range(runs + 1):  # the first run of each warms the caches
            for command, seconds in ((SERVER_COMMAND, ours), (BARE_SERVER_COMMAND, bare)):
                seconds.append(_initialize_seconds(command, folder))
    return statistics.median(ours[1:]), statistics.median(bare[1:])


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
        server.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        server.stdin.flush()
        assert b'"result"' in server.stdout.readline()
        return time.perf_counter() - started


def measure_citation_gate(runs: int = 9) -> tuple[float, float]:
    """Return the median seconds of the citation gate on our docs, and of one parse of them."""
    text = "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    source = Source("https://example.org/page", "example.org")
    ledger = Ledger.from_replies(
        Reply("", None, "ledger", (RecordedSearch("x", sources=(source,)),))
    )
    markdown = MarkdownIt("commonmark").enable("table")
    gate_seconds: list[float] = []
    parse_seconds: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        check_citations(text, ledger)
        gate_seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        markdown.parse(text)
        parse_seconds.append(time.perf_counter() - started)
    return statistics.median(gate_seconds), statistics.median(parse_seconds)


async def measure_telemetry(api: ApiProcess, runs: int = 9) -> tuple[float, float]:
    """Return the median seconds of a cold CLI run with and without telemetry, alternating."""
    api.set_delay(0)
    with_telemetry: list[float] = []
    without_telemetry: list[float] = []
    with TemporaryDirectory(prefix="bench-") as folder:
        bench_home = BenchHome(Path(folder), api)
        for _ in range(runs + 1):  # the first run of each warms the caches
            for enabled, seconds in ((True, with_telemetry), (False, without_telemetry)):
                async with cold_cli(lean=True, telemetry=enabled)(bench_home) as ask:
                    started = time.perf_counter()
                    await ask()
                    seconds.append(time.perf_counter() - started)
    return statistics.median(with_telemetry[1:]), statistics.median(without_telemetry[1:])


TEXT_SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
TEXT_BUILDERS: dict[str, Callable[[int], str]] = {
    "a report in prose": lambda size: (
        f"Here it is:\n```json\n{model_answer('word ' * (size // 5))}\n```"
    ),
    "a truncated report": lambda size: model_answer("word " * (size // 5))[:-20],
    "only `{`": lambda size: "{" * size,
    'only `{"a":`': lambda size: '{"a":' * (size // 5),
}


def measure_json_finder() -> dict[str, list[float]]:
    """Return the seconds of the JSON finder for each size, by kind of text."""
    seconds: dict[str, list[float]] = {}
    for name, build_text in TEXT_BUILDERS.items():
        seconds[name] = []
        for size in TEXT_SIZES:
            text = build_text(size)
            started = time.perf_counter()
            find_answer(text, parse_model_report, ANSWER_KEYS)
            seconds[name].append(time.perf_counter() - started)
    return seconds
