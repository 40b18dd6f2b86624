"""What an upstream of the Responses API sends for a scripted answer, as OpenAI's own does."""

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


def response(body: Any, number: int, **more: object) -> Any:
    """A response object with all that the API tells."""
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
        **more,
    }


def events(body: Any, says: "ScriptedReply", number: int) -> list[Any]:
    """All events of one response; the last one holds it."""
    script = _Script(number)
    head = response(body, number)
    script.tell("created", response=head)
    script.tell("in_progress", response=head)
    if says.thought:
        script.think(says.thought)
    if says.text:
        script.speak(says.text)
    for call in says.calls:
        script.call(call)
    for item in says.items:
        script.tell("output_item.added", output_index=len(script.output), item=item)
        script.close(item)
    script.end(head, "incomplete" if says.reason == "length" else says.status_at_end or "completed")
    return script.made


class _Script:
    """Events as they come."""

    def __init__(self, number: int) -> None:
        self.made: list[Any] = []
        self.output: list[Any] = []
        self._number = number

    def tell(self, kind: str, **fields: object) -> None:
        said = {"type": f"response.{kind}", "sequence_number": len(self.made), **fields}
        self.made.append(said)

    def open(self, kind: str, **fields: object) -> Any:
        item_id = f"{kind}_{self._number}_{len(self.output)}"
        item = {"id": item_id, "status": "in_progress", **fields}
        self.tell("output_item.added", output_index=len(self.output), item=item)
        return item

    def close(self, item: Any, **done: object) -> None:
        whole = {**item, "status": "completed", **done}
        self.tell("output_item.done", output_index=len(self.output), item=whole)
        self.output.append(whole)

    def think(self, text: str) -> None:
        item = self.open("rs", type="reasoning", summary=[])
        place = {"item_id": item["id"], "output_index": len(self.output), "summary_index": 0}
        part = {"type": "summary_text", "text": text}
        self.tell("reasoning_summary_part.added", **place, part={**part, "text": ""})
        self.tell("reasoning_summary_text.delta", **place, delta=text)
        self.tell("reasoning_summary_text.done", **place, text=text)
        self.tell("reasoning_summary_part.done", **place, part=part)
        self.close(item, summary=[part])

    def speak(self, text: str) -> None:
        item = self.open("msg", type="message", role="assistant", content=[])
        place = {"item_id": item["id"], "output_index": len(self.output), "content_index": 0}
        part: Any = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.tell("content_part.added", **place, part=part)
        for at in range(0, len(text), 4):
            self.tell("output_text.delta", **place, delta=text[at : at + 4], logprobs=[])
        self.tell("output_text.done", **place, text=text, logprobs=[])
        whole = {**part, "text": text}
        self.tell("content_part.done", **place, part=whole)
        self.close(item, content=[whole])

    def call(self, call: Any) -> None:
        name, arguments = call["function"]["name"], str(call["function"]["arguments"])
        item = self.open("fc", type="function_call", call_id=call["id"], name=name, arguments="")
        place = {"item_id": item["id"], "output_index": len(self.output)}
        middle = len(arguments) // 2
        for piece in (arguments[:middle], arguments[middle:]):
            self.tell("function_call_arguments.delta", **place, delta=piece)
        self.tell("function_call_arguments.done", **place, arguments=arguments)
        self.close(item, arguments=arguments)

    def end(self, head: Any, status: str) -> None:
        done: Any = {"output": self.output, "status": status, "usage": USAGE}
        if status == "failed":
            done["error"] = {"code": "server_error", "message": "It broke."}
        elif status == "incomplete":
            done["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            done["completed_at"] = 1_700_000_100
        self.tell(status, response={**head, **done})
