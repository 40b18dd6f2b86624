"""A client's Responses request, passed on with all fields, few of which we read."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.gateway.responses.continuations import conversation_key
from gemini_cli_mcp.gateway.tool_injection import build_turn_request, is_hosted_search_tool
from gemini_cli_mcp.json_values import JsonObject, list_or_empty
from gemini_cli_mcp.settings.engines import Engines

INCLUDE_SOURCES = "web_search_call.action.sources"
"""The `include` value that requests the sources of each search."""


@dataclass(frozen=True)
class ResponsesRequest:
    """The body of one request."""

    fields: JsonObject

    @property
    def stream(self) -> bool:
        return bool(self.fields.get("stream"))

    @property
    def conversation_key(self) -> str | None:
        """The key of the conversation at the upstream that the request belongs to, if any."""
        return conversation_key(self.fields.get("conversation"))

    @property
    def is_in_conversation(self) -> bool:
        """Whether the upstream stores the items of all turns in a conversation."""
        return self.fields.get("conversation") is not None

    @property
    def is_stored(self) -> bool:
        """Whether the upstream stores the response."""
        return self.fields.get("store") is not False

    @property
    def includes_sources(self) -> bool:
        """Whether the client wants the sources of each search."""
        return INCLUDE_SOURCES in list_or_empty(self.fields.get("include"))

    @property
    def hosted_tools(self) -> list[object]:
        """The client's hosted search tools, which our function stands in for."""
        return list(filter(is_hosted_search_tool, list_or_empty(self.fields.get("tools"))))

    def turn_body(self, engines: Engines | None, new_items: Sequence[object]) -> JsonObject:
        """Return the body of the next turn, with the items since the client's input."""
        if new_items and self.is_in_conversation:  # which already holds the input
            return build_turn_request({**self.fields, "input": []}, engines, new_items)
        return build_turn_request(self.fields, engines, new_items)
