"""Convert what a tool returns to an MCP result: text, structured content, links to what was cut.

Secrets are redacted and unsafe characters replaced here: a lone surrogate would crash the stdio
transport of mcp 2.3.0. Call it in a worker thread: a long report takes time to split and redact.
"""

import json
import logging
from collections.abc import Sequence

from mcp.types import CallToolResult, ContentBlock, TextContent

from gemini_cli_mcp.errors import Cancelled, GeminiMcpError
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.research.grounded_search import error_markdown
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.research.results import GroundedResult, Result
from gemini_cli_mcp.sanitize import sanitize_json
from gemini_cli_mcp.server import resources
from gemini_cli_mcp.server.job_views import JobView, job_view

logger = logging.getLogger(__name__)

Outcome = Result | JobView | GeminiMcpError
"""What a tool returns."""


def to_call_tool_result(tool: str, outcome: Outcome, secrets: Sequence[str]) -> CallToolResult:
    """Return the outcome of a tool; raise InvalidInput if it has no such part."""
    error = outcome.job.error if isinstance(outcome, JobView) else outcome
    if isinstance(error, GeminiMcpError) and error.code != Cancelled.code:
        logger.error("Tool call failed: %s", error.code)  # its message may quote the question
    payload = job_view(outcome) if isinstance(outcome, JobView) else to_json(outcome)
    markdown = None
    if isinstance(outcome, GroundedResult):
        markdown = outcome.text
    elif isinstance(outcome, GeminiMcpError) and tool == "grounded_search":
        markdown = error_markdown(outcome)
        payload["result"] = markdown
    return sanitized_result(payload, secrets, markdown)


def sanitized_result(
    payload: JsonObject, secrets: Sequence[str], markdown: str | None = None
) -> CallToolResult:
    """Return the payload as structured content, with links to what was cut.

    The text is the Markdown, or the payload as JSON.
    """
    sanitized = object_or_empty(sanitize_json(payload, secrets))
    if markdown is None:
        text = json.dumps(sanitized, ensure_ascii=False, separators=(",", ":"))
    else:
        text = str(sanitize_json(markdown, secrets))
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    job_id = str(sanitized.get("job_id"))
    is_done = sanitized.get("status") == "done"
    if "next_offset" in sanitized:
        content.append(resources.report_link(job_id))
    if is_done and "shortened" in object_or_empty(sanitized.get("metadata")):
        content.append(resources.report_link(job_id, metadata=True))
    return CallToolResult(
        content=content,
        structured_content=sanitized,
        is_error=not sanitized["success"],
    )
