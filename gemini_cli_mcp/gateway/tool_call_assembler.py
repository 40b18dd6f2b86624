"""The JSON of tool calls in chat completions; assembled with tolerance for upstreams' quirks.

GLM changes the id of a call in every delta, Ollama sends each call in one delta, some upstreams
give all calls the index 0, others send no index, or send arguments as an object.
"""

import json
import re
from dataclasses import dataclass, field
from secrets import token_hex

from gemini_cli_mcp.gateway.tool_calls import WEB_SEARCH_NAME, CallDelta, CallKind, ToolCall
from gemini_cli_mcp.gateway.upstream_client import UpstreamUnavailable
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

_JSON_TOKEN = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
MAX_NAME_CHARS = 256
"""Maximum characters of a tool name; the API allows 64."""


class BracketCounter:
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


@dataclass
class _CallInProgress:
    """A tool call of which more deltas may follow."""

    search_injected: bool
    id: str = ""
    name: str = ""
    kind: CallKind = "function"
    extra: JsonObject = field(default_factory=dict[str, object])
    client_index: int | None = None
    """Index among the calls that the client has seen; None until then."""
    pieces: list[str] = field(default_factory=list[str])
    """Pieces of the arguments."""
    brackets: BracketCounter = field(default_factory=BracketCounter)

    def add_arguments(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)
            self.brackets.add(piece)

    def add_name(self, name: str) -> None:
        """Add a name, or a piece of one, that a delta may also just repeat."""
        if name != self.name and not (self.name and self.pieces):
            self.name += name
            if len(self.name) > MAX_NAME_CHARS:
                raise UpstreamUnavailable("The upstream sent a tool name that is too long.")

    @property
    def is_web_search(self) -> bool:
        return self.search_injected and self.name == WEB_SEARCH_NAME and self.kind == "function"

    @property
    def is_client_call(self) -> bool:
        """Whether the call is certainly the client's, even if its name is still incomplete."""
        may_be_search = (
            self.search_injected
            and self.kind == "function"
            and WEB_SEARCH_NAME.startswith(self.name)
        )
        if not may_be_search:
            return True
        return bool(self.name and self.pieces) and not self.is_web_search

    def build(self) -> ToolCall:
        arguments = "".join(self.pieces)
        return ToolCall(
            self.id, self.name, arguments, self.kind, dict(self.extra), self.is_web_search
        )


@dataclass(frozen=True)
class _UpstreamDelta:
    """A delta of one tool call as the upstream sent it."""

    index: int | None
    id: str
    has_name: bool
    fields: JsonObject

    @classmethod
    def parse(cls, value: object) -> "_UpstreamDelta":
        fields = object_or_empty(value)
        index = fields.get("index")
        functions = [object_or_empty(fields.get(kind)) for kind in ("function", "custom")]
        return cls(
            index if isinstance(index, int) else None,
            str(fields.get("id") or ""),
            any(function.get("name") for function in functions),
            fields,
        )

    def add_to(self, call: _CallInProgress) -> str:
        """Add the delta to its call; return the piece of arguments in it."""
        if "custom" in self.fields:
            call.kind = "custom"
        function = object_or_empty(self.fields.get(call.kind))
        call.id = call.id or self.id
        call.add_name(str(function.get("name") or ""))
        for name, value in self.fields.items():
            if name not in ("index", "id", "type", call.kind):
                call.extra.setdefault(name, value)
        arguments = function.get(_arguments_field(call.kind))
        if arguments is None:
            return ""
        piece = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call.add_arguments(piece)
        return piece

    def starts_new_call(self, call: _CallInProgress) -> bool:
        """Whether the upstream reused the index of a finished call for a new one."""
        has_new_identity = self.has_name and self.id and self.id != call.id
        return bool(has_new_identity and call.pieces and call.brackets.is_balanced)


class ToolCallAssembler:
    """The tool calls of one turn."""

    def __init__(self, max_calls: int, *, search_injected: bool = True) -> None:
        """With `search_injected`, calls of `web_search` are ours and hidden from the client."""
        self._max_calls = max_calls
        self._search_injected = search_injected
        self._calls: list[_CallInProgress] = []
        self._by_index: dict[int, _CallInProgress] = {}
        self._by_id: dict[str, _CallInProgress] = {}
        self._revealed_count = 0

    def add_deltas(self, values: object) -> list[CallDelta]:
        """Add the `tool_calls` of a delta or message; return what the client may see of them."""
        visible: list[CallDelta] = []
        for delta in map(_UpstreamDelta.parse, list_or_empty(values)):
            call = self._call_for(delta)
            if delta.id and not call.id:
                self._by_id.setdefault(delta.id, call)
            arguments = delta.add_to(call)
            if call.client_index is not None:
                extra = {name: delta.fields[name] for name in call.extra if name in delta.fields}
                visible.append(
                    CallDelta(call.client_index, None, None, arguments, call.kind, extra)
                )
            elif call.is_client_call:
                visible.append(self._reveal(call))
        return visible

    def flush(self) -> list[CallDelta]:
        """End the turn; return the client's calls that it has not seen yet."""
        self._assign_unique_ids()
        return [
            self._reveal(call)
            for call in self._calls
            if not call.is_web_search and call.client_index is None
        ]

    @property
    def calls(self) -> list[ToolCall]:
        """All calls in order, each with a unique id."""
        self._assign_unique_ids()
        return [call.build() for call in self._calls]

    def _assign_unique_ids(self) -> None:
        seen_ids: set[str] = set()
        for call in self._calls:
            if not call.id or call.id in seen_ids:
                call.id = _new_call_id()
            seen_ids.add(call.id)

    def _reveal(self, call: _CallInProgress) -> CallDelta:
        call.id = call.id or _new_call_id()
        call.client_index, self._revealed_count = self._revealed_count, self._revealed_count + 1
        complete = call.build()
        return CallDelta(
            call.client_index,
            complete.id,
            complete.name,
            complete.arguments,
            complete.kind,
            complete.extra,
        )

    def _call_for(self, delta: _UpstreamDelta) -> _CallInProgress:
        """Return the call that a delta belongs to, creating it if needed."""
        if delta.index is None:
            call = self._call_without_index(delta)
        else:
            call = self._by_index.get(delta.index)
        if call is None or delta.starts_new_call(call):
            if len(self._calls) == self._max_calls:
                raise UpstreamUnavailable(
                    f"The upstream made more than {self._max_calls:,} tool calls."
                )
            call = _CallInProgress(self._search_injected)
            self._calls.append(call)
        if delta.index is not None:
            self._by_index[delta.index] = call
        return call

    def _call_without_index(self, delta: _UpstreamDelta) -> _CallInProgress | None:
        if delta.id in self._by_id:
            return self._by_id[delta.id]
        return None if delta.has_name or not self._calls else self._calls[-1]


def call_json(call: ToolCall) -> JsonObject:
    """Return a call as it appears in an assistant message."""
    function = {"name": call.name, _arguments_field(call.kind): call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: function, **call.extra}


def call_delta_json(delta: CallDelta) -> JsonObject:
    """Return a piece of a call as it appears in the delta of a chunk."""
    arguments = {_arguments_field(delta.kind): delta.arguments}
    if delta.call_id is None:
        return {"index": delta.index, delta.kind: arguments, **delta.extra}
    identity = {"index": delta.index, "id": delta.call_id, "type": delta.kind}
    return {**identity, delta.kind: {"name": delta.name, **arguments}, **delta.extra}


def _arguments_field(kind: CallKind) -> str:
    return "input" if kind == "custom" else "arguments"


def _new_call_id() -> str:
    return f"call_{token_hex(12)}"
