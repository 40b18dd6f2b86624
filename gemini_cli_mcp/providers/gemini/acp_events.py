"""Translate the updates of an ACP session into the events of a dedicated run.

Both kinds of run can then share the code that interprets events and classifies failures.
"""

import asyncio
import re
import time

from gemini_cli_mcp.json_values import JsonObject, int_or_zero, list_or_empty, object_or_empty
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.acp_client import AcpError
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, EventLog
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord
from gemini_cli_mcp.providers.gemini.telemetry_reader import Telemetry

TURN_LIMIT_EXIT_CODE = 53
"""Exit code of a dedicated run that reaches the turn limit."""
_QUOTED = re.compile(r'"(.*)"', re.DOTALL)
_TOOLS = {"search": SEARCH_TOOL, "fetch": FETCH_TOOL}


class AcpTurnAdapter:
    """Collect the updates of one turn in an event log."""

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self.last_update_at = time.monotonic()
        self._tool_call_ids: set[str] = set()

    def handle_update(self, update: JsonObject) -> None:
        self.last_update_at = time.monotonic()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = object_or_empty(update.get("content")).get("text")
                self.events.add_event({"type": "message", "role": "assistant", "content": text})
            case "tool_call":
                self._handle_tool_start(update)
            case "tool_call_update":
                self._handle_tool_start(update)
                self._handle_tool_end(update)
            case _:
                pass

    @property
    def tool_calls(self) -> int:
        return len(self._tool_call_ids)

    def run_result(
        self,
        response: "asyncio.Future[JsonObject]",
        record: SessionRecord | None,
        telemetry: Telemetry | None = None,
    ) -> RunResult:
        """Add the final event and return the result that a dedicated run would have had.

        Raises AgentUnavailable if the process exited during the turn.
        """
        exit_code = 0
        try:
            result = response.result()
        except AcpError as error:
            exit_code = error.code % 256 if error.code >= 400 else 1
            self._add_error_result(error.message)
        else:
            stop_reason = result.get("stopReason")
            if stop_reason == "max_turn_requests":
                exit_code = TURN_LIMIT_EXIT_CODE
                self._add_error_result("")
            elif stop_reason != "end_turn":
                exit_code = 1
                self._add_error_result(f"the turn ended with stop reason {stop_reason}")
            elif record is None or record.is_finished:
                stats = self._stats(result)
                self.events.add_event({"type": "result", "status": "success", "stats": stats})
            # Otherwise the answer was cut off without an error, so there is no final event.
        completed = Completed("exited", exit_code, "")
        return RunResult(completed, self.events, record, telemetry, is_official_cli=True)

    def _handle_tool_start(self, call: JsonObject) -> None:
        call_id, title = str(call.get("toolCallId")), str(call.get("title") or "")
        if call_id in self._tool_call_ids:
            return
        self._tool_call_ids.add(call_id)
        match = _QUOTED.search(title)
        argument = match[1] if match else title
        event = {
            "type": "tool_use",
            "tool_id": call_id,
            "tool_name": _TOOLS.get(str(call.get("kind"))),
        }
        self.events.add_event({**event, "parameters": {"query": argument, "prompt": argument}})

    def _handle_tool_end(self, call: JsonObject) -> None:
        status = call.get("status")
        if status not in ("completed", "failed"):
            return
        error_text = " ".join(
            str(object_or_empty(object_or_empty(part).get("content")).get("text") or "")
            for part in list_or_empty(call.get("content"))
        )
        event: JsonObject = {"type": "tool_result", "tool_id": str(call.get("toolCallId"))}
        if status == "completed":
            self.events.add_event({**event, "status": "success"})
        else:
            self.events.add_event({**event, "status": "error", "error": {"message": error_text}})

    def _add_error_result(self, message: str) -> None:
        self.events.add_event({"type": "result", "status": "error", "error": {"message": message}})

    def _stats(self, result: JsonObject) -> JsonObject:
        """Token counts of the main model; the CLI does not include the search helper here."""
        quota = object_or_empty(object_or_empty(result.get("_meta")).get("quota"))
        models = {
            str(usage.get("model")): _token_counts(object_or_empty(usage.get("token_count")))
            for usage in map(object_or_empty, list_or_empty(quota.get("model_usage")))
        }
        total = _token_counts(object_or_empty(quota.get("token_count")))
        return {**total, "tool_calls": len(self._tool_call_ids), "models": models}


def _token_counts(counts: JsonObject) -> JsonObject:
    input_tokens, output_tokens = (
        int_or_zero(counts.get(name)) for name in ("input_tokens", "output_tokens")
    )
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
