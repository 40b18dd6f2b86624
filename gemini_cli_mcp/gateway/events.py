"""The events of a chat tool loop, in the order in which they happen.

The loop yields them; the endpoints turn them into the JSON of their API.
"""

from dataclasses import dataclass

from gemini_cli_mcp.gateway.search_runner import SearchOutcome
from gemini_cli_mcp.gateway.tool_calls import CallDelta, ToolCall
from gemini_cli_mcp.gateway.upstream_client import Headers
from gemini_cli_mcp.json_values import JsonObject


@dataclass(frozen=True)
class TurnStarted:
    """The upstream has answered; these headers are for the client."""

    headers: Headers


@dataclass(frozen=True)
class ChatChunk:
    """A chunk of an upstream's stream, or its complete answer, with all fields."""

    fields: JsonObject
    choice: JsonObject
    """The fields of the first choice, without the message of a complete answer."""
    delta: JsonObject
    """The delta or complete message of the first choice."""


EMPTY_CHUNK = ChatChunk({}, {}, {})


@dataclass(frozen=True)
class AnswerDelta:
    """A piece of the answer as the client may see it: without our own calls.

    A complete answer is one piece.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[CallDelta, ...] = ()
    chunk: ChatChunk = EMPTY_CHUNK
    """What the upstream sent; empty if these calls had been held back."""


@dataclass(frozen=True)
class SearchStarted:
    """One of our searches is about to run."""

    call: ToolCall


@dataclass(frozen=True)
class SearchFinished:
    """One of our searches has ended."""

    call: ToolCall
    outcome: SearchOutcome


@dataclass(frozen=True)
class TurnsFinished:
    """The last turn has ended: with an answer, or with calls of the client's own tools."""

    message: JsonObject
    """The upstream's last message."""
    client_calls: tuple[ToolCall, ...]
    """Calls of the client's own tools in the last turn."""
    searches: tuple[ToolCall, ...]
    """Our searches in the last turn."""
    finish_reason: object
    usage: JsonObject
    """The sum of all turns."""
    hidden_messages: tuple[object, ...]
    """What the client does not see: the upstream gets it back in place of the client's copy of the
    last message. Empty if the client sees all."""


ChatEvent = TurnStarted | AnswerDelta | SearchStarted | SearchFinished | TurnsFinished
