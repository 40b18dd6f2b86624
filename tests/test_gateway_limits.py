"""Requests and upstreams without measure: the gateway stays up, and whoever waits is told."""

import json
import threading
import time
from collections.abc import Callable, Generator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from gemini_cli_mcp.gateway.continuations import ChatContinuations, ResponseContinuations
from gemini_cli_mcp.gateway.responses.chat_request import to_chat_request
from gemini_cli_mcp.gateway.tool_calls import ToolCall, ToolCallAssembler
from gemini_cli_mcp.gateway.upstream_client import UpstreamUnavailable
from tests.support.openai_clients import gateway_environment, running_gateway
from tests.support.scripted_upstream import SEARCH_QUESTION, ScriptedReply, ScriptedUpstream, call

LIMITS = {
    "max_upstream_events": 200,
    "max_upstream_bytes": 100_000,
    "max_upstream_tool_calls": 20,
    "upstream_turn_timeout": 1.0,
}
SEARCHING = [{"role": "user", "content": SEARCH_QUESTION}]


@pytest.fixture(scope="module")
def bounded(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("bounded")
    with running_gateway(gateway_environment(folder, upstream), limits=LIMITS) as address:
        yield address


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def of_two_sizes(work: Callable[[int], object], size: int) -> float:
    """How much longer four times as much takes, by the best of three each."""
    few, many = (min(seconds(lambda n=n: work(n)) for _ in range(3)) for n in (size, 4 * size))
    return many / max(few, 0.01)


def many_calls(count: int) -> None:
    messages: list[object] = [{"role": "user", "content": "x" * 1000}]
    messages += [{"role": "assistant", "tool_calls": [{"id": str(n)}]} for n in range(count)]
    assert ChatContinuations(60).restore("owner", messages) == messages


def many_items(count: int) -> None:
    items = [{"type": "web_search_call", "id": "theirs", "n": n} for n in range(count)]
    request = {"input": items}
    assert ResponseContinuations(60).restore("owner", request) == (request, False)


def unnumbered(count: int) -> None:
    calls = ToolCallAssembler(count)
    function = {"name": "mine", "arguments": "{}"}
    calls.add_deltas([{"id": str(n), "function": function} for n in range(count)])
    assert len(calls.calls) == len(calls.flush()) + count == count


def growing(count: int) -> None:
    calls = ToolCallAssembler(1)
    calls.add_deltas([{"index": 0, "id": "1", "function": {"name": "mine", "arguments": ""}}])
    for _ in range(count):
        calls.add_deltas([{"index": 0, "function": {"arguments": "x" * 100}}])
    assert len(calls.calls[0].arguments) == 100 * count


def renamed(count: int) -> None:
    calls = ToolCallAssembler(10)
    for number in range(count):  # each delta names its call anew, with another id
        function = {"name": "mine", "arguments": '{"a' if number == 0 else "b}{" * 10}
        calls.add_deltas([{"index": 0, "id": f"c{number}", "function": function}])
    assert len(calls.calls) == 1


def said_after_calls(count: int) -> None:
    function = {"type": "function_call", "name": "mine", "arguments": "{}", "call_id": "1"}
    said = {"type": "message", "role": "assistant", "content": "x" * 1000}
    messages = to_chat_request(
        {"input": [{"role": "user", "content": "x"}, function, *[said] * count]}
    )
    assert len(messages["messages"][1]["content"]) == 1002 * count - 2


@pytest.mark.parametrize(
    ("work", "size"),
    [
        (many_calls, 4000),
        (many_items, 10_000),
        (unnumbered, 5000),
        (growing, 10_000),
        (renamed, 5000),
        (said_after_calls, 5000),
    ],
)
def test_more_takes_longer_in_proportion(work: Callable[[int], object], size: int) -> None:
    assert of_two_sizes(work, size) < 10  # what is quadratic takes sixteen times as long


def test_a_large_request_does_not_stop_the_others(bounded: str, upstream: ScriptedUpstream) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ScriptedReply("Hi."))
    calls = [{"role": "assistant", "tool_calls": [{"id": str(n)}]} for n in range(5000)]
    body = {"model": model, "messages": [*SEARCHING, *calls]}
    items = {"model": model, "input": [{"type": "web_search_call"}] * 19_999 + SEARCHING}
    statuses: list[int] = []

    def ask(path: str, body: Any) -> None:
        statuses.append(httpx2.post(f"{bounded}/{path}", json=body, timeout=60).status_code)

    threads = [
        threading.Thread(target=ask, args=("chat/completions", body)),
        threading.Thread(target=ask, args=("responses", items)),
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # It was half a minute; the limit is no measurement.
        answer = httpx2.get(bounded.removesuffix("/v1") + "/healthz", timeout=10)
        assert answer.status_code == 200
    for thread in threads:
        thread.join()
    assert len(statuses) == 2 and 200 in statuses


@pytest.mark.parametrize("field", ["messages", "input"])
def test_a_request_has_a_limited_number_of_items(bounded: str, field: str) -> None:
    path = "chat/completions" if field == "messages" else "responses"
    body = {"model": "any", field: [{"role": "user", "content": "x"}] * 20_001}

    answer = httpx2.post(f"{bounded}/{path}", json=body)

    assert answer.status_code == 413
    assert "20,000" in answer.json()["error"]["message"]


def delta(**fields: Any) -> Any:
    return fields


def tool(index: int | None, name: str | None = None, arguments: str = "x" * 50) -> Any:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    numbered = {} if index is None else {"index": index}
    return {"tool_calls": [{**numbered, "id": f"c{index}" if name else None, "function": function}]}


ENDLESS: dict[str, ScriptedReply] = {
    "content": ScriptedReply(deltas=[delta(content="word ")] * 400),
    "much content": ScriptedReply(deltas=[delta(content="word " * 1000)] * 100),
    "reasoning": ScriptedReply(deltas=[delta(reasoning_content="hm ")] * 400),
    "one growing call": ScriptedReply(deltas=[tool(0, "mine"), *[tool(0)] * 400]),
    "calls": ScriptedReply(deltas=[tool(n, "mine", "{}") for n in range(100)]),
    "unnumbered calls": ScriptedReply(
        deltas=[
            {"tool_calls": [{"id": f"u{n}", "function": {"name": "mine", "arguments": "{}"}}]}
            for n in range(100)
        ]
    ),
    "a growing name": ScriptedReply(deltas=[tool(0, "web_" * 40, "")] * 400),
    "empty chunks": ScriptedReply(deltas=[delta()] * 400),
    "one character now and then": ScriptedReply(deltas=[delta(content="x")] * 20, pause=0.3),
    "comments": ScriptedReply(pieces=[b": still here\n\n"] * 20, pause=0.3),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_an_upstream_without_end_is_ended_and_the_client_is_told(
    bounded: str, upstream: ScriptedUpstream, kind: str, path: str
) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ENDLESS[kind])
    asked: dict[str, Any] = (
        {"messages": SEARCHING} if path[0] == "c" else {"input": SEARCH_QUESTION}
    )

    answer = httpx2.post(
        f"{bounded}/{path}", json={"model": model, "stream": True, **asked}, timeout=30
    )

    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    told = json.loads(events[-1]) if events else answer.json()
    error = told.get("error") or told["response"]["error"]
    assert "The upstream" in error["message"]
    assert "[DONE]" not in events


@pytest.mark.parametrize("kind", ["much content", "one character now and then"])
def test_what_passes_has_an_end_too(bounded: str, upstream: ScriptedUpstream, kind: str) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ENDLESS[kind])
    hello = [{"role": "user", "content": "Hello!"}]
    body = {"model": model, "stream": True, "messages": hello}
    pieces: list[str] = []
    with (
        httpx2.stream("POST", f"{bounded}/chat/completions", json=body, timeout=30) as answer,
        pytest.raises(httpx2.HTTPError),  # it has no good end
    ):
        pieces.extend(answer.iter_text())

    last = [line for line in "".join(pieces).splitlines() if line.startswith("data: ")][-1]
    assert "The upstream" in json.loads(last[6:])["error"]["message"]


def test_an_answer_with_too_many_calls_is_none(bounded: str, upstream: ScriptedUpstream) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ScriptedReply(calls=[call("mine", "{}", f"c{n}") for n in range(21)]))

    answer = httpx2.post(
        f"{bounded}/chat/completions", json={"model": model, "messages": SEARCHING}
    )

    assert answer.status_code == 502
    assert "more than 20 tool calls" in answer.json()["error"]["message"]


def test_a_name_without_end_is_refused() -> None:
    calls = ToolCallAssembler(10)

    for n in range(40):
        calls.add_deltas([{"index": 0, "function": {"name": f"part{n}"}}])
    with pytest.raises(UpstreamUnavailable, match="too long"):
        calls.add_deltas([{"index": 0, "function": {"name": "x" * 100}}])


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (['{"a": "}', '"}'], True),
        (['{"a": "\\', '""}'], True),
        (['{"a": "\\"', "}"], False),
        (['{"a": ["\\\\"]', "}"], True),
        (['{"a"', ": 1"], False),
        (["[", "]", "{"], False),
    ],
)
def test_pieces_of_arguments_are_whole_when_all_is_closed(pieces: list[str], whole: bool) -> None:
    call_ = ToolCall("id", "mine")
    for piece in pieces:
        call_.add_arguments(piece)

    assert call_.looks_complete is whole


def test_a_request_of_endless_values_is_refused(bounded: str) -> None:
    body = b'{"model": "any", "messages": [], "x": [' + b"[]," * 400_000 + b"1]}"

    answer = httpx2.post(f"{bounded}/chat/completions", content=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


def test_an_error_of_the_upstream_does_not_tell_our_key(
    bounded: str, upstream: ScriptedUpstream
) -> None:
    model = f"model-{uuid4().hex}"
    body = b'{"error": {"message": "Incorrect API key provided: upstream-key."}}'
    for messages in (SEARCHING, [{"role": "user", "content": "Hello!"}]):
        upstream.plays(
            model, ScriptedReply(status=401, body=body, headers={"x-said": "upstream-key"})
        )
        answer = httpx2.post(
            f"{bounded}/chat/completions", json={"model": model, "messages": messages}
        )
        assert answer.status_code == 401
        assert answer.headers["x-said"] == "[redacted]"
        assert answer.json()["error"]["message"] == "Incorrect API key provided: [redacted]."
