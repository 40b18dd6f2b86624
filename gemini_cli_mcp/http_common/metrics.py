"""Prometheus metrics of a server."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gemini_cli_mcp.json_values import JsonObject, int_or_zero, object_or_empty

DURATION_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one server."""

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """`gauges` maps names to a description and a function that returns the current value."""
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
        for name, (description, read_value) in gauges.items():
            gauge = Gauge(f"gemini_mcp_{name}", description, registry=self._registry)
            gauge.set_function(read_value)

    def record_call(self, tool: str, result: JsonObject | None, seconds: float) -> None:
        """Record a completed call; `result` is None if the client cancelled it."""
        self._seconds.labels(tool).observe(seconds)
        if result is None:
            self._calls.labels(tool, "cancelled").inc()
            return
        self._calls.labels(tool, "success" if result.get("success") else "error").inc()
        if error := object_or_empty(result.get("error")):
            self._errors.labels(str(error.get("code"))).inc()

    def record_usage(self, result: JsonObject) -> None:
        """Add the token usage of a result."""
        usage = object_or_empty(object_or_empty(result.get("metadata")).get("usage"))
        self._tokens.inc(max(0, int_or_zero(usage.get("total_tokens"))))

    def render(self) -> bytes:
        return generate_latest(self._registry)
