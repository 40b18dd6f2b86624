"""What was measured, as a page and as a picture."""

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

from scripts.benchmark.gateway import AT_ONCE, Gateway
from scripts.benchmark.http import CALLS, CLIENTS, Load
from scripts.benchmark.measure import SIZES, SLOW, Measured
from scripts.benchmark.subjects import CLI, ROOT

HERE = Path(__file__).parent
WIDTH, ROW, LEFT, TOP = 760, 34, 290, 46
"""Of the picture."""


@dataclass(frozen=True)
class Results:
    """Everything of one run."""

    subjects: Sequence[Measured]
    """Ours first: warm, then a process per call; then the CLI itself; then peers."""
    start_up: tuple[float, float]
    deep_search: tuple[float, int]
    telemetry: tuple[float, float]
    gate: tuple[float, float]
    finder: dict[str, list[float]]
    gateway: Gateway
    load: Load


def write(results: Results) -> None:
    (ROOT / "docs/benchmarks.md").write_text(page(results), encoding="utf-8")
    (ROOT / "docs/benchmarks.svg").write_text(picture(results), encoding="utf-8")


def page(results: Results) -> str:
    ours, bare = results.start_up
    beyond, rounds = results.deep_search
    warm = results.subjects[0]
    return (
        (HERE / "page.md")
        .read_text(encoding="utf-8")
        .format(
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            machine=_machine(),
            calls=_rows(_call(item, warm) for item in results.subjects),
            slow=SLOW,
            turns=warm.requests * SLOW,
            at_once=_rows(_at_once(item) for item in results.subjects),
            ours=ours,
            bare=bare,
            start=ours / bare,
            rounds=rounds,
            beyond=beyond,
            telemetry_on=results.telemetry[0],
            telemetry_off=results.telemetry[1],
            gate=results.gate[0] * 1000,
            parse=results.gate[1] * 1000,
            gate_ratio=results.gate[0] / results.gate[1],
            through=results.gateway.through * 1000,
            direct=results.gateway.direct * 1000,
            added=(results.gateway.through - results.gateway.direct) * 1000,
            count=AT_ONCE,
            streams=results.gateway.streams_through,
            streams_direct=results.gateway.streams_direct,
            searching=results.gateway.streams_searching,
            errors=results.gateway.errors,
            calls_in_all=CALLS,
            clients=CLIENTS,
            served=results.load.served,
            bare_runs=results.load.bare,
            load_ratio=results.load.served / results.load.bare,
            outcomes=", ".join(f"{count} {name}" for name, count in results.load.outcomes.items()),
            memory_before=results.load.memory[0],
            memory_after=results.load.memory[1],
            left=results.load.left or "nothing",
            sizes=" | ".join(f"{size // 1000:,} kB" for size in SIZES),
            rule="---|" * len(SIZES),
            finder=_rows(
                [name, *(f"{value:.4f}" for value in taken), f"{taken[-1] / taken[-2]:.1f} ×"]
                for name, taken in results.finder.items()
            ),
        )
    )


def picture(results: Results) -> str:
    """Bars of the seconds per call."""
    longest = max(item.median for item in results.subjects)
    bars: list[str] = []
    for place, item in enumerate(results.subjects):
        y = TOP + ROW * place
        width = max(3, (WIDTH - LEFT - 150) * item.median / longest)
        ratio = item.median / results.subjects[0].median
        said = f"{item.median:.2f} s" + (f", {ratio:.0f} ×" if place else "")
        name = escape(item.name.replace("`", ""))
        fill = "#9aa0a6" if place else "#1a73e8"
        bars += [
            f'<text x="{LEFT - 12}" y="{y + 17}" text-anchor="end">{name}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{width:.0f}" height="21" rx="3" fill="{fill}"/>',
            f'<text x="{LEFT + width + 9:.0f}" y="{y + 17}">{said}</text>',
        ]
    height = TOP + ROW * len(results.subjects) + 14
    template = (HERE / "picture.svg").read_text(encoding="utf-8")
    return template.format(width=WIDTH, height=height, bars="\n".join(bars))


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _call(item: Measured, warm: Measured) -> list[str]:
    return [
        item.name,
        f"{item.median:.3f}",
        f"{item.worst:.3f}",
        f"{item.median / warm.median:.1f} ×",
        f"{item.requests:.0f}",
        f"{item.kilobytes:.1f}",
        f"{item.memory:.0f}",
    ]


def _at_once(item: Measured) -> list[str]:
    cells = [
        f"{item.at_once[count]:.2f} ({item.cli_memory[count]:.0f})"
        if count in item.at_once
        else "–"
        for count in (1, 10, 50)
    ]
    ratio = f"{item.at_once[50] / item.at_once[1]:.2f} ×" if 50 in item.at_once else "–"
    return [item.name, *cells, ratio]


def _machine() -> str:
    node, cli = (
        subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in ("node", CLI)
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()} on {platform.machine()}; "
        f"Python {platform.python_version()}, Node {node.strip()}, gemini CLI "
        f"{cli.split()[-1]}, mcp {version('mcp')}, gemini-cli-mcp {version('gemini-cli-mcp')}"
    )
