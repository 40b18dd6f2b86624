"""The output items of a response and the client's events about them, in order."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gemini_cli_mcp.gateway.responses.item_events import ItemEvent
from gemini_cli_mcp.json_values import JsonObject


@dataclass(frozen=True)
class WireEvent:
    """One event as the client receives it."""

    type: str
    sequence_number: int
    fields: JsonObject

    def as_json(self) -> JsonObject:
        return {"type": self.type, "sequence_number": self.sequence_number, **self.fields}


@dataclass
class ResponseOutput:
    """The items so far; makes events with consecutive sequence numbers."""

    items: list[object] = field(default_factory=list[object])
    """Each item as JSON, which is only sent."""
    _sequence_number: int = 0

    @property
    def next_index(self) -> int:
        """The output index of the next item."""
        return len(self.items)

    def add(self, item: object) -> WireEvent:
        self.items.append(item)
        index = len(self.items) - 1
        return self.event("response.output_item.added", output_index=index, item=item)

    def update(self, index: int, item: object) -> None:
        """Replace an item without an event."""
        self.items[index] = item

    def finish(self, index: int, item: object) -> WireEvent:
        """Replace an item with its final state."""
        self.items[index] = item
        return self.event("response.output_item.done", output_index=index, item=item)

    def item_events(
        self, item_id: object, output_index: object, events: Iterable[ItemEvent]
    ) -> list[WireEvent]:
        """Return events of one item."""
        location = {"item_id": item_id, "output_index": output_index}
        return [self.event(event.type, **location, **event.fields) for event in events]

    # Positional-only: an upstream's event may have fields of any name.
    def event(self, kind: str, /, **fields: object) -> WireEvent:
        event = WireEvent(kind, self._sequence_number, fields)
        self._sequence_number += 1
        return event
