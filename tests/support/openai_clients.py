"""Clients of the OpenAI API with one interface: both SDKs, and plain HTTP with strict checks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import openai
import openresponses_types.types
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from gemini_cli_mcp.json_values import object_or_empty
from tests.support import ROOT, TERMINATED_EXIT_CODE
from tests.support.mcp_clients import node
from tests.support.responses_event_order import EventOrder
from tests.support.scripted_upstream import ScriptedUpstream

NODE_CLIENT = ROOT / "tests/clients/openai_client.mjs"
NODE_SDK = ROOT / "tests/clients/node_modules/openai"
CLIENTS = ("openai-python", "openai-node", "the wire")
MODES = ("whole", "raw", "helper")
"""One JSON response, a raw stream, and a stream read with the SDK's helper."""
EVERY_CLIENT = list(product(CLIENTS, MODES))
SOME_CLIENTS = [("openai-python", "helper"), ("openai-node", "raw"), ("the wire", "whole")]
QUICK_LIMITS = {"stream_start_wait": 0.3, "keep_alive_interval": 0.5}
"""Limits of a gateway with short timeouts."""
ONE_CLIENT = [("the wire", "whole")]


@dataclass
class Outcome:
    """The result of a request, as a client sees it."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    ids: list[str] = field(default_factory=list[str])
    reason: str | None = None
    annotations: list[Any] = field(default_factory=list[Any])
    usage: Any = None
    error: str | None = None
    """The kind of error that the client reports."""
    status: int | None = None
    message: str = ""
    output: list[Any] = field(default_factory=list[Any])
    """The output items of a response."""

    @property
    def searches(self) -> list[tuple[str, str]]:
        """The query and status of each web search."""
        items = [item for item in self.output if item["type"] == "web_search_call"]
        return [(item["action"]["query"], item["status"]) for item in items]


Ask = Callable[[str, str, Any], Outcome]
"""Sends a request to a gateway; the arguments are base URL, mode and request."""


def validate_strictly(kind: type[BaseModel], value: Any, *, allowed: tuple[str, ...] = ()) -> None:
    """Fail on fields that the SDK's type does not have, and on missing or mistyped ones."""
    _reject_unknown_fields(kind.model_validate(value, strict=True), allowed)


def _reject_unknown_fields(value: object, allowed: tuple[str, ...]) -> None:
    if isinstance(value, BaseModel):
        unknown = set(value.model_extra or {}) - set(allowed)
        assert not unknown, f"{type(value).__name__} has unknown fields: {unknown}"
        for name in type(value).model_fields:
            _reject_unknown_fields(getattr(value, name), allowed)
    elif isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _reject_unknown_fields(item, allowed)  # pyright: ignore[reportUnknownArgumentType]


def outcome_of_message(message: Any, reason: str | None, usage: Any) -> Outcome:
    calls: list[Any] = message.get("tool_calls") or []
    return Outcome(
        text=message.get("content") or "",
        calls=[(item["function"]["name"], item["function"]["arguments"]) for item in calls],
        ids=[item["id"] for item in calls],
        reason=reason,
        annotations=message.get("annotations") or [],
        usage=usage,
    )


def outcome_of_completion(completion: Any) -> Outcome:
    choice = completion["choices"][0]
    return outcome_of_message(choice["message"], choice["finish_reason"], completion.get("usage"))


def outcome_of_chunks(chunks: list[Any]) -> Outcome:
    """Combine chunks as a careful client would."""
    message: Any = {"content": "", "tool_calls": [], "annotations": []}
    reasons: list[str] = []
    usages: list[Any] = []
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for chunk in chunks:
        usages += [chunk["usage"]] if chunk.get("usage") else []
        for choice in chunk["choices"]:
            delta: dict[str, list[Any]] = choice["delta"]
            assert not reasons, "a choice after the finish reason"
            message["content"] += delta.get("content") or ""
            message["annotations"] += delta.get("annotations") or []
            for item in delta.get("tool_calls") or []:
                if item["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(
                        {"id": item["id"], "function": {**item["function"]}}
                    )
                else:
                    function = message["tool_calls"][item["index"]]["function"]
                    function["arguments"] += item["function"]["arguments"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(reasons) == 1 and len(usages) <= 1
    return outcome_of_message(message, reasons[0], usages[0] if usages else None)


def ask_python(base: str, mode: str, request: Any) -> Outcome:
    """openai-python."""
    with openai.OpenAI(base_url=base, api_key="client-key", max_retries=0) as client:
        chat: Any = client.chat.completions
        try:
            match mode:
                case "whole":
                    return outcome_of_completion(chat.create(**request).to_dict())
                case "raw":
                    stream = chat.create(**request, stream=True)
                    return outcome_of_chunks([chunk.to_dict() for chunk in stream])
                case _:
                    with chat.stream(**request) as events:
                        for _ in events:
                            pass
                        return outcome_of_completion(events.get_final_completion().to_dict())
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            return Outcome(
                error=type(error).__name__,
                status=getattr(error, "status_code", None),
                message=str(error),
            )


def ask_over_http(base: str, mode: str, request: Any) -> Outcome:
    """Plain HTTP, with every response and chunk validated against the SDK's types."""
    body = {**request, "stream": mode != "whole"}
    try:
        response = httpx2.post(f"{base}/chat/completions", json=body, timeout=60)
    except httpx2.HTTPError as error:
        return Outcome(error=type(error).__name__, message=str(error))
    if response.status_code != 200:
        error = response.json()["error"]
        return Outcome(error="status", status=response.status_code, message=str(error["message"]))
    if mode == "whole":
        validate_strictly(ChatCompletion, response.json())
        return outcome_of_completion(response.json())
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    if "error" in chunks[-1]:
        assert "[DONE]" not in lines
        return Outcome(error="event", message=str(chunks[-1]["error"]["message"]))
    assert lines[-1] == "[DONE]"
    for chunk in chunks:
        # The SDKs' helpers accumulate annotations, although their types do not declare them.
        validate_strictly(ChatCompletionChunk, chunk, allowed=("annotations",))
    return outcome_of_chunks(chunks)


class NodeClient:
    """openai-node in one long-lived process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [node(), str(NODE_CLIENT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, **command: object) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ask(self, base: str, mode: str, request: Any) -> Outcome:
        reply = self.send(base=base, api="chat", way=mode, request=request)
        if error := reply.get("error"):
            return Outcome(error=error["name"], status=error["status"], message=error["message"])
        return (
            outcome_of_chunks(reply["result"])
            if mode == "raw"
            else outcome_of_completion(reply["result"])
        )

    def respond(self, base: str, mode: str, request: Any) -> Outcome:
        reply = self.send(base=base, api="responses", way=mode, request=request)
        if error := reply.get("error"):
            return Outcome(error=error["name"], status=error["status"], message=error["message"])
        return (
            outcome_of_events(reply["result"])
            if mode == "raw"
            else outcome_of_response(reply["result"])
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def running_gateway(
    environ: dict[str, str],
    *options: str,
    log: list[str] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Generator[str]:
    """Start a gateway as users do; yield its address up to `/v1`. Its log is appended to `log`."""
    launcher = [sys.executable, "-m", "tests.support.launcher", json.dumps(limits or {})]
    process = subprocess.Popen(
        [*launcher, "gateway", "--port", "0", *options],
        cwd=ROOT,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    startup_log = ""
    try:
        for line in process.stderr:
            startup_log += line
            if "listens at " in line:
                break
        else:
            raise AssertionError(startup_log)
        yield line.rpartition(" ")[2].strip()
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=30)
        assert process.returncode == TERMINATED_EXIT_CODE, rest
        assert "Traceback" not in rest, rest
        if log is not None:
            log.append(startup_log + rest)


# The Responses API


def outcome_of_response(response: Any) -> Outcome:
    if response["status"] == "failed":
        return Outcome(error="failed", message=response["error"]["message"])
    items = response["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    calls = [item for item in items if item["type"] == "function_call"]
    return Outcome(
        text="".join(part["text"] for part in parts),
        calls=[(item["name"], item["arguments"]) for item in calls],
        ids=[item["call_id"] for item in calls],
        reason=response["status"],
        annotations=[annotation for part in parts for annotation in part["annotations"]],
        usage=response.get("usage"),
        output=items,
    )


def outcome_of_events(events: list[Any]) -> Outcome:
    order = EventOrder()
    for event in events:
        order.check(event)
    order.check_end()
    return outcome_of_response(events[-1]["response"])


def respond_python(base: str, mode: str, request: Any) -> Outcome:
    """openai-python."""
    with openai.OpenAI(base_url=base, api_key="client-key", max_retries=0) as client:
        api: Any = client.responses
        try:
            match mode:
                case "whole":
                    return outcome_of_response(api.create(**request).to_dict())
                case "raw":
                    stream = api.create(**request, stream=True)
                    return outcome_of_events([event.to_dict() for event in stream])
                case _:
                    with api.stream(**request) as events:
                        for _ in events:
                            pass
                        return outcome_of_response(events.get_final_response().to_dict())
        except (openai.OpenAIError, httpx2.HTTPError, RuntimeError) as error:
            return Outcome(
                error=type(error).__name__,
                status=getattr(error, "status_code", None),
                message=str(error),
            )


def respond_over_http(base: str, mode: str, request: Any) -> Outcome:
    """Plain HTTP, with every event validated against the types of the SDK and openresponses."""
    body = {**request, "stream": mode != "whole"}
    try:
        response = httpx2.post(f"{base}/responses", json=body, timeout=60)
    except httpx2.HTTPError as error:
        return Outcome(error=type(error).__name__, message=str(error))
    if response.status_code != 200:
        error = response.json()["error"]
        return Outcome(error="status", status=response.status_code, message=str(error["message"]))
    if mode == "whole":
        validate_response(response.json())
        return outcome_of_response(response.json())
    events: list[Any] = []
    for block in response.text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    for event in events:
        validate_event(event)
    return outcome_of_events(events)


OPENRESPONSES_ONLY_FIELDS = ("store", "presence_penalty", "frequency_penalty")
"""Fields that openresponses requires and the SDK's types do not have."""
_event_adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def validate_event(event: Any) -> None:
    """Validate an event against the SDK's types, and openresponses' if it has the event."""
    _reject_unknown_fields(
        _event_adapter.validate_python(event, strict=True), OPENRESPONSES_ONLY_FIELDS
    )
    if "response" in event:
        validate_response(event["response"])
    names = event["type"].removeprefix("response.").split(".")
    name = "".join(part.title().replace("_", "") for part in names)
    name = name.replace("SummaryText", "Summary")
    kind: Any = getattr(openresponses_types.types, f"Response{name}StreamingEvent", None)
    if event["type"].startswith("response.web_search_call"):
        assert kind is None, "openresponses now has search events: validate them"
        return
    assert kind is not None, event["type"]
    if is_web_search_item(event.get("item")):
        return
    kind.model_validate(_supported_by_openresponses(event))


def validate_response(response: Any) -> None:
    validate_strictly(Response, response, allowed=OPENRESPONSES_ONLY_FIELDS)
    resource: Any = openresponses_types.types.ResponseResource
    resource.model_validate(_supported_by_openresponses({"response": response})["response"])


def is_web_search_item(item: Any) -> bool:
    return bool(item) and item["type"] == "web_search_call"


def _supported_by_openresponses(event: Any) -> Any:
    """Remove searches and hosted tools, which openresponses does not have."""
    if "response" not in event:
        return event
    response = dict(event["response"])
    response["output"] = [item for item in response["output"] if not is_web_search_item(item)]
    response["tools"] = [tool for tool in response["tools"] if tool["type"] == "function"]
    if str(object_or_empty(response["tool_choice"]).get("type")).startswith("web_search"):
        response["tool_choice"] = "required"
    return {**event, "response": response}


def gateway_environment(
    folder: Path, upstream: ScriptedUpstream, **gateway: object
) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GEMINI_MCP_CONFIG_DIR": str(folder / "config"),
        "GEMINI_MCP_WEB_SEARCH": str(
            write_engines(folder / "engines.json", upstream.address, **gateway)
        ),
        "UPSTREAM_SECRET": "upstream-key",
        "ZAI_API_KEY": "engine-key",
        "GEMINI_MCP_WARM": "0",
    }


def write_engines(path: Path, upstream: str, **gateway: object) -> Path:
    """Write an engines file for the scripted upstream and its search engine; return the path."""
    engine = {
        "id": "pages",
        "providerKey": "glm.glm-4",
        "description": "Pages",
        "glm": {"form": "api", "baseUrl": f"{upstream}/glm"},
    }
    entry = {"id": "scripted", "baseUrl": f"{upstream}/v1", "apiKeyEnv": "UPSTREAM_SECRET"}
    file = {
        "webSearch": {"engines": [engine]},
        "gateway": {"upstreams": [entry], **gateway},
    }
    path.write_text(json.dumps(file))
    return path
