"""Tool calls of one assistant turn, put together from whatever an upstream sends.

GLM gives a call another id in every delta, Ollama the whole call at once, some number all calls
0, others none, or send arguments that are an object already.
"""

import json
import re
from secrets import token_hex

from gemini_cli_mcp.gateway.upstream_client import Broken
from gemini_cli_mcp.json_values import Object, as_list, as_object

NAME = "web_search"
"""The function that is ours."""
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
LONGEST_NAME = 256
"""Characters of a tool's name; the API takes 64."""


class Call:
    """One call, as far as it has come."""

    def __init__(
        self, call_id: str = "", name: str = "", arguments: str = "", *, hides: bool = True
    ) -> None:
        """With `hides` the request had our tool: else a call of that name is the client's."""
        self.id = call_id
        self.name = name
        self.kind = "function"
        """Or `custom`, whose arguments are any text."""
        self.extra: Object = {}
        """What else the upstream said of it, and may want to hear again."""
        self.shown: int | None = None
        """Its number among those that the client has seen the beginning of."""
        self.hides = hides
        self._pieces: list[str] = []
        self._balance = _Balance()
        self.add(arguments)

    @property
    def arguments(self) -> str:
        """All that has come of them."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, piece: str) -> None:
        """More of its arguments."""
        if piece:
            self._pieces.append(piece)
            self._balance.add(piece)

    @property
    def seems_whole(self) -> bool:
        """Whether all that was opened in its arguments is closed; quick, however long they are."""
        return self._balance.is_even

    @property
    def has_arguments(self) -> bool:
        return bool(self._pieces)

    @property
    def is_ours(self) -> bool:
        return self.hides and self.name == NAME and self.kind == "function"

    @property
    def query(self) -> str:
        """What a call of ours asks for, as far as that can be told."""
        return str((search_arguments(self) or {}).get("query") or "")

    @property
    def is_whole(self) -> bool:
        """Whether its arguments have come to an end."""
        try:
            json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.kind == "custom"
        return True

    def as_message(self) -> Object:
        """As it stands in an assistant message."""
        said = {"name": self.name, **self.piece(self.arguments)}
        return {"id": self.id, "type": self.kind, self.kind: said, **self.extra}

    def piece(self, arguments: str) -> Object:
        return {"input" if self.kind == "custom" else "arguments": arguments}


class _Balance:
    """Whether brackets and quotes of a JSON text that comes in pieces are closed."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._rest = ""

    @property
    def is_even(self) -> bool:
        return self._depth == 0 and not self._in_string

    def add(self, piece: str) -> None:
        piece = self._rest + piece
        backslashes = len(piece) - len(piece.rstrip("\\"))
        self._rest = "\\" if backslashes % 2 else ""  # what it escapes is still to come
        for match in _STRUCTURE.finditer(piece, 0, len(piece) - len(self._rest)):
            sign = match[0]
            if sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(sign, 0)


class Calls:
    """The calls of one turn."""

    def __init__(self, most: int, *, hides: bool = True) -> None:
        """With `hides`, those of our name are ours, and not the client's to see."""
        self._most = most
        self._hides = hides
        self._calls: list[Call] = []
        self._by_index: dict[int, Call] = {}
        self._by_id: dict[str, Call] = {}
        self._shown = 0

    def take(self, deltas: object) -> list[Object]:
        """Take the `tool_calls` of a delta or a message; those deltas that the client may see."""
        seen: list[Object] = []
        for delta in map(as_object, as_list(deltas)):
            call = self._of(delta)
            arguments = self._add(call, delta)
            if call.shown is not None:
                extra = {name: delta[name] for name in call.extra if name in delta}
                said = {call.kind: call.piece(arguments)}
                seen.append({"index": call.shown, **said, **extra})
            elif _is_theirs(call):
                seen.append(self._show(call))
        return seen

    def rest(self) -> list[Object]:
        """At the end of a turn: deltas of those calls that the client has seen nothing of."""
        return [self._show(call) for call in self.all if not call.is_ours and call.shown is None]

    @property
    def all(self) -> list[Call]:
        """All of them, in order, each with an id of its own."""
        known: set[str] = set()
        for call in self._calls:
            if not call.id or call.id in known:
                call.id = f"call_{token_hex(12)}"
            known.add(call.id)
        return self._calls

    def _show(self, call: Call) -> Object:
        call.id = call.id or f"call_{token_hex(12)}"
        call.shown, self._shown = self._shown, self._shown + 1
        return {"index": call.shown, **call.as_message()}

    def _of(self, delta: Object) -> Call:
        """The call that a delta belongs to, which may be a new one."""
        index = delta.get("index")
        known = self._by_index.get(index) if isinstance(index, int) else self._unnumbered(delta)
        if known is None or _begins_another(delta, known):
            if len(self._calls) == self._most:
                raise Broken(f"The upstream made more than {self._most:,} tool calls.")
            known = Call(hides=self._hides)
            self._calls.append(known)
        if isinstance(index, int):
            self._by_index[index] = known
        return known

    def _unnumbered(self, delta: Object) -> Call | None:
        given = str(delta.get("id") or "")
        if given in self._by_id:
            return self._by_id[given]
        return None if _named(delta) or not self._calls else self._calls[-1]

    def _add(self, call: Call, delta: Object) -> str:
        """Take a delta of this call; the piece of arguments that it brought."""
        if "custom" in delta:
            call.kind = "custom"
        said = as_object(delta.get(call.kind))
        if not call.id and delta.get("id"):
            call.id = str(delta["id"])
            self._by_id.setdefault(call.id, call)
        name = str(said.get("name") or "")
        if name != call.name and not (call.name and call.has_arguments):  # repeated, or in pieces
            call.name += name
            if len(call.name) > LONGEST_NAME:
                raise Broken("The upstream named a tool that has no end.")
        for key, value in delta.items():
            if key not in ("index", "id", "type", call.kind):
                call.extra.setdefault(key, value)
        arguments = said.get("input" if call.kind == "custom" else "arguments")
        if arguments is None:
            return ""
        piece = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call.add(piece)
        return piece


def _named(delta: Object) -> bool:
    return any(as_object(delta.get(kind)).get("name") for kind in ("function", "custom"))


def _begins_another(delta: Object, call: Call) -> bool:
    """Whether an upstream gave the number of one call to the next."""
    given = str(delta.get("id") or "")
    renamed = _named(delta) and given and given != call.id
    return bool(renamed and call.has_arguments and call.seems_whole)


def _is_theirs(call: Call) -> bool:
    """Whether it is clear that a call is the client's, though its name may still grow."""
    if not call.hides or call.kind == "custom" or not NAME.startswith(call.name):
        return True
    return bool(call.name and call.has_arguments) and not call.is_ours


def search_arguments(call: Call) -> Object | None:
    """The arguments of a call to `web_search`; None if they are none."""
    try:
        given: object = json.loads(call.arguments or "{}")
        if isinstance(given, str):  # encoded twice
            given = json.loads(given)
    except (ValueError, RecursionError):
        return None
    return as_object(given) or None
