"""Prometheus metrics of a server."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from gemini_cli_mcp.types import PROCESS_USES, ProcessUse

DURATION_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

CONTENT_TYPE = CONTENT_TYPE_LATEST

CallOutcome = Literal["success", "error", "cancelled"]
"""How a call ended; `cancelled` means by its client."""


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._calls = Counter(
            "gemini_mcp_calls",
            "Completed tool calls",
            ["tool", "outcome"],
            registry=self._registry,
        )
        self._errors = Counter(
            "gemini_mcp_errors", "Failed tool calls", ["code"], registry=self._registry
        )
        self._seconds = Histogram(
            "gemini_mcp_call_seconds",
            "Duration of tool calls in seconds",
            ["tool"],
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "gemini_mcp_tokens", "Tokens used by all models", registry=self._registry
        )

    def add_gauges(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """`gauges` maps names to a description and a function that returns the current value."""
        for name, (description, read_value) in gauges.items():
            gauge = Gauge(f"gemini_mcp_{name}", description, registry=self._registry)
            gauge.set_function(read_value)

    def add_run_counter(self, count_runs: Callable[[], Mapping[ProcessUse, int]]) -> None:
        """`count_runs` returns the runs so far, by how they got their process."""
        self._registry.register(_RunCollector(count_runs))

    def record_call(
        self, tool: str, outcome: CallOutcome, error_code: str | None, seconds: float
    ) -> None:
        """Record a completed call; `error_code` is None unless it failed."""
        self._seconds.labels(tool).observe(seconds)
        self._calls.labels(tool, outcome).inc()
        if error_code is not None:
            self._errors.labels(error_code).inc()

    def record_usage(self, total_tokens: int) -> None:
        """Add the tokens that a call used."""
        self._tokens.inc(max(0, total_tokens))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _RunCollector(Collector):
    """A counter whose values are kept elsewhere."""

    def __init__(self, count_runs: Callable[[], Mapping[ProcessUse, int]]) -> None:
        self._count_runs = count_runs

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "gemini_mcp_cli_runs",
            "Runs of the gemini CLI, by how they got their process",
            labels=["process"],
        )
        counts = self._count_runs()
        for process in PROCESS_USES:
            family.add_metric([process], counts.get(process, 0))
        yield family
