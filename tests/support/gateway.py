"""Sessions with a gateway: a client, a mode, and a model with scripted replies."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from tests.support.openai_clients import Ask, NodeClient, Outcome
from tests.support.scripted_upstream import SEARCH_QUESTION, ScriptedReply, ScriptedUpstream


def ask_with(
    client: str,
    node_client: NodeClient | None,
    *,
    python: Ask,
    node: Callable[[NodeClient, str, str, Any], Outcome],
    over_http: Ask,
) -> Ask:
    """Return the function that sends a request with this client."""
    match client:
        case "openai-python":
            return python
        case "openai-node":
            if node_client is None:
                pytest.skip(
                    "openai-node is not installed; scripts/test installs it if Node is available"
                )
            return partial(node, node_client)
        case _:
            return over_http


class GatewaySession:
    """One client in one mode, talking to a model with scripted replies over chat completions."""

    items_field: ClassVar[str] = "messages"

    def __init__(
        self, upstream: ScriptedUpstream, base: str, ask: Ask, mode: str, upstream_id: str = "model"
    ) -> None:
        """`upstream_id` is the prefix of the model, by which the gateway selects the upstream."""
        self.upstream = upstream
        self.mode = mode
        self.upstream_id = upstream_id
        self.model = f"{upstream_id}-{uuid4().hex}"
        self._base = base
        self._ask = ask

    def run(
        self, *replies: ScriptedReply, user: object = SEARCH_QUESTION, **request: object
    ) -> Outcome:
        self.upstream.plays(self.model, *replies)
        return self.send(**{self.items_field: self.user_items(user)}, **request)

    def user_items(self, user: object) -> object:
        return [{"role": "user", "content": user}]

    def send(self, **request: object) -> Outcome:
        return self._ask(self._base, self.mode, {"model": self.model, **request})

    @property
    def requests(self) -> list[Any]:
        """The request bodies that the upstream received."""
        return self.upstream.requests[self.model]

    def tool_results(self, index: int = -1) -> list[Any]:
        """Return the search results in one of the upstream requests."""
        messages = self.requests[index]["messages"]
        return [json.loads(item["content"]) for item in messages if item["role"] == "tool"]

    def tool_names(self, index: int = -1) -> list[str]:
        tools = self.requests[index].get("tools", [])
        return [tool.get("name") or tool["function"]["name"] for tool in tools]


class ResponsesSession(GatewaySession):
    """Same over the Responses API, with an upstream of either kind."""

    items_field = "input"

    def user_items(self, user: object) -> object:
        return user

    def tool_results(self, index: int = -1) -> list[Any]:
        request_body = self.requests[index]
        items = request_body.get("input") or request_body["messages"]
        outputs = [
            item.get("output") or item.get("content") for item in items if _is_tool_result(item)
        ]
        return [json.loads(text) for text in outputs if text.startswith("{")]


def _is_tool_result(item: Any) -> bool:
    return item.get("type") == "function_call_output" or item.get("role") == "tool"
