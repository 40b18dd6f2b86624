"""Decisions of the gateway: which requests get the tool, what is fed back, what is stored."""

import json
from typing import Any

import anyio
import pytest

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.continuations import MAX_ENTRIES, ChatContinuations
from gemini_cli_mcp.gateway.search_runner import MAX_RESULT_CHARS, SearchRunner, tool_result_json
from gemini_cli_mcp.gateway.tool_calls import ToolCall, ToolCallAssembler
from gemini_cli_mcp.gateway.tool_injection import build_turn_request, engines_to_inject
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.web_search_schema import web_search_schema
from gemini_cli_mcp.settings.engines_file import Engines, default_engines, load_engines_file
from gemini_cli_mcp.settings.upstreams import Upstream, Upstreams
from tests.support import Clock

GOOGLE = default_engines("gemini", "flash")
ALWAYS = Engines(GOOGLE.engines, "google", "always")
SEARCH_TOOL = {"type": "function", "function": {"name": "web_search"}}
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}
HOSTED_TOOL = {"type": "web_search_preview_2025_03_11"}


@pytest.fixture
def several_engines(tmp_path: Any) -> Engines:
    provider_keys = {
        "wide": "glm.glm-4",
        "google-news": "glm.glm-4",
        "cli": "gemini-cli.gemini-2.5-flash",
        "api": "gemini-api.gemini-2.5-flash",
    }
    entries: list[dict[str, Any]] = [
        {"id": id_, "providerKey": key, "description": id_} for id_, key in provider_keys.items()
    ]
    entries[0]["default"] = True
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({"webSearch": {"engines": entries}}))
    return load_engines_file(path, GOOGLE)


def chat_request(text: str = "search the web", **fields: object) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}], **fields}


def gets_search_tool(request: JsonObject, engines: Engines = GOOGLE) -> bool:
    return engines_to_inject(request, engines, "substring") is not None


def test_requests_that_want_a_search_get_the_search_tool() -> None:
    assert gets_search_tool(chat_request())
    assert gets_search_tool(chat_request(tools=[OTHER_TOOL], tool_choice="auto", n=1))
    assert gets_search_tool(chat_request("hello", tools=[HOSTED_TOOL]))
    assert gets_search_tool(
        chat_request(
            "hello", tools=[{"type": "web_search"}], response_format={"type": "json_object"}
        )
    )
    assert gets_search_tool(chat_request("hello"), ALWAYS)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none"},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        {"n": 2},
        {"tools": [SEARCH_TOOL]},
        {"tools": [SEARCH_TOOL, HOSTED_TOOL]},
        {"logprobs": True},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "old"}]},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"messages": []},
    ],
    ids=str,
)
def test_requests_that_forbid_tools_get_no_search_tool(fields: JsonObject) -> None:
    assert not gets_search_tool({**chat_request(), **fields})
    assert not gets_search_tool({**chat_request(), **fields}, ALWAYS)


def test_system_messages_express_no_search_intent() -> None:
    request: JsonObject = {"messages": [{"role": "system", "content": "search the web"}]}

    assert not gets_search_tool(request)
    assert gets_search_tool(request, ALWAYS)


def test_the_tool_stays_injected_until_a_search_has_a_final_answer() -> None:
    user = {"role": "user", "content": "hello"}
    search_call = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "web_search"}}],
    }
    client_call = {"role": "assistant", "tool_calls": [{"id": "2", "function": {"name": "other"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "{}"}
    final = {"role": "assistant", "content": "done"}

    assert gets_search_tool({"messages": [user, search_call, result]})
    assert gets_search_tool({"messages": [user, search_call, result, client_call, result]})
    assert gets_search_tool({"messages": [user, search_call, result, user]})
    assert not gets_search_tool({"messages": [user, search_call, result, final, user]})
    assert not gets_search_tool({"messages": [user, client_call, result]})


def test_google_intent_narrows_the_engines(several_engines: Engines) -> None:
    all_engines = engines_to_inject(chat_request(), several_engines, "substring")
    narrowed = engines_to_inject(chat_request("google the news"), several_engines, "substring")

    assert all_engines and narrowed
    assert [engine.id for engine in all_engines.engines] == ["wide", "google-news", "cli", "api"]
    assert web_search_schema(all_engines)["required"] == ["query"]
    assert web_search_schema(narrowed)["properties"]["engine"]["enum"] == [
        "google-news",
        "cli",
        "api",
    ]
    assert web_search_schema(narrowed)["required"] == ["query", "engine"]
    wide = Engines(several_engines.engines[:1], "wide")
    assert engines_to_inject(chat_request("google the news"), wide, "substring") == wide


def test_a_forced_tool_choice_applies_to_the_first_turn_only() -> None:
    request = chat_request(
        tools=[OTHER_TOOL, HOSTED_TOOL], tool_choice=HOSTED_TOOL, parallel_tool_calls=False
    )

    first = build_turn_request(request, GOOGLE, [])
    assert [tool["function"]["name"] for tool in first["tools"]] == ["other", "web_search"]
    assert first["tool_choice"] == SEARCH_TOOL
    later = build_turn_request(request, GOOGLE, [{"role": "tool"}])
    assert "tool_choice" not in later and later["parallel_tool_calls"] is False
    last = build_turn_request(chat_request(tools=[HOSTED_TOOL]), None, [{"role": "tool"}])
    assert not {"tools", "tool_choice"} & last.keys()
    assert request == chat_request(
        tools=[OTHER_TOOL, HOSTED_TOOL], tool_choice=HOSTED_TOOL, parallel_tool_calls=False
    )


def test_client_calls_are_revealed_once_they_cannot_be_searches() -> None:
    assembler = ToolCallAssembler(1000)

    def add_delta(index: int, **function: str) -> list[JsonObject]:
        return assembler.add_deltas([{"index": index, "id": f"id-{index}", "function": function}])

    assert add_delta(0, name="web_search", arguments="") == []
    assert add_delta(1, name="mi") == [
        {"index": 0, "id": "id-1", "type": "function", "function": {"name": "mi", "arguments": ""}}
    ]
    assert add_delta(0, arguments='{"query": 1}') == []
    assert add_delta(1, arguments="{}") == [{"index": 0, "function": {"arguments": "{}"}}]
    assert add_delta(2, name="web") == [] and add_delta(3, name="web") == []
    assert add_delta(2, name="_search") == []
    assert [delta["function"]["name"] for delta in add_delta(3, arguments="{")] == ["web"]
    assert add_delta(4, name="we") == []
    assert [delta["index"] for delta in assembler.flush()] == [2]
    assert [call.name for call in assembler.calls] == [
        "web_search",
        "mi",
        "web_search",
        "web",
        "we",
    ]


async def test_a_search_times_out_and_exhausts_the_budget() -> None:
    async def search_forever(arguments: JsonObject) -> JsonObject:
        await anyio.sleep(60)
        return {}

    runner = SearchRunner(search_forever, 3, timeout=0.2)
    assert runner.has_budget
    (result,) = await runner.run([ToolCall("1", "web_search", '{"query": "x"}')])

    assert result["error"]["code"] == "TIMEOUT"
    assert not runner.has_budget


async def test_identical_searches_are_run_once() -> None:
    searched: list[JsonObject] = []

    async def search(arguments: JsonObject) -> JsonObject:
        searched.append(arguments)
        return {"success": True, "summary": "s", "hits": [], "engine": "e", "note": "n"}

    runner = SearchRunner(search, 3, timeout=60)
    arguments_json = '{"query": "x", "count": 1}'
    reordered_json = '{"count": 1,   "query": "x"}'
    first, second = await runner.run(
        [ToolCall("1", "", arguments_json), ToolCall("2", "", reordered_json)]
    )
    assert first == second and len(searched) == 1
    repeated, fresh = await runner.run(
        [ToolCall("3", "", arguments_json), ToolCall("4", "", '{"query": "y"}')]
    )
    assert "error" in repeated and "error" not in fresh and runner.has_budget
    await runner.run([ToolCall("5", "", arguments_json)])
    assert not runner.has_budget and runner.search_count == 2


def test_tool_results_are_limited_in_size() -> None:
    hit = {"title": "t", "url": "https://a.example/", "snippet": "\n" * 500}
    text = tool_result_json(
        {"note": "n", "summary": '"' * 30_000, "hits": [hit] * 50, "engine": "e"}
    )

    assert len(text) <= MAX_RESULT_CHARS
    assert json.loads(text)["summary"].startswith('"' * 1000)


def test_only_urls_of_hits_are_cited() -> None:
    hits = [{"url": "https://a.example/x", "title": "A"}, {"url": "https://b.example/(y)"}]
    text = (
        "天 https://a.example/x, https://a.example/xyz [b](https://b.example/(y)) https://c.example"
    )

    citations = url_citations(text, hits)

    assert [
        (text[citation["start_index"] : citation["end_index"]], citation["url"])
        for citation in citations
    ] == [
        ("https://a.example/x", "https://a.example/x"),
        ("https://b.example/(y)", "https://b.example/(y)"),
    ]


def test_hidden_messages_are_restored_only_for_their_owner(clock: Clock) -> None:
    continuations = ChatContinuations(60)
    user = {"role": "user", "content": "hello"}
    client_call = {"role": "assistant", "tool_calls": [{"id": "call_0"}]}
    hidden_messages: list[JsonObject] = [{"role": "assistant"}, {"role": "tool"}]
    continuations.keep("me", [user], ["call_0"], hidden_messages)

    assert continuations.restore("me", [user, client_call]) == [user, *hidden_messages]
    assert continuations.restore("you", [user, client_call]) == [user, client_call]
    other = {"role": "user", "content": "something else"}
    assert continuations.restore("me", [other, client_call]) == [other, client_call]
    clock.skip(60)
    assert continuations.restore("me", [user, client_call]) == [user, client_call]
    for number in range(MAX_ENTRIES + 10):
        continuations.keep("me", [user], [str(number)], hidden_messages)
    assert len(continuations._hidden_messages._entries) == MAX_ENTRIES


def test_an_upstream_is_selected_by_model_pattern_or_default() -> None:
    one = Upstream("one", "http://x", None, ("gpt-*", "o3"))
    two = Upstream("two", "http://y", None, ("*",))

    assert Upstreams((one, two), None).for_model("gpt-5") == one
    assert Upstreams((one, two), None).for_model("llama") == two
    assert Upstreams((one,), None).for_model("llama") is None
    assert Upstreams((one,), one).for_model("") == one
