"""Convert a Responses request to chat completions, for upstreams that support only those.

What cannot be converted is rejected, never silently dropped.
"""

import json
from dataclasses import dataclass, field

from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
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
        message = f"{problem}: the upstream of this model supports chat completions only."
        error = ApiError.of(message, "invalid_request_error", "unsupported_by_upstream", param)
        body = json.dumps({"error": error.fields}).encode()
        super().__init__(400, [(b"content-type", b"application/json")], body)


@dataclass(frozen=True)
class _ChatCall:
    """A tool call; id and name as the client sent them."""

    id: object
    name: object
    arguments: str


@dataclass
class _ChatMessage:
    """A chat message, to which the next items may still be added."""

    role: str
    content: str | None = None
    calls: list[_ChatCall] = field(default_factory=list[_ChatCall])
    trailing_texts: list[str] = field(default_factory=list[str])
    """Assistant text after its calls: their results have to follow the message at once."""
    tool_call_id: object = None
    """As the client sent it, in a message with the result of a tool."""

    def as_json(self) -> JsonObject:
        if self.role == "tool":
            identity = {"role": self.role, "tool_call_id": self.tool_call_id}
            return {**identity, "content": self.content}
        content = self.content
        if self.trailing_texts:
            content = "\n\n".join(filter(None, [self.content, *self.trailing_texts]))
        message = {"role": self.role, "content": content}
        if not self.calls:
            return {**message}
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.calls
        ]
        return {**message, "tool_calls": calls}


def to_chat_request(request: ResponsesRequest) -> JsonObject:
    """Convert the request; raise UnsupportedByUpstream if that is not possible."""
    fields = request.fields
    for name in _NEEDS_STORAGE:
        if fields.get(name) is not None:
            raise UnsupportedByUpstream(f"`{name}` requires stored responses", name)
    for name in ("background", "top_logprobs"):
        if fields.get(name):
            raise UnsupportedByUpstream(f"`{name}` is not supported", name)
    text = object_or_empty(fields.get("text"))
    messages = _chat_messages(fields.get("instructions"), fields.get("input"))
    converted = {
        "messages": [message.as_json() for message in messages],
        "max_tokens": fields.get("max_output_tokens"),
        "reasoning_effort": object_or_empty(fields.get("reasoning")).get("effort"),
        "verbosity": text.get("verbosity"),
        "response_format": _chat_response_format(text.get("format")),
        "tools": [_chat_tool(tool) for tool in list_or_empty(fields.get("tools"))] or None,
        "tool_choice": _chat_tool_choice(fields.get("tool_choice")),
        "stream_options": {"include_usage": True} if request.stream else None,
    }
    shared_fields = {
        name: value for name, value in fields.items() if name not in _RESPONSES_ONLY_FIELDS
    }
    return shared_fields | {name: value for name, value in converted.items() if value is not None}


def _chat_messages(instructions: object, response_input: object) -> list[_ChatMessage]:
    messages: list[_ChatMessage] = []
    if instructions:
        messages.append(_ChatMessage("system", str(instructions)))
    if isinstance(response_input, str):
        return [*messages, _ChatMessage("user", response_input)]
    items = list_or_empty(response_input)
    if not items:
        raise UnsupportedByUpstream("`input` must be a string or a list of items", "input")
    for index, item in enumerate(items):
        if not object_or_empty(item):
            raise UnsupportedByUpstream("Items must be objects", f"input[{index}]")
        _add_item(messages, item, f"input[{index}]")
    return messages


def _add_item(messages: list[_ChatMessage], value: object, location: str) -> None:
    """Add an item as a message, or to the last message."""
    item = object_or_empty(value)
    kind = item.get("type") or "message"
    if kind == "message":
        text = _content_text(item.get("content"), f"{location}.content")
        _add_text(messages, _ROLES.get(str(item.get("role")), "user"), text)
    elif kind == "function_call":
        arguments = str(item.get("arguments") or "")
        if not messages or messages[-1].role != "assistant":
            messages.append(_ChatMessage("assistant"))
        # One message holds all calls of a turn.
        messages[-1].calls.append(_ChatCall(item.get("call_id"), item.get("name"), arguments))
    elif kind == "function_call_output":
        output = _content_text(item.get("output"), f"{location}.output")
        messages.append(_ChatMessage("tool", output, tool_call_id=item.get("call_id")))
    elif kind not in ("web_search_call", "reasoning"):  # dropped: later text reflects them
        raise UnsupportedByUpstream(f"Items of type `{kind}` are not supported", location)


def _add_text(messages: list[_ChatMessage], role: str, text: str) -> None:
    if role == "assistant" and messages and messages[-1].calls:  # the results follow later
        messages[-1].trailing_texts.append(text)
    else:
        messages.append(_ChatMessage(role, text))


def _content_text(content: object, location: str) -> str:
    if isinstance(content, str):
        return content
    parts = list_or_empty(content)
    if not parts and content != []:
        raise UnsupportedByUpstream("Content must be a string or a list of parts", location)
    texts: list[str] = []
    for part in map(object_or_empty, parts):
        if part.get("type") not in (*_TEXT_TYPES, "refusal"):
            raise UnsupportedByUpstream(
                f"Content of type `{part.get('type')}` is not supported", location
            )
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def _chat_tool(value: object) -> object:
    tool = object_or_empty(value)
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


def _chat_response_format(value: object) -> object:
    """Return the format as chat completions express it; None for text, the default."""
    text_format = object_or_empty(value)
    match text_format.get("type"):
        case None | "text":
            return None
        case "json_object":
            return text_format
        case "json_schema":
            schema = {name: value for name, value in text_format.items() if name != "type"}
            return {"type": "json_schema", "json_schema": schema}
        case kind:
            raise UnsupportedByUpstream(
                f"A format of type `{kind}` is not supported", "text.format"
            )
