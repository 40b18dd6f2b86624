"""The Responses API events that OpenAI would send for a scripted reply."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.scripted_upstream import ScriptedReply

USAGE: Any = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 15,
}


def response(body: Any, number: int, **fields: object) -> Any:
    """Return a response object with all fields that the API sends."""
    return {
        "id": f"resp_{body['model']}_{number}",
        "object": "response",
        "created_at": 1_700_000_000 + number,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": None,
        "max_tool_calls": body.get("max_tool_calls"),
        "model": body["model"],
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": body.get("store", True),
        "background": False,
        "service_tier": "default",
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": [{"description": None, **tool} for tool in body.get("tools", [])],
        "truncation": "disabled",
        "usage": None,
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        **fields,
    }


def events(body: Any, reply: "ScriptedReply", number: int) -> list[Any]:
    """Return all events of one response; the last one contains the whole response."""
    builder = _EventBuilder(number)
    initial = response(body, number)
    builder.emit("created", response=initial)
    builder.emit("in_progress", response=initial)
    if reply.thought:
        builder.add_reasoning(reply.thought)
    if reply.text:
        builder.add_message(reply.text)
    for call in reply.calls:
        builder.add_call(call)
    for item in reply.items:
        builder.emit("output_item.added", output_index=len(builder.output), item=item)
        builder.close(item)
    builder.finish(
        initial, "incomplete" if reply.reason == "length" else reply.status_at_end or "completed"
    )
    return builder.events


class _EventBuilder:
    """Collects the events of one response in order."""

    def __init__(self, number: int) -> None:
        self.events: list[Any] = []
        self.output: list[Any] = []
        self._number = number

    def emit(self, kind: str, **fields: object) -> None:
        event = {"type": f"response.{kind}", "sequence_number": len(self.events), **fields}
        self.events.append(event)

    def open(self, kind: str, **fields: object) -> Any:
        item_id = f"{kind}_{self._number}_{len(self.output)}"
        item = {"id": item_id, "status": "in_progress", **fields}
        self.emit("output_item.added", output_index=len(self.output), item=item)
        return item

    def close(self, item: Any, **fields: object) -> None:
        completed = {**item, "status": "completed", **fields}
        self.emit("output_item.done", output_index=len(self.output), item=completed)
        self.output.append(completed)

    def add_reasoning(self, text: str) -> None:
        item = self.open("rs", type="reasoning", summary=[])
        position = {"item_id": item["id"], "output_index": len(self.output), "summary_index": 0}
        part = {"type": "summary_text", "text": text}
        self.emit("reasoning_summary_part.added", **position, part={**part, "text": ""})
        self.emit("reasoning_summary_text.delta", **position, delta=text)
        self.emit("reasoning_summary_text.done", **position, text=text)
        self.emit("reasoning_summary_part.done", **position, part=part)
        self.close(item, summary=[part])

    def add_message(self, text: str) -> None:
        item = self.open("msg", type="message", role="assistant", content=[])
        position = {"item_id": item["id"], "output_index": len(self.output), "content_index": 0}
        part: Any = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.emit("content_part.added", **position, part=part)
        for start in range(0, len(text), 4):
            self.emit("output_text.delta", **position, delta=text[start : start + 4], logprobs=[])
        self.emit("output_text.done", **position, text=text, logprobs=[])
        completed = {**part, "text": text}
        self.emit("content_part.done", **position, part=completed)
        self.close(item, content=[completed])

    def add_call(self, call: Any) -> None:
        name, arguments = call["function"]["name"], str(call["function"]["arguments"])
        item = self.open("fc", type="function_call", call_id=call["id"], name=name, arguments="")
        position = {"item_id": item["id"], "output_index": len(self.output)}
        middle = len(arguments) // 2
        for delta in (arguments[:middle], arguments[middle:]):
            self.emit("function_call_arguments.delta", **position, delta=delta)
        self.emit("function_call_arguments.done", **position, arguments=arguments)
        self.close(item, arguments=arguments)

    def finish(self, initial: Any, status: str) -> None:
        fields: Any = {"output": self.output, "status": status, "usage": USAGE}
        if status == "failed":
            fields["error"] = {"code": "server_error", "message": "It broke."}
        elif status == "incomplete":
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            fields["completed_at"] = 1_700_000_100
        self.emit(status, response={**initial, **fields})
