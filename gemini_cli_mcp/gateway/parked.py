"""Results of ours that wait for the client's own: the other half of a mixed turn."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

from gemini_cli_mcp.gateway.intent import latest_user_text
from gemini_cli_mcp.models import Object, as_list, as_object

MOST = 1000
LONGEST = 3600.0


class Parked:
    """Whole turns, found again by their owner, the user's last words and the client's own calls."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, tuple[float, list[Object]]] = OrderedDict()

    def keep(
        self, owner: str, before: Sequence[object], ids: Sequence[str], turn: list[Object]
    ) -> None:
        """Until the client sends the results of these calls."""
        self._turns[_key(owner, before, ids)] = time.monotonic() + LONGEST, turn
        while len(self._turns) > MOST:
            self._turns.popitem(last=False)

    def completed(self, owner: str, messages: list[object]) -> list[object]:
        """The messages with our half of every mixed turn back in its place."""
        done: list[object] = []
        for place, message in enumerate(messages):
            calls = as_list(as_object(message).get("tool_calls"))
            ids = [str(as_object(call).get("id")) for call in calls]
            key = _key(owner, messages[:place], ids) if ids and self._turns else ""
            until, turn = self._turns.get(key, (0.0, []))
            done += turn if until > time.monotonic() else [message]
        return done


def _key(owner: str, before: Sequence[object], ids: Sequence[str]) -> str:
    # Ids alone are not enough: some upstreams count their calls from 0 in every answer.
    parts = [owner, latest_user_text(before), *sorted(ids)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
