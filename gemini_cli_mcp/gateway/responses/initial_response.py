"""The response to a request before the upstream has answered."""

import time

from gemini_cli_mcp.gateway.responses.items import new_item_id
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty


def initial_response(request: ResponsesRequest) -> JsonObject:
    """Return a new response to this request, with all fields that the API defines."""
    fields = {name: value for name, value in request.fields.items() if value is not None}
    reasoning = object_or_empty(fields.get("reasoning"))
    text = object_or_empty(fields.get("text"))
    return {
        "id": new_item_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": fields.get("max_tool_calls"),
        "model": fields.get("model"),
        "output": [],
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": False,
        "background": False,
        "service_tier": fields.get("service_tier", "default"),
        "temperature": fields.get("temperature", 1.0),
        "top_p": fields.get("top_p", 1.0),
        "presence_penalty": fields.get("presence_penalty", 0.0),
        "frequency_penalty": fields.get("frequency_penalty", 0.0),
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [_response_tool(tool) for tool in list_or_empty(fields.get("tools"))],
        "truncation": "disabled",
        "usage": None,
        "metadata": object_or_empty(fields.get("metadata")),
        "safety_identifier": fields.get("safety_identifier"),
        "prompt_cache_key": fields.get("prompt_cache_key"),
    }


def _response_tool(value: object) -> object:
    """Return a tool of a request as responses list it."""
    tool = object_or_empty(value)
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}
