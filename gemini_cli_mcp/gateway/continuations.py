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
from gemini_cli_mcp.gateway.responses.builder import OURS
from gemini_cli_mcp.gateway.search_runner import bounded
from gemini_cli_mcp.gateway.tool_calls import Call
from gemini_cli_mcp.json_values import Object, as_list, as_object

MOST = 1000
MOST_AROUND = 30
"""Items behind a search in which the calls of its turn are looked for."""

_Kept = TypeVar("_Kept")


class Shelf(Generic[_Kept]):
    """The latest things, each for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: OrderedDict[tuple[str, str], tuple[float, _Kept]] = OrderedDict()

    def put(self, owner: str, name: str, thing: _Kept) -> None:
        self._kept[owner, name] = time.monotonic() + self._seconds, thing
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def drop(self, owner: str, name: str) -> None:
        self._kept.pop((owner, name), None)

    def get(self, owner: str, name: str) -> _Kept | None:
        until, thing = self._kept.get((owner, name), (0.0, None))
        return thing if until > time.monotonic() else None


class ParkedTurns:
    """Of chats: whole turns, found again by the user's last words and the client's own calls."""

    def __init__(self, seconds: float) -> None:
        self._turns: Shelf[list[Object]] = Shelf(seconds)

    def keep(
        self, owner: str, before: Sequence[object], ids: Sequence[str], turns: list[Object]
    ) -> None:
        """Until the client sends the results of these calls."""
        place = _Place()
        for message in before:
            place.pass_by(message)
        self._turns.put(owner, place.name(ids), turns)

    def completed(self, owner: str, messages: list[object]) -> list[object]:
        """The messages with our half of every such turn back in its place."""
        done: list[object] = []
        place = _Place()
        for message in messages:
            calls = as_list(as_object(message).get("tool_calls"))
            ids = [str(as_object(call).get("id")) for call in calls]
            turns = self._turns.get(owner, place.name(ids)) if ids else None
            done += turns or [message]
            place.pass_by(message)
        return done


class _Place:
    """A place in a chat: what the user said last, and how many messages ago."""

    def __init__(self) -> None:
        self._said = hashlib.sha256()
        self._since = 0

    def pass_by(self, message: object) -> None:
        """Go behind the next message."""
        self._since += 1
        if as_object(message).get("role") == "user":
            text = latest_user_text([message])
            self._said, self._since = hashlib.sha256(text.encode("utf-8", "replace")), 0

    def name(self, ids: Sequence[str]) -> str:
        """The name of a turn that stands here and makes these calls."""
        # Ids alone are not enough: some upstreams count their calls from 0 in every answer.
        parts = ["", str(self._since), *sorted(ids)]
        name = self._said.copy()
        name.update("\0".join(parts).encode("utf-8", "replace"))
        return name.hexdigest()


@dataclass(frozen=True)
class Ending:
    """How a response of several rounds ended at the upstream."""

    response_id: str
    """Of the last round: there the upstream has all of it."""
    outputs: list[Object]
    """Results of ours that the last round still waits for, beside those of the client."""


class ParkedResponses:
    """Of responses: searches, and endings by the id of the response or of the conversation."""

    def __init__(self, seconds: float) -> None:
        self._searches: Shelf[tuple[Call, Object]] = Shelf(seconds)
        self._endings: Shelf[Ending] = Shelf(seconds)

    def keep(
        self, owner: str, searched: dict[str, tuple[Call, Object]], ids: Sequence[str]
    ) -> None:
        """Searches of a response that the client goes on with, by the results of these calls."""
        for item_id, search in searched.items():
            self._searches.put(owner, item_id, search)
            for call_id in ids:  # Codex sends no ids of searches back
                self._searches.put(owner, f"{search[0].query}\0{call_id}", search)

    def end(self, owner: str, name: str, ending: Ending) -> None:
        self._endings.put(owner, name, ending)

    def completed(self, owner: str, request: Object) -> tuple[Object, bool]:
        """The request with our searches as the calls that they were, or without them.

        And whether the upstream waits for results of ours, so that a chain of searches goes on.
        """
        given = request.get("input")
        items = as_list(given)
        done: list[object] = []
        for place, item in enumerate(items):
            done += self._as_calls(owner, item, items[place : place + MOST_AROUND])
        ending = self._ending(owner, request)
        if ending is None:
            return ({**request, "input": done} if done != items else request), False
        asked = [{"role": "user", "content": given}] if isinstance(given, str) else done
        changed = {**request, "input": [*ending.outputs, *asked]}
        if request.get("previous_response_id") is not None:
            changed["previous_response_id"] = ending.response_id
        return changed, bool(ending.outputs)

    def _ending(self, owner: str, request: Object) -> Ending | None:
        if previous := request.get("previous_response_id"):
            return self._endings.get(owner, str(previous))
        conversation = conversation_of(request)
        ending = self._endings.get(owner, conversation) if conversation else None
        if ending and conversation:
            self._endings.drop(owner, conversation)  # from now on it has them
        return ending

    def _as_calls(self, owner: str, given: object, around: Sequence[object]) -> list[object]:
        """An item as it is; a search of ours as a call and its result, or as nothing."""
        item = as_object(given)
        item_id = str(item.get("id") or "")
        if item.get("type") != "web_search_call" or (item_id and not item_id.startswith(OURS)):
            return [given]
        query = as_object(item.get("action")).get("query")
        following = [str(as_object(other).get("call_id")) for other in around]
        names = [item_id, *(f"{query}\0{call_id}" for call_id in following)]
        found = (self._searches.get(owner, name) for name in names)
        search = next((each for each in found if each), None)
        return list(as_items(*search)) if search else []


def conversation_of(request: Object) -> str | None:
    """The name of the conversation that a request belongs to."""
    given = request.get("conversation")
    found = as_object(given).get("id") or (given if isinstance(given, str) else None)
    return f"conversation {found}" if found else None


def as_items(call: Call, result: Object) -> list[Object]:
    """A search of ours as the upstream knows it: a call, and what came of it."""
    function = {"type": "function_call", "name": call.name, "arguments": call.arguments}
    return [{**function, "call_id": call.id}, as_output(call, result)]


def as_output(call: Call, result: Object) -> Object:
    return {"type": "function_call_output", "call_id": call.id, "output": bounded(result)}
