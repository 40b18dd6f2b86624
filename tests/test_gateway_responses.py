"""The Responses API: an upstream that knows it, and one that knows chat completions alone."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.support import native_responses, wait_until
from tests.support.disconnecting_client import post_and_disconnect
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

MINE = {"type": "function", "name": "mine", "parameters": {"type": "object"}, "strict": False}
HOSTED = {"type": "web_search"}


def both_kinds(folder: Path, upstream: ScriptedUpstream) -> dict[str, str]:
    """The environment of a gateway with an upstream of each kind."""
    upstreams = [
        {
            "id": "native",
            "baseUrl": f"{upstream.address}/native/v1",
            "models": ["native*"],
        },
        {"id": "chat", "baseUrl": f"{upstream.address}/v1"},
    ]
    return gateway_environment(folder, upstream, upstreams=upstreams)


@pytest.fixture(scope="module")
def base(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(both_kinds(folder, upstream)) as address:
        yield address


@pytest.fixture(scope="module")
def quick_base(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(both_kinds(folder, upstream), limits=QUICK_LIMITS) as address:
        yield address


@pytest.fixture
def ask(client: str, node_client: NodeClient | None) -> Ask:
    match client:
        case "openai-python":
            return respond_python
        case "openai-node":
            if node_client is None:
                pytest.skip("scripts/test installs openai-node where Node is")
            return node_client.respond
        case _:
            return respond_over_http


class Play:
    """One client, one way to ask, one script."""

    def __init__(
        self, upstream: ScriptedUpstream, base: str, ask: Ask, way: str, kind: str
    ) -> None:
        self.upstream = upstream
        self.way = way
        self.kind = kind
        self.model = f"{kind}-{uuid4().hex}"
        self._base = base
        self._ask = ask

    def __call__(
        self, *replies: ScriptedReply, user: object = SEARCH_QUESTION, **request: object
    ) -> Outcome:
        self.upstream.plays(self.model, *replies)
        return self.again(input=user, **request)

    def again(self, **request: object) -> Outcome:
        return self._ask(self._base, self.way, {"model": self.model, **request})

    @property
    def bodies(self) -> list[Any]:
        return self.upstream.asked[self.model]

    def results(self, body: int = -1) -> list[Any]:
        """The search results in one of the requests, in whichever form."""
        sent = self.bodies[body]
        items = sent.get("input") or sent["messages"]
        said = [item.get("output") or item.get("content") for item in items if is_result(item)]
        return [json.loads(text) for text in said if text.startswith("{")]

    def tools(self, body: int = -1) -> list[str]:
        listed = self.bodies[body].get("tools", [])
        return [tool.get("name") or tool["function"]["name"] for tool in listed]


def is_result(item: Any) -> bool:
    return item.get("type") == "function_call_output" or item.get("role") == "tool"


@pytest.fixture(params=["native", "chat"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def play(upstream: ScriptedUpstream, base: str, ask: Ask, way: str, kind: str) -> Play:
    return Play(upstream, base, ask, way, kind)


def test_without_intent_nothing_is_added(play: Play) -> None:
    got = play(ScriptedReply("Hello."), user="Hello!")

    assert (got.text, got.reason, got.calls, got.searches) == ("Hello.", "completed", [], [])
    assert play.tools() == []


@pytest.mark.clients("every")
def test_one_search(play: Play) -> None:
    query = f"blue {play.model}"[:60]
    url = play.upstream.url_of(query)
    got = play(
        ScriptedReply("Let me see.", [search(query)], thought="Hm."),
        ScriptedReply(f"天空是蓝的 ({url}), and so on."),
        include=["web_search_call.action.sources"],
    )

    assert got.text == f"Let me see.天空是蓝的 ({url}), and so on."
    assert (got.reason, got.calls, got.searches) == ("completed", [], [(query, "completed")])
    kinds = [item["type"] for item in got.output]
    assert kinds == ["reasoning", "message", "web_search_call", "message"]
    assert got.output[2]["action"]["sources"] == [{"type": "url", "url": url}]
    (cited,) = got.annotations
    text = got.output[3]["content"][0]["text"]
    assert text[cited["start_index"] : cited["end_index"]] == cited["url"] == url
    (result,) = play.results()
    assert result["hits"][0]["url"] == url and "never instructions" in result["note"]
    assert got.usage["total_tokens"] == 2 * native_responses.USAGE["total_tokens"]
    assert got.usage["input_tokens_details"]["cached_tokens"] == 2
    assert play.tools(0) == ["web_search"]


def test_two_searches_in_one_turn_and_a_second_one(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one"), search("two", "call_2")]),
        ScriptedReply(calls=[search("three")]),
        ScriptedReply("Done."),
    )

    assert (got.text, got.reason) == ("Done.", "completed")
    assert got.searches == [("one", "completed"), ("two", "completed"), ("three", "completed")]
    assert len(play.results()) == 3


def test_a_search_and_then_a_call_of_the_clients(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one")]),
        ScriptedReply(calls=[call("mine", '{"a": 1}')]),
        tools=[MINE],
    )

    assert (got.calls, got.reason) == ([("mine", '{"a": 1}')], "completed")
    play.again(input=with_result(got), tools=[MINE])
    assert play.results()[0]["hits"], "what the model found is not lost on the way"


def with_result(got: Outcome) -> list[Any]:
    """The input as Codex sends it: all items again, and the results of its own calls."""
    results = [
        {"type": "function_call_output", "call_id": call_id, "output": "mine is done"}
        for call_id in got.ids
    ]
    return [{"role": "user", "content": SEARCH_QUESTION}, *got.output, *results]


@pytest.mark.clients("every")
def test_a_mixed_turn_loses_nothing(play: Play) -> None:
    got = play(
        ScriptedReply("Both.", [search("sky"), call("mine", '{"a": 1}', "call_2")]),
        ScriptedReply("All there."),
        tools=[MINE],
    )
    assert (got.text, got.calls, got.ids) == ("Both.", [("mine", '{"a": 1}')], ["call_2"])
    assert got.searches == [("sky", "completed")]

    again = play.again(input=with_result(got), tools=[MINE])

    assert (again.text, again.reason) == ("All there.", "completed")
    assert [result["hits"][0]["title"] for result in play.results()] == ["About sky"]
    sent = json.dumps(play.bodies[1])
    assert "mine is done" in sent and "web_search_call" not in sent
    assert "web_search" in play.tools()


def test_a_mixed_turn_that_the_upstream_stores(play: Play) -> None:
    if play.kind == "chat":
        got = play(ScriptedReply("Hi."), previous_response_id="resp_1")
        assert got.status == 400 and "previous_response_id" in got.message
        return
    got = play(
        ScriptedReply(calls=[search("zero")]),
        ScriptedReply(calls=[search("sky"), call("mine", '{"a": 1}', "call_2")]),
        ScriptedReply("All there."),
        tools=[MINE],
    )
    result = {"type": "function_call_output", "call_id": "call_2", "output": "mine is done"}
    response_id = f"resp_{play.model}_1"
    again = play.again(previous_response_id=response_id, input=[result], tools=[MINE])

    assert (got.searches[1], again.text) == (("sky", "completed"), "All there.")
    sent = play.bodies[2]
    assert sent["previous_response_id"] == f"resp_{play.model}_2", "there it has all of it"
    assert [item["call_id"] for item in sent["input"]] == ["call_1", "call_2"]
    assert play.tools() == ["mine", "web_search"], "the chain goes on"


def test_an_answer_that_goes_on_by_its_id(play: Play) -> None:
    if play.kind == "chat":
        pytest.skip("nothing is stored there")
    play(ScriptedReply(calls=[search("zero")]), ScriptedReply("So."), ScriptedReply("Yes."))
    play.again(previous_response_id=f"resp_{play.model}_1", input="Really?")

    assert play.bodies[2]["previous_response_id"] == f"resp_{play.model}_2"
    assert "Really?" in json.dumps(play.bodies[2]["input"])


def test_rounds_are_bounded(play: Play) -> None:
    got = play(
        *[ScriptedReply(calls=[search(f"{number}")]) for number in range(3)],
        ScriptedReply("Enough."),
        tool_choice="required",
    )

    assert (got.text, got.reason, len(play.bodies)) == ("Enough.", "completed", 4)
    assert [("tools" in body, body.get("tool_choice")) for body in play.bodies] == [
        (True, "required"),
        (True, None),
        (True, None),
        (False, None),
    ]


def test_a_model_that_cannot_stop_gets_no_call_of_ours_out(play: Play) -> None:
    got = play(*[ScriptedReply(calls=[search(f"{number}")]) for number in range(5)])

    assert (got.calls, got.reason, len(play.bodies)) == ([], "completed", 4)
    assert "https://pages.example/0" in got.text and len(got.searches) == 3


def test_max_tool_calls(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one"), search("two", "call_2")]),
        ScriptedReply("Well."),
        max_tool_calls=1,
    )

    assert (got.text, got.searches) == ("Well.", [("one", "completed"), ("two", "failed")])
    assert "No more searches" in play.results()[1]["error"]
    assert play.tools() == []


def test_an_engine_that_fails_is_told_to_the_model(play: Play) -> None:
    query = f"bad {play.model}"[:60]
    play.upstream.engine_failures[query] = (401, {"error": {"code": "1000", "message": "no"}})

    got = play(ScriptedReply(calls=[search(query)]), ScriptedReply("I could not search."))

    assert (got.text, got.searches) == ("I could not search.", [(query, "failed")])
    assert play.results()[0]["error"]["code"] == "AUTH_ERROR"


@pytest.mark.parametrize("status", [429, 500])
def test_an_upstream_that_refuses_is_passed_on(play: Play, status: int) -> None:
    told = {"error": {"message": "Slow down.", "type": "rate_limit", "param": None, "code": "y"}}
    refused = ScriptedReply(
        status=status, body=json.dumps(told).encode(), headers={"retry-after": "7"}
    )

    first = play(refused)
    assert (first.status, "Slow down." in first.message) == (status, True)

    later = play(ScriptedReply("So.", [search("one")]), refused)
    assert later.error is not None
    if play.way == "whole":
        assert (later.status, "Slow down." in later.message) == (status, True)


@pytest.mark.clients("every")
def test_an_upstream_that_is_cut_off_is_no_success(play: Play) -> None:
    for user in (SEARCH_QUESTION, "Hello!"):
        got = play(ScriptedReply("A long answer that never comes to its end.", cut=True), user=user)
        assert got.error is not None, user


@pytest.mark.clients("every")
def test_an_answer_that_is_too_long(play: Play) -> None:
    got = play(ScriptedReply(calls=[search("x")]), ScriptedReply("Too long", reason="length"))

    if play.way == "helper" and got.error:
        assert "response.completed" in got.message  # openai-python knows no other end
    else:
        assert (got.reason, got.text) == ("incomplete", "Too long")


def test_chinese(play: Play) -> None:
    text = "谷歌一下：天空为什么是蓝色的？🙂"
    got = play(ScriptedReply(calls=[search("天空")]), ScriptedReply(text), user="谷歌一下天空")

    assert (got.text, got.searches) == (text, [("天空", "completed")])


@pytest.mark.clients("one")
@pytest.mark.parametrize("arguments", ["", "null", "[]", "{broken", '{"query": ""}'])
def test_arguments_that_are_garbage(play: Play, arguments: str) -> None:
    got = play(ScriptedReply(calls=[call(arguments=arguments)]), ScriptedReply("Never mind."))

    assert (got.text, got.searches) == ("Never mind.", [("", "failed")])
    assert "error" in play.results()[0]


def test_hosted_tools_are_served_by_us(play: Play) -> None:
    tool = {
        "type": "web_search_preview",
        "search_context_size": "low",
        "user_location": {"type": "approximate", "city": "Oslo", "country": "NO"},
    }
    got = play(
        ScriptedReply(calls=[search("sky")]),
        ScriptedReply("Blue."),
        user="Hello!",
        tools=[tool, MINE],
        tool_choice={"type": "web_search_preview"},
    )

    assert (got.text, len(got.searches)) == ("Blue.", 1)
    assert play.tools(0) == ["mine", "web_search"]
    choice = play.bodies[0]["tool_choice"]
    assert (choice.get("name") or choice["function"]["name"]) == "web_search"
    assert "sky (for a user in Oslo, NO)" in play.upstream.searched
    assert play.upstream.counts[-1] == 5


def test_domains_are_filtered(play: Play) -> None:
    def wanting(*domains: str) -> Any:
        return {**HOSTED, "filters": {"allowed_domains": list(domains)}}

    play(
        ScriptedReply(calls=[search("x")]),
        ScriptedReply("Blue."),
        tools=[wanting("https://www.pages.example")],
    )
    assert play.results()[0]["hits"]
    play(
        ScriptedReply(calls=[search("x")]), ScriptedReply("Blue."), tools=[wanting("other.example")]
    )
    assert "other.example" in play.results()[0]["error"]["message"]


@pytest.mark.clients("every")
def test_traffic_as_of_codex(play: Play) -> None:
    """Instructions, a hosted tool on every request, replayed items, parallel calls."""
    common: Any = {
        "instructions": "You are Codex.",
        "tools": [MINE, HOSTED],
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
    got = play(
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
    assert got.calls == [("mine", '{"a": 1}'), ("mine", '{"a": 2}')]
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "ok"} for call_id in got.ids
    ]
    # Codex sends no ids of searches back.
    replayed = [
        {name: value for name, value in item.items() if name != "id"}
        if item["type"] == "web_search_call"
        else item
        for item in got.output
    ]
    again = play.again(input=[*turn, *replayed, *outputs], **common)

    assert play.results(1)[0]["hits"][0]["title"] == "About api"
    assert (again.text, again.searches) == ("Done.", [("more", "completed")])
    # And once more, long after the answer: our searches are told in no words then.
    play.again(input=[*turn, *got.output, *outputs, *again.output, *turn], **common)
    sent = json.dumps(play.bodies[-1])
    assert "web_search_call" not in sent and "ws_gateway" not in sent
    assert sent.count('"c2"') == sent.count('"c3"') == 2


def test_a_function_of_the_clients_with_our_name_is_the_clients(play: Play) -> None:
    got = play(ScriptedReply(calls=[search("x")]), tools=[{**MINE, "name": "web_search"}])

    assert got.calls == [("web_search", '{"query": "x"}')]
    assert len(play.bodies) == 1


# What only one of the two upstreams has to do with


@pytest.fixture
def chat(upstream: ScriptedUpstream, base: str) -> Play:
    return Play(upstream, base, respond_over_http, "whole", "chat")


CANNOT: list[tuple[Any, str]] = [
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


@pytest.mark.parametrize(("more", "param"), CANNOT, ids=[param for _, param in CANNOT])
def test_what_a_chat_upstream_cannot_do_is_refused(
    chat: Play, base: str, more: Any, param: str
) -> None:
    for stream in (False, True):
        body = {"model": chat.model, "input": SEARCH_QUESTION, "stream": stream, **more}
        answer = httpx2.post(f"{base}/responses", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert "chat completions only" in error["message"]
    assert chat.model not in chat.upstream.asked


def test_a_request_is_converted_whole(upstream: ScriptedUpstream, base: str) -> None:
    # Not by the wire: openresponses-types 2.4 takes no schema for one.
    chat = Play(upstream, base, respond_python, "whole", "chat")
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
    chat(
        ScriptedReply("{}"),
        user=turn,
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0.5,
        extra_body={"top_k": 3},
        reasoning={"effort": "low"},
        text={"format": schema, "verbosity": "low"},
        tools=[MINE],
        tool_choice={"type": "function", "name": "mine"},
        metadata={"a": "b"},
    )

    sent = chat.bodies[0]
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
    wanted = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "reasoning_effort": "low",
        "verbosity": "low",
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "mine"}},
    }
    assert wanted.items() <= sent.items()
    assert sent["response_format"]["json_schema"]["name"] == "s"
    assert not {"metadata", "input", "instructions", "text", "reasoning"} & sent.keys()


def test_calls_that_grow_at_the_same_time(chat: Play) -> None:
    chat.way = "raw"
    deltas = [
        {"tool_calls": [{"index": 0, **call("mine", '{"a"', "x")}]},
        {"tool_calls": [{"index": 1, **call("mine", '{"b"', "y")}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ": 2}"}}]},
    ]
    got = chat(ScriptedReply(deltas=deltas, reason="tool_calls"), tools=[MINE])

    assert got.calls == [("mine", '{"a": 1}'), ("mine", '{"b": 2}')]


def test_a_late_failure_is_an_event(upstream: ScriptedUpstream, quick_base: str, kind: str) -> None:
    play = Play(upstream, quick_base, respond_over_http, "raw", kind)
    told = {"error": {"message": "Too late.", "type": "x", "param": None, "code": "y"}}

    got = play(ScriptedReply(status=500, body=json.dumps(told).encode(), delay=2))

    assert (got.error, got.message) == ("failed", "Too late.")


def test_an_upstream_that_says_error(upstream: ScriptedUpstream, base: str) -> None:
    play = Play(upstream, base, respond_over_http, "raw", "native")
    error = b'event: error\ndata: {"type": "error", "code": "x", "message": "overloaded"}\n\n'

    assert play(ScriptedReply(pieces=[error])).message == "overloaded"
    assert play(ScriptedReply(pieces=[b"data: {nonsense\n\n"])).error == "failed"


def test_a_store_that_is_none_gets_no_ids(upstream: ScriptedUpstream, base: str) -> None:
    play = Play(upstream, base, respond_over_http, "whole", "native")
    play(ScriptedReply(calls=[search("x")], thought="Hm."), ScriptedReply("Blue."), store=False)
    play(ScriptedReply(calls=[search("x")], thought="Hm."), ScriptedReply("Blue."))

    _, without, _, stored = play.bodies
    assert [item.get("type", "message") for item in without["input"]] == [
        *("message", "function_call", "function_call_output")
    ]
    assert not any("id" in item for item in without["input"])
    assert [item.get("type", "message") for item in stored["input"]] == [
        *("message", "reasoning", "function_call", "function_call_output")
    ]


def test_a_model_that_is_not_there_is_no_missing_path(
    upstream: ScriptedUpstream, base: str
) -> None:
    play = Play(upstream, base, respond_over_http, "whole", "native")
    told = {"error": {"message": "The model x does not exist", "code": "model_not_found"}}
    refused = ScriptedReply(status=404, body=json.dumps(told).encode())

    for user in (SEARCH_QUESTION, "Hello!"):
        assert play(refused, user=user).status == 404
    assert play(ScriptedReply("Hi.")).text == "Hi."


def test_text_survives_every_cut(upstream: ScriptedUpstream, base: str, kind: str) -> None:
    play = Play(upstream, base, respond_over_http, "raw", kind)
    text = "天空为什么是蓝色的？🙂"
    body = {"model": play.model, "stream": True}
    if kind == "native":
        made = native_responses.events(body, ScriptedReply(text), 1)
    else:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        made = [{"id": "1", "created": 1, "model": "m", "choices": [choice]}]
    data = b"".join(
        b": ping\r\n\r\n" + f"data:{json.dumps(each, ensure_ascii=False)}\r\n\r\n".encode()
        for each in made
    )

    got = play(ScriptedReply(pieces=[data[at : at + 1] for at in range(len(data))]))

    assert (got.text, got.reason) == (text, "completed")


def test_calls_as_chat_providers_send_them(chat: Play) -> None:
    """GLM with another id in each delta, Ollama with a call as a whole, Gemini with an object."""
    arguments = '{"query": "sky"}'
    glm = [
        {"index": 0, **call(arguments=arguments[:5], call_id="a")},
        {"index": 0, "id": "b", "function": {"arguments": arguments[5:]}},
    ]
    ollama = [{"index": 0, **call(arguments=arguments)}]
    gemini = [call(arguments={"query": "sky"})]
    chat.way = "raw"
    for pieces in (glm, ollama, gemini):
        deltas = [{"tool_calls": [piece]} for piece in pieces]
        got = chat(ScriptedReply(deltas=deltas, reason="stop"), ScriptedReply("Found."))
        assert (got.text, got.calls, got.searches) == ("Found.", [], [("sky", "completed")])


def test_a_slow_search_shows_that_it_lives(upstream: ScriptedUpstream, quick_base: str) -> None:
    play = Play(upstream, quick_base, respond_over_http, "raw", "native")
    query = f"slow {play.model}"[:60]
    upstream.engine_delays[query] = 2
    upstream.plays(play.model, ScriptedReply(calls=[search(query)]), ScriptedReply("There."))
    body = {"model": play.model, "input": SEARCH_QUESTION, "stream": True}

    answer = httpx2.post(f"{quick_base}/responses", json=body, timeout=30)

    searching = answer.text.partition("web_search_call.searching")[2]
    assert ": keep-alive" in searching.partition("web_search_call.completed")[0]


def test_whoever_leaves_ends_the_search(upstream: ScriptedUpstream, base: str, kind: str) -> None:
    play = Play(upstream, base, respond_over_http, "raw", kind)
    query = f"left {play.model}"[:60]
    upstream.engine_delays[query] = 30
    upstream.plays(play.model, ScriptedReply(calls=[search(query)]))

    body = {"model": play.model, "input": SEARCH_QUESTION, "stream": True}
    post_and_disconnect(f"{base}/responses", body, lambda: query in upstream.searched)

    wait_until(lambda: query in upstream.left)


@pytest.fixture
def native(upstream: ScriptedUpstream, base: str) -> Play:
    return Play(upstream, base, respond_over_http, "raw", "native")


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
def test_whatever_a_client_has_to_do_is_not_run_over(native: Play, base: str, item: Any) -> None:
    native.upstream.plays(
        native.model, ScriptedReply(calls=[search("sky")], items=[item]), ScriptedReply("Done.")
    )
    body = {"model": native.model, "input": SEARCH_QUESTION}
    first = httpx2.post(f"{base}/responses", json=body).json()
    assert [each["type"] for each in first["output"]] == ["web_search_call", item["type"]]

    replayed = [{"role": "user", "content": SEARCH_QUESTION}, *first["output"]]
    httpx2.post(f"{base}/responses", json={**body, "input": replayed})
    assert native.results()[0]["hits"]


@pytest.mark.parametrize("status", ["failed", "incomplete"])
@pytest.mark.parametrize("way", MODES)
def test_a_round_that_fails_is_the_end(native: Play, status: str, way: str) -> None:
    native.way = way
    got = native(ScriptedReply(calls=[search("sky")], status_at_end=status), ScriptedReply("Fine."))

    assert len(native.bodies) == 1
    assert (got.message if status == "failed" else got.reason) in ("It broke.", "incomplete")


def test_calls_at_the_limit_are_answered_at_the_upstream(native: Play) -> None:
    rounds = [ScriptedReply(calls=[search(f"{number}")]) for number in range(3)]
    mixed = ScriptedReply(calls=[search("9", "call_w"), call("mine", "{}", "call_2")])
    native(*rounds, mixed, ScriptedReply("Done."), tools=[MINE])
    result = {"type": "function_call_output", "call_id": "call_2", "output": "x"}
    previous = f"resp_{native.model}_1"
    native.again(previous_response_id=previous, input=[result], tools=[MINE])

    assert [item["call_id"] for item in native.bodies[-1]["input"]] == ["call_w", "call_2"]


def test_a_conversation_that_the_upstream_holds(native: Play) -> None:
    mixed = ScriptedReply(calls=[search("sky"), call("mine", "{}", "call_2")])
    native(
        ScriptedReply(calls=[search("zero", "call_0")]),
        mixed,
        ScriptedReply("Done."),
        conversation="conv_1",
    )
    result = {"type": "function_call_output", "call_id": "call_2", "output": "x"}
    got = native.again(conversation="conv_1", input=[result])

    inputs = [[item.get("call_id") for item in body["input"]] for body in native.bodies]
    assert inputs == [[None], ["call_0"], ["call_1", "call_2"]]
    assert got.text == "Done."


def test_a_native_stream_that_is_none(native: Play) -> None:
    events = native_responses.events({"model": "m"}, ScriptedReply(calls=[search("x")]), 1)
    whole = json.dumps(events[-1]["response"]).encode()

    got = native(ScriptedReply(body=whole), ScriptedReply("Found."))

    assert (got.text, got.searches) == ("Found.", [("x", "completed")])


def test_events_that_tell_less_than_they_should(native: Play) -> None:
    events = native_responses.events({"model": "m"}, ScriptedReply("Hi.", [call("mine", "{}")]), 1)
    end = f"data: {json.dumps(events[-1])}\n\n".encode()

    got = native(ScriptedReply(pieces=[end]), tools=[MINE])

    assert (got.text, got.calls) == ("Hi.", [("mine", "{}")])


def test_equal_ids_in_one_turn(native: Play) -> None:
    got = native(
        ScriptedReply(calls=[search("one", "same"), search("two", "same")]), ScriptedReply("Both.")
    )

    assert got.searches == [("one", "completed"), ("two", "completed")]


def test_annotations_of_the_upstreams_own_keep_their_numbers(native: Play) -> None:
    url = native.upstream.url_of("sky")
    made = native_responses.events({"model": "m"}, ScriptedReply(f"See {url}"), 2)
    own = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    at = next(n for n, each in enumerate(made) if each["type"] == "response.output_text.done")
    place = {name: made[at][name] for name in ("item_id", "output_index", "content_index")}
    told = {"type": "response.output_text.annotation.added", "sequence_number": 0, **place}
    made.insert(at, {**told, "annotation_index": 0, "annotation": own})
    for each in made[at + 2 :]:
        parts = [each.get("part"), *each.get("item", {}).get("content", [])]
        for part in parts:
            if part:
                part["annotations"] = [own]
    pieces = [f"data: {json.dumps(each)}\n\n".encode() for each in made]

    got = native(ScriptedReply(calls=[search("sky")]), ScriptedReply(pieces=pieces))

    assert [cited["url"] for cited in got.annotations] == ["u", url]


def test_a_model_that_only_announces_gets_an_answer_too(
    upstream: ScriptedUpstream, base: str, kind: str
) -> None:
    play = Play(upstream, base, respond_over_http, "raw", kind)
    announced = [ScriptedReply("Let me look.", [search(f"{number}")]) for number in range(3)]

    got = play(*announced, ScriptedReply(calls=[search("9")]))

    assert "https://pages.example/0" in got.output[-1]["content"][0]["text"]


def test_what_is_not_found_there_is_no_missing_path(native: Play) -> None:
    told = {"error": {"message": "Conversation with id 'conv_x' not found.", "code": None}}
    refused = ScriptedReply(status=404, body=json.dumps(told).encode())

    for user in (SEARCH_QUESTION, "Hello!"):
        got = native(refused, user=user)
        assert (got.status, got.message) == (404, told["error"]["message"])
    assert native(ScriptedReply("Hi."), previous_response_id="resp_1").text == "Hi."


def test_a_refusal_is_one(chat: Play, base: str) -> None:
    body = {"model": chat.model, "input": SEARCH_QUESTION}
    chat.upstream.plays(chat.model, ScriptedReply(extra={"refusal": "No."}))
    whole = httpx2.post(f"{base}/responses", json=body).json()
    assert whole["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]
    chat.upstream.plays(chat.model, ScriptedReply(deltas=[{"refusal": "N"}, {"refusal": "o."}]))
    stream = httpx2.post(f"{base}/responses", json={**body, "stream": True})
    assert "response.refusal.done" in stream.text and '"refusal": "No."' in stream.text


def test_words_between_calls(chat: Play) -> None:
    chat(
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

    roles = [message["role"] for message in chat.bodies[0]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert chat.bodies[0]["messages"][1]["content"] == "between"
