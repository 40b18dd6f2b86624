"""What the client does not see and the model needs again: kept until the client comes back.

Everything is kept under its owner; nobody else gets it.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gemini_cli_mcp.gateway.intent import latest_user_text
from gemini_cli_mcp.gateway.responses.builder import SEARCH_ID_PREFIX
from gemini_cli_mcp.gateway.search_runner import tool_result_json
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

MAX_ENTRIES = 1000
MAX_ITEMS_AFTER_SEARCH = 30
"""Items behind a search in which the calls of its turn are looked for."""

_Value = TypeVar("_Value")


class TTLCache(Generic[_Value]):
    """The latest things, each for so many seconds."""

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
    """Of chats: whole turns, found again by the user's last words and the client's own calls."""

    def __init__(self, ttl: float) -> None:
        self._turns: TTLCache[list[JsonObject]] = TTLCache(ttl)

    def keep(
        self, owner: str, before: Sequence[object], ids: Sequence[str], turns: list[JsonObject]
    ) -> None:
        """Until the client sends the results of these calls."""
        position = _ChatPosition()
        for message in before:
            position.advance(message)
        self._turns.put(owner, position.turn_key(ids), turns)

    def restore(self, owner: str, messages: list[object]) -> list[object]:
        """The messages with our half of every such turn back in its place."""
        restored: list[object] = []
        position = _ChatPosition()
        for message in messages:
            calls = list_or_empty(object_or_empty(message).get("tool_calls"))
            ids = [str(object_or_empty(call).get("id")) for call in calls]
            turns = self._turns.get(owner, position.turn_key(ids)) if ids else None
            restored += turns or [message]
            position.advance(message)
        return restored


class _ChatPosition:
    """A place in a chat: what the user said last, and how many messages ago."""

    def __init__(self) -> None:
        self._last_user_text = hashlib.sha256()
        self._messages_since = 0

    def advance(self, message: object) -> None:
        """Go behind the next message."""
        self._messages_since += 1
        if object_or_empty(message).get("role") == "user":
            text = latest_user_text([message])
            self._last_user_text, self._messages_since = (
                hashlib.sha256(text.encode("utf-8", "replace")),
                0,
            )

    def turn_key(self, ids: Sequence[str]) -> str:
        """The name of a turn that stands here and makes these calls."""
        # Ids alone are not enough: some upstreams count their calls from 0 in every answer.
        parts = ["", str(self._messages_since), *sorted(ids)]
        key = self._last_user_text.copy()
        key.update("\0".join(parts).encode("utf-8", "replace"))
        return key.hexdigest()


@dataclass(frozen=True)
class UpstreamContinuation:
    """How a response of several rounds ended at the upstream."""

    response_id: str
    """Of the last round: there the upstream has all of it."""
    pending_outputs: list[JsonObject]
    """Results of ours that the last round still waits for, beside those of the client."""


class ResponseContinuations:
    """Of responses: searches, and endings by the id of the response or of the conversation."""

    def __init__(self, ttl: float) -> None:
        self._searches: TTLCache[tuple[ToolCall, JsonObject]] = TTLCache(ttl)
        self._upstream_continuations: TTLCache[UpstreamContinuation] = TTLCache(ttl)

    def keep_searches(
        self, owner: str, searched: dict[str, tuple[ToolCall, JsonObject]], ids: Sequence[str]
    ) -> None:
        """Searches of a response that the client goes on with, by the results of these calls."""
        for item_id, search in searched.items():
            self._searches.put(owner, item_id, search)
            for call_id in ids:  # Codex sends no ids of searches back
                self._searches.put(owner, f"{search[0].query}\0{call_id}", search)

    def keep_upstream(self, owner: str, key: str, continuation: UpstreamContinuation) -> None:
        self._upstream_continuations.put(owner, key, continuation)

    def restore(self, owner: str, request: JsonObject) -> tuple[JsonObject, bool]:
        """The request with our searches as the calls that they were, or without them.

        And whether the upstream waits for results of ours, so that a chain of searches goes on.
        """
        client_input = request.get("input")
        items = list_or_empty(client_input)
        restored: list[object] = []
        for index, item in enumerate(items):
            restored += self._restore_item(
                owner, item, items[index : index + MAX_ITEMS_AFTER_SEARCH]
            )
        continuation = self._upstream_continuation(owner, request)
        if continuation is None:
            return ({**request, "input": restored} if restored != items else request), False
        new_items = (
            [{"role": "user", "content": client_input}]
            if isinstance(client_input, str)
            else restored
        )
        changed = {**request, "input": [*continuation.pending_outputs, *new_items]}
        if request.get("previous_response_id") is not None:
            changed["previous_response_id"] = continuation.response_id
        return changed, bool(continuation.pending_outputs)

    def _upstream_continuation(
        self, owner: str, request: JsonObject
    ) -> UpstreamContinuation | None:
        if previous := request.get("previous_response_id"):
            return self._upstream_continuations.get(owner, str(previous))
        conversation = conversation_key(request)
        continuation = (
            self._upstream_continuations.get(owner, conversation) if conversation else None
        )
        if continuation and conversation:
            self._upstream_continuations.drop(owner, conversation)  # from now on it has them
        return continuation

    def _restore_item(
        self, owner: str, original: object, following_items: Sequence[object]
    ) -> list[object]:
        """An item as it is; a search of ours as a call and its result, or as nothing."""
        item = object_or_empty(original)
        item_id = str(item.get("id") or "")
        if item.get("type") != "web_search_call" or (
            item_id and not item_id.startswith(SEARCH_ID_PREFIX)
        ):
            return [original]
        query = object_or_empty(item.get("action")).get("query")
        call_ids = [str(object_or_empty(other).get("call_id")) for other in following_items]
        keys = [item_id, *(f"{query}\0{call_id}" for call_id in call_ids)]
        matches = (self._searches.get(owner, name) for name in keys)
        search = next((each for each in matches if each), None)
        return list(call_and_output_items(*search)) if search else []


def conversation_key(request: JsonObject) -> str | None:
    """The name of the conversation that a request belongs to."""
    conversation = request.get("conversation")
    conversation_id = object_or_empty(conversation).get("id") or (
        conversation if isinstance(conversation, str) else None
    )
    return f"conversation {conversation_id}" if conversation_id else None


def call_and_output_items(call: ToolCall, result: JsonObject) -> list[JsonObject]:
    """A search of ours as the upstream knows it: a call, and what came of it."""
    function = {"type": "function_call", "name": call.name, "arguments": call.arguments}
    return [{**function, "call_id": call.id}, output_item(call, result)]


def output_item(call: ToolCall, result: JsonObject) -> JsonObject:
    return {"type": "function_call_output", "call_id": call.id, "output": tool_result_json(result)}
