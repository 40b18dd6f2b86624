"""Convert a Responses request to chat completions, for upstreams that support only those.

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
"""Request fields that only the Responses API has; all others are passed on."""


class UnsupportedByUpstream(UpstreamRejected):
    """The request needs a feature that its upstream does not support."""

    def __init__(self, problem: str, param: str) -> None:
        error = {
            "message": f"{problem}: the upstream of this model supports chat completions only.",
            "type": "invalid_request_error",
            "param": param,
            "code": "unsupported_by_upstream",
        }
        body = json.dumps({"error": error}).encode()
        super().__init__(400, [(b"content-type", b"application/json")], body)


def to_chat_request(request: JsonObject) -> JsonObject:
    """Convert the request; raise UnsupportedByUpstream if that is not possible."""
    for name in _NEEDS_STORAGE:
        if request.get(name) is not None:
            raise UnsupportedByUpstream(f"`{name}` requires stored responses", name)
    for name in ("background", "top_logprobs"):
        if request.get(name):
            raise UnsupportedByUpstream(f"`{name}` is not supported", name)
    text = object_or_empty(request.get("text"))
    converted: JsonObject = {
        "messages": _chat_messages(request),
        "max_tokens": request.get("max_output_tokens"),
        "reasoning_effort": object_or_empty(request.get("reasoning")).get("effort"),
        "verbosity": text.get("verbosity"),
        "response_format": _chat_response_format(object_or_empty(text.get("format"))),
        "tools": [_chat_tool(object_or_empty(tool)) for tool in list_or_empty(request.get("tools"))]
        or None,
        "tool_choice": _chat_tool_choice(request.get("tool_choice")),
        "stream_options": {"include_usage": True} if request.get("stream") else None,
    }
    shared_fields = {
        name: value for name, value in request.items() if name not in _RESPONSES_ONLY_FIELDS
    }
    return shared_fields | {name: value for name, value in converted.items() if value is not None}


def _chat_messages(request: JsonObject) -> list[JsonObject]:
    messages: list[JsonObject] = []
    if instructions := request.get("instructions"):
        messages.append({"role": "system", "content": str(instructions)})
    response_input = request.get("input")
    if isinstance(response_input, str):
        return [*messages, {"role": "user", "content": response_input}]
    if not isinstance(response_input, list) or not response_input:
        raise UnsupportedByUpstream("`input` must be a string or a list of items", "input")
    trailing_texts: dict[int, list[str]] = {}
    """Assistant text after its calls, by the index of the message with the calls."""
    for index, item in enumerate(map(object_or_empty, list_or_empty(request["input"]))):
        if not item:
            raise UnsupportedByUpstream("Items must be objects", f"input[{index}]")
        _add_item(messages, trailing_texts, item, f"input[{index}]")
    for index, texts in trailing_texts.items():
        messages[index]["content"] = "\n\n".join(filter(None, [messages[index]["content"], *texts]))
    return messages


def _add_item(
    messages: list[JsonObject],
    trailing_texts: dict[int, list[str]],
    item: JsonObject,
    location: str,
) -> None:
    """Add an item to the messages, or its text to the trailing texts of the last message."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = _ROLES.get(str(item.get("role")), "user")
        text = _content_text(item.get("content"), f"{location}.content")
        last_message = messages[-1] if messages else {}
        if role == "assistant" and last_message.get("tool_calls"):  # the results follow later
            trailing_texts.setdefault(len(messages) - 1, []).append(text)
        else:
            messages.append({"role": role, "content": text})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": str(item.get("arguments") or "")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last_message = messages[-1] if messages else {}
        if last_message.get("role") == "assistant":  # one message holds all calls of a turn
            last_message.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        output = _content_text(item.get("output"), f"{location}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind not in ("web_search_call", "reasoning"):  # dropped: later text reflects them
        raise UnsupportedByUpstream(f"Items of type `{kind}` are not supported", location)


def _content_text(content: object, location: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UnsupportedByUpstream("Content must be a string or a list of parts", location)
    texts: list[str] = []
    for part in map(object_or_empty, cast("list[object]", content)):
        if part.get("type") not in (*_TEXT_TYPES, "refusal"):
            raise UnsupportedByUpstream(
                f"Content of type `{part.get('type')}` is not supported", location
            )
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def _chat_tool(tool: JsonObject) -> JsonObject:
    if is_hosted_search_tool(tool):
        return tool
    if tool.get("type") != "function":
        raise UnsupportedByUpstream(
            f"Tools of type `{tool.get('type')}` are not supported", "tools"
        )
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _chat_tool_choice(choice: object) -> object:
    choice_object = object_or_empty(choice)
    if choice_object.get("type") == "function":
        return {"type": "function", "function": {"name": choice_object.get("name")}}
    if choice_object and not is_hosted_search_tool(choice_object):
        kind = choice_object.get("type")
        raise UnsupportedByUpstream(
            f"A tool_choice of type `{kind}` is not supported", "tool_choice"
        )
    return choice


def _chat_response_format(text_format: JsonObject) -> JsonObject | None:
    if text_format.get("type") == "json_schema":
        schema = {name: value for name, value in text_format.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    if text_format.get("type") not in (None, "text", "json_object"):
        raise UnsupportedByUpstream(
            f"A format of type `{text_format['type']}` is not supported", "text.format"
        )
    return text_format if text_format.get("type") == "json_object" else None
