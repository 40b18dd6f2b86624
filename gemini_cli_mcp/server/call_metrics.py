"""Record the outcome of a tool call in the metrics."""

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.http_common.metrics import Metrics
from gemini_cli_mcp.research.results import GroundedResult, SearchResult
from gemini_cli_mcp.server.job_views import JobView
from gemini_cli_mcp.server.results import Outcome
from gemini_cli_mcp.types import Usage


def record_outcome(metrics: Metrics, tool: str, outcome: Outcome | None, seconds: float) -> None:
    """Record a call; None means that its client cancelled it."""
    error = outcome.job.error if isinstance(outcome, JobView) else outcome
    if outcome is None:
        metrics.record_call(tool, "cancelled", None, seconds)
    elif isinstance(error, GeminiMcpError):
        metrics.record_call(tool, "error", error.code, seconds)
    else:
        metrics.record_call(tool, "success", None, seconds)
    if usage := _usage(outcome):
        metrics.record_usage(usage.total_tokens)


def _usage(outcome: Outcome | None) -> Usage | None:
    """Return what the call used; of a deep search, that is recorded when the search ends."""
    if isinstance(outcome, JobView) and outcome.job.request is None:
        outcome = outcome.job.result
    if isinstance(outcome, SearchResult):
        return outcome.metadata.usage
    return outcome.usage if isinstance(outcome, GroundedResult) else None
