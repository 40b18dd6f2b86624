"""The tool calls of a model: of the client's own tools, and of our `web_search`."""

from dataclasses import dataclass, field
from typing import Literal

from gemini_cli_mcp.json_values import JsonObject

WEB_SEARCH_NAME = "web_search"
"""Name of the function that the gateway injects."""

CallKind = Literal["function", "custom"]
"""A `custom` call has arbitrary text as arguments."""


@dataclass(frozen=True)
class ToolCall:
    """One tool call of an assistant turn."""

    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    extra: JsonObject = field(default_factory=dict[str, object], hash=False)
    """Other fields from the upstream, which may need them back."""
    is_web_search: bool = False
    """Whether it is a search of ours; without our tool, `web_search` is the client's own."""


@dataclass(frozen=True)
class CallDelta:
    """A piece of one of the client's own tool calls, as the client sees it."""

    index: int
    """Index among the calls that the client has seen in this turn."""
    call_id: str | None
    """Set in the first piece only."""
    name: str | None
    """Set in the first piece only."""
    arguments: str
    kind: CallKind
    extra: JsonObject
    """Other fields of this piece from the upstream."""
