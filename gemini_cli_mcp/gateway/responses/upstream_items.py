"""Responses and items of a Responses upstream, passed on with all fields, few of which we read."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.api_errors import ApiError
from gemini_cli_mcp.gateway.responses.items import citations_json
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.tool_calls import WEB_SEARCH_NAME, ToolCall
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.types import Hit

_SERVER_SIDE_CALLS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    "mcp_call",
)


@dataclass(frozen=True)
class UpstreamItem:
    """One output item, complete or not."""

    fields: JsonObject

    @classmethod
    def parse(cls, value: object) -> "UpstreamItem":
        return cls(object_or_empty(value))

    @property
    def id(self) -> str:
        return str(self.fields.get("id"))

    @property
    def type(self) -> str:
        return str(self.fields.get("type"))

    @property
    def parts(self) -> "list[UpstreamPart]":
        """The parts of a message."""
        return [UpstreamPart.parse(part) for part in list_or_empty(self.fields.get("content"))]

    @property
    def is_web_search(self) -> bool:
        """Whether the item is a call of our function."""
        return self.type == "function_call" and self.fields.get("name") == WEB_SEARCH_NAME

    @property
    def needs_client(self) -> bool:
        """Whether the item requires action by the client."""
        if self.is_web_search:
            return False
        if self.type == "tool_search_call":
            return self.fields.get("execution") != "server"
        is_call = self.type.endswith("_call") or self.type == "mcp_approval_request"
        return is_call and self.type not in _SERVER_SIDE_CALLS

    @property
    def call_id(self) -> str:
        """The id that the result of the item refers to."""
        return str(self.fields.get("call_id") or self.fields.get("id"))

    def as_search(self) -> ToolCall:
        """Return the call of our function."""
        arguments = str(self.fields.get("arguments") or "")
        return ToolCall(
            str(self.fields.get("call_id")), WEB_SEARCH_NAME, arguments, is_web_search=True
        )

    @property
    def is_replayable(self) -> bool:
        """Whether an upstream that has not stored the item accepts it as input."""
        return self.type != "reasoning" or bool(self.fields.get("encrypted_content"))

    def as_started(self) -> "UpstreamItem":
        """Return a complete item as it is announced, before its text."""
        match self.type:
            case "message":
                return UpstreamItem({**self.fields, "status": "in_progress", "content": []})
            case "function_call":
                return UpstreamItem({**self.fields, "status": "in_progress", "arguments": ""})
            case _:
                return self

    def without_id(self) -> "UpstreamItem":
        return UpstreamItem({name: self.fields[name] for name in self.fields if name != "id"})

    def with_citations(self, hits: Sequence[Hit]) -> "UpstreamItem":
        """Return a message with citations of the URLs in it that a search returned."""
        if self.type != "message":
            return self
        parts = [part.with_citations(hits).fields for part in self.parts]
        return UpstreamItem({**self.fields, "content": parts})


@dataclass(frozen=True)
class UpstreamPart:
    """One part of a message."""

    fields: JsonObject

    @classmethod
    def parse(cls, value: object) -> "UpstreamPart":
        return cls(object_or_empty(value))

    @property
    def is_text(self) -> bool:
        return self.fields.get("type") == "output_text"

    @property
    def annotations(self) -> list[object]:
        return list_or_empty(self.fields.get("annotations"))

    def without_text(self) -> "UpstreamPart":
        """Return a text part as it is announced."""
        return UpstreamPart({**self.fields, "text": "", "annotations": []})

    def with_citations(self, hits: Sequence[Hit]) -> "UpstreamPart":
        """Return a text part with citations of the URLs in it that a search returned."""
        if not self.is_text or not hits:
            return self
        citations = url_citations(str(self.fields.get("text") or ""), hits)
        annotations = [*self.annotations, *citations_json(citations)]
        return UpstreamPart({**self.fields, "annotations": annotations})


@dataclass(frozen=True)
class TurnResponse:
    """The upstream's response of one turn, complete or not."""

    fields: JsonObject

    @property
    def id(self) -> str:
        return str(self.fields.get("id"))

    @property
    def status(self) -> str:
        return str(self.fields.get("status") or "completed")

    @property
    def items(self) -> list[UpstreamItem]:
        return [UpstreamItem.parse(item) for item in list_or_empty(self.fields.get("output"))]

    @property
    def usage(self) -> JsonObject:
        return object_or_empty(self.fields.get("usage"))

    @property
    def error(self) -> ApiError | None:
        return ApiError.parse(self.fields.get("error"))

    def for_client(self, request: ResponsesRequest) -> "TurnResponse":
        """Return it as the answer to the client's own request, without our function."""
        tools = list_or_empty(self.fields.get("tools"))
        client_tools = [
            tool for tool in map(object_or_empty, tools) if tool.get("name") != WEB_SEARCH_NAME
        ]
        fields = {**self.fields, "tools": [*client_tools, *request.hosted_tools]}
        if "tool_choice" in request.fields:
            fields["tool_choice"] = request.fields["tool_choice"]
        return TurnResponse(fields)
