"""The output items that the gateway itself writes, and their JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Literal

from gemini_cli_mcp.gateway.annotations import UrlCitation
from gemini_cli_mcp.json_values import JsonObject

SEARCH_ID_PREFIX = "ws_gateway_"
"""Prefix of the ids of our search items, to recognize them when they come back."""

ItemStatus = Literal["in_progress", "completed", "failed"]


def new_item_id(kind: str) -> str:
    return f"{kind}_{token_hex(16)}"


@dataclass(frozen=True)
class MessageItem:
    """A message with one text part; without text it has no part yet."""

    id: str = field(default_factory=lambda: new_item_id("msg"))
    text: str | None = None
    citations: tuple[UrlCitation, ...] = ()


@dataclass(frozen=True)
class RefusalItem:
    """A message with one refusal part; without text it has no part yet."""

    id: str = field(default_factory=lambda: new_item_id("msg"))
    text: str | None = None


@dataclass(frozen=True)
class ReasoningItem:
    """A summary of the model's reasoning; without text it has no part yet."""

    id: str = field(default_factory=lambda: new_item_id("rs"))
    text: str | None = None


@dataclass(frozen=True)
class FunctionCallItem:
    """A call of one of the client's own functions."""

    call_id: str | None
    name: str | None
    id: str = field(default_factory=lambda: new_item_id("fc"))
    text: str | None = None
    """The arguments."""


@dataclass(frozen=True)
class WebSearchItem:
    """One of our searches."""

    query: str
    id: str = field(default_factory=lambda: SEARCH_ID_PREFIX + token_hex(12))
    source_urls: tuple[str, ...] | None = None
    """URLs of the hits; None if the client did not request them."""


PartItem = MessageItem | RefusalItem | ReasoningItem
"""An item whose text is in a part."""
TextItem = PartItem | FunctionCallItem
"""An item whose text arrives in pieces."""


def item_json(item: TextItem | WebSearchItem, status: ItemStatus) -> JsonObject:
    """Return an item in the format of the API."""
    match item:
        case MessageItem() | RefusalItem():
            role = {"id": item.id, "type": "message", "role": "assistant"}
            return {**role, "status": status, "content": _parts_json(item)}
        case ReasoningItem():
            summary = _parts_json(item)
            return {"id": item.id, "type": "reasoning", "status": status, "summary": summary}
        case FunctionCallItem():
            return {
                "id": item.id,
                "type": "function_call",
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.text or "",
                "status": status,
            }
        case WebSearchItem():
            action = {"type": "search", "query": item.query, "queries": [item.query]}
            sources = [{"type": "url", "url": url} for url in item.source_urls or ()]
            if item.source_urls is not None:
                action = {**action, "sources": sources}
            return {"id": item.id, "type": "web_search_call", "status": status, "action": action}


def _parts_json(item: PartItem) -> list[object]:
    return [] if item.text is None else [part_json(item)]


def part_json(item: PartItem) -> JsonObject:
    """Return the part with the text of an item."""
    match item:
        case MessageItem():
            annotations = citations_json(item.citations)
            text = item.text or ""
            return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}
        case RefusalItem():
            return {"type": "refusal", "refusal": item.text or ""}
        case ReasoningItem():
            return {"type": "summary_text", "text": item.text or ""}


def citations_json(citations: Sequence[UrlCitation]) -> list[object]:
    """Return citations as annotations of a text part."""
    return [{"type": "url_citation", **citation.as_json()} for citation in citations]
