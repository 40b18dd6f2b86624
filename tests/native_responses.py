"""What an upstream of the Responses API sends for a scripted answer, as OpenAI's own does."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.scripted_upstream import Says

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


def events(body: Any, says: "Says", number: int) -> list[Any]:  # noqa: C901 - one after another
    """All events of one response; the last one holds it."""
    made: list[Any] = []
    output: list[Any] = []

    def tell(kind: str, **fields: object) -> None:
        made.append({"type": f"response.{kind}", "sequence_number": len(made), **fields})

    def item_of(kind: str, **fields: object) -> Any:
        return {"id": f"{kind}_{number}_{len(output)}", "status": "in_progress", **fields}

    def close(item: Any, **done: object) -> None:
        whole = {**item, "status": "completed", **done}
        tell("output_item.done", output_index=len(output), item=whole)
        output.append(whole)

    head = response(body, number)
    tell("created", response=head)
    tell("in_progress", response=head)
    if says.thought:
        item = item_of("rs", type="reasoning", summary=[])
        place = {"item_id": item["id"], "output_index": len(output), "summary_index": 0}
        tell("output_item.added", output_index=len(output), item=item)
        summary = {"type": "summary_text", "text": says.thought}
        tell("reasoning_summary_part.added", **place, part={**summary, "text": ""})
        tell("reasoning_summary_text.delta", **place, delta=says.thought)
        tell("reasoning_summary_text.done", **place, text=says.thought)
        tell("reasoning_summary_part.done", **place, part=summary)
        close(item, summary=[summary])
    if says.text:
        item = item_of("msg", type="message", role="assistant", content=[])
        place = {"item_id": item["id"], "output_index": len(output), "content_index": 0}
        tell("output_item.added", output_index=len(output), item=item)
        part: Any = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        tell("content_part.added", **place, part=part)
        for at in range(0, len(says.text), 4):
            tell("output_text.delta", **place, delta=says.text[at : at + 4], logprobs=[])
        tell("output_text.done", **place, text=says.text, logprobs=[])
        whole = {**part, "text": says.text}
        tell("content_part.done", **place, part=whole)
        close(item, content=[whole])
    for call in says.calls:
        name, arguments = call["function"]["name"], str(call["function"]["arguments"])
        item = item_of("fc", type="function_call", call_id=call["id"], name=name, arguments="")
        place = {"item_id": item["id"], "output_index": len(output)}
        tell("output_item.added", output_index=len(output), item=item)
        middle = len(arguments) // 2
        for piece in (arguments[:middle], arguments[middle:]):
            tell("function_call_arguments.delta", **place, delta=piece)
        tell("function_call_arguments.done", **place, arguments=arguments)
        close(item, arguments=arguments)
    for whole_item in says.items:
        tell("output_item.added", output_index=len(output), item=whole_item)
        close(whole_item)
    status = "incomplete" if says.reason == "length" else says.status_at_end or "completed"
    done: Any = {"output": output, "status": status, "usage": USAGE}
    if status == "failed":
        done["error"] = {"code": "server_error", "message": "It broke."}
    if status == "incomplete":
        done["incomplete_details"] = {"reason": "max_output_tokens"}
    else:
        done["completed_at"] = 1_700_000_100
    tell(status, response={**head, **done})
    return made
