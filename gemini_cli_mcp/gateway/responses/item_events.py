"""The events between the start and the end of one item.

The builder adds the id and index of the item, and the sequence number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.gateway.responses.items import (
    FunctionCallItem,
    MessageItem,
    ReasoningItem,
    RefusalItem,
    TextItem,
    citations_json,
    part_json,
)
from gemini_cli_mcp.gateway.responses.upstream_items import UpstreamItem, UpstreamPart
from gemini_cli_mcp.json_values import JsonObject


@dataclass(frozen=True)
class ItemEvent:
    """An event of one item."""

    type: str
    fields: JsonObject


def part_started(item: TextItem) -> list[ItemEvent]:
    """Return the event of the part that will hold the text; a function call has none."""
    match item:
        case MessageItem() | RefusalItem():
            return [_event("content_part.added", content_index=0, part=part_json(item))]
        case ReasoningItem():
            return [_event("reasoning_summary_part.added", summary_index=0, part=part_json(item))]
        case FunctionCallItem():
            return []


def text_received(item: TextItem, text: str) -> ItemEvent:
    """Return the event for a piece of the text."""
    match item:
        case MessageItem():
            return _event("output_text.delta", content_index=0, delta=text, logprobs=[])
        case RefusalItem():
            return _event("refusal.delta", content_index=0, delta=text)
        case ReasoningItem():
            return _event("reasoning_summary_text.delta", summary_index=0, delta=text)
        case FunctionCallItem():
            return _event("function_call_arguments.delta", delta=text)


def text_finished(item: TextItem) -> list[ItemEvent]:
    """Return the events at the end of the text, annotations included."""
    text = item.text or ""
    match item:
        case MessageItem():
            return [
                *annotation_events(citations_json(item.citations), content_index=0),
                _event("output_text.done", content_index=0, text=text, logprobs=[]),
                _event("content_part.done", content_index=0, part=part_json(item)),
            ]
        case RefusalItem():
            return [
                _event("refusal.done", content_index=0, refusal=text),
                _event("content_part.done", content_index=0, part=part_json(item)),
            ]
        case ReasoningItem():
            return [
                _event("reasoning_summary_text.done", summary_index=0, text=text),
                _event("reasoning_summary_part.done", summary_index=0, part=part_json(item)),
            ]
        case FunctionCallItem():
            return [_event("function_call_arguments.done", arguments=text)]


def complete_item_events(item: UpstreamItem) -> list[ItemEvent]:
    """Return the events that the upstream did not send for an item that came complete."""
    if item.type == "message":
        parts = enumerate(item.parts)
        return [event for index, part in parts for event in _complete_part_events(part, index)]
    if item.type == "function_call":
        arguments = item.fields.get("arguments")
        return [
            _event("function_call_arguments.delta", delta=arguments),
            _event("function_call_arguments.done", arguments=arguments),
        ]
    return []


def _complete_part_events(part: UpstreamPart, index: int) -> list[ItemEvent]:
    if not part.is_text:
        return [
            _event("content_part.added", content_index=index, part=part.fields),
            _event("content_part.done", content_index=index, part=part.fields),
        ]
    empty_part = part.without_text().fields
    text = part.fields.get("text")
    return [
        _event("content_part.added", content_index=index, part=empty_part),
        _event("output_text.delta", content_index=index, delta=text, logprobs=[]),
        *annotation_events(part.annotations, content_index=index),
        _event("output_text.done", content_index=index, text=text, logprobs=[]),
        _event("content_part.done", content_index=index, part=part.fields),
    ]


def annotation_events(
    annotations: Sequence[object], content_index: object, first_index: int = 0
) -> list[ItemEvent]:
    """Return the events of annotations of one part, numbered from `first_index`."""
    return [
        _event(
            "output_text.annotation.added",
            content_index=content_index,
            annotation_index=index,
            annotation=annotation,
        )
        for index, annotation in enumerate(annotations, first_index)
    ]


def _event(kind: str, **fields: object) -> ItemEvent:
    return ItemEvent(f"response.{kind}", fields)
