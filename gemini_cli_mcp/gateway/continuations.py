"""State hidden from the client that the model needs again with the client's next request.

Entries are stored by owner; no other owner can read them.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gemini_cli_mcp.gateway.responses.builder import SEARCH_ID_PREFIX
from gemini_cli_mcp.gateway.search_intent import latest_user_text
from gemini_cli_mcp.gateway.search_runner import tool_result_json
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

MAX_ENTRIES = 1000
MAX_ITEMS_AFTER_SEARCH = 30
"""Maximum items after a search among which the calls of its turn are looked up."""

_Value = TypeVar("_Value")


class TTLCache(Generic[_Value]):
    """The latest entries, each kept for `ttl` seconds."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._entries: OrderedDict[tuple[str, str], tuple[float, _Value]] = OrderedDict()

    def put(self, owner: str, key: str, value: _Value) -> None:
        self._entries[owner, key] = time.monotonic() + self._ttl, value
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def drop(self, owner: str, key: str) -> None:
        self._entries.pop((owner, key), None)

    def get(self, owner: str, key: str) -> _Value | None:
        expires_at, value = self._entries.get((owner, key), (0.0, None))
        return value if expires_at > time.monotonic() else None


class ChatContinuations:
    """Hidden chat messages, keyed by the latest user text and the client's own calls."""

    def __init__(self, ttl: float) -> None:
        self._hidden_messages: TTLCache[list[JsonObject]] = TTLCache(ttl)

    def keep(
        self,
        owner: str,
        messages: Sequence[object],
        call_ids: Sequence[str],
        hidden_messages: list[JsonObject],
    ) -> None:
        """Store messages until the client sends the results of these calls."""
        position = _ChatPosition()
        for message in messages:
            position.advance(message)
        self._hidden_messages.put(owner, position.turn_key(call_ids), hidden_messages)

    def restore(self, owner: str, messages: list[object]) -> list[object]:
        """Return the messages with all hidden messages put back in their positions."""
        restored: list[object] = []
        position = _ChatPosition()
        for message in messages:
            calls = list_or_empty(object_or_empty(message).get("tool_calls"))
            call_ids = [str(object_or_empty(call).get("id")) for call in calls]
            hidden_messages = (
                self._hidden_messages.get(owner, position.turn_key(call_ids)) if call_ids else None
            )
            restored += hidden_messages or [message]
            position.advance(message)
        return restored


class _ChatPosition:
    """A position in a chat: the latest user text and the number of messages since."""

    def __init__(self) -> None:
        self._user_text_hash = hashlib.sha256()
        self._messages_since = 0

    def advance(self, message: object) -> None:
        """Move past the next message."""
        self._messages_since += 1
        if object_or_empty(message).get("role") == "user":
            text = latest_user_text([message])
            self._user_text_hash, self._messages_since = (
                hashlib.sha256(text.encode("utf-8", "replace")),
                0,
            )

    def turn_key(self, call_ids: Sequence[str]) -> str:
        """Return the key of a turn at this position that makes these calls."""
        # Ids alone are not enough: some upstreams number their calls from 0 in every answer.
        parts = ["", str(self._messages_since), *sorted(call_ids)]
        key = self._user_text_hash.copy()
        key.update("\0".join(parts).encode("utf-8", "replace"))
        return key.hexdigest()


@dataclass(frozen=True)
class UpstreamContinuation:
    """How a response of several turns ended at the upstream."""

    response_id: str
    """Response id of the last turn, which includes all earlier turns at the upstream."""
    pending_outputs: list[JsonObject]
    """Our tool outputs that the last turn still needs, in addition to the client's."""


class ResponseContinuations:
    """Searches by item id, and upstream continuations by response or conversation id."""

    def __init__(self, ttl: float) -> None:
        self._searches: TTLCache[tuple[ToolCall, JsonObject]] = TTLCache(ttl)
        self._upstream_continuations: TTLCache[UpstreamContinuation] = TTLCache(ttl)

    def keep_searches(
        self, owner: str, searches: dict[str, tuple[ToolCall, JsonObject]], call_ids: Sequence[str]
    ) -> None:
        """Store the searches of a response until the client sends the results of these calls."""
        for item_id, search in searches.items():
            self._searches.put(owner, item_id, search)
            for call_id in call_ids:  # Codex does not send search ids back
                self._searches.put(owner, f"{search[0].query}\0{call_id}", search)

    def keep_upstream(self, owner: str, key: str, continuation: UpstreamContinuation) -> None:
        self._upstream_continuations.put(owner, key, continuation)

    def restore(self, owner: str, request: JsonObject) -> tuple[JsonObject, bool]:
        """Return the request with our searches restored as tool calls, or removed if unknown.

        Also return whether the upstream needs outputs of ours, i.e. a chain of searches continues.
        """
        client_input = request.get("input")
        items = list_or_empty(client_input)
        restored_items: list[object] = []
        for index, item in enumerate(items):
            restored_items += self._restore_item(
                owner, item, items[index : index + MAX_ITEMS_AFTER_SEARCH]
            )
        continuation = self._upstream_continuation(owner, request)
        if continuation is None:
            return (
                {**request, "input": restored_items} if restored_items != items else request
            ), False
        new_items = (
            [{"role": "user", "content": client_input}]
            if isinstance(client_input, str)
            else restored_items
        )
        restored_request = {**request, "input": [*continuation.pending_outputs, *new_items]}
        if request.get("previous_response_id") is not None:
            restored_request["previous_response_id"] = continuation.response_id
        return restored_request, bool(continuation.pending_outputs)

    def _upstream_continuation(
        self, owner: str, request: JsonObject
    ) -> UpstreamContinuation | None:
        if previous_id := request.get("previous_response_id"):
            return self._upstream_continuations.get(owner, str(previous_id))
        conversation = conversation_key(request)
        continuation = (
            self._upstream_continuations.get(owner, conversation) if conversation else None
        )
        if continuation and conversation:
            self._upstream_continuations.drop(owner, conversation)  # the upstream gets them now
        return continuation

    def _restore_item(
        self, owner: str, original: object, following_items: Sequence[object]
    ) -> list[object]:
        """Return an item unchanged; a search of ours becomes a call and output, or nothing."""
        item = object_or_empty(original)
        item_id = str(item.get("id") or "")
        if item.get("type") != "web_search_call" or (
            item_id and not item_id.startswith(SEARCH_ID_PREFIX)
        ):
            return [original]
        query = object_or_empty(item.get("action")).get("query")
        call_ids = [str(object_or_empty(following).get("call_id")) for following in following_items]
        keys = [item_id, *(f"{query}\0{call_id}" for call_id in call_ids)]
        matches = (self._searches.get(owner, key) for key in keys)
        search = next((match for match in matches if match), None)
        return list(call_and_output_items(*search)) if search else []


def conversation_key(request: JsonObject) -> str | None:
    """Return the key of the conversation that a request belongs to, if any."""
    conversation = request.get("conversation")
    conversation_id = object_or_empty(conversation).get("id") or (
        conversation if isinstance(conversation, str) else None
    )
    return f"conversation {conversation_id}" if conversation_id else None


def call_and_output_items(call: ToolCall, result: JsonObject) -> list[JsonObject]:
    """Return a search of ours as the upstream knows it: a function call and its output."""
    function = {"type": "function_call", "name": call.name, "arguments": call.arguments}
    return [{**function, "call_id": call.id}, output_item(call, result)]


def output_item(call: ToolCall, result: JsonObject) -> JsonObject:
    return {"type": "function_call_output", "call_id": call.id, "output": tool_result_json(result)}
