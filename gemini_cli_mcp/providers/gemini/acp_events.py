"""What one session of a warm process tells, turned into the events of a single run.

So both are understood, and their failures named, in one place.
"""

import asyncio
import re
import time

from gemini_cli_mcp.json_values import Object, as_count, as_list, as_object
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.acp_client import Refused
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, Transcript
from gemini_cli_mcp.providers.gemini.run_result import Finished
from gemini_cli_mcp.providers.gemini.session_record import Record
from gemini_cli_mcp.providers.gemini.telemetry import Telemetry

TURN_LIMIT = 53
"""The exit code of a process that reached it."""
_QUERY = re.compile(r'"(.*)"', re.DOTALL)
_TOOLS = {"search": SEARCH_TOOL, "fetch": FETCH_TOOL}


class Turn:
    """One prompt and all that comes of it."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.last_heard = time.monotonic()
        self._calls: set[str] = set()

    def hear(self, update: Object) -> None:
        """Take the next update."""
        self.last_heard = time.monotonic()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                text = as_object(update.get("content")).get("text")
                self.transcript.take({"type": "message", "role": "assistant", "content": text})
            case "tool_call":
                self._begin(update)
            case "tool_call_update":
                self._begin(update)
                self._finish(update)
            case _:
                pass

    @property
    def tool_calls(self) -> int:
        """How many tool calls there were."""
        return len(self._calls)

    def finished(
        self,
        answer: "asyncio.Future[Object]",
        record: Record | None,
        telemetry: Telemetry | None = None,
    ) -> Finished:
        """The last event, and how a process of its own would have ended. Raises Lost."""
        code = 0
        try:
            result = answer.result()
        except Refused as error:
            code = error.code % 256 if error.code >= 400 else 1
            self._fail(error.message)
        else:
            reason = result.get("stopReason")
            if reason == "max_turn_requests":
                code = TURN_LIMIT
                self._fail("")
            elif reason != "end_turn":
                code = 1
                self._fail(f"the turn ended with {reason}")
            elif record is None or record.finished:
                stats = self._stats(result)
                self.transcript.take({"type": "result", "status": "success", "stats": stats})
            # Else the answer broke off, which it does not say: there is no last event then.
        completed = Completed("exited", code, "")
        return Finished(completed, self.transcript, record, telemetry, official=True)

    def _begin(self, call: Object) -> None:
        number, title = str(call.get("toolCallId")), str(call.get("title") or "")
        if number in self._calls:
            return
        self._calls.add(number)
        quoted = _QUERY.search(title)
        asked = quoted[1] if quoted else title
        event = {
            "type": "tool_use",
            "tool_id": number,
            "tool_name": _TOOLS.get(str(call.get("kind"))),
        }
        self.transcript.take({**event, "parameters": {"query": asked, "prompt": asked}})

    def _finish(self, call: Object) -> None:
        status = call.get("status")
        if status not in ("completed", "failed"):
            return
        said = " ".join(
            str(as_object(as_object(part).get("content")).get("text") or "")
            for part in as_list(call.get("content"))
        )
        event: Object = {"type": "tool_result", "tool_id": str(call.get("toolCallId"))}
        if status == "completed":
            self.transcript.take({**event, "status": "success"})
        else:
            self.transcript.take({**event, "status": "error", "error": {"message": said}})

    def _fail(self, message: str) -> None:
        self.transcript.take({"type": "result", "status": "error", "error": {"message": message}})

    def _stats(self, result: Object) -> Object:
        """The tokens of the model's own calls; the CLI does not count the search helper's here."""
        quota = as_object(as_object(result.get("_meta")).get("quota"))
        models = {
            str(used.get("model")): _tokens(as_object(used.get("token_count")))
            for used in map(as_object, as_list(quota.get("model_usage")))
        }
        total = _tokens(as_object(quota.get("token_count")))
        return {**total, "tool_calls": len(self._calls), "models": models}


def _tokens(counted: Object) -> Object:
    taken, given = (as_count(counted.get(name)) for name in ("input_tokens", "output_tokens"))
    return {"input_tokens": taken, "output_tokens": given, "total_tokens": taken + given}
