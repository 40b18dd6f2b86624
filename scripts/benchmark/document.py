"""Render the results as a Markdown page and a bar chart."""

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

from scripts.benchmark.contenders import CLI, OUR_TOOLS, OURS, PEER, ROOT
from scripts.benchmark.samples import Samples
from scripts.benchmark.waits import (
    SEARCHES_PER_TURN,
    SECONDS_AFTER_START,
    Bursts,
    CallsAfterStart,
    IdleServer,
    SingleCalls,
    realistic,
)

TEMPLATES = Path(__file__).parent
CHART_WIDTH, BAR_HEIGHT, BAR_X, FIRST_Y = 760, 25, 250, 58
"""Pixels."""


@dataclass(frozen=True)
class Results:
    """All results of one run, by the name of the contender where there are several."""

    turns: Mapping[str, Mapping[int, Samples]]
    """By number of searches."""
    single_calls: Mapping[str, SingleCalls]
    memory: Mapping[str, float]
    after_start: Mapping[str, CallsAfterStart]
    alternating: Mapping[str, SingleCalls]
    """By number of processes kept ready."""
    bursts: Mapping[str, Mapping[int, Bursts]]
    """By number of calls."""
    deep_search: tuple[Samples, int]
    idle_server: IdleServer
    startup: tuple[Samples, Samples]


def write_docs(results: Results) -> None:
    (ROOT / "docs/benchmarks.md").write_text(render_page(results), encoding="utf-8")
    (ROOT / "docs/benchmarks.svg").write_text(render_chart(results), encoding="utf-8")


def render_page(results: Results) -> str:
    limit = realistic().seconds
    peer = results.single_calls[PEER.name]
    bursts = results.bursts[OURS.name]
    deep_search, rounds = results.deep_search
    startup, bare_startup = results.startup
    template = (TEMPLATES / "page.md").read_text(encoding="utf-8")
    return template.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=_describe_machine(),
        limit=limit,
        turns=_rows(
            [name, *(_against_limit(samples[count], limit) for count in SEARCHES_PER_TURN)]
            for name, samples in results.turns.items()
        ),
        single_calls=_rows(
            _single_calls_row(name, calls, peer, results.memory[name])
            for name, calls in results.single_calls.items()
        ),
        seconds_header=" | ".join(f"after {seconds} s" for seconds in SECONDS_AFTER_START),
        after_start=_rows(
            [name, *map(str, calls.first.values()), str(calls.tenth)]
            for name, calls in results.after_start.items()
        ),
        alternating=_rows(
            [count, str(calls.samples), _count_processes(calls)]
            for count, calls in results.alternating.items()
        ),
        bursts=_rows(
            [name, str(count), str(burst.first), str(burst.second), f"{burst.cli_memory:,.0f}"]
            for name, by_count in results.bursts.items()
            for count, burst in by_count.items()
        ),
        burst_ratio=bursts[50].second.median / _one_call(bursts),
        one_call=_one_call(bursts),
        rounds=rounds,
        deep_search=deep_search,
        deep_search_limit=limit * rounds,
        deep_search_ratio=deep_search.median / (limit * rounds),
        startup=startup,
        bare_startup=bare_startup,
        startup_ratio=startup.median / bare_startup.median,
        server_memory=results.idle_server.server,
        ready_memory=results.idle_server.gemini,
        late_count=results.idle_server.late_count or "no",
        late_memory=results.idle_server.late_server + results.idle_server.late_gemini,
    )


def render_chart(results: Results) -> str:
    """Render the median seconds of a call, by number of searches in a turn."""
    limit = realistic().seconds
    slowest = max(s.median for samples in results.turns.values() for s in samples.values())
    scale = (CHART_WIDTH - BAR_X - 90) / slowest
    shapes: list[str] = []
    y = FIRST_Y
    for count in SEARCHES_PER_TURN:
        title = f"{count} search{'es' if count > 1 else ''}"
        shapes.append(f'<text x="16" y="{y + 17}" font-weight="600">{title}</text>')
        for name, samples in results.turns.items():
            seconds = samples[count].median
            width = seconds * scale
            fill = "#1a73e8" if name == OURS.name else "#9aa0a6"
            label = escape(name.replace("`", ""))
            shapes += [
                f'<text x="{BAR_X - 10}" y="{y + 17}" text-anchor="end">{label}</text>',
                f'<rect x="{BAR_X}" y="{y + 3}" width="{width:.0f}" height="19" rx="3" '
                f'fill="{fill}"/>',
                f'<text x="{BAR_X + width + 8:.0f}" y="{y + 17}">{seconds:.1f} s</text>',
            ]
            y += BAR_HEIGHT
        y += 12
    limit_x = round(BAR_X + limit * scale)
    shapes.append(
        f'<line x1="{limit_x}" y1="{FIRST_Y - 8}" x2="{limit_x}" y2="{y - 8}" stroke="#188038" '
        f'stroke-width="2" stroke-dasharray="4 3"/>'
        f'<text x="{limit_x}" y="{FIRST_Y - 13}" text-anchor="middle" fill="#188038">'
        f"the API’s own time: {limit:g} s</text>"
    )
    template = (TEMPLATES / "chart_template.svg").read_text(encoding="utf-8")
    return template.format(width=CHART_WIDTH, height=y + 2, shapes="\n".join(shapes))


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _against_limit(samples: Samples, limit: float) -> str:
    return f"{samples}: {samples.median / limit:.2f} ×"


def _single_calls_row(name: str, calls: SingleCalls, peer: SingleCalls, memory: float) -> list[str]:
    ratio = peer.samples.median / calls.samples.median
    is_ours = name in {contender.name for contender in OUR_TOOLS}
    return [
        name,
        str(calls.samples),
        f"{ratio:.1f} ×" if is_ours else "–",
        _count_processes(calls) if is_ours else "–",
        f"{calls.kilobytes:.1f}",
        f"{memory:.0f}",
    ]


def _count_processes(calls: SingleCalls) -> str:
    return ", ".join(f"{count} {process}" for process, count in calls.processes.items())


def _one_call(bursts: Mapping[int, Bursts]) -> float:
    return Samples([*bursts[1].first.seconds, *bursts[1].second.seconds]).median


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
