"""A Responses request as a chat completions request, for upstreams that have nothing else.

What cannot be converted is rejected, never silently dropped.
"""

import json
from typing import cast

from gemini_cli_mcp.gateway.tool_injection import is_hosted_search_tool
from gemini_cli_mcp.gateway.upstream_client import UpstreamRejected
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_TYPES = ("input_text", "output_text", "text")
_NEEDS_STORAGE = ("previous_response_id", "conversation", "prompt")
_RESPONSES_ONLY_FIELDS = {
    *("background", "conversation", "include", "input", "instructions", "max_output_tokens"),
    *("max_tool_calls", "metadata", "previous_response_id", "prompt", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "store"),
    *("stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation", "moderation"),
}
"""Fields of a request that only the Responses API has; all others pass."""


class UnsupportedByUpstream(UpstreamRejected):
    """The request wants what this upstream cannot do."""

    def __init__(self, what: str, param: str) -> None:
        error = {
            "message": f"{what}: the upstream of this model knows chat completions alone.",
            "type": "invalid_request_error",
            "param": param,
            "code": "unsupported_by_upstream",
        }
        body = json.dumps({"error": error}).encode()
        super().__init__(400, [(b"content-type", b"application/json")], body)


def to_chat_request(request: JsonObject) -> JsonObject:
    """The request as one of chat completions; Unsupported if it cannot be one."""
    for name in _NEEDS_STORAGE:
        if request.get(name) is not None:
            raise UnsupportedByUpstream(f"`{name}` needs responses that are stored", name)
    for name in ("background", "top_logprobs"):
        if request.get(name):
            raise UnsupportedByUpstream(f"`{name}` is not possible", name)
    text = object_or_empty(request.get("text"))
    converted: JsonObject = {
        "messages": _messages(request),
        "max_tokens": request.get("max_output_tokens"),
        "reasoning_effort": object_or_empty(request.get("reasoning")).get("effort"),
        "verbosity": text.get("verbosity"),
        "response_format": _chat_response_format(object_or_empty(text.get("format"))),
        "tools": [_chat_tool(object_or_empty(tool)) for tool in list_or_empty(request.get("tools"))]
        or None,
        "tool_choice": _chat_tool_choice(request.get("tool_choice")),
        "stream_options": {"include_usage": True} if request.get("stream") else None,
    }
    passed_fields = {
        name: value for name, value in request.items() if name not in _RESPONSES_ONLY_FIELDS
    }
    return passed_fields | {name: value for name, value in converted.items() if value is not None}


def _messages(request: JsonObject) -> list[JsonObject]:
    messages: list[JsonObject] = []
    if instructions := request.get("instructions"):
        messages.append({"role": "system", "content": str(instructions)})
    response_input = request.get("input")
    if isinstance(response_input, str):
        return [*messages, {"role": "user", "content": response_input}]
    if not isinstance(response_input, list) or not response_input:
        raise UnsupportedByUpstream("`input` must be a text or a list of items", "input")
    texts: dict[int, list[str]] = {}
    """What an assistant said after its calls, by the place of the message with the calls."""
    for index, item in enumerate(map(object_or_empty, list_or_empty(request["input"]))):
        if not item:
            raise UnsupportedByUpstream("An item must be an object", f"input[{index}]")
        _add_item(messages, texts, item, f"input[{index}]")
    for index, later_texts in texts.items():
        messages[index]["content"] = "\n\n".join(
            filter(None, [messages[index]["content"], *later_texts])
        )
    return messages


def _add_item(
    messages: list[JsonObject], texts: dict[int, list[str]], item: JsonObject, location: str
) -> None:
    """Add an item to the messages, or its text to those that belong to one of them."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = _ROLES.get(str(item.get("role")), "user")
        text = _text(item.get("content"), f"{location}.content")
        last = messages[-1] if messages else {}
        if role == "assistant" and last.get("tool_calls"):  # its results are still to come
            texts.setdefault(len(messages) - 1, []).append(text)
        else:
            messages.append({"role": role, "content": text})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": str(item.get("arguments") or "")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":  # calls of one turn stand in one message
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        output = _text(item.get("output"), f"{location}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind not in ("web_search_call", "reasoning"):  # these two are told in other words
        raise UnsupportedByUpstream(f"An item of the type `{kind}` is not possible", location)


def _text(content: object, location: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UnsupportedByUpstream("Content must be a text or a list of parts", location)
    texts: list[str] = []
    for part in map(object_or_empty, cast("list[object]", content)):
        if part.get("type") not in (*_TEXT_TYPES, "refusal"):
            raise UnsupportedByUpstream(
                f"Content of the type `{part.get('type')}` is not possible", location
            )
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def _chat_tool(tool: JsonObject) -> JsonObject:
    if is_hosted_search_tool(tool):
        return tool
    if tool.get("type") != "function":
        raise UnsupportedByUpstream(
            f"A tool of the type `{tool.get('type')}` is not possible", "tools"
        )
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _chat_tool_choice(choice: object) -> object:
    chosen = object_or_empty(choice)
    if chosen.get("type") == "function":
        return {"type": "function", "function": {"name": chosen.get("name")}}
    if chosen and not is_hosted_search_tool(chosen):
        kind = chosen.get("type")
        raise UnsupportedByUpstream(
            f"A tool_choice of the type `{kind}` is not possible", "tool_choice"
        )
    return choice


def _chat_response_format(kind: JsonObject) -> JsonObject | None:
    if kind.get("type") == "json_schema":
        schema = {name: value for name, value in kind.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    if kind.get("type") not in (None, "text", "json_object"):
        raise UnsupportedByUpstream(
            f"A format of the type `{kind['type']}` is not possible", "text.format"
        )
    return kind if kind.get("type") == "json_object" else None
