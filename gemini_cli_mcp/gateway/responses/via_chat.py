"""The Responses API on an upstream that knows chat completions alone.

Text, functions and streams are converted; what cannot be is refused, never left out in silence.
"""

import json
import time
from collections.abc import Sequence
from secrets import token_hex
from typing import cast

from gemini_cli_mcp.gateway.response_writer import Outlet
from gemini_cli_mcp.gateway.responses.builder import Splice
from gemini_cli_mcp.gateway.search_runner import Searches
from gemini_cli_mcp.gateway.tool_calls import Call
from gemini_cli_mcp.gateway.tool_injection import is_hosted
from gemini_cli_mcp.gateway.tool_loop import Round
from gemini_cli_mcp.gateway.upstream_client import Headers, Refused
from gemini_cli_mcp.json_values import Object, as_count, as_list, as_object

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = ("input_text", "output_text", "text")
_STORED = ("previous_response_id", "conversation", "prompt")
_TAKEN = {
    *("background", "conversation", "include", "input", "instructions", "max_output_tokens"),
    *("max_tool_calls", "metadata", "previous_response_id", "prompt", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "store"),
    *("stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation", "moderation"),
}
"""Fields of a request that only the Responses API has; all others pass."""


class Unsupported(Refused):
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


def as_chat(request: Object) -> Object:
    """The request as one of chat completions; Unsupported if it cannot be one."""
    for name in _STORED:
        if request.get(name) is not None:
            raise Unsupported(f"`{name}` needs responses that are stored", name)
    for name in ("background", "top_logprobs"):
        if request.get(name):
            raise Unsupported(f"`{name}` is not possible", name)
    text = as_object(request.get("text"))
    converted: Object = {
        "messages": _messages(request),
        "max_tokens": request.get("max_output_tokens"),
        "reasoning_effort": as_object(request.get("reasoning")).get("effort"),
        "verbosity": text.get("verbosity"),
        "response_format": _format(as_object(text.get("format"))),
        "tools": [_tool(as_object(tool)) for tool in as_list(request.get("tools"))] or None,
        "tool_choice": _choice(request.get("tool_choice")),
        "stream_options": {"include_usage": True} if request.get("stream") else None,
    }
    passed = {name: value for name, value in request.items() if name not in _TAKEN}
    return passed | {name: value for name, value in converted.items() if value is not None}


def _messages(request: Object) -> list[Object]:
    messages: list[Object] = []
    if instructions := request.get("instructions"):
        messages.append({"role": "system", "content": str(instructions)})
    given = request.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise Unsupported("`input` must be a text or a list of items", "input")
    texts: dict[int, list[str]] = {}
    """What an assistant said after its calls, by the place of the message with the calls."""
    for place, item in enumerate(map(as_object, as_list(request["input"]))):
        if not item:
            raise Unsupported("An item must be an object", f"input[{place}]")
        _add(messages, texts, item, f"input[{place}]")
    for place, more in texts.items():
        messages[place]["content"] = "\n\n".join(filter(None, [messages[place]["content"], *more]))
    return messages


def _add(messages: list[Object], texts: dict[int, list[str]], item: Object, place: str) -> None:
    """Add an item to the messages, or its text to those that belong to one of them."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = _ROLES.get(str(item.get("role")), "user")
        text = _text(item.get("content"), f"{place}.content")
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
        said = _text(item.get("output"), f"{place}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": said})
    elif kind not in ("web_search_call", "reasoning"):  # these two are told in other words
        raise Unsupported(f"An item of the type `{kind}` is not possible", place)


def _text(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unsupported("Content must be a text or a list of parts", place)
    texts: list[str] = []
    for part in map(as_object, cast("list[object]", content)):
        if part.get("type") not in (*_TEXTS, "refusal"):
            raise Unsupported(f"Content of the type `{part.get('type')}` is not possible", place)
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def _tool(tool: Object) -> Object:
    if is_hosted(tool):
        return tool
    if tool.get("type") != "function":
        raise Unsupported(f"A tool of the type `{tool.get('type')}` is not possible", "tools")
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: object) -> object:
    chosen = as_object(choice)
    if chosen.get("type") == "function":
        return {"type": "function", "function": {"name": chosen.get("name")}}
    if chosen and not is_hosted(chosen):
        kind = chosen.get("type")
        raise Unsupported(f"A tool_choice of the type `{kind}` is not possible", "tool_choice")
    return choice


def _format(kind: Object) -> Object | None:
    if kind.get("type") == "json_schema":
        schema = {name: value for name, value in kind.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    if kind.get("type") not in (None, "text", "json_object"):
        raise Unsupported(f"A format of the type `{kind['type']}` is not possible", "text.format")
    return kind if kind.get("type") == "json_object" else None


class Converted:
    """Listens to rounds of chat completions, and makes items of the Responses API of them."""

    def __init__(self, splice: Splice, searches: Searches, outlet: Outlet | None = None) -> None:
        self.headers: Headers = []
        self._splice = splice
        self._found = searches
        self._outlet = outlet
        self._place: int | None = None
        """Of the item that grows."""
        self._refusal: int | None = None
        """Of the message that refuses."""
        self._calls: dict[int, int] = {}
        """The places of the client's calls in this round, by their numbers."""
        self._pieces: dict[int, list[str]] = {}
        """What items that grow have got so far, by their places."""

    async def begins(self, headers: Headers) -> None:
        self.headers = headers
        if self._outlet:
            await self._outlet.open(headers)
        if not self._splice.response:
            await self._splice.begin(self._splice.blank)

    async def hears(self, chunk: Object, delta: Object) -> None:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str):
            await self._grow("reasoning", thought)
        if text := delta.get("content"):
            await self._grow("message", str(text))
        if refusal := delta.get("refusal"):
            await self._refuse(str(refusal))
        for call in map(as_object, as_list(delta.get("tool_calls"))):
            await self._call(call)

    async def searches(self, calls: Sequence[Call]) -> None:
        await self._finish_round()
        await self._splice.searches(calls)

    async def finds(self, calls: Sequence[Call], results: Sequence[Object]) -> None:
        await self._splice.finds(calls, results)

    async def end(self, last: Round, usage: Object) -> Object:
        """The whole response."""
        await self._finish_round()
        if last.ours and not last.theirs and not last.message.get("content"):
            await self._splice.message(self._found.as_answer(), self._found.hits)
        told: Object = {"usage": _usage(usage)} if usage else {}
        if last.finish_reason in ("length", "content_filter"):
            reason = "max_output_tokens" if last.finish_reason == "length" else "content_filter"
            told |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return await self._splice.end(**told)

    async def _grow(self, kind: str, text: str) -> None:
        """More text of a message, or of the reasoning before it."""
        place = self._place
        if place is None or self._splice.output[place]["type"] != kind:
            await self._finish()
            place = await (self._open_message() if kind == "message" else self._open_reasoning())
            self._place = place
        self._pieces.setdefault(place, []).append(text)
        if kind == "message":
            await self._tell("output_text.delta", place, content_index=0, delta=text, logprobs=[])
        else:
            await self._tell("reasoning_summary_text.delta", place, summary_index=0, delta=text)

    async def _open_message(self) -> int:
        part: Object = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item = {"id": _id("msg"), "type": "message", "role": "assistant", "status": "in_progress"}
        place = await self._splice.open({**item, "content": []})
        await self._tell("content_part.added", place, content_index=0, part=part)
        self._splice.output[place] = {**item, "content": [dict(part)]}
        return place

    async def _open_reasoning(self) -> int:
        part = {"type": "summary_text", "text": ""}
        item = {"id": _id("rs"), "type": "reasoning", "status": "in_progress"}
        place = await self._splice.open({**item, "summary": []})
        await self._tell("reasoning_summary_part.added", place, summary_index=0, part=part)
        self._splice.output[place] = {**item, "summary": [dict(part)]}
        return place

    async def _refuse(self, text: str) -> None:
        """More of a refusal, which is a part of a message of its own."""
        place = self._refusal
        if place is None:
            await self._finish()
            item = {"id": _id("msg"), "type": "message", "role": "assistant"}
            place = self._refusal = await self._splice.open(
                {**item, "status": "in_progress", "content": []}
            )
            part = {"type": "refusal", "refusal": ""}
            await self._tell("content_part.added", place, content_index=0, part=part)
            self._splice.output[place] = {**item, "status": "in_progress", "content": [part]}
        self._pieces.setdefault(place, []).append(text)
        await self._tell("refusal.delta", place, content_index=0, delta=text)

    async def _finish_refusal(self) -> None:
        place, self._refusal = self._refusal, None
        if place is None:
            return
        self._join(place)
        item = self._splice.output[place]
        part = item["content"][0]
        await self._tell("refusal.done", place, content_index=0, refusal=part["refusal"])
        await self._tell("content_part.done", place, content_index=0, part=part)
        await self._splice.close(place, {**item, "status": "completed"})

    async def _call(self, delta: Object) -> None:
        """A call of the client's own, or more of one. Several may grow at a time."""
        number = as_count(delta.get("index"))
        function = as_object(delta.get("function"))
        if number not in self._calls:
            await self._finish()
            item: Object = {
                "id": _id("fc"),
                "type": "function_call",
                "call_id": delta.get("id"),
                "name": function.get("name"),
                "arguments": "",
                "status": "in_progress",
            }
            self._calls[number] = await self._splice.open(item)
        place = self._calls[number]
        if piece := str(function.get("arguments") or ""):
            self._pieces.setdefault(place, []).append(piece)
            await self._tell("function_call_arguments.delta", place, delta=piece)

    async def _finish(self) -> None:
        """Close the text that grows."""
        if self._place is None:
            return
        place, self._place = self._place, None
        self._join(place)
        item: Object = {**self._splice.output[place], "status": "completed"}
        if item["type"] == "message":
            where = {"item_id": item["id"], "output_index": place, "content_index": 0}
            hits = self._found.hits
            item["content"] = [await self._splice.finish_text(item["content"][0], hits, **where)]
        else:
            part = item["summary"][0]
            text = part["text"]
            await self._tell("reasoning_summary_text.done", place, summary_index=0, text=text)
            await self._tell("reasoning_summary_part.done", place, summary_index=0, part=part)
        await self._splice.close(place, item)

    def join_all(self) -> None:
        """Let the items that grow have all that has come of them, because no more will."""
        for place in list(self._pieces):
            self._join(place)

    def _join(self, place: int) -> None:
        item, text = self._splice.output[place], "".join(self._pieces.pop(place, []))
        if item["type"] == "function_call":
            self._splice.output[place] = {**item, "arguments": item["arguments"] + text}
        else:
            field = "content" if item["type"] == "message" else "summary"
            part = item[field][0]
            name = "refusal" if part["type"] == "refusal" else "text"
            self._splice.output[place] = {**item, field: [{**part, name: part[name] + text}]}

    async def _finish_round(self) -> None:
        """Close all that is open."""
        await self._finish()
        await self._finish_refusal()
        for place in self._calls.values():
            self._join(place)
            item = self._splice.output[place]
            arguments = item["arguments"] or "{}"
            await self._tell("function_call_arguments.done", place, arguments=arguments)
            await self._splice.close(place, {**item, "arguments": arguments, "status": "completed"})
        self._calls = {}

    async def _tell(self, kind: str, place: int, **fields: object) -> None:
        item_id = self._splice.output[place]["id"]
        await self._splice.say(f"response.{kind}", item_id=item_id, output_index=place, **fields)


def described(request: Object) -> Object:
    """A new response to this request, with all that the API tells of one."""
    given = {name: value for name, value in request.items() if value is not None}
    reasoning = as_object(given.get("reasoning"))
    text = as_object(given.get("text"))
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": given.get("max_tool_calls"),
        "model": given.get("model"),
        "output": [],
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": False,
        "background": False,
        "service_tier": given.get("service_tier", "default"),
        "temperature": given.get("temperature", 1.0),
        "top_p": given.get("top_p", 1.0),
        "presence_penalty": given.get("presence_penalty", 0.0),
        "frequency_penalty": given.get("frequency_penalty", 0.0),
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [_told_tool(as_object(tool)) for tool in as_list(given.get("tools"))],
        "truncation": "disabled",
        "usage": None,
        "metadata": as_object(given.get("metadata")),
        "safety_identifier": given.get("safety_identifier"),
        "prompt_cache_key": given.get("prompt_cache_key"),
    }


def _told_tool(tool: Object) -> Object:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _usage(usage: Object) -> Object:
    before = as_object(usage.get("prompt_tokens_details"))
    after = as_object(usage.get("completion_tokens_details"))
    return {
        "input_tokens": as_count(usage.get("prompt_tokens")),
        "input_tokens_details": {
            "cached_tokens": as_count(before.get("cached_tokens")),
            "cache_write_tokens": as_count(before.get("cache_write_tokens")),
        },
        "output_tokens": as_count(usage.get("completion_tokens")),
        "output_tokens_details": {"reasoning_tokens": as_count(after.get("reasoning_tokens"))},
        "total_tokens": as_count(usage.get("total_tokens")),
    }


def _id(kind: str) -> str:
    return f"{kind}_{token_hex(16)}"
