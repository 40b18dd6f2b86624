"""A client's request with a JSON body, and the upstream that it is for."""

import json
from dataclasses import dataclass, replace

from gemini_cli_mcp.gateway.upstream_client import UpstreamClient
from gemini_cli_mcp.json_values import JsonObject


@dataclass(frozen=True)
class ClientRequest:
    """One request of either API."""

    upstream: UpstreamClient
    owner: str
    body: JsonObject
    content: bytes
    """The encoded body: the client's own bytes unless the body was replaced."""

    def with_body(self, body: JsonObject) -> "ClientRequest":
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return replace(self, body=body, content=content)
