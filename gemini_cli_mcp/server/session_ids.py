"""Session ids that hold no session: the server keeps nothing between two requests.

They tell two clients of one owner apart, so that one cannot end the other's calls, and belong to
their owner by a signature that every server with the same tokens can check.
"""

import hashlib
import hmac
from collections.abc import Sequence
from secrets import token_hex

from gemini_cli_mcp.http_common.auth import Token


class SessionIds:
    """Issues and checks them; an owner's tokens are the keys."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._keys: dict[str, list[str]] = {}
        for token in tokens:
            self._keys.setdefault(token.owner, []).append(token.value)

    def issue(self, owner: str) -> str:
        name = token_hex(16)
        return f"{name}.{self._signatures(name, owner)[0]}"

    def verify(self, session_id: str, owner: str) -> bool:
        name, _, signature = session_id.partition(".")
        given = signature.encode("utf-8", "replace")
        known = self._signatures(name, owner)
        return any(hmac.compare_digest(given, each.encode()) for each in known)

    def _signatures(self, name: str, owner: str) -> list[str]:
        """By each of the owner's tokens, so that one can be changed while sessions go on."""
        text = name.encode("utf-8", "replace")
        keys = self._keys.get(owner, [""])
        return [hmac.new(key.encode(), text, hashlib.sha256).hexdigest()[:32] for key in keys]
