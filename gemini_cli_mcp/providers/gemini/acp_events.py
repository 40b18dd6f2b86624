"""Translate the updates of an ACP session into the events of a dedicated run.

Both kinds of run can then share the code that interprets events and classifies failures.
"""

import asyncio
import re
import time

from gemini_cli_mcp.providers.gemini.acp_client import AcpError
from gemini_cli_mcp.providers.gemini.acp_messages import (
    MessageChunk,
    OtherUpdate,
    PromptResult,
    SessionUpdate,
    ToolCallUpdate,
)
from gemini_cli_mcp.providers.gemini.event_types import (
    InitEvent,
    MessageEvent,
    ResultEvent,
    RunStats,
    ToolArguments,
    ToolResultEvent,
    ToolUseEvent,
)
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, EventLog
from gemini_cli_mcp.types import Usage

TURN_LIMIT_EXIT_CODE = 53
"""Exit code of a dedicated run that reaches the turn limit."""
_QUOTED = re.compile(r'"(.*)"', re.DOTALL)
_TOOLS = {"search": SEARCH_TOOL, "fetch": FETCH_TOOL}


class AcpTurn:
    """Collects the updates of one turn in an event log."""

    def __init__(self, session_id: str, events: EventLog) -> None:
        self.events = events
        events.add_event(InitEvent(session_id))
        self.last_update_at = time.monotonic()
        self._tool_call_ids: set[str] = set()

    def handle_update(self, update: SessionUpdate) -> None:
        self.last_update_at = time.monotonic()
        match update:
            case MessageChunk(text):
                self.events.add_event(MessageEvent(text))
            case ToolCallUpdate():
                self._handle_tool_call(update)
            case OtherUpdate():
                pass

    @property
    def tool_calls(self) -> int:
        return len(self._tool_call_ids)

    def finish(self, response: "asyncio.Future[PromptResult]", *, is_complete: bool) -> int:
        """Add the final event and return the exit code that a dedicated run would have had.

        An incomplete answer was cut off without an error, so it has no final event. Raises
        AgentUnavailable if the process exited during the turn.
        """
        try:
            result = response.result()
        except AcpError as error:
            self._add_error_result(error.message)
            return error.code % 256 if error.code >= 400 else 1
        if result.stop_reason == "max_turn_requests":
            self._add_error_result("")
            return TURN_LIMIT_EXIT_CODE
        if result.stop_reason != "end_turn":
            self._add_error_result(f"the turn ended with stop reason {result.stop_reason}")
            return 1
        if is_complete:
            self.events.add_event(ResultEvent(stats=self._stats(result)))
        return 0

    def _handle_tool_call(self, call: ToolCallUpdate) -> None:
        if call.call_id not in self._tool_call_ids:
            self._tool_call_ids.add(call.call_id)
            match = _QUOTED.search(call.title)
            argument = match[1] if match else call.title
            arguments = ToolArguments(query=argument, prompt=argument)
            tool_name = _TOOLS.get(call.kind, "")
            self.events.add_event(ToolUseEvent(call.call_id, tool_name, arguments))
        if call.end:
            error = None if call.end == "completed" else call.text or "unknown error"
            self.events.add_event(ToolResultEvent(call.call_id, error))

    def _add_error_result(self, message: str) -> None:
        self.events.add_event(ResultEvent(failed=True, error=message))

    def _stats(self, result: PromptResult) -> RunStats:
        tokens = result.tokens
        usage = Usage(
            tokens.input_tokens,
            tokens.output_tokens,
            total_tokens=tokens.total,
            tool_calls=self.tool_calls,
        )
        return RunStats(
            usage, {model: counts.total for model, counts in result.tokens_by_model.items()}
        )
