"""Session ids without sessions: the server stores nothing between requests.

They distinguish the clients of one owner, so that one cannot cancel the calls of another. A
signature binds each id to its owner; every server with the same tokens can verify it.
"""

import hashlib
import hmac
from collections.abc import Sequence
from secrets import token_hex

from gemini_cli_mcp.http_common.auth import Token


class SessionIds:
    """Issues and verifies session ids, signed with the tokens of their owner."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._keys: dict[str, list[str]] = {}
        for token in tokens:
            self._keys.setdefault(token.owner, []).append(token.value)

    def issue(self, owner: str) -> str:
        nonce = token_hex(16)
        return f"{nonce}.{self._signatures(nonce, owner)[0]}"

    def verify(self, session_id: str, owner: str) -> bool:
        nonce, _, signature = session_id.partition(".")
        actual = signature.encode("utf-8", "replace")
        expected = self._signatures(nonce, owner)
        return any(hmac.compare_digest(actual, candidate.encode()) for candidate in expected)

    def _signatures(self, nonce: str, owner: str) -> list[str]:
        """Sign with each token of the owner, so that sessions survive the rotation of a token."""
        message = nonce.encode("utf-8", "replace")
        keys = self._keys.get(owner, [""])
        return [hmac.new(key.encode(), message, hashlib.sha256).hexdigest()[:32] for key in keys]
