"""What one session of a warm process tells, turned into the events of a single run.

So both are understood, and their failures named, in one place.
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
from gemini_cli_mcp.providers.gemini.telemetry import Telemetry

TURN_LIMIT_EXIT_CODE = 53
"""The exit code of a process that reached it."""
_QUERY = re.compile(r'"(.*)"', re.DOTALL)
_TOOLS = {"search": SEARCH_TOOL, "fetch": FETCH_TOOL}


class AcpTurnAdapter:
    """One prompt and all that comes of it."""

    def __init__(self, events: EventLog) -> None:
        self.transcript = events
        self.last_update_at = time.monotonic()
        self._calls: set[str] = set()

    def handle_update(self, update: JsonObject) -> None:
        """Take the next update."""
        self.last_update_at = time.monotonic()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = object_or_empty(update.get("content")).get("text")
                self.transcript.add_event({"type": "message", "role": "assistant", "content": text})
            case "tool_call":
                self._tool_started(update)
            case "tool_call_update":
                self._tool_started(update)
                self._tool_ended(update)
            case _:
                pass

    @property
    def tool_calls(self) -> int:
        """How many tool calls there were."""
        return len(self._calls)

    def run_result(
        self,
        answer: "asyncio.Future[JsonObject]",
        record: SessionRecord | None,
        telemetry: Telemetry | None = None,
    ) -> RunResult:
        """The last event, and how a process of its own would have ended. Raises Lost."""
        code = 0
        try:
            result = answer.result()
        except AcpError as error:
            code = error.code % 256 if error.code >= 400 else 1
            self._add_error_result(error.message)
        else:
            reason = result.get("stopReason")
            if reason == "max_turn_requests":
                code = TURN_LIMIT_EXIT_CODE
                self._add_error_result("")
            elif reason != "end_turn":
                code = 1
                self._add_error_result(f"the turn ended with {reason}")
            elif record is None or record.is_finished:
                stats = self._stats(result)
                self.transcript.add_event({"type": "result", "status": "success", "stats": stats})
            # Else the answer broke off, which it does not say: there is no last event then.
        completed = Completed("exited", code, "")
        return RunResult(completed, self.transcript, record, telemetry, is_official_cli=True)

    def _tool_started(self, call: JsonObject) -> None:
        number, title = str(call.get("toolCallId")), str(call.get("title") or "")
        if number in self._calls:
            return
        self._calls.add(number)
        quoted = _QUERY.search(title)
        argument = quoted[1] if quoted else title
        event = {
            "type": "tool_use",
            "tool_id": number,
            "tool_name": _TOOLS.get(str(call.get("kind"))),
        }
        self.transcript.add_event({**event, "parameters": {"query": argument, "prompt": argument}})

    def _tool_ended(self, call: JsonObject) -> None:
        status = call.get("status")
        if status not in ("completed", "failed"):
            return
        error_text = " ".join(
            str(object_or_empty(object_or_empty(part).get("content")).get("text") or "")
            for part in list_or_empty(call.get("content"))
        )
        event: JsonObject = {"type": "tool_result", "tool_id": str(call.get("toolCallId"))}
        if status == "completed":
            self.transcript.add_event({**event, "status": "success"})
        else:
            self.transcript.add_event(
                {**event, "status": "error", "error": {"message": error_text}}
            )

    def _add_error_result(self, message: str) -> None:
        self.transcript.add_event(
            {"type": "result", "status": "error", "error": {"message": message}}
        )

    def _stats(self, result: JsonObject) -> JsonObject:
        """The tokens of the model's own calls; the CLI does not count the search helper's here."""
        quota = object_or_empty(object_or_empty(result.get("_meta")).get("quota"))
        models = {
            str(used.get("model")): _tokens(object_or_empty(used.get("token_count")))
            for used in map(object_or_empty, list_or_empty(quota.get("model_usage")))
        }
        total = _tokens(object_or_empty(quota.get("token_count")))
        return {**total, "tool_calls": len(self._calls), "models": models}


def _tokens(counts: JsonObject) -> JsonObject:
    input_tokens, output_tokens = (
        int_or_zero(counts.get(name)) for name in ("input_tokens", "output_tokens")
    )
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
