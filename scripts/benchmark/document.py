"""Render the results as a Markdown page and a bar chart."""

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

from scripts.benchmark.contenders import CLI, ROOT
from scripts.benchmark.gateway import STREAMS, GatewayResults
from scripts.benchmark.measure import API_DELAY, TEXT_SIZES, Measurement
from scripts.benchmark.team_server_load import CALLS, CLIENTS, LoadResults

TEMPLATES = Path(__file__).parent
CHART_WIDTH, ROW_HEIGHT, BAR_X, FIRST_ROW_Y = 760, 34, 290, 46
"""Pixels."""


@dataclass(frozen=True)
class Results:
    """All results of one run."""

    measurements: Sequence[Measurement]
    """Ours first (warm, then a process per call), then the CLI itself, then peers."""
    startup: tuple[float, float]
    deep_search: tuple[float, int]
    telemetry: tuple[float, float]
    citation_gate: tuple[float, float]
    json_finder: dict[str, list[float]]
    gateway: GatewayResults
    load: LoadResults


def write_docs(results: Results) -> None:
    (ROOT / "docs/benchmarks.md").write_text(render_page(results), encoding="utf-8")
    (ROOT / "docs/benchmarks.svg").write_text(render_chart(results), encoding="utf-8")


def render_page(results: Results) -> str:
    startup, bare_startup = results.startup
    round_overhead, rounds = results.deep_search
    warm = results.measurements[0]
    return (
        (TEMPLATES / "page.md")
        .read_text(encoding="utf-8")
        .format(
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            machine=_describe_machine(),
            sequential=_rows(_sequential_row(item, warm) for item in results.measurements),
            api_delay=API_DELAY,
            min_seconds=warm.requests * API_DELAY,
            concurrent=_rows(_concurrent_row(item) for item in results.measurements),
            startup=startup,
            bare_startup=bare_startup,
            startup_ratio=startup / bare_startup,
            rounds=rounds,
            round_overhead=round_overhead,
            telemetry_on=results.telemetry[0],
            telemetry_off=results.telemetry[1],
            gate=results.citation_gate[0] * 1000,
            parse=results.citation_gate[1] * 1000,
            gate_ratio=results.citation_gate[0] / results.citation_gate[1],
            through=results.gateway.through * 1000,
            direct=results.gateway.direct * 1000,
            added=(results.gateway.through - results.gateway.direct) * 1000,
            stream_count=STREAMS,
            streams=results.gateway.streams_through,
            streams_direct=results.gateway.streams_direct,
            streams_searching=results.gateway.streams_searching,
            errors=results.gateway.errors,
            load_calls=CALLS,
            clients=CLIENTS,
            served=results.load.served,
            load_direct=results.load.direct,
            load_ratio=results.load.served / results.load.direct,
            outcomes=", ".join(f"{count} {name}" for name, count in results.load.outcomes.items()),
            memory_before=results.load.memory[0],
            memory_after=results.load.memory[1],
            left=results.load.leftovers or "none",
            sizes=" | ".join(f"{size // 1000:,} kB" for size in TEXT_SIZES),
            rule="---|" * len(TEXT_SIZES),
            json_finder=_rows(
                [name, *(f"{value:.4f}" for value in seconds), f"{seconds[-1] / seconds[-2]:.1f} ×"]
                for name, seconds in results.json_finder.items()
            ),
        )
    )


def render_chart(results: Results) -> str:
    """Render a bar chart of the median seconds per call."""
    slowest = max(item.median for item in results.measurements)
    bars: list[str] = []
    for row, item in enumerate(results.measurements):
        y = FIRST_ROW_Y + ROW_HEIGHT * row
        width = max(3, (CHART_WIDTH - BAR_X - 150) * item.median / slowest)
        ratio = item.median / results.measurements[0].median
        label = f"{item.median:.2f} s" + (f", {ratio:.0f} ×" if row else "")
        name = escape(item.name.replace("`", ""))
        fill = "#9aa0a6" if row else "#1a73e8"
        bars += [
            f'<text x="{BAR_X - 12}" y="{y + 17}" text-anchor="end">{name}</text>',
            f'<rect x="{BAR_X}" y="{y + 2}" width="{width:.0f}" height="21" rx="3" fill="{fill}"/>',
            f'<text x="{BAR_X + width + 9:.0f}" y="{y + 17}">{label}</text>',
        ]
    height = FIRST_ROW_Y + ROW_HEIGHT * len(results.measurements) + 14
    template = (TEMPLATES / "chart_template.svg").read_text(encoding="utf-8")
    return template.format(width=CHART_WIDTH, height=height, bars="\n".join(bars))


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _sequential_row(item: Measurement, warm: Measurement) -> list[str]:
    return [
        item.name,
        f"{item.median:.3f}",
        f"{item.worst:.3f}",
        f"{item.median / warm.median:.1f} ×",
        f"{item.requests:.0f}",
        f"{item.kilobytes:.1f}",
        f"{item.memory:.0f}",
    ]


def _concurrent_row(item: Measurement) -> list[str]:
    cells = [
        f"{item.concurrent[count]:.2f} ({item.cli_memory[count]:.0f})"
        if count in item.concurrent
        else "–"
        for count in (1, 10, 50)
    ]
    ratio = f"{item.concurrent[50] / item.concurrent[1]:.2f} ×" if 50 in item.concurrent else "–"
    return [item.name, *cells, ratio]


def _describe_machine() -> str:
    node, cli = (
        subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in ("node", CLI)
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()} on {platform.machine()}; "
        f"Python {platform.python_version()}, Node {node.strip()}, gemini CLI "
        f"{cli.split()[-1]}, mcp {version('mcp')}, "
        f"gemini-cli-mcp {version('gemini-cli-research-mcp')}"
    )
