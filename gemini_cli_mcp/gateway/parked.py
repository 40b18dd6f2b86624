"""What the client does not see and the model needs again: kept until the client comes back.

Everything is kept under its owner; nobody else gets it.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gemini_cli_mcp.gateway.calls import Call
from gemini_cli_mcp.gateway.intent import latest_user_text
from gemini_cli_mcp.gateway.searches import bounded
from gemini_cli_mcp.gateway.splice import OURS
from gemini_cli_mcp.models import Object, as_list, as_object

MOST = 1000
LONGEST = 3600.0

_Kept = TypeVar("_Kept")


class Shelf(Generic[_Kept]):
    """The latest things, each for an hour."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[float, _Kept]] = OrderedDict()

    def put(self, owner: str, name: str, thing: _Kept) -> None:
        self._kept[owner, name] = time.monotonic() + LONGEST, thing
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def get(self, owner: str, name: str) -> _Kept | None:
        until, thing = self._kept.get((owner, name), (0.0, None))
        return thing if until > time.monotonic() else None


class ParkedTurns:
    """Of chats: whole turns, found again by the user's last words and the client's own calls."""

    def __init__(self) -> None:
        self._turns: Shelf[list[Object]] = Shelf()

    def keep(
        self, owner: str, before: Sequence[object], ids: Sequence[str], turns: list[Object]
    ) -> None:
        """Until the client sends the results of these calls."""
        self._turns.put(owner, _name(before, ids), turns)

    def completed(self, owner: str, messages: list[object]) -> list[object]:
        """The messages with our half of every such turn back in its place."""
        done: list[object] = []
        for place, message in enumerate(messages):
            calls = as_list(as_object(message).get("tool_calls"))
            ids = [str(as_object(call).get("id")) for call in calls]
            turns = self._turns.get(owner, _name(messages[:place], ids)) if ids else None
            done += turns or [message]
        return done


def _name(before: Sequence[object], ids: Sequence[str]) -> str:
    # Ids alone are not enough: some upstreams count their calls from 0 in every answer.
    since = [as_object(message).get("role") != "user" for message in reversed(before)]
    turn = since.index(False) if False in since else len(since)
    parts = [latest_user_text(before), str(turn), *sorted(ids)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class Ending:
    """How a response of several rounds ended at the upstream."""

    response_id: str
    """Of the last round: there the upstream has all of it."""
    outputs: list[Object]
    """Results of ours that the last round still waits for, beside those of the client."""


class ParkedResponses:
    """Of responses: searches by the ids of their items, endings by the id the client knows."""

    def __init__(self) -> None:
        self._searches: Shelf[tuple[Call, Object]] = Shelf()
        self._endings: Shelf[Ending] = Shelf()

    def keep(self, owner: str, searched: dict[str, tuple[Call, Object]]) -> None:
        """Searches of a response that the client goes on with."""
        for item_id, search in searched.items():
            self._searches.put(owner, item_id, search)

    def end(self, owner: str, response_id: str, ending: Ending) -> None:
        self._endings.put(owner, response_id, ending)

    def completed(self, owner: str, request: Object) -> Object:
        """The request with our searches as the calls that they were, or without them."""
        given = request.get("input")
        items = as_list(given)
        done = [part for item in items for part in self._as_calls(owner, as_object(item), item)]
        ending = self._endings.get(owner, str(request.get("previous_response_id")))
        if ending:
            asked = [{"role": "user", "content": given}] if isinstance(given, str) else done
            return {
                **request,
                "previous_response_id": ending.response_id,
                "input": [*ending.outputs, *asked],
            }
        return {**request, "input": done} if done != items else request

    def _as_calls(self, owner: str, item: Object, given: object) -> list[object]:
        item_id = str(item.get("id"))
        if item.get("type") != "web_search_call" or not item_id.startswith(OURS):
            return [given]
        search = self._searches.get(owner, item_id)
        return list(as_items(*search)) if search else []


def as_items(call: Call, result: Object) -> list[Object]:
    """A search of ours as the upstream knows it: a call, and what came of it."""
    function = {"type": "function_call", "name": call.name, "arguments": call.arguments}
    return [{**function, "call_id": call.id}, as_output(call, result)]


def as_output(call: Call, result: Object) -> Object:
    return {"type": "function_call_output", "call_id": call.id, "output": bounded(result)}
