"""State hidden from the client that the model needs again with the client's next request.

Entries are stored by owner; no other owner can read them.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from gemini_cli_mcp.gateway.search_intent import latest_user_text
from gemini_cli_mcp.json_values import list_or_empty, object_or_empty

MAX_ENTRIES = 1000

_Value = TypeVar("_Value")


class ContinuationState(Enum):
    """What may still be done with a continuation; all states but the first are final."""

    AVAILABLE = "available"
    """For the client's next requests. Clients that resend a transcript need it every time."""
    DELIVERED = "delivered"
    """The upstream stores it from now on: sending it again would duplicate its outputs."""
    EXPIRED = "expired"
    """No request came for it in time."""


@dataclass
class Continuation(Generic[_Value]):
    """What was hidden from the client, and until when it is kept."""

    value: _Value
    expires_at: float
    state: ContinuationState = ContinuationState.AVAILABLE

    def advance(self, now: float, *, delivered: bool = False) -> ContinuationState:
        """Return the state at this time; the only place where it changes."""
        if self.state is ContinuationState.AVAILABLE:
            if now >= self.expires_at:
                self.state = ContinuationState.EXPIRED
            elif delivered:
                self.state = ContinuationState.DELIVERED
        return self.state


class ContinuationStore(Generic[_Value]):
    """The latest continuations of all owners, each kept for `ttl` seconds.

    When there are too many, the owner with the most of them loses its oldest: no owner can
    displace what others need.
    """

    def __init__(self, ttl: float, max_entries: int = MAX_ENTRIES) -> None:
        self._ttl = ttl
        self._max_entries = max_entries
        self._by_owner: dict[str, dict[str, Continuation[_Value]]] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def put(self, owner: str, key: str, value: _Value) -> None:
        continuations = self._by_owner.setdefault(owner, {})
        continuations.pop(key, None)  # a refreshed key is the latest
        continuations[key] = Continuation(value, time.monotonic() + self._ttl)
        if len(self) > self._max_entries:
            self._remove_expired()
        while len(self) > self._max_entries:
            largest_owner = max(self._by_owner, key=lambda name: len(self._by_owner[name]))
            self._remove(largest_owner, next(iter(self._by_owner[largest_owner])))

    def get(self, owner: str, key: str) -> _Value | None:
        """Return a continuation that is still available, and keep it."""
        return self._look_up(owner, key, delivered=False)

    def take(self, owner: str, key: str) -> _Value | None:
        """Return a continuation that the upstream gets now, and remove it."""
        return self._look_up(owner, key, delivered=True)

    def _look_up(self, owner: str, key: str, *, delivered: bool) -> _Value | None:
        continuation = self._by_owner.get(owner, {}).get(key)
        if continuation is None:
            return None
        state = continuation.advance(time.monotonic(), delivered=delivered)
        if state is not ContinuationState.AVAILABLE:
            self._remove(owner, key)
        return None if state is ContinuationState.EXPIRED else continuation.value

    def _remove_expired(self) -> None:
        now = time.monotonic()
        for owner, continuations in list(self._by_owner.items()):
            for key, continuation in list(continuations.items()):
                if continuation.advance(now) is ContinuationState.AVAILABLE:
                    break  # the others of this owner are newer
                self._remove(owner, key)

    def _remove(self, owner: str, key: str) -> None:
        continuations = self._by_owner[owner]
        del continuations[key]
        if not continuations:
            del self._by_owner[owner]


class ChatContinuations:
    """Hidden chat messages, keyed by the latest user text and the client's own calls."""

    def __init__(self, ttl: float) -> None:
        self._hidden_messages: ContinuationStore[Sequence[object]] = ContinuationStore(ttl)

    def keep(
        self,
        owner: str,
        messages: Sequence[object],
        call_ids: Sequence[str],
        hidden_messages: Sequence[object],
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
