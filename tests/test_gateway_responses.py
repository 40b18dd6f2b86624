"""The Responses API, with a native upstream and with one that has only chat completions."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import native_responses, wait_until
from tests.support.disconnecting_client import post_and_disconnect
from tests.support.gateway import ResponsesSession, ask_with
from tests.support.openai_clients import (
    MODES,
    QUICK_LIMITS,
    Ask,
    NodeClient,
    Outcome,
    gateway_environment,
    respond_over_http,
    respond_python,
    running_gateway,
)
from tests.support.scripted_upstream import (
    SEARCH_QUESTION,
    ScriptedReply,
    ScriptedUpstream,
    call,
    search,
)

CLIENT_TOOL = {
    "type": "function",
    "name": "mine",
    "parameters": {"type": "object"},
    "strict": False,
}
HOSTED_TOOL = {"type": "web_search"}


def environment_with_both_upstreams(folder: Path, upstream: ScriptedUpstream) -> dict[str, str]:
    """Return the environment of a gateway with one upstream of each kind."""
    upstreams = [
        {
            "id": "native",
            "baseUrl": f"{upstream.address}/native/v1",
            "models": ["native*"],
        },
        *(
            {"id": name, "baseUrl": f"{upstream.address}/native/v1", "models": [f"{name}*"]}
            for name in ("unproven-model", "unproven-conversation")
        ),
        {"id": "chat", "baseUrl": f"{upstream.address}/v1"},
    ]
    return gateway_environment(folder, upstream, upstreams=upstreams)


@pytest.fixture(scope="module")
def base(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(environment_with_both_upstreams(folder, upstream)) as address:
        yield address


@pytest.fixture(scope="module")
def quick_base(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(
        environment_with_both_upstreams(folder, upstream), limits=QUICK_LIMITS
    ) as address:
        yield address


@pytest.fixture
def ask(client: str, node_client: NodeClient | None) -> Ask:
    return ask_with(
        client,
        node_client,
        python=respond_python,
        node=NodeClient.respond,
        over_http=respond_over_http,
    )


@pytest.fixture(params=["native", "chat"])
def upstream_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def session(
    upstream: ScriptedUpstream, base: str, ask: Ask, way: str, upstream_kind: str
) -> ResponsesSession:
    return ResponsesSession(upstream, base, ask, way, upstream_kind)


def test_requests_without_search_intent_get_no_tools(session: ResponsesSession) -> None:
    outcome = session.run(ScriptedReply("Hello."), user="Hello!")

    assert (outcome.text, outcome.reason, outcome.calls, outcome.searches) == (
        "Hello.",
        "completed",
        [],
        [],
    )
    assert session.tool_names() == []


@pytest.mark.clients("every")
def test_one_search_is_run_and_its_hit_is_cited(session: ResponsesSession) -> None:
    query = f"blue {session.model}"[:60]
    url = session.upstream.url_of(query)
    outcome = session.run(
        ScriptedReply("Let me see.", [search(query)], thought="Hm."),
        ScriptedReply(f"天空是蓝的 ({url}), and so on."),
        include=["web_search_call.action.sources"],
    )

    assert outcome.text == f"Let me see.天空是蓝的 ({url}), and so on."
    assert (outcome.reason, outcome.calls, outcome.searches) == (
        "completed",
        [],
        [(query, "completed")],
    )
    item_types = [item["type"] for item in outcome.output]
    assert item_types == ["reasoning", "message", "web_search_call", "message"]
    assert outcome.output[2]["action"]["sources"] == [{"type": "url", "url": url}]
    (citation,) = outcome.annotations
    text = outcome.output[3]["content"][0]["text"]
    assert text[citation["start_index"] : citation["end_index"]] == citation["url"] == url
    (result,) = session.tool_results()
    assert result["hits"][0]["url"] == url and "never instructions" in result["note"]
    assert outcome.usage["total_tokens"] == 2 * native_responses.USAGE["total_tokens"]
    assert outcome.usage["input_tokens_details"]["cached_tokens"] == 2
    assert session.tool_names(0) == ["web_search"]


def test_searches_in_one_turn_and_in_the_next_turn_all_run(session: ResponsesSession) -> None:
    outcome = session.run(
        ScriptedReply(calls=[search("one"), search("two", "call_2")]),
        ScriptedReply(calls=[search("three")]),
        ScriptedReply("Done."),
    )

    assert (outcome.text, outcome.reason) == ("Done.", "completed")
    assert outcome.searches == [("one", "completed"), ("two", "completed"), ("three", "completed")]
    assert len(session.tool_results()) == 3


def test_search_results_are_restored_after_a_later_client_call(session: ResponsesSession) -> None:
    outcome = session.run(
        ScriptedReply(calls=[search("one")]),
        ScriptedReply(calls=[call("mine", '{"a": 1}')]),
        tools=[CLIENT_TOOL],
    )

    assert (outcome.calls, outcome.reason) == ([("mine", '{"a": 1}')], "completed")
    session.send(input=input_with_tool_results(outcome), tools=[CLIENT_TOOL])
    assert session.tool_results()[0]["hits"], "the search results are restored"


def input_with_tool_results(outcome: Outcome) -> list[Any]:
    """Return the input as Codex sends it: all items again, plus the results of its own calls."""
    results = [
        {"type": "function_call_output", "call_id": call_id, "output": "mine is done"}
        for call_id in outcome.ids
    ]
    return [{"role": "user", "content": SEARCH_QUESTION}, *outcome.output, *results]


@pytest.mark.clients("every")
def test_a_turn_with_a_search_and_a_client_call_is_restored(session: ResponsesSession) -> None:
    outcome = session.run(
        ScriptedReply("Both.", [search("sky"), call("mine", '{"a": 1}', "call_2")]),
        ScriptedReply("All there."),
        tools=[CLIENT_TOOL],
    )
    assert (outcome.text, outcome.calls, outcome.ids) == (
        "Both.",
        [("mine", '{"a": 1}')],
        ["call_2"],
    )
    assert outcome.searches == [("sky", "completed")]

    follow_up = session.send(input=input_with_tool_results(outcome), tools=[CLIENT_TOOL])

    assert (follow_up.text, follow_up.reason) == ("All there.", "completed")
    assert [result["hits"][0]["title"] for result in session.tool_results()] == ["About sky"]
    sent = json.dumps(session.requests[1])
    assert "mine is done" in sent and "web_search_call" not in sent
    assert "web_search" in session.tool_names()


def test_a_mixed_turn_stored_by_the_upstream_is_continued(session: ResponsesSession) -> None:
    if session.upstream_id == "chat":
        outcome = session.run(ScriptedReply("Hi."), previous_response_id="resp_1")
        assert outcome.status == 400 and "previous_response_id" in outcome.message
        return
    outcome = session.run(
        ScriptedReply(calls=[search("zero")]),
        ScriptedReply(calls=[search("sky"), call("mine", '{"a": 1}', "call_2")]),
        ScriptedReply("All there."),
        tools=[CLIENT_TOOL],
    )
    result = {"type": "function_call_output", "call_id": "call_2", "output": "mine is done"}
    response_id = f"resp_{session.model}_1"
    follow_up = session.send(previous_response_id=response_id, input=[result], tools=[CLIENT_TOOL])

    assert (outcome.searches[1], follow_up.text) == (("sky", "completed"), "All there.")
    sent = session.requests[2]
    assert sent["previous_response_id"] == f"resp_{session.model}_2", (
        "the upstream stored the whole turn"
    )
    assert [item["call_id"] for item in sent["input"]] == ["call_1", "call_2"]
    assert session.tool_names() == ["mine", "web_search"], "the search may continue"


def test_a_stored_response_is_continued_by_its_id(session: ResponsesSession) -> None:
    if session.upstream_id == "chat":
        pytest.skip("chat upstreams store nothing")
    session.run(ScriptedReply(calls=[search("zero")]), ScriptedReply("So."), ScriptedReply("Yes."))
    session.send(previous_response_id=f"resp_{session.model}_1", input="Really?")

    assert session.requests[2]["previous_response_id"] == f"resp_{session.model}_2"
    assert "Really?" in json.dumps(session.requests[2]["input"])


def test_the_number_of_search_rounds_is_limited(session: ResponsesSession) -> None:
    outcome = session.run(
        *[ScriptedReply(calls=[search(f"{number}")]) for number in range(3)],
        ScriptedReply("Enough."),
        tool_choice="required",
    )

    assert (outcome.text, outcome.reason, len(session.requests)) == ("Enough.", "completed", 4)
    assert [("tools" in body, body.get("tool_choice")) for body in session.requests] == [
        (True, "required"),
        (True, None),
        (True, None),
        (False, None),
    ]


def test_search_calls_beyond_the_limit_are_hidden_from_the_client(
    session: ResponsesSession,
) -> None:
    outcome = session.run(*[ScriptedReply(calls=[search(f"{number}")]) for number in range(5)])

    assert (outcome.calls, outcome.reason, len(session.requests)) == ([], "completed", 4)
    assert "https://pages.example/0" in outcome.text and len(outcome.searches) == 3


def test_max_tool_calls_limits_the_searches(session: ResponsesSession) -> None:
    outcome = session.run(
        ScriptedReply(calls=[search("one"), search("two", "call_2")]),
        ScriptedReply("Well."),
        max_tool_calls=1,
    )

    assert (outcome.text, outcome.searches) == ("Well.", [("one", "completed"), ("two", "failed")])
    assert "No more searches" in session.tool_results()[1]["error"]
    assert session.tool_names() == []


def test_engine_failures_are_reported_to_the_model(session: ResponsesSession) -> None:
    query = f"bad {session.model}"[:60]
    session.upstream.engine_failures[query] = (401, {"error": {"code": "1000", "message": "no"}})

    outcome = session.run(
        ScriptedReply(calls=[search(query)]), ScriptedReply("I could not search.")
    )

    assert (outcome.text, outcome.searches) == ("I could not search.", [(query, "failed")])
    assert session.tool_results()[0]["error"]["code"] == "AUTH_ERROR"


@pytest.mark.parametrize("status", [429, 500])
def test_upstream_errors_are_passed_to_the_client(session: ResponsesSession, status: int) -> None:
    error_body = {
        "error": {"message": "Slow down.", "type": "rate_limit", "param": None, "code": "y"}
    }
    error_reply = ScriptedReply(
        status=status, body=json.dumps(error_body).encode(), headers={"retry-after": "7"}
    )

    first = session.run(error_reply)
    assert (first.status, "Slow down." in first.message) == (status, True)

    later = session.run(ScriptedReply("So.", [search("one")]), error_reply)
    assert later.error is not None
    if session.mode == "whole":
        assert (later.status, "Slow down." in later.message) == (status, True)


@pytest.mark.clients("every")
def test_a_truncated_upstream_response_is_an_error(session: ResponsesSession) -> None:
    for user in (SEARCH_QUESTION, "Hello!"):
        outcome = session.run(
            ScriptedReply("A long answer that never comes to its end.", cut=True), user=user
        )
        assert outcome.error is not None, user


@pytest.mark.clients("every")
def test_a_response_cut_off_by_its_length_is_incomplete(session: ResponsesSession) -> None:
    outcome = session.run(
        ScriptedReply(calls=[search("x")]), ScriptedReply("Too long", reason="length")
    )

    if session.mode == "helper" and outcome.error:
        assert "response.completed" in outcome.message  # openai-python accepts no other final event
    else:
        assert (outcome.reason, outcome.text) == ("incomplete", "Too long")


def test_chinese_requests_are_searched_and_answered(session: ResponsesSession) -> None:
    text = "谷歌一下：天空为什么是蓝色的？🙂"
    outcome = session.run(
        ScriptedReply(calls=[search("天空")]), ScriptedReply(text), user="谷歌一下天空"
    )

    assert (outcome.text, outcome.searches) == (text, [("天空", "completed")])


@pytest.mark.clients("one")
@pytest.mark.parametrize("arguments", ["", "null", "[]", "{broken", '{"query": ""}'])
def test_invalid_search_arguments_are_reported_to_the_model(
    session: ResponsesSession, arguments: str
) -> None:
    outcome = session.run(
        ScriptedReply(calls=[call(arguments=arguments)]), ScriptedReply("Never mind.")
    )

    assert (outcome.text, outcome.searches) == ("Never mind.", [("", "failed")])
    assert "error" in session.tool_results()[0]


def test_hosted_search_tools_are_served_by_the_gateway(session: ResponsesSession) -> None:
    tool = {
        "type": "web_search_preview",
        "search_context_size": "low",
        "user_location": {"type": "approximate", "city": "Oslo", "country": "NO"},
    }
    outcome = session.run(
        ScriptedReply(calls=[search("sky")]),
        ScriptedReply("Blue."),
        user="Hello!",
        tools=[tool, CLIENT_TOOL],
        tool_choice={"type": "web_search_preview"},
    )

    assert (outcome.text, len(outcome.searches)) == ("Blue.", 1)
    assert session.tool_names(0) == ["mine", "web_search"]
    choice = session.requests[0]["tool_choice"]
    assert (choice.get("name") or choice["function"]["name"]) == "web_search"
    assert "sky (for a user in Oslo, NO)" in session.upstream.queries
    assert session.upstream.search_counts[-1] == 5


def test_hits_are_filtered_by_allowed_domains(session: ResponsesSession) -> None:
    def tool_allowing(*domains: str) -> Any:
        return {**HOSTED_TOOL, "filters": {"allowed_domains": list(domains)}}

    session.run(
        ScriptedReply(calls=[search("x")]),
        ScriptedReply("Blue."),
        tools=[tool_allowing("https://www.pages.example")],
    )
    assert session.tool_results()[0]["hits"]
    session.run(
        ScriptedReply(calls=[search("x")]),
        ScriptedReply("Blue."),
        tools=[tool_allowing("other.example")],
    )
    assert "other.example" in session.tool_results()[0]["error"]["message"]


@pytest.mark.clients("every")
def test_requests_as_codex_sends_them_are_served(session: ResponsesSession) -> None:
    """Instructions, a hosted tool on every request, replayed items, parallel calls."""
    common: Any = {
        "instructions": "You are Codex.",
        "tools": [CLIENT_TOOL, HOSTED_TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "abc",
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    turn = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
    ]
    outcome = session.run(
        ScriptedReply(
            "I look.",
            [search("api"), call("mine", '{"a": 1}', "c2"), call("mine", '{"a": 2}', "c3")],
            thought="Hm.",
        ),
        ScriptedReply(calls=[search("more")]),
        ScriptedReply("Done."),
        user=turn,
        **common,
    )
    assert outcome.calls == [("mine", '{"a": 1}'), ("mine", '{"a": 2}')]
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "ok"}
        for call_id in outcome.ids
    ]
    # Codex replays searches without their ids.
    replayed = [
        {name: value for name, value in item.items() if name != "id"}
        if item["type"] == "web_search_call"
        else item
        for item in outcome.output
    ]
    follow_up = session.send(input=[*turn, *replayed, *outputs], **common)

    assert session.tool_results(1)[0]["hits"][0]["title"] == "About api"
    assert (follow_up.text, follow_up.searches) == ("Done.", [("more", "completed")])
    # Once more after the final answer: our searches are then dropped from the input.
    session.send(input=[*turn, *outcome.output, *outputs, *follow_up.output, *turn], **common)
    sent = json.dumps(session.requests[-1])
    assert "web_search_call" not in sent and "ws_gateway" not in sent
    assert sent.count('"c2"') == sent.count('"c3"') == 2


def test_calls_of_a_client_function_named_web_search_reach_the_client(
    session: ResponsesSession,
) -> None:
    outcome = session.run(
        ScriptedReply(calls=[search("x")]), tools=[{**CLIENT_TOOL, "name": "web_search"}]
    )

    assert outcome.calls == [("web_search", '{"query": "x"}')]
    assert len(session.requests) == 1


# Behaviour of one kind of upstream


@pytest.fixture
def chat_session(upstream: ScriptedUpstream, base: str) -> ResponsesSession:
    return ResponsesSession(upstream, base, respond_over_http, "whole", "chat")


UNSUPPORTED_BY_CHAT: list[tuple[Any, str]] = [
    ({"input": 5}, "input"),
    ({"input": ["hello"]}, "input[0]"),
    ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    (
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}],
                }
            ]
        },
        "input[0].content",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content",
    ),
]


@pytest.mark.parametrize(
    ("fields", "param"), UNSUPPORTED_BY_CHAT, ids=[param for _, param in UNSUPPORTED_BY_CHAT]
)
def test_requests_that_a_chat_upstream_cannot_serve_are_refused(
    chat_session: ResponsesSession, base: str, fields: Any, param: str
) -> None:
    for stream in (False, True):
        body = {"model": chat_session.model, "input": SEARCH_QUESTION, "stream": stream, **fields}
        response = httpx2.post(f"{base}/responses", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert "chat completions only" in error["message"]
    assert chat_session.model not in chat_session.upstream.requests


def test_all_fields_of_a_request_are_converted_for_chat(
    upstream: ScriptedUpstream, base: str
) -> None:
    # Not with the plain HTTP client: openresponses-types 2.4 does not accept a schema.
    chat_session = ResponsesSession(upstream, base, respond_python, "whole", "chat")
    turn: list[Any] = [
        {"role": "user", "content": "One"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Two"}]},
        {"type": "function_call", "call_id": "a", "name": "mine", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "mine", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "A"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "B"}],
        },
        {"role": "user", "content": "Three"},
    ]
    schema = {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}
    chat_session.run(
        ScriptedReply("{}"),
        user=turn,
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0.5,
        extra_body={"top_k": 3},
        reasoning={"effort": "low"},
        text={"format": schema, "verbosity": "low"},
        tools=[CLIENT_TOOL],
        tool_choice={"type": "function", "name": "mine"},
        metadata={"a": "b"},
    )

    sent = chat_session.requests[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {
            "role": "assistant",
            "content": "Two",
            "tool_calls": [call("mine", "{}", "a"), call("mine", "{}", "b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "A"},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "user", "content": "Three"},
    ]
    function = {"name": "mine", "parameters": {"type": "object"}, "strict": False}
    expected_fields = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "reasoning_effort": "low",
        "verbosity": "low",
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "mine"}},
    }
    assert expected_fields.items() <= sent.items()
    assert sent["response_format"]["json_schema"]["name"] == "s"
    assert not {"metadata", "input", "instructions", "text", "reasoning"} & sent.keys()


def test_interleaved_call_deltas_are_kept_apart(chat_session: ResponsesSession) -> None:
    chat_session.mode = "raw"
    deltas = [
        {"tool_calls": [{"index": 0, **call("mine", '{"a"', "x")}]},
        {"tool_calls": [{"index": 1, **call("mine", '{"b"', "y")}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ": 2}"}}]},
    ]
    outcome = chat_session.run(
        ScriptedReply(deltas=deltas, reason="tool_calls"), tools=[CLIENT_TOOL]
    )

    assert outcome.calls == [("mine", '{"a": 1}'), ("mine", '{"b": 2}')]


def test_a_failure_after_the_stream_started_is_an_event(
    upstream: ScriptedUpstream, quick_base: str, upstream_kind: str
) -> None:
    session = ResponsesSession(upstream, quick_base, respond_over_http, "raw", upstream_kind)
    error_body = {"error": {"message": "Too late.", "type": "x", "param": None, "code": "y"}}

    outcome = session.run(ScriptedReply(status=500, body=json.dumps(error_body).encode(), delay=2))

    assert (outcome.error, outcome.message) == ("failed", "Too late.")


def test_error_events_and_invalid_events_of_the_upstream_are_failures(
    upstream: ScriptedUpstream, base: str
) -> None:
    session = ResponsesSession(upstream, base, respond_over_http, "raw", "native")
    error = b'event: error\ndata: {"type": "error", "code": "x", "message": "overloaded"}\n\n'

    assert session.run(ScriptedReply(pieces=[error])).message == "overloaded"
    assert session.run(ScriptedReply(pieces=[b"data: {nonsense\n\n"])).error == "failed"


def test_replayed_items_have_no_ids_if_responses_are_not_stored(
    upstream: ScriptedUpstream, base: str
) -> None:
    session = ResponsesSession(upstream, base, respond_over_http, "whole", "native")
    session.run(
        ScriptedReply(calls=[search("x")], thought="Hm."), ScriptedReply("Blue."), store=False
    )
    session.run(ScriptedReply(calls=[search("x")], thought="Hm."), ScriptedReply("Blue."))

    _, not_stored, _, stored = session.requests
    assert [item.get("type", "message") for item in not_stored["input"]] == [
        *("message", "function_call", "function_call_output")
    ]
    assert not any("id" in item for item in not_stored["input"])
    assert [item.get("type", "message") for item in stored["input"]] == [
        *("message", "reasoning", "function_call", "function_call_output")
    ]


@pytest.mark.parametrize(
    ("upstream_id", "message"),
    [
        ("unproven-model", "The model x does not exist"),
        ("unproven-conversation", "Conversation with id 'conv_x' not found."),
    ],
)
def test_a_404_for_a_model_or_conversation_does_not_disable_native_responses(
    upstream: ScriptedUpstream, base: str, upstream_id: str, message: str
) -> None:
    """Also on an upstream that has not answered a Responses request before."""
    session = ResponsesSession(upstream, base, respond_over_http, "raw", upstream_id)
    error_body = json.dumps({"error": {"message": message, "code": None}}).encode()

    for user in (SEARCH_QUESTION, "Hello!"):
        outcome = session.run(ScriptedReply(status=404, body=error_body), user=user)
        assert (outcome.status, outcome.message) == (404, message)
    assert session.run(ScriptedReply("Hi."), previous_response_id="resp_1").text == "Hi."
    assert all("input" in body for body in session.requests), "no request to chat completions"


def test_text_survives_streams_split_at_every_byte(
    upstream: ScriptedUpstream, base: str, upstream_kind: str
) -> None:
    session = ResponsesSession(upstream, base, respond_over_http, "raw", upstream_kind)
    text = "天空为什么是蓝色的？🙂"
    body = {"model": session.model, "stream": True}
    if upstream_kind == "native":
        events = native_responses.events(body, ScriptedReply(text), 1)
    else:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        events = [{"id": "1", "created": 1, "model": "m", "choices": [choice]}]
    data = b"".join(
        b": ping\r\n\r\n" + f"data:{json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode()
        for event in events
    )

    outcome = session.run(
        ScriptedReply(pieces=[data[offset : offset + 1] for offset in range(len(data))])
    )

    assert (outcome.text, outcome.reason) == (text, "completed")


def test_tool_call_formats_of_chat_providers_are_understood(chat_session: ResponsesSession) -> None:
    """GLM changes the id in every delta, Ollama sends whole calls, Gemini an arguments object."""
    arguments = '{"query": "sky"}'
    glm = [
        {"index": 0, **call(arguments=arguments[:5], call_id="a")},
        {"index": 0, "id": "b", "function": {"arguments": arguments[5:]}},
    ]
    ollama = [{"index": 0, **call(arguments=arguments)}]
    gemini = [call(arguments={"query": "sky"})]
    chat_session.mode = "raw"
    for pieces in (glm, ollama, gemini):
        deltas = [{"tool_calls": [piece]} for piece in pieces]
        outcome = chat_session.run(
            ScriptedReply(deltas=deltas, reason="stop"), ScriptedReply("Found.")
        )
        assert (outcome.text, outcome.calls, outcome.searches) == (
            "Found.",
            [],
            [("sky", "completed")],
        )


def test_keep_alives_are_sent_during_a_slow_search(
    upstream: ScriptedUpstream, quick_base: str
) -> None:
    session = ResponsesSession(upstream, quick_base, respond_over_http, "raw", "native")
    query = f"slow {session.model}"[:60]
    upstream.engine_delays[query] = 2
    upstream.plays(session.model, ScriptedReply(calls=[search(query)]), ScriptedReply("There."))
    body = {"model": session.model, "input": SEARCH_QUESTION, "stream": True}

    response = httpx2.post(f"{quick_base}/responses", json=body, timeout=30)

    after_start = response.text.partition("web_search_call.searching")[2]
    assert ": keep-alive" in after_start.partition("web_search_call.completed")[0]


def test_a_client_disconnect_cancels_the_search(
    upstream: ScriptedUpstream, base: str, upstream_kind: str
) -> None:
    session = ResponsesSession(upstream, base, respond_over_http, "raw", upstream_kind)
    query = f"left {session.model}"[:60]
    upstream.engine_delays[query] = 30
    upstream.plays(session.model, ScriptedReply(calls=[search(query)]))

    body = {"model": session.model, "input": SEARCH_QUESTION, "stream": True}
    post_and_disconnect(f"{base}/responses", body, lambda: query in upstream.queries)

    wait_until(lambda: query in upstream.disconnected)


def test_a_client_disconnect_cancels_the_upstream_request(
    upstream: ScriptedUpstream, base: str, upstream_kind: str
) -> None:
    session = ResponsesSession(upstream, base, respond_over_http, "raw", upstream_kind)
    upstream.plays(session.model, ScriptedReply("A long story. " * 500, pause=0.05))

    body = {"model": session.model, "input": SEARCH_QUESTION, "stream": True}
    post_and_disconnect(f"{base}/responses", body, expected_bytes=b"output_text.delta")

    wait_until(lambda: session.model in upstream.disconnected)


@pytest.fixture
def native_session(upstream: ScriptedUpstream, base: str) -> ResponsesSession:
    return ResponsesSession(upstream, base, respond_over_http, "raw", "native")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "id": "x", "call_id": "c9", "name": "code", "input": "1"},
        {"type": "function_call", "id": "x", "call_id": "c9", "name": "mine", "arguments": "{}"},
        {
            "type": "mcp_approval_request",
            "id": "x",
            "name": "n",
            "arguments": "{}",
            "server_label": "s",
        },
    ],
    ids=lambda item: item["type"],
)
def test_items_that_the_client_must_handle_end_the_turn(
    native_session: ResponsesSession, base: str, item: Any
) -> None:
    native_session.upstream.plays(
        native_session.model,
        ScriptedReply(calls=[search("sky")], items=[item]),
        ScriptedReply("Done."),
    )
    body = {"model": native_session.model, "input": SEARCH_QUESTION}
    first = httpx2.post(f"{base}/responses", json=body).json()
    assert [output_item["type"] for output_item in first["output"]] == [
        "web_search_call",
        item["type"],
    ]

    replayed = [{"role": "user", "content": SEARCH_QUESTION}, *first["output"]]
    httpx2.post(f"{base}/responses", json={**body, "input": replayed})
    assert native_session.tool_results()[0]["hits"]


@pytest.mark.parametrize("status", ["failed", "incomplete"])
@pytest.mark.parametrize("mode", MODES)
def test_a_failed_or_incomplete_round_ends_the_response(
    native_session: ResponsesSession, status: str, mode: str
) -> None:
    native_session.mode = mode
    outcome = native_session.run(
        ScriptedReply(calls=[search("sky")], status_at_end=status), ScriptedReply("Fine.")
    )

    assert len(native_session.requests) == 1
    assert (outcome.message if status == "failed" else outcome.reason) in (
        "It broke.",
        "incomplete",
    )


def test_searches_at_the_limit_get_a_result_at_the_upstream(
    native_session: ResponsesSession,
) -> None:
    rounds = [ScriptedReply(calls=[search(f"{number}")]) for number in range(3)]
    mixed_turn = ScriptedReply(calls=[search("9", "call_w"), call("mine", "{}", "call_2")])
    native_session.run(*rounds, mixed_turn, ScriptedReply("Done."), tools=[CLIENT_TOOL])
    result = {"type": "function_call_output", "call_id": "call_2", "output": "x"}
    previous_id = f"resp_{native_session.model}_1"
    native_session.send(previous_response_id=previous_id, input=[result], tools=[CLIENT_TOOL])

    assert [item["call_id"] for item in native_session.requests[-1]["input"]] == [
        "call_w",
        "call_2",
    ]


def test_an_upstream_conversation_receives_only_new_items(native_session: ResponsesSession) -> None:
    mixed_turn = ScriptedReply(calls=[search("sky"), call("mine", "{}", "call_2")])
    native_session.run(
        ScriptedReply(calls=[search("zero", "call_0")]),
        mixed_turn,
        ScriptedReply("Done."),
        conversation="conv_1",
    )
    result = {"type": "function_call_output", "call_id": "call_2", "output": "x"}
    outcome = native_session.send(conversation="conv_1", input=[result])

    inputs = [[item.get("call_id") for item in body["input"]] for body in native_session.requests]
    assert inputs == [[None], ["call_0"], ["call_1", "call_2"]]
    assert outcome.text == "Done."


def test_a_native_upstream_may_answer_a_stream_request_with_json(
    native_session: ResponsesSession,
) -> None:
    events = native_responses.events({"model": "m"}, ScriptedReply(calls=[search("x")]), 1)
    response_body = json.dumps(events[-1]["response"]).encode()

    outcome = native_session.run(ScriptedReply(body=response_body), ScriptedReply("Found."))

    assert (outcome.text, outcome.searches) == ("Found.", [("x", "completed")])


def test_a_stream_with_only_the_final_event_is_completed(native_session: ResponsesSession) -> None:
    events = native_responses.events({"model": "m"}, ScriptedReply("Hi.", [call("mine", "{}")]), 1)
    final_event = f"data: {json.dumps(events[-1])}\n\n".encode()

    outcome = native_session.run(ScriptedReply(pieces=[final_event]), tools=[CLIENT_TOOL])

    assert (outcome.text, outcome.calls) == ("Hi.", [("mine", "{}")])


def test_searches_with_equal_ids_in_one_turn_both_run(native_session: ResponsesSession) -> None:
    outcome = native_session.run(
        ScriptedReply(calls=[search("one", "same"), search("two", "same")]), ScriptedReply("Both.")
    )

    assert outcome.searches == [("one", "completed"), ("two", "completed")]


def test_annotations_of_the_upstream_keep_their_indexes(native_session: ResponsesSession) -> None:
    url = native_session.upstream.url_of("sky")
    events = native_responses.events({"model": "m"}, ScriptedReply(f"See {url}"), 2)
    annotation = {
        "type": "url_citation",
        "url": "u",
        "title": "t",
        "start_index": 0,
        "end_index": 1,
    }
    done_index = next(
        index for index, event in enumerate(events) if event["type"] == "response.output_text.done"
    )
    position = {
        name: events[done_index][name] for name in ("item_id", "output_index", "content_index")
    }
    event_fields = {
        "type": "response.output_text.annotation.added",
        "sequence_number": 0,
        **position,
    }
    events.insert(done_index, {**event_fields, "annotation_index": 0, "annotation": annotation})
    for event in events[done_index + 2 :]:
        parts = [event.get("part"), *event.get("item", {}).get("content", [])]
        for part in parts:
            if part:
                part["annotations"] = [annotation]
    pieces = [f"data: {json.dumps(event)}\n\n".encode() for event in events]

    outcome = native_session.run(ScriptedReply(calls=[search("sky")]), ScriptedReply(pieces=pieces))

    assert [citation["url"] for citation in outcome.annotations] == ["u", url]


def test_search_results_are_returned_if_the_model_never_answers(
    upstream: ScriptedUpstream, base: str, upstream_kind: str
) -> None:
    session = ResponsesSession(upstream, base, respond_over_http, "raw", upstream_kind)
    announcements = [ScriptedReply("Let me look.", [search(f"{number}")]) for number in range(3)]

    outcome = session.run(*announcements, ScriptedReply(calls=[search("9")]))

    assert "https://pages.example/0" in outcome.output[-1]["content"][0]["text"]


def test_a_refusal_is_passed_as_a_refusal(chat_session: ResponsesSession, base: str) -> None:
    body = {"model": chat_session.model, "input": SEARCH_QUESTION}
    chat_session.upstream.plays(chat_session.model, ScriptedReply(extra={"refusal": "No."}))
    response = httpx2.post(f"{base}/responses", json=body).json()
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]
    chat_session.upstream.plays(
        chat_session.model, ScriptedReply(deltas=[{"refusal": "N"}, {"refusal": "o."}])
    )
    stream = httpx2.post(f"{base}/responses", json={**body, "stream": True})
    assert "response.refusal.done" in stream.text and '"refusal": "No."' in stream.text


def test_text_between_calls_joins_their_assistant_message(chat_session: ResponsesSession) -> None:
    chat_session.run(
        ScriptedReply("Hi."),
        user=[
            {"role": "user", "content": "Go"},
            {"type": "function_call", "call_id": "a", "name": "mine", "arguments": "{}"},
            {"role": "assistant", "content": "between"},
            {"type": "function_call", "call_id": "b", "name": "mine", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "A"},
            {"type": "function_call_output", "call_id": "b", "output": "B"},
        ],
    )

    roles = [message["role"] for message in chat_session.requests[0]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert chat_session.requests[0]["messages"][1]["content"] == "between"
