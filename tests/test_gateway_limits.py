"""Oversized requests and endless upstreams: the gateway stays up and the client gets an error."""

import gc
import json
import threading
import time
from collections.abc import Callable, Generator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from gemini_cli_mcp.gateway.continuations import ChatContinuations
from gemini_cli_mcp.gateway.responses.chat_request import to_chat_request
from gemini_cli_mcp.gateway.responses.continuations import ResponseContinuations, RestoredRequest
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.tool_call_assembler import BracketCounter, ToolCallAssembler
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
def limited_base(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    folder = tmp_path_factory.mktemp("bounded")
    with running_gateway(gateway_environment(folder, upstream), limits=LIMITS) as address:
        yield address


def cpu_seconds(run: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()  # collections depend on what else this process holds, not on the input
    try:
        started = time.process_time()
        run()
        return time.process_time() - started
    finally:
        gc.enable()


def slowdown(run: Callable[[int], object], size: int) -> float:
    """Return how much longer four times the size takes, from the best of five runs each."""
    small, large = (
        min(cpu_seconds(lambda n=n: run(n)) for _ in range(5)) for n in (size, 4 * size)
    )
    return large / max(small, 0.01)


def restore_many_calls(count: int) -> None:
    messages: list[object] = [{"role": "user", "content": "x" * 1000}]
    messages += [
        {"role": "assistant", "tool_calls": [{"id": str(number)}]} for number in range(count)
    ]
    assert ChatContinuations(60).restore("owner", messages) == messages


def restore_many_items(count: int) -> None:
    items = [{"type": "web_search_call", "id": "theirs", "n": number} for number in range(count)]
    request: dict[str, object] = {"input": items}
    assert ResponseContinuations(60).restore("owner", request) == RestoredRequest(
        request, continues_search=False
    )


def assemble_calls_without_index(count: int) -> None:
    assembler = ToolCallAssembler(count)
    function = {"name": "mine", "arguments": "{}"}
    assembler.add_deltas([{"id": str(number), "function": function} for number in range(count)])
    assert len(assembler.calls) == len(assembler.flush()) + count == count


def assemble_growing_arguments(count: int) -> None:
    assembler = ToolCallAssembler(1)
    assembler.add_deltas([{"index": 0, "id": "1", "function": {"name": "mine", "arguments": ""}}])
    for _ in range(count):
        assembler.add_deltas([{"index": 0, "function": {"arguments": "x" * 100}}])
    assert len(assembler.calls[0].arguments) == 100 * count


def assemble_repeated_names(count: int) -> None:
    assembler = ToolCallAssembler(10)
    for number in range(count):  # each delta repeats the name, with another id
        function = {"name": "mine", "arguments": '{"a' if number == 0 else "b}{" * 10}
        assembler.add_deltas([{"index": 0, "id": f"c{number}", "function": function}])
    assert len(assembler.calls) == 1


def convert_messages_after_a_call(count: int) -> None:
    function = {"type": "function_call", "name": "mine", "arguments": "{}", "call_id": "1"}
    message = {"type": "message", "role": "assistant", "content": "x" * 1000}
    items = [{"role": "user", "content": "x"}, function, *[message] * count]
    chat_request: Any = to_chat_request(ResponsesRequest({"input": items}))
    assert len(chat_request["messages"][1]["content"]) == 1002 * count - 2


@pytest.mark.parametrize(
    ("run", "size"),
    [
        (restore_many_calls, 4000),
        (restore_many_items, 10_000),
        (assemble_calls_without_index, 5000),
        (assemble_growing_arguments, 10_000),
        (assemble_repeated_names, 5000),
        (convert_messages_after_a_call, 5000),
    ],
)
def test_run_time_grows_in_proportion_to_the_input(run: Callable[[int], object], size: int) -> None:
    assert slowdown(run, size) < 10  # quadratic code takes sixteen times as long


def test_large_requests_do_not_block_other_requests(
    limited_base: str, upstream: ScriptedUpstream
) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ScriptedReply("Hi."))
    calls = [{"role": "assistant", "tool_calls": [{"id": str(n)}]} for n in range(5000)]
    chat_body = {"model": model, "messages": [*SEARCHING, *calls]}
    responses_body = {"model": model, "input": [{"type": "web_search_call"}] * 19_999 + SEARCHING}
    statuses: list[int] = []

    def post(path: str, body: Any) -> None:
        statuses.append(httpx2.post(f"{limited_base}/{path}", json=body, timeout=60).status_code)

    threads = [
        threading.Thread(target=post, args=("chat/completions", chat_body)),
        threading.Thread(target=post, args=("responses", responses_body)),
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # This once took half a minute; the timeout is deliberately generous.
        response = httpx2.get(limited_base.removesuffix("/v1") + "/healthz", timeout=10)
        assert response.status_code == 200
    for thread in threads:
        thread.join()
    assert len(statuses) == 2 and 200 in statuses


@pytest.mark.parametrize("field", ["messages", "input"])
def test_a_request_with_too_many_items_is_refused(limited_base: str, field: str) -> None:
    path = "chat/completions" if field == "messages" else "responses"
    body = {"model": "any", field: [{"role": "user", "content": "x"}] * 20_001}

    response = httpx2.post(f"{limited_base}/{path}", json=body)

    assert response.status_code == 413
    assert "20,000" in response.json()["error"]["message"]


def delta(**fields: Any) -> Any:
    return fields


def tool_call_delta(index: int | None, name: str | None = None, arguments: str = "x" * 50) -> Any:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    index_field = {} if index is None else {"index": index}
    return {
        "tool_calls": [{**index_field, "id": f"c{index}" if name else None, "function": function}]
    }


ENDLESS: dict[str, ScriptedReply] = {
    "content": ScriptedReply(deltas=[delta(content="word ")] * 400),
    "large content": ScriptedReply(deltas=[delta(content="word " * 1000)] * 100),
    "reasoning": ScriptedReply(deltas=[delta(reasoning_content="hm ")] * 400),
    "one growing call": ScriptedReply(
        deltas=[tool_call_delta(0, "mine"), *[tool_call_delta(0)] * 400]
    ),
    "many calls": ScriptedReply(deltas=[tool_call_delta(n, "mine", "{}") for n in range(100)]),
    "calls without index": ScriptedReply(
        deltas=[
            {"tool_calls": [{"id": f"u{n}", "function": {"name": "mine", "arguments": "{}"}}]}
            for n in range(100)
        ]
    ),
    "a growing name": ScriptedReply(deltas=[tool_call_delta(0, "web_" * 40, "")] * 400),
    "empty chunks": ScriptedReply(deltas=[delta()] * 400),
    "slow content": ScriptedReply(deltas=[delta(content="x")] * 20, pause=0.3),
    "slow comments": ScriptedReply(pieces=[b": still here\n\n"] * 20, pause=0.3),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_an_endless_upstream_is_stopped_and_the_client_gets_an_error(
    limited_base: str, upstream: ScriptedUpstream, kind: str, path: str
) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ENDLESS[kind])
    request_input: dict[str, Any] = (
        {"messages": SEARCHING} if path[0] == "c" else {"input": SEARCH_QUESTION}
    )

    response = httpx2.post(
        f"{limited_base}/{path}", json={"model": model, "stream": True, **request_input}, timeout=30
    )

    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    last_event = json.loads(events[-1]) if events else response.json()
    error = last_event.get("error") or last_event["response"]["error"]
    assert "The upstream" in error["message"]
    assert "[DONE]" not in events


@pytest.mark.parametrize("kind", ["large content", "slow content"])
def test_pass_through_streams_are_limited_too(
    limited_base: str, upstream: ScriptedUpstream, kind: str
) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ENDLESS[kind])
    hello = [{"role": "user", "content": "Hello!"}]
    body = {"model": model, "stream": True, "messages": hello}
    pieces: list[str] = []
    with (
        httpx2.stream(
            "POST", f"{limited_base}/chat/completions", json=body, timeout=30
        ) as response,
        pytest.raises(httpx2.HTTPError),  # the stream is aborted
    ):
        pieces.extend(response.iter_text())

    last = [line for line in "".join(pieces).splitlines() if line.startswith("data: ")][-1]
    assert "The upstream" in json.loads(last[6:])["error"]["message"]


def test_a_completion_with_too_many_tool_calls_is_an_error(
    limited_base: str, upstream: ScriptedUpstream
) -> None:
    model = f"model-{uuid4().hex}"
    upstream.plays(model, ScriptedReply(calls=[call("mine", "{}", f"c{n}") for n in range(21)]))

    response = httpx2.post(
        f"{limited_base}/chat/completions", json={"model": model, "messages": SEARCHING}
    )

    assert response.status_code == 502
    assert "more than 20 tool calls" in response.json()["error"]["message"]


def test_an_endless_tool_name_is_refused() -> None:
    assembler = ToolCallAssembler(10)

    for n in range(40):
        assembler.add_deltas([{"index": 0, "function": {"name": f"part{n}"}}])
    with pytest.raises(UpstreamUnavailable, match="too long"):
        assembler.add_deltas([{"index": 0, "function": {"name": "x" * 100}}])


@pytest.mark.parametrize(
    ("pieces", "complete"),
    [
        (['{"a": "}', '"}'], True),
        (['{"a": "\\', '""}'], True),
        (['{"a": "\\"', "}"], False),
        (['{"a": ["\\\\"]', "}"], True),
        (['{"a"', ": 1"], False),
        (["[", "]", "{"], False),
    ],
)
def test_arguments_look_complete_when_all_brackets_are_closed(
    pieces: list[str], complete: bool
) -> None:
    brackets = BracketCounter()
    for piece in pieces:
        brackets.add(piece)

    assert brackets.is_balanced is complete


def test_a_request_with_too_many_values_is_refused(limited_base: str) -> None:
    body = b'{"model": "any", "messages": [], "x": [' + b"[]," * 400_000 + b"1]}"

    response = httpx2.post(f"{limited_base}/chat/completions", content=body)

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_body")


def test_upstream_errors_do_not_reveal_the_upstream_key(
    limited_base: str, upstream: ScriptedUpstream
) -> None:
    model = f"model-{uuid4().hex}"
    body = b'{"error": {"message": "Incorrect API key provided: upstream-key."}}'
    for messages in (SEARCHING, [{"role": "user", "content": "Hello!"}]):
        upstream.plays(
            model, ScriptedReply(status=401, body=body, headers={"x-said": "upstream-key"})
        )
        response = httpx2.post(
            f"{limited_base}/chat/completions", json={"model": model, "messages": messages}
        )
        assert response.status_code == 401
        assert response.headers["x-said"] == "[redacted]"
        assert response.json()["error"]["message"] == "Incorrect API key provided: [redacted]."
