"""The measurements themselves."""

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
from gemini_cli_mcp.research.json_finder import find_object
from gemini_cli_mcp.research.researcher import ANSWER_KEYS, match_schema
from gemini_cli_mcp.types import RecordedSearch, Source
from scripts.benchmark.api import Api
from scripts.benchmark.memory import peak
from scripts.benchmark.subjects import DEEP, OURS, ROOT, Place, Subject, command_line
from tests.support import report

SLOW = 1.0
"""Seconds that each request to the API takes where many calls come at once."""


@dataclass
class Measured:
    """One subject."""

    name: str
    median: float
    worst: float
    requests: float
    kilobytes: float
    memory: float
    """Megabytes of all that it started, at the worst moment of calls in a row."""
    at_once: dict[int, float] = field(default_factory=dict[int, float])
    """Seconds until the last of so many calls has its answer."""
    cli_memory: dict[int, float] = field(default_factory=dict[int, float])
    """Megabytes of the gemini processes alone at that time."""


async def measured(subject: Subject, api: Api) -> Measured:
    with TemporaryDirectory(prefix="bench-") as folder:
        place = Place(Path(folder), api)
        api.delay(0)
        async with subject.open(place) as ask:
            await ask()  # the first one warms the caches of the machine
            api.taken()
            seconds: list[float] = []
            with peak(api.pid) as memory:
                for _ in range(subject.times):
                    begin = time.perf_counter()
                    await ask()
                    seconds.append(time.perf_counter() - begin)
            requests, size = api.taken()
            result = Measured(
                subject.name,
                statistics.median(seconds),
                max(seconds),
                requests / subject.times,
                size / subject.times / 1000,
                memory.all,
            )
            api.delay(SLOW)
            for count in subject.at_once:
                with peak(api.pid) as memory:
                    begin = time.perf_counter()
                    async with anyio.create_task_group() as tasks:
                        for _ in range(count):
                            tasks.start_soon(ask)
                    result.at_once[count] = time.perf_counter() - begin
                result.cli_memory[count] = memory.cli
    return result


async def deep_search(api: Api) -> tuple[float, int]:
    """Seconds per round beyond the API's own time, and how many rounds there were."""
    with TemporaryDirectory(prefix="bench-") as folder:
        async with DEEP(Place(Path(folder), api)) as ask:
            api.delay(SLOW / 2)
            api.taken()
            begin = time.perf_counter()
            answer = await ask()
            seconds = time.perf_counter() - begin
    rounds: int = answer.structured_content["metadata"]["iterations"]
    requests, _ = api.taken()
    return (seconds - requests * SLOW / 2) / rounds, rounds


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
BARE = [sys.executable, "-c", "from mcp.server import MCPServer; MCPServer('bare').run()"]


def start_up(times: int = 15) -> tuple[float, float]:
    """Seconds from the spawn to the answered `initialize`: ours, and a bare MCPServer's."""
    taken: tuple[list[float], list[float]] = ([], [])
    with TemporaryDirectory(prefix="bench-") as folder:
        for _ in range(times + 1):  # the first of each warms the caches
            for command, seconds in zip((OURS, BARE), taken, strict=True):
                seconds.append(_until_initialized(command, folder))
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


def _until_initialized(command: list[str], folder: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"GEMINI_MCP_CONFIG_DIR": f"{folder}/config", "HOME": folder},
    ) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(HELLO).encode() + b"\n")
        server.stdin.flush()
        assert b'"result"' in server.stdout.readline()
        return time.perf_counter() - begin


def gate(times: int = 9) -> tuple[float, float]:
    """Seconds of the gate for links on real documents, and of one parse of the same text."""
    text = "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    source = Source("https://example.org/page", "example.org")
    ledger = Ledger.from_replies(
        Reply("", None, "ledger", (RecordedSearch("x", sources=(source,)),))
    )
    markdown = MarkdownIt("commonmark").enable("table")
    works = (lambda: check_citations(text, ledger), lambda: markdown.parse(text))
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for work, seconds in zip(works, taken, strict=True):
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
    return statistics.median(taken[0]), statistics.median(taken[1])


async def telemetry(api: Api, times: int = 9) -> tuple[float, float]:
    """Seconds of one cold run of the CLI with its telemetry and without, by turns."""
    api.delay(0)
    taken: tuple[list[float], list[float]] = ([], [])
    with TemporaryDirectory(prefix="bench-") as folder:
        place = Place(Path(folder), api)
        for _ in range(times + 1):  # the first of each warms the caches
            for on, seconds in zip((True, False), taken, strict=True):
                async with command_line(lean=True, telemetry=on)(place) as ask:
                    begin = time.perf_counter()
                    await ask()
                    seconds.append(time.perf_counter() - begin)
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
TEXTS: dict[str, Callable[[int], str]] = {
    "a report in prose": lambda size: f"Here it is:\n```json\n{report('word ' * (size // 5))}\n```",
    "a report that breaks off": lambda size: report("word " * (size // 5))[:-20],
    "only `{`": lambda size: "{" * size,
    'only `{"a":`': lambda size: '{"a":' * (size // 5),
}


def finder() -> dict[str, list[float]]:
    """Seconds of the JSON finder on each kind of text, for each size."""
    taken: dict[str, list[float]] = {}
    for name, text in TEXTS.items():
        taken[name] = []
        for size in SIZES:
            given = text(size)
            begin = time.perf_counter()
            find_object(given, match_schema, ANSWER_KEYS)
            taken[name].append(time.perf_counter() - begin)
    return taken
