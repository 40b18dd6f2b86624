"""Tool calls of one assistant turn, put together from whatever an upstream sends.

GLM gives a call another id in every delta, Ollama the whole call at once, others no index or
arguments that are an object already: the first id stands, the rest is joined by index.
"""

import json
from dataclasses import dataclass, field
from secrets import token_hex

from gemini_cli_mcp.models import Object, as_list, as_object

NAME = "web_search"
"""The function that is ours."""


@dataclass
class Call:
    """One call, as far as it has come."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Object = field(default_factory=dict[str, object])
    """What else the upstream said of it, and may want to hear again."""
    shown: int | None = None
    """Its number among those that the client has seen the beginning of."""

    @property
    def is_ours(self) -> bool:
        return self.name == NAME

    def as_message(self) -> Object:
        """As it stands in an assistant message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


class Calls:
    """The calls of one turn."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._shown = 0

    def take(self, deltas: object) -> list[Object]:
        """Take the `tool_calls` of a delta or a message; those deltas that the client may see."""
        seen: list[Object] = []
        for place, delta in enumerate(map(as_object, as_list(deltas))):
            call = self._calls.setdefault(self._index(delta, place), Call())
            arguments = self._add(call, delta)
            if call.shown is not None:
                extra = {name: delta[name] for name in call.extra if name in delta}
                seen.append({"index": call.shown, "function": {"arguments": arguments}, **extra})
            # Until its arguments begin, a name that may still become ours is not shown.
            elif (call.arguments and not call.is_ours) or not NAME.startswith(call.name):
                seen.append(self._show(call))
        return seen

    def rest(self) -> list[Object]:
        """At the end of a turn: deltas of those calls that the client has seen nothing of."""
        return [self._show(call) for call in self.all if not call.is_ours and call.shown is None]

    @property
    def all(self) -> list[Call]:
        """All of them, in order, each with an id of its own."""
        calls = [self._calls[number] for number in sorted(self._calls)]
        for place, call in enumerate(calls):
            if not call.id or call.id in [other.id for other in calls[:place]]:
                call.id = f"call_{token_hex(12)}"
        return calls

    def _show(self, call: Call) -> Object:
        call.id = call.id or f"call_{token_hex(12)}"
        call.shown, self._shown = self._shown, self._shown + 1
        return {"index": call.shown, **call.as_message()}

    @staticmethod
    def _add(call: Call, delta: Object) -> str:
        """Take a delta of this call; the piece of arguments that it brought."""
        function = as_object(delta.get("function"))
        call.id = call.id or str(delta.get("id") or "")
        name = str(function.get("name") or "")
        if name != call.name and not call.arguments:  # some repeat it, some send it in pieces
            call.name += name
        for key, value in delta.items():
            if key not in ("index", "id", "type", "function"):
                call.extra.setdefault(key, value)
        arguments = function.get("arguments")
        if arguments is None:
            return ""
        piece = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call.arguments += piece
        return piece

    def _index(self, delta: Object, place: int) -> int:
        index = delta.get("index")
        if isinstance(index, int):
            return index
        known = str(delta.get("id") or "")
        for number, call in self._calls.items():
            if known and call.id == known:
                return number
        starts = bool(as_object(delta.get("function")).get("name"))
        last = max(self._calls, default=-1)
        return last + 1 if starts else max(last, place)


def search_arguments(call: Call) -> Object | None:
    """The arguments of a call to `web_search`; None if they are none."""
    try:
        given: object = json.loads(call.arguments or "{}")
        if isinstance(given, str):  # encoded twice
            given = json.loads(given)
    except (ValueError, RecursionError):
        return None
    return as_object(given) or None
