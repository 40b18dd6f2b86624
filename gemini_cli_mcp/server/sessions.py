"""Session ids that hold no session: the server keeps nothing between two requests.

They tell two clients of one owner apart, so that one cannot end the other's calls, and belong to
their owner by a signature that every server with the same tokens can check.
"""

import hashlib
import hmac
from collections.abc import Sequence
from secrets import token_hex

from gemini_cli_mcp.door import Token


class Sessions:
    """Issues and checks them; an owner's first token is the key."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        # Of several tokens of one owner the first: all its sessions are its own.
        self._keys = {token.owner: token.value for token in reversed(tokens)}

    def issue(self, owner: str) -> str:
        name = token_hex(16)
        return f"{name}.{self._signature(name, owner)}"

    def belongs(self, session_id: str, owner: str) -> bool:
        name, _, signature = session_id.partition(".")
        known = self._signature(name, owner)
        return hmac.compare_digest(signature.encode("utf-8", "replace"), known.encode())

    def _signature(self, name: str, owner: str) -> str:
        key = self._keys.get(owner, "").encode()
        text = name.encode("utf-8", "replace")
        return hmac.new(key, text, hashlib.sha256).hexdigest()[:32]
