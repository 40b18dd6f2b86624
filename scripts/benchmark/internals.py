"""Measure what no user waits for by itself, but what must not become slow.

The gateway's overhead, a team server under load, telemetry, the citation gate, the JSON finder.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from markdown_it import MarkdownIt

from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import check_citations
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.research.json_finder import find_answer
from gemini_cli_mcp.research.model_report import ANSWER_KEYS, parse_model_report
from gemini_cli_mcp.types import RecordedSearch, Source
from scripts.benchmark.api import INSTANT, ApiProcess
from scripts.benchmark.contenders import ROOT, BenchHome, cold_cli
from scripts.benchmark.gateway import STREAMS, measure_gateway
from scripts.benchmark.team_server_load import CALLS, CLIENTS, load
from tests.support import model_answer


async def describe_internals(api: ApiProcess) -> str:
    """Measure everything; return a line or more for each."""
    gateway = await measure_gateway()
    team = await load()
    outcomes = ", ".join(f"{count} {name}" for name, count in team.outcomes.items())
    telemetry, no_telemetry = await measure_telemetry(api)
    gate, parse = measure_citation_gate()
    lines = [
        f"Gateway, a request without search intent: {gateway.through * 1000:.1f} ms, direct "
        f"{gateway.direct * 1000:.1f} ms",
        f"Gateway, {STREAMS} concurrent streams: {gateway.streams_through:.1f} s, direct "
        f"{gateway.streams_direct:.1f} s, with a search in each {gateway.streams_searching:.1f} s; "
        f"{gateway.errors} errors",
        f"Team server, {CALLS} calls of {CLIENTS} clients on the stub: {team.served:.0f} s, direct "
        f"{team.direct:.0f} s ({team.served / team.direct:.2f} x); {outcomes}; "
        f"{team.memory[0]:.0f} MB, at the end {team.memory[1]:.0f} MB; {team.leftovers} left over",
        f"A cold run of the CLI: {telemetry:.2f} s, without telemetry {no_telemetry:.2f} s",
        f"Citation gate on our docs: {gate * 1000:.0f} ms; one parse: {parse * 1000:.0f} ms "
        f"({gate / parse:.1f} x)",
    ]
    sizes = ", ".join(f"{size // 1000:,} kB" for size in TEXT_SIZES)
    lines += [
        f"JSON finder, {name}, {sizes}: {', '.join(f'{value:.4f}' for value in seconds)} s"
        for name, seconds in measure_json_finder().items()
    ]
    return "\n".join(lines) + "\n"


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
    api.set(INSTANT)
    with_telemetry: list[float] = []
    without_telemetry: list[float] = []
    with TemporaryDirectory(prefix="bench-") as folder:
        bench_home = BenchHome(Path(folder), api)
        for _ in range(runs + 1):  # the first run of each warms the caches
            for enabled, seconds in ((True, with_telemetry), (False, without_telemetry)):
                async with cold_cli(telemetry=enabled)(bench_home) as ask:
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
