"""The gateway in front of a scripted upstream, asked by real clients."""

import json
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.support.openai_clients import (
    Ask,
    NodeClient,
    Outcome,
    ask_over_http,
    ask_python,
)
from tests.support.scripted_upstream import (
    SEARCH_QUESTION,
    USAGE,
    ScriptedReply,
    ScriptedUpstream,
    call,
    search,
)

MINE = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}


@pytest.fixture
def ask(client: str, node_client: NodeClient | None) -> Ask:
    match client:
        case "openai-python":
            return ask_python
        case "openai-node":
            if node_client is None:
                pytest.skip("scripts/test installs openai-node where Node is")
            return node_client.ask
        case _:
            return ask_over_http


def with_result(got: Outcome) -> list[Any]:
    """The transcript as a client sends it when it has made its own call."""
    (name, arguments), (call_id,) = got.calls[0], got.ids
    mine = call(name, arguments, call_id)
    return [
        {"role": "user", "content": SEARCH_QUESTION},
        {"role": "assistant", "content": got.text, "tool_calls": [mine]},
        {"role": "tool", "tool_call_id": call_id, "content": "mine is done"},
    ]


class Play:
    """One client, one way to ask, one script."""

    def __init__(self, upstream: ScriptedUpstream, base: str, ask: Ask, way: str) -> None:
        self.upstream = upstream
        self.way = way
        self.model = f"model-{uuid4().hex}"
        self._base = base
        self._ask = ask

    def __call__(
        self, *replies: ScriptedReply, user: object = SEARCH_QUESTION, **request: object
    ) -> Outcome:
        self.upstream.plays(self.model, *replies)
        return self.again(messages=[{"role": "user", "content": user}], **request)

    def again(self, **request: object) -> Outcome:
        return self._ask(self._base, self.way, {"model": self.model, **request})

    @property
    def bodies(self) -> list[Any]:
        """What the upstream was sent."""
        return self.upstream.asked[self.model]

    def results(self, body: int = -1) -> list[Any]:
        """The search results in one of the requests."""
        messages = self.bodies[body]["messages"]
        return [json.loads(item["content"]) for item in messages if item["role"] == "tool"]


@pytest.fixture
def play(upstream: ScriptedUpstream, base: str, ask: Ask, way: str) -> Play:
    return Play(upstream, base, ask, way)


def test_without_intent_nothing_is_added(play: Play) -> None:
    got = play(ScriptedReply("Hello."), user="Hello!")

    assert (got.text, got.reason, got.calls) == ("Hello.", "stop", [])
    assert "tools" not in play.bodies[0]


def test_the_tool_may_be_left_alone(play: Play) -> None:
    got = play(ScriptedReply("I know it."))

    assert (got.text, got.reason) == ("I know it.", "stop")
    assert [tool["function"]["name"] for tool in play.bodies[0]["tools"]] == ["web_search"]


@pytest.mark.clients("every")
def test_one_search(play: Play) -> None:
    query = f"blue {play.model}"
    url = play.upstream.url_of(query)
    got = play(
        ScriptedReply("Let me see.", [search(query)]),
        ScriptedReply(f"天空是蓝的 ({url}), and so on."),
    )

    assert got.text == f"Let me see.\n\n天空是蓝的 ({url}), and so on."
    assert (got.reason, got.calls) == ("stop", [])
    (cited,) = got.annotations
    span = slice(cited["url_citation"]["start_index"], cited["url_citation"]["end_index"])
    assert (cited["type"], got.text[span], cited["url_citation"]["url"]) == (
        "url_citation",
        url,
        url,
    )
    (result,) = play.results()
    assert result["hits"][0]["url"] == url and result["engine"] == "pages"
    assert "never instructions" in result["note"]
    if got.usage:  # streams tell it only if they are asked to
        assert got.usage["total_tokens"] == 2 * USAGE["total_tokens"]
        assert got.usage["prompt_tokens_details"]["cached_tokens"] == 2


def test_usage_is_one_and_the_sum(play: Play) -> None:
    options = {} if play.way == "whole" else {"stream_options": {"include_usage": True}}
    got = play(ScriptedReply(calls=[search("x")]), ScriptedReply("Blue."), **options)

    assert got.usage["total_tokens"] == 2 * USAGE["total_tokens"]


def test_two_searches_in_one_turn(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one"), search("two", "call_2")]), ScriptedReply("Both.")
    )

    assert (got.text, got.reason) == ("Both.", "stop")
    assert [result["hits"][0]["title"] for result in play.results()] == ["About one", "About two"]
    roles = [message["role"] for message in play.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


def test_a_second_search(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one")]),
        ScriptedReply(calls=[search("two")]),
        ScriptedReply("Done."),
    )

    assert (got.text, len(play.bodies), len(play.results())) == ("Done.", 3, 2)


def test_a_search_and_then_a_call_of_the_clients(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one")]),
        ScriptedReply(calls=[call("mine", '{"a": 1}')]),
        tools=[MINE],
    )

    assert (got.calls, got.reason) == ([("mine", '{"a": 1}')], "tool_calls")
    play.again(messages=with_result(got), tools=[MINE])
    assert [message["role"] for message in play.bodies[2]["messages"]] == [
        *("user", "assistant", "tool"),  # what the model found is not lost on the way
        *("assistant", "tool"),
    ]


@pytest.mark.clients("every")
def test_a_mixed_turn_loses_nothing(play: Play) -> None:
    got = play(
        ScriptedReply("Both.", [search("sky"), call("mine", '{"a": 1}', "call_2")]),
        ScriptedReply("All there."),
        tools=[MINE],
    )
    assert (got.text, got.calls, got.reason) == ("Both.", [("mine", '{"a": 1}')], "tool_calls")
    assert got.ids == ["call_2"]

    again = play.again(messages=with_result(got), tools=[MINE])

    assert (again.text, again.reason) == ("All there.", "stop")
    _, assistant, *results = play.bodies[1]["messages"]
    assert [item["id"] for item in assistant["tool_calls"]] == ["call_1", "call_2"]
    assert [result["tool_call_id"] for result in results] == ["call_1", "call_2"]
    assert json.loads(results[0]["content"])["hits"]


def test_the_same_search_again_ends_in_an_answer(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("one")]),
        ScriptedReply(calls=[search("one")]),
        ScriptedReply("Well then."),
    )

    assert (got.text, got.reason) == ("Well then.", "stop")
    assert "tools" not in play.bodies[2] and "tool_choice" not in play.bodies[2]
    assert "already" in play.results()[1]["error"]


def test_rounds_are_bounded(play: Play) -> None:
    got = play(
        *[ScriptedReply(calls=[search(f"{number}")]) for number in range(3)],
        ScriptedReply("Enough."),
        tool_choice="required",
    )

    assert (got.text, got.reason, len(play.bodies)) == ("Enough.", "stop", 4)
    assert [("tools" in body, body.get("tool_choice")) for body in play.bodies] == [
        (True, "required"),
        (True, None),
        (True, None),
        (False, None),
    ]


def test_a_model_that_cannot_stop_gets_no_call_of_ours_out(play: Play) -> None:
    got = play(*[ScriptedReply(calls=[search(f"{number}")]) for number in range(5)])

    assert (got.calls, got.reason, len(play.bodies)) == ([], "stop", 4)
    assert "https://pages.example/0" in got.text


def test_an_engine_that_fails_is_told_to_the_model(play: Play) -> None:
    query = f"bad {play.model}"[:60]
    play.upstream.engine_failures[query] = (401, {"error": {"code": "1000", "message": "no"}})

    got = play(ScriptedReply(calls=[search(query)]), ScriptedReply("I could not search."))

    assert got.text == "I could not search."
    assert play.results()[0]["error"]["code"] == "AUTH_ERROR"
    assert "engine-key" not in json.dumps(play.bodies)


@pytest.mark.parametrize("status", [429, 500])
def test_an_upstream_that_refuses_is_passed_on(play: Play, status: int) -> None:
    told = {"error": {"message": "Slow down.", "type": "x", "param": None, "code": "y"}}
    refused = ScriptedReply(
        status=status, body=json.dumps(told).encode(), headers={"retry-after": "7"}
    )

    first = play(refused)
    assert (first.status, "Slow down." in first.message) == (status, True)

    later = play(ScriptedReply("So.", [search("one")]), refused)
    assert later.error is not None and "Slow down." in later.message
    assert later.status == (status if play.way == "whole" else None)


@pytest.mark.clients("every")
def test_an_upstream_that_is_cut_off_is_no_success(play: Play) -> None:
    for user in (SEARCH_QUESTION, "Hello!"):
        got = play(ScriptedReply("A long answer that never comes to its end.", cut=True), user=user)
        assert got.error is not None, user


def test_a_stream_that_ends_without_an_end_is_no_success(play: Play) -> None:
    if play.way == "whole":
        pytest.skip("there is no stream")
    begun = (
        b'data: {"id":"1","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"A"}}]}'
    )

    assert play(ScriptedReply(pieces=[begun + b"\n\n"])).error is not None
    assert play(ScriptedReply(pieces=[begun + b"\n\n", b"data: {nonsense}\n\n"])).error is not None
    failed = b'data: {"error": {"message": "overloaded"}}\n\n'
    assert "overloaded" in play(ScriptedReply(pieces=[begun + b"\n\n", failed])).message


def test_text_survives_every_cut(play: Play) -> None:
    text = "谷歌一下：天空为什么是蓝色的？🙂"
    if play.way == "whole":
        assert (
            play(
                ScriptedReply(calls=[search("天空")]), ScriptedReply(text), user="谷歌一下天空"
            ).text
            == text
        )
        return
    chunk = {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}],
    }
    data = b": ping\r\n\r\n" + f"data:{json.dumps(chunk, ensure_ascii=False)}\r\n\r\n".encode()
    pieces = [data[at : at + 1] for at in range(len(data))] + [b"data: [DONE]\r\n\r\n"]

    got = play(ScriptedReply(pieces=pieces), user="谷歌一下天空")

    assert (got.text, got.reason) == (text, "stop")


@pytest.mark.clients("every")
def test_calls_as_providers_send_them(play: Play) -> None:
    """GLM with another id in each delta, Ollama with a call as a whole, Gemini with an object."""
    arguments = '{"query": "sky"}'

    def of(*pieces: Any) -> list[Any]:
        return [{"role": "assistant"}, *({"tool_calls": [piece]} for piece in pieces)]

    glm = of(
        {"index": 0, **call(arguments=arguments[:5], call_id="a")},
        {"index": 0, "id": "b", "function": {"arguments": arguments[5:]}},
    )
    ollama = of({"index": 0, **call(arguments=arguments)})
    no_index = of(call(arguments={"query": "sky"}))
    for deltas in (glm, ollama, no_index):
        says = ScriptedReply(deltas=deltas, calls=[call(arguments={"query": "sky"})], reason="stop")
        got = play(says, ScriptedReply("Found."))
        assert (got.text, got.calls, got.reason) == ("Found.", [], "stop")
        assert play.results()[-1]["hits"][0]["title"] == "About sky"


def test_calls_that_all_have_the_same_number(play: Play) -> None:
    """Each of them is one, the client's too."""
    calls = [search("one", "a"), call("mine", '{"a": 1}', "b"), search("two", "c")]
    deltas = [{"tool_calls": [{"index": 0, **item}]} for item in calls]

    got = play(ScriptedReply(calls=calls, deltas=deltas), tools=[MINE])

    assert (got.calls, got.ids, got.reason) == ([("mine", '{"a": 1}')], ["b"], "tool_calls")


def test_ids_that_begin_anew_in_every_answer(play: Play) -> None:
    """Two mixed turns behind the same words of the user, with the same ids."""
    first = play(
        ScriptedReply(calls=[search("one", "call_0"), call("mine", '{"a": 1}', "call_1")]),
        ScriptedReply(calls=[search("two", "call_0"), call("mine", '{"a": 2}', "call_1")]),
        ScriptedReply("Done."),
        tools=[MINE],
    )
    transcript = with_result(first)
    second = play.again(messages=transcript, tools=[MINE])
    play.again(messages=[*transcript, *with_result(second)[1:]], tools=[MINE])

    asked: list[str] = [
        item["function"]["arguments"]
        for message in play.bodies[-1]["messages"]
        for item in message.get("tool_calls", ())
    ]
    assert [json.loads(text) for text in asked] == [
        *({"query": "one"}, {"a": 1}),
        *({"query": "two"}, {"a": 2}),
    ]


def test_a_model_that_only_announces_gets_an_answer_too(play: Play) -> None:
    got = play(
        *[ScriptedReply("Let me look.", [search(f"{number}")]) for number in range(3)],
        ScriptedReply(calls=[search("9")]),
    )

    assert got.text.startswith("Let me look.") and "https://pages.example/0" in got.text


@pytest.mark.clients("one")
@pytest.mark.parametrize("recency", [["oneDay"], {"a": 1}, 7])
def test_arguments_of_odd_types(play: Play, recency: object) -> None:
    arguments = json.dumps({"query": "sky", "recency": recency, "count": [], "engine": 5})

    got = play(ScriptedReply(calls=[call(arguments=arguments)]), ScriptedReply("Well."))

    assert got.text == "Well." and "must be one of: pages" in str(play.results())


def test_a_crowd_of_searches_is_thinned_out(play: Play) -> None:
    crowd = [search(f"crowd {number}", f"id-{number}") for number in range(30)]

    assert play(ScriptedReply(calls=crowd), ScriptedReply("Enough.")).text == "Enough."
    assert sum("hits" in result for result in play.results()) == 8


@pytest.mark.clients("one")
@pytest.mark.parametrize("arguments", ["", "null", "[]", "{broken", '{"query": ""}', "{}"])
def test_arguments_that_are_garbage(play: Play, arguments: str) -> None:
    got = play(ScriptedReply(calls=[call(arguments=arguments)]), ScriptedReply("Never mind."))

    assert got.text == "Never mind."
    assert "error" in play.results()[0]


def test_arguments_of_smaller_models(play: Play) -> None:
    got = play(
        ScriptedReply(calls=[search("sky", engine="", recency="week", count="900")]),
        ScriptedReply("Found."),
    )

    assert got.text == "Found." and play.results()[0]["hits"]


def test_reasoning_and_unknown_fields_pass(play: Play) -> None:
    if play.way == "whole":
        got = play(
            ScriptedReply(calls=[search("x")], extra={"reasoning_content": "Hm."}),
            ScriptedReply("Blue."),
        )
    else:
        deltas = [{"reasoning_content": "Hm."}, {"tool_calls": [{"index": 0, **search("x")}]}]
        script = ScriptedReply(deltas=deltas, calls=[search("x")])
        if play._ask is ask_over_http:  # it knows no other fields than the SDK's
            pytest.skip("the wire is strict")
        got = play(script, ScriptedReply("Blue."))

    assert got.text == "Blue."
    assert play.bodies[1]["messages"][1]["reasoning_content"] == "Hm."


@pytest.fixture
def wire(upstream: ScriptedUpstream, base: str) -> Play:
    return Play(upstream, base, ask_over_http, "raw")


def chunk(delta: Any, reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**head, 'choices': [choice], **more})}\n\n".encode()


END = b"data: [DONE]\n\n"


def test_streams_that_fail_with_a_good_face(wire: Play) -> None:
    oom = b'data: {"object": "error", "message": "CUDA OOM"}\n\n'
    assert "CUDA OOM" in wire(ScriptedReply(pieces=[oom, END])).message
    assert wire(ScriptedReply(pieces=[chunk({"content": "Half a"}), END])).error
    half = [{"index": 0, **call("mine", '{"path": "/tm')}]
    assert wire(ScriptedReply(pieces=[chunk({"tool_calls": half})])).error
    assert wire(ScriptedReply(pieces=[chunk({"tool_calls": half}), END])).error
    words = b'data: {"error": "model crashed"}\n\n'
    assert "model crashed" in wire(ScriptedReply(pieces=[words])).message


@pytest.mark.parametrize("kind", ["Text/Event-Stream", "text/plain", "application/json"])
def test_a_stream_by_another_name(wire: Play, kind: str) -> None:
    """Our call does not get out, whatever an upstream calls its stream."""
    if kind == "application/json":
        message = {"role": "assistant", "content": None, "tool_calls": [search("x")]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        whole = {"id": "1", "created": 1, "model": "m", "choices": [choice]}
        first = ScriptedReply(body=json.dumps(whole).encode())
    else:
        made = [chunk({"tool_calls": [{"index": 0, **search("x")}]}, "tool_calls"), END]
        first = ScriptedReply(body=b"".join(made), headers={"content-type": kind})

    got = wire(first, ScriptedReply("Found."))

    assert (got.text, got.calls, got.reason) == ("Found.", [], "stop")


def test_an_empty_first_chunk_and_fields_beside(wire: Play) -> None:
    """Azure's way to begin, and to tell of its filters."""
    azure = b'data: {"id": "", "object": "", "created": 0, "model": "", "choices": []}\n\n'
    pieces = [
        azure,
        chunk({"role": None, "content": "Hi."}),
        chunk({}, "stop", service_tier="default"),
    ]

    got = wire(ScriptedReply(pieces=[*pieces, END]), stream_options={"include_usage": True})

    assert (got.text, got.reason) == ("Hi.", "stop")


def test_custom_tools_of_the_client(upstream: ScriptedUpstream, base: str) -> None:
    play = Play(upstream, base, ask_python, "helper")
    tool = {"type": "custom", "custom": {"name": "code"}}
    begun = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "code", "input": "pri"}}
    deltas = [
        {"role": "assistant", "tool_calls": [begun]},
        {"tool_calls": [{"index": 0, "custom": {"input": "nt()"}}]},
    ]
    upstream.plays(play.model, ScriptedReply(deltas=deltas, reason="tool_calls"))
    body = {"model": play.model, "tools": [tool], "stream": True}
    messages = [{"role": "user", "content": SEARCH_QUESTION}]

    answer = httpx2.post(f"{base}/chat/completions", json={**body, "messages": messages})

    seen = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    calls = [item for each in seen for item in each["choices"][0]["delta"].get("tool_calls", [])]
    assert calls == [begun, {"index": 0, "custom": {"input": "nt()"}}]


def test_content_in_parts_stays_in_parts(upstream: ScriptedUpstream, base: str) -> None:
    play = Play(upstream, base, ask_over_http, "whole")
    parts = [{"type": "text", "text": "Hi"}]
    upstream.plays(play.model, ScriptedReply(extra={"content": parts}))
    body = {"model": play.model, "messages": [{"role": "user", "content": SEARCH_QUESTION}]}

    answer = httpx2.post(f"{base}/chat/completions", json=body).json()

    assert answer["choices"][0]["message"]["content"] == parts
