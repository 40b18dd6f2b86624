"""Convert results to MCP results: text, structured content and links to what was cut.

Secrets are redacted and unsafe characters replaced here: a lone surrogate would crash the stdio
transport of mcp 2.3.0.
"""

import json
import logging
from collections.abc import Sequence

from mcp.types import CallToolResult, ContentBlock, TextContent

from gemini_cli_mcp.errors import Cancelled
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.redaction import sanitize_json
from gemini_cli_mcp.server import resources

logger = logging.getLogger(__name__)


def to_call_tool_result(payload: JsonObject, secrets: Sequence[str]) -> CallToolResult:
    """Return the payload as text and as structured content, with links to what was cut."""
    sanitized = object_or_empty(sanitize_json(payload, secrets))
    error = object_or_empty(sanitized.get("error"))
    if error and error["code"] != Cancelled.code:
        logger.error("Tool call failed: %s", error["code"])  # the message may quote the question
    text = json.dumps(sanitized, ensure_ascii=False, separators=(",", ":"))
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    if "next_offset" in sanitized:
        content.append(resources.report_link(sanitized["job_id"]))
    if (
        "shortened" in object_or_empty(sanitized.get("metadata"))
        and sanitized.get("status") == "done"
    ):
        content.append(resources.report_link(sanitized["job_id"], metadata=True))
    return CallToolResult(
        content=content, structured_content=sanitized, is_error=not sanitized["success"]
    )
