"""What the upstream needs again with a client's next Responses request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemini_cli_mcp.gateway.continuations import ContinuationStore
from gemini_cli_mcp.gateway.events import SearchFinished
from gemini_cli_mcp.gateway.responses.items import SEARCH_ID_PREFIX
from gemini_cli_mcp.gateway.search_runner import search_query, tool_result_json
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

MAX_ITEMS_AFTER_SEARCH = 30
"""Maximum items after a search among which the calls of its turn are looked up."""


@dataclass(frozen=True)
class UpstreamContinuation:
    """How a response of several turns ended at the upstream."""

    response_id: str
    """Response id of the last turn, which includes all earlier turns at the upstream."""
    pending_searches: tuple[SearchFinished, ...]
    """Searches whose outputs the last turn still needs, in addition to the client's."""


@dataclass(frozen=True)
class RestoredRequest:
    """A Responses request with what was hidden from the client."""

    body: JsonObject
    """The client's own object if nothing was restored."""
    continues_search: bool
    """Whether the upstream needs outputs of ours, i.e. a chain of searches continues."""


class ResponseContinuations:
    """Searches by item id, and upstream continuations by response or conversation id."""

    def __init__(self, ttl: float) -> None:
        self._searches: ContinuationStore[SearchFinished] = ContinuationStore(ttl)
        self._upstream_continuations: ContinuationStore[UpstreamContinuation] = ContinuationStore(
            ttl
        )

    def keep_searches(
        self, owner: str, searches: Mapping[str, SearchFinished], call_ids: Sequence[str]
    ) -> None:
        """Store searches by item id until the client sends the results of these calls."""
        for item_id, search in searches.items():
            self._searches.put(owner, item_id, search)
            for call_id in call_ids:  # Codex does not send search ids back
                self._searches.put(owner, f"{search_query(search.call)}\0{call_id}", search)

    def keep_upstream(self, owner: str, key: str, continuation: UpstreamContinuation) -> None:
        self._upstream_continuations.put(owner, key, continuation)

    def restore(self, owner: str, request: JsonObject) -> RestoredRequest:
        """Restore our searches as tool calls, or remove them if they are unknown."""
        client_input = request.get("input")
        items = list_or_empty(client_input)
        restored_items: list[object] = []
        for index, item in enumerate(items):
            restored_items += self._restore_item(
                owner, item, items[index : index + MAX_ITEMS_AFTER_SEARCH]
            )
        conversation = conversation_key(request.get("conversation"))
        continuation = self._upstream_continuation(
            owner, request.get("previous_response_id"), conversation
        )
        if continuation is None:
            is_changed = restored_items != items
            return RestoredRequest(
                {**request, "input": restored_items} if is_changed else request, False
            )
        if isinstance(client_input, str):
            restored_items = [{"role": "user", "content": client_input}]
        pending_outputs = [output_item(search) for search in continuation.pending_searches]
        body = {**request, "input": [*pending_outputs, *restored_items]}
        if request.get("previous_response_id") is not None:
            body["previous_response_id"] = continuation.response_id
        return RestoredRequest(body, bool(pending_outputs))

    def _upstream_continuation(
        self, owner: str, previous_response_id: object, conversation: str | None
    ) -> UpstreamContinuation | None:
        if previous_response_id:
            return self._upstream_continuations.get(owner, str(previous_response_id))
        return self._upstream_continuations.take(owner, conversation) if conversation else None

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
        return [_call_item(search), output_item(search)] if search else []


def conversation_key(conversation: object) -> str | None:
    """Return the key of the `conversation` of a request: an id, or an object with one."""
    conversation_id = (
        conversation if isinstance(conversation, str) else object_or_empty(conversation).get("id")
    )
    return f"conversation {conversation_id}" if conversation_id else None


def _call_item(search: SearchFinished) -> dict[str, str]:
    """Return a search of ours as the upstream knows it: a function call."""
    call = search.call
    function = {"type": "function_call", "name": call.name, "arguments": call.arguments}
    return {**function, "call_id": call.id}


def output_item(search: SearchFinished) -> dict[str, str]:
    """Return the output of a search as the upstream expects it."""
    output = tool_result_json(search.outcome)
    return {"type": "function_call_output", "call_id": search.call.id, "output": output}
