"""What happens while a response is made, from either kind of upstream.

`native_loop` and `via_chat` yield these events; the builder turns them into those of the client.
"""

from dataclasses import dataclass, field

from gemini_cli_mcp.gateway.events import SearchFinished, SearchStarted, TurnStarted
from gemini_cli_mcp.gateway.responses.continuations import UpstreamContinuation
from gemini_cli_mcp.gateway.responses.items import MessageItem, TextItem
from gemini_cli_mcp.gateway.responses.upstream_items import TurnResponse, UpstreamItem
from gemini_cli_mcp.json_values import JsonObject


@dataclass(frozen=True)
class ResponseStarted:
    """A turn has begun; only that of the first turn starts the client's response."""

    response: TurnResponse | None = None
    """The upstream's response so far, if it has sent one."""


# Items and events of a Responses upstream


@dataclass(frozen=True)
class ItemStarted:
    """An item of the upstream's has begun."""

    upstream_index: int
    """Output index in the upstream's response of this turn."""
    item: UpstreamItem


@dataclass(frozen=True)
class ItemFinished:
    """An item of the upstream's that had begun is complete."""

    upstream_index: int
    item: UpstreamItem


@dataclass(frozen=True)
class CompleteItemReceived:
    """An item of the upstream's came complete, without any events of its own."""

    item: UpstreamItem


@dataclass(frozen=True)
class UpstreamEvent:
    """Any other event of the upstream's, passed on with all its fields."""

    type: str
    fields: JsonObject
    """All but `type` and `sequence_number`."""
    upstream_index: int | None
    """Output index of the item that the event belongs to; None if it names none."""


# Items of our own


@dataclass(frozen=True)
class TextItemStarted:
    """An item has begun whose text follows in pieces."""

    item: TextItem


@dataclass(frozen=True)
class TextReceived:
    """A piece of the text of such an item."""

    item_id: str
    text: str


@dataclass(frozen=True)
class TextItemFinished:
    """The text of such an item is complete."""

    item_id: str


@dataclass(frozen=True)
class ResponseFinished:
    """The last turn has ended: with an answer, or with calls that the client has to handle."""

    status: str
    client_call_ids: tuple[str, ...]
    fields: JsonObject = field(default_factory=dict[str, object])
    """Fields of the response that are known only now."""
    continuation: UpstreamContinuation | None = None
    """How the response ended at an upstream that stores responses."""


UpstreamOutput = ItemStarted | ItemFinished | CompleteItemReceived | UpstreamEvent
OwnOutput = TextItemStarted | TextReceived | TextItemFinished | SearchStarted | SearchFinished
ResponsesEvent = TurnStarted | ResponseStarted | UpstreamOutput | OwnOutput | ResponseFinished


def message_events(text: str) -> list[OwnOutput]:
    """Return the events of a message of our own."""
    item = MessageItem()
    return [TextItemStarted(item), TextReceived(item.id, text), TextItemFinished(item.id)]
