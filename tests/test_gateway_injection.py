"""Decisions of the gateway: which requests get the tool, what is fed back, what is stored."""

import json
from typing import Any

import anyio
import pytest

from gemini_cli_mcp.gateway.annotations import url_citations
from gemini_cli_mcp.gateway.continuations import ChatContinuations, ContinuationStore
from gemini_cli_mcp.gateway.search_runner import (
    ALREADY_SEARCHED,
    MAX_RESULT_CHARS,
    SearchArguments,
    SearchFailure,
    SearchOutcome,
    SearchRunner,
    tool_result_json,
)
from gemini_cli_mcp.gateway.tool_call_assembler import ToolCallAssembler, call_delta_json
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.gateway.tool_injection import build_turn_request, engines_to_inject
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.results import WebSearchResult
from gemini_cli_mcp.research.web_search_schema import web_search_schema
from gemini_cli_mcp.settings.engines import Engines, default_engines
from gemini_cli_mcp.settings.engines_file import load_engines_file
from gemini_cli_mcp.settings.upstreams import Upstream, Upstreams
from gemini_cli_mcp.types import Hit
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


def web_search_result(*hits: Hit, summary: str = "s") -> WebSearchResult:
    return WebSearchResult(
        summary=summary,
        summary_from="model",
        hits=hits,
        engine="e",
        target=GOOGLE.engines[0].targets[0],
        question="x",
        recency="noLimit",
        count=10,
        applied={},
        duration=1.0,
    )


def chat_request(text: str = "search the web", **fields: object) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}], **fields}


def gets_search_tool(request: JsonObject, engines: Engines = GOOGLE) -> bool:
    return engines_to_inject(request, engines) is not None


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
    all_engines = engines_to_inject(chat_request(), several_engines)
    narrowed = engines_to_inject(chat_request("google the news"), several_engines)

    assert all_engines and narrowed
    assert [engine.id for engine in all_engines.engines] == ["wide", "google-news", "cli", "api"]
    assert web_search_schema(all_engines)["required"] == ["query"]
    schema: Any = web_search_schema(narrowed)
    assert schema["properties"]["engine"]["enum"] == [
        "google-news",
        "cli",
        "api",
    ]
    assert schema["required"] == ["query", "engine"]
    wide = Engines(several_engines.engines[:1], "wide")
    assert engines_to_inject(chat_request("google the news"), wide) == wide


def test_a_forced_tool_choice_applies_to_the_first_turn_only() -> None:
    request = chat_request(
        tools=[OTHER_TOOL, HOSTED_TOOL], tool_choice=HOSTED_TOOL, parallel_tool_calls=False
    )

    first: Any = build_turn_request(request, GOOGLE, [])
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
        delta = {"index": index, "id": f"id-{index}", "function": function}
        return [call_delta_json(visible) for visible in assembler.add_deltas([delta])]

    assert add_delta(0, name="web_search", arguments="") == []
    assert add_delta(1, name="mi") == [
        {"index": 0, "id": "id-1", "type": "function", "function": {"name": "mi", "arguments": ""}}
    ]
    assert add_delta(0, arguments='{"query": 1}') == []
    assert add_delta(1, arguments="{}") == [{"index": 0, "function": {"arguments": "{}"}}]
    assert add_delta(2, name="web") == [] and add_delta(3, name="web") == []
    assert add_delta(2, name="_search") == []
    assert add_delta(3, arguments="{") == [
        {
            "index": 1,
            "id": "id-3",
            "type": "function",
            "function": {"name": "web", "arguments": "{"},
        }
    ]
    assert add_delta(4, name="we") == []
    assert [delta.index for delta in assembler.flush()] == [2]
    assert [call.name for call in assembler.calls] == [
        "web_search",
        "mi",
        "web_search",
        "web",
        "we",
    ]


async def test_a_search_times_out_and_exhausts_the_budget() -> None:
    async def search_forever(arguments: SearchArguments) -> SearchOutcome:
        await anyio.sleep(60)
        return web_search_result()

    runner = SearchRunner(search_forever, 3, timeout=0.2)
    assert runner.has_budget
    (outcome,) = await runner.run([ToolCall("1", "web_search", '{"query": "x"}')])

    assert isinstance(outcome, SearchFailure) and outcome.code == "TIMEOUT"
    assert json.loads(tool_result_json(outcome)) == {
        "error": {"code": "TIMEOUT", "message": "No time is left for this search."}
    }
    assert not runner.has_budget


async def test_identical_searches_are_run_once() -> None:
    searched: list[SearchArguments] = []

    async def search(arguments: SearchArguments) -> SearchOutcome:
        searched.append(arguments)
        return web_search_result()

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
    assert repeated == ALREADY_SEARCHED and isinstance(fresh, WebSearchResult)
    assert runner.has_budget
    await runner.run([ToolCall("5", "", arguments_json)])
    assert not runner.has_budget and runner.search_count == 2


def test_tool_results_are_limited_in_size() -> None:
    hit = Hit("t", "https://a.example/", "a.example", snippet="\n" * 500)
    text = tool_result_json(web_search_result(*[hit] * 50, summary='"' * 30_000))

    assert len(text) <= MAX_RESULT_CHARS
    assert json.loads(text)["summary"].startswith('"' * 1000)


def test_only_urls_of_hits_are_cited() -> None:
    hits = [Hit("A", "https://a.example/x", "a.example"), Hit("", "https://b.example/(y)", "b")]
    text = (
        "天 https://a.example/x, https://a.example/xyz [b](https://b.example/(y)) https://c.example"
    )

    citations = url_citations(text, hits)

    assert [
        (text[citation.start_index : citation.end_index], citation.url) for citation in citations
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


def test_a_refreshed_continuation_is_evicted_last() -> None:
    store: ContinuationStore[str] = ContinuationStore(60, max_entries=3)
    for key in ("first", "second", "third"):
        store.put("me", key, key)

    store.put("me", "first", "refreshed")
    store.put("me", "fourth", "fourth")

    assert [store.get("me", key) for key in ("first", "second", "third", "fourth")] == [
        "refreshed",
        None,
        "third",
        "fourth",
    ]


def test_expired_continuations_are_evicted_before_live_ones(clock: Clock) -> None:
    store: ContinuationStore[int] = ContinuationStore(60, max_entries=10)
    for number in range(4):
        store.put("gone", str(number), number)
    clock.skip(61)
    for number in range(8):
        store.put("live", str(number), number)

    assert [store.get("live", str(number)) for number in range(8)] == list(range(8))


def test_an_owner_with_many_continuations_evicts_only_its_own() -> None:
    store: ContinuationStore[int] = ContinuationStore(60, max_entries=10)
    for number in range(3):
        store.put("quiet", str(number), number)
    for number in range(100):
        store.put("busy", str(number), number)

    assert [store.get("quiet", str(number)) for number in range(3)] == [0, 1, 2]
    kept = [number for number in range(100) if store.get("busy", str(number)) is not None]
    assert kept == list(range(93, 100))
    assert len(store) == 10


def test_a_new_owner_gets_its_share_of_a_full_store() -> None:
    store: ContinuationStore[int] = ContinuationStore(60, max_entries=10)
    for number in range(10):
        store.put("first", str(number), number)
    for number in range(10):
        store.put("second", str(number), number)

    assert [store.get("first", str(number)) for number in range(5, 10)] == [5, 6, 7, 8, 9]
    assert [store.get("second", str(number)) for number in range(5, 10)] == [5, 6, 7, 8, 9]


def test_a_continuation_is_delivered_once_and_expires_in_time(clock: Clock) -> None:
    store: ContinuationStore[str] = ContinuationStore(60)
    store.put("me", "taken", "value")
    store.put("me", "expired", "value")

    assert store.take("you", "taken") is None
    assert [store.get("me", "taken"), store.take("me", "taken")] == ["value", "value"]
    assert store.get("me", "taken") is store.take("me", "taken") is None
    clock.skip(60)
    assert store.get("me", "expired") is store.take("me", "expired") is None
    assert len(store) == 0


def test_an_upstream_is_selected_by_model_pattern_or_default() -> None:
    one = Upstream("one", "http://x", None, ("gpt-*", "o3"))
    two = Upstream("two", "http://y", None, ("*",))

    assert Upstreams((one, two), None).for_model("gpt-5") == one
    assert Upstreams((one, two), None).for_model("llama") == two
    assert Upstreams((one,), None).for_model("llama") is None
    assert Upstreams((one,), one).for_model("") == one
