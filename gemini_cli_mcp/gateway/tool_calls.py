"""Assemble the tool calls of one assistant turn, tolerating the quirks of upstreams.

GLM changes the id of a call in every delta, Ollama sends each call in one delta, some upstreams
give all calls the index 0, others send no index, or send arguments as an object.
"""

import json
import re
from secrets import token_hex

from gemini_cli_mcp.gateway.upstream_client import UpstreamUnavailable
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

WEB_SEARCH_NAME = "web_search"
"""Name of the function that the gateway injects."""
_JSON_TOKEN = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
MAX_NAME_CHARS = 256
"""Maximum characters of a tool name; the API allows 64."""


class ToolCall:
    """One tool call, possibly still incomplete."""

    def __init__(
        self,
        call_id: str = "",
        name: str = "",
        arguments: str = "",
        *,
        search_injected: bool = True,
    ) -> None:
        """Without `search_injected`, a call of `web_search` is the client's own."""
        self.id = call_id
        self.name = name
        self.kind = "function"
        """`function`, or `custom` with arbitrary text as arguments."""
        self.extra: JsonObject = {}
        """Other fields from the upstream, which may need them back."""
        self.client_index: int | None = None
        """Index among the calls that the client has seen; None until then."""
        self.search_injected = search_injected
        self._pieces: list[str] = []
        self._brackets = _BracketCounter()
        self.add_arguments(arguments)

    @property
    def arguments(self) -> str:
        """The arguments received so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add_arguments(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._brackets.add(piece)

    @property
    def looks_complete(self) -> bool:
        """Whether all brackets and quotes in the arguments are closed; cheap for any length."""
        return self._brackets.is_balanced

    @property
    def has_arguments(self) -> bool:
        return bool(self._pieces)

    @property
    def is_web_search(self) -> bool:
        return self.search_injected and self.name == WEB_SEARCH_NAME and self.kind == "function"

    @property
    def query(self) -> str:
        """The query of a search; empty if the arguments cannot be parsed."""
        return str((search_arguments(self) or {}).get("query") or "")

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete JSON; custom ones need not be JSON."""
        try:
            json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.kind == "custom"
        return True

    def as_message(self) -> JsonObject:
        """Return the call as it appears in an assistant message."""
        function = {"name": self.name, **self.arguments_delta(self.arguments)}
        return {"id": self.id, "type": self.kind, self.kind: function, **self.extra}

    def arguments_delta(self, arguments: str) -> JsonObject:
        return {"input" if self.kind == "custom" else "arguments": arguments}


class _BracketCounter:
    """Tracks whether the brackets and quotes of JSON text that arrives in pieces are closed."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._pending_escape = ""

    @property
    def is_balanced(self) -> bool:
        return self._depth == 0 and not self._in_string

    def add(self, piece: str) -> None:
        piece = self._pending_escape + piece
        backslashes = len(piece) - len(piece.rstrip("\\"))
        self._pending_escape = "\\" if backslashes % 2 else ""  # the escaped character follows
        for match in _JSON_TOKEN.finditer(piece, 0, len(piece) - len(self._pending_escape)):
            symbol = match[0]
            if symbol == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(symbol, 0)


class ToolCallAssembler:
    """The tool calls of one turn."""

    def __init__(self, max_calls: int, *, search_injected: bool = True) -> None:
        """With `search_injected`, calls of `web_search` are ours and hidden from the client."""
        self._max_calls = max_calls
        self._search_injected = search_injected
        self._calls: list[ToolCall] = []
        self._by_index: dict[int, ToolCall] = {}
        self._by_id: dict[str, ToolCall] = {}
        self._revealed_count = 0

    def add_deltas(self, deltas: object) -> list[JsonObject]:
        """Add the `tool_calls` of a delta or message; return the deltas visible to the client."""
        visible: list[JsonObject] = []
        for delta in map(object_or_empty, list_or_empty(deltas)):
            call = self._call_for(delta)
            arguments = self._add_delta(call, delta)
            if call.client_index is not None:
                extra = {name: delta[name] for name in call.extra if name in delta}
                function = {call.kind: call.arguments_delta(arguments)}
                visible.append({"index": call.client_index, **function, **extra})
            elif _is_client_call(call):
                visible.append(self._reveal(call))
        return visible

    def flush(self) -> list[JsonObject]:
        """End the turn; return deltas for the client's calls that it has not seen yet."""
        return [
            self._reveal(call)
            for call in self.calls
            if not call.is_web_search and call.client_index is None
        ]

    @property
    def calls(self) -> list[ToolCall]:
        """All calls in order, each with a unique id."""
        seen_ids: set[str] = set()
        for call in self._calls:
            if not call.id or call.id in seen_ids:
                call.id = f"call_{token_hex(12)}"
            seen_ids.add(call.id)
        return self._calls

    def _reveal(self, call: ToolCall) -> JsonObject:
        call.id = call.id or f"call_{token_hex(12)}"
        call.client_index, self._revealed_count = self._revealed_count, self._revealed_count + 1
        return {"index": call.client_index, **call.as_message()}

    def _call_for(self, delta: JsonObject) -> ToolCall:
        """Return the call that a delta belongs to, creating it if needed."""
        index = delta.get("index")
        call = (
            self._by_index.get(index) if isinstance(index, int) else self._call_without_index(delta)
        )
        if call is None or _starts_new_call(delta, call):
            if len(self._calls) == self._max_calls:
                raise UpstreamUnavailable(
                    f"The upstream made more than {self._max_calls:,} tool calls."
                )
            call = ToolCall(search_injected=self._search_injected)
            self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call

    def _call_without_index(self, delta: JsonObject) -> ToolCall | None:
        call_id = str(delta.get("id") or "")
        if call_id in self._by_id:
            return self._by_id[call_id]
        return None if _has_name(delta) or not self._calls else self._calls[-1]

    def _add_delta(self, call: ToolCall, delta: JsonObject) -> str:
        """Add a delta to its call; return the piece of arguments in it."""
        if "custom" in delta:
            call.kind = "custom"
        function = object_or_empty(delta.get(call.kind))
        if not call.id and delta.get("id"):
            call.id = str(delta["id"])
            self._by_id.setdefault(call.id, call)
        name = str(function.get("name") or "")
        if name != call.name and not (call.name and call.has_arguments):  # repeated, or split
            call.name += name
            if len(call.name) > MAX_NAME_CHARS:
                raise UpstreamUnavailable("The upstream sent a tool name that is too long.")
        for key, value in delta.items():
            if key not in ("index", "id", "type", call.kind):
                call.extra.setdefault(key, value)
        arguments = function.get("input" if call.kind == "custom" else "arguments")
        if arguments is None:
            return ""
        piece = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call.add_arguments(piece)
        return piece


def _has_name(delta: JsonObject) -> bool:
    return any(object_or_empty(delta.get(kind)).get("name") for kind in ("function", "custom"))


def _starts_new_call(delta: JsonObject, call: ToolCall) -> bool:
    """Whether the upstream reused the index of a finished call for a new one."""
    call_id = str(delta.get("id") or "")
    has_new_identity = _has_name(delta) and call_id and call_id != call.id
    return bool(has_new_identity and call.has_arguments and call.looks_complete)


def _is_client_call(call: ToolCall) -> bool:
    """Whether a call is certainly the client's, even if its name is still incomplete."""
    if (
        not call.search_injected
        or call.kind == "custom"
        or not WEB_SEARCH_NAME.startswith(call.name)
    ):
        return True
    return bool(call.name and call.has_arguments) and not call.is_web_search


def search_arguments(call: ToolCall) -> JsonObject | None:
    """Return the arguments of a `web_search` call; None if they are invalid."""
    try:
        arguments: object = json.loads(call.arguments or "{}")
        if isinstance(arguments, str):  # encoded twice
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return object_or_empty(arguments) or None
