"""What the gateway decides: who gets the tool, what is fed back, what is kept for later."""

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
OWN = {"type": "function", "function": {"name": "web_search"}}
OTHER = {"type": "function", "function": {"name": "other"}}
HOSTED = {"type": "web_search_preview_2025_03_11"}


@pytest.fixture
def several(tmp_path: Any) -> Engines:
    keys = {
        "wide": "glm.glm-4",
        "google-news": "glm.glm-4",
        "cli": "gemini-cli.gemini-2.5-flash",
        "api": "gemini-api.gemini-2.5-flash",
    }
    entries: list[dict[str, Any]] = [
        {"id": id_, "providerKey": key, "description": id_} for id_, key in keys.items()
    ]
    entries[0]["default"] = True
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({"webSearch": {"engines": entries}}))
    return load_engines_file(path, GOOGLE)


def asked(text: str = "search the web", **more: object) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}], **more}


def gets(request: JsonObject, engines: Engines = GOOGLE) -> bool:
    return engines_to_inject(request, engines, "substring") is not None


def test_who_gets_the_tool() -> None:
    assert gets(asked())
    assert gets(asked(tools=[OTHER], tool_choice="auto", n=1))
    assert gets(asked("hello", tools=[HOSTED]))
    assert gets(
        asked("hello", tools=[{"type": "web_search"}], response_format={"type": "json_object"})
    )
    assert gets(asked("hello"), ALWAYS)


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "none"},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        {"n": 2},
        {"tools": [OWN]},
        {"tools": [OWN, HOSTED]},
        {"logprobs": True},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "old"}]},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"messages": []},
    ],
    ids=str,
)
def test_who_does_not(more: JsonObject) -> None:
    assert not gets({**asked(), **more})
    assert not gets({**asked(), **more}, ALWAYS)


def test_system_text_asks_for_nothing() -> None:
    request: JsonObject = {"messages": [{"role": "system", "content": "search the web"}]}

    assert not gets(request)
    assert gets(request, ALWAYS)


def test_a_chain_goes_on_until_its_final_answer() -> None:
    user = {"role": "user", "content": "hello"}
    ours = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "web_search"}}]}
    theirs = {"role": "assistant", "tool_calls": [{"id": "2", "function": {"name": "other"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "{}"}
    final = {"role": "assistant", "content": "done"}

    assert gets({"messages": [user, ours, result]})
    assert gets({"messages": [user, ours, result, theirs, result]})
    assert gets({"messages": [user, ours, result, user]})
    assert not gets({"messages": [user, ours, result, final, user]})
    assert not gets({"messages": [user, theirs, result]})


def test_google_narrows_the_engines(several: Engines) -> None:
    everything = engines_to_inject(asked(), several, "substring")
    narrowed = engines_to_inject(asked("google the news"), several, "substring")

    assert everything and narrowed
    assert [engine.id for engine in everything.engines] == ["wide", "google-news", "cli", "api"]
    assert web_search_schema(everything)["required"] == ["query"]
    assert web_search_schema(narrowed)["properties"]["engine"]["enum"] == [
        "google-news",
        "cli",
        "api",
    ]
    assert web_search_schema(narrowed)["required"] == ["query", "engine"]
    wide = Engines(several.engines[:1], "wide")
    assert engines_to_inject(asked("google the news"), wide, "substring") == wide


def test_what_was_forced_is_forced_once() -> None:
    request = asked(tools=[OTHER, HOSTED], tool_choice=HOSTED, parallel_tool_calls=False)

    first = build_turn_request(request, GOOGLE, [])
    assert [tool["function"]["name"] for tool in first["tools"]] == ["other", "web_search"]
    assert first["tool_choice"] == OWN
    later = build_turn_request(request, GOOGLE, [{"role": "tool"}])
    assert "tool_choice" not in later and later["parallel_tool_calls"] is False
    last = build_turn_request(asked(tools=[HOSTED]), None, [{"role": "tool"}])
    assert not {"tools", "tool_choice"} & last.keys()
    assert request == asked(tools=[OTHER, HOSTED], tool_choice=HOSTED, parallel_tool_calls=False)


def test_calls_are_shown_as_soon_as_they_are_not_ours() -> None:
    calls = ToolCallAssembler(1000)

    def take(index: int, **function: str) -> list[JsonObject]:
        return calls.add_deltas([{"index": index, "id": f"id-{index}", "function": function}])

    assert take(0, name="web_search", arguments="") == []
    assert take(1, name="mi") == [
        {"index": 0, "id": "id-1", "type": "function", "function": {"name": "mi", "arguments": ""}}
    ]
    assert take(0, arguments='{"query": 1}') == []
    assert take(1, arguments="{}") == [{"index": 0, "function": {"arguments": "{}"}}]
    assert take(2, name="web") == [] and take(3, name="web") == []
    assert take(2, name="_search") == []
    assert [delta["function"]["name"] for delta in take(3, arguments="{")] == ["web"]
    assert take(4, name="we") == []
    assert [delta["index"] for delta in calls.flush()] == [2]
    assert [call.name for call in calls.calls] == ["web_search", "mi", "web_search", "web", "we"]


async def test_searches_end_when_time_is_up() -> None:
    async def never(arguments: JsonObject) -> JsonObject:
        await anyio.sleep(60)
        return {}

    searches = SearchRunner(never, 3, timeout=0.2)
    assert searches.has_budget
    (result,) = await searches.run([ToolCall("1", "web_search", '{"query": "x"}')])

    assert result["error"]["code"] == "TIMEOUT"
    assert not searches.has_budget


async def test_twins_share_a_search() -> None:
    made: list[JsonObject] = []

    async def search(arguments: JsonObject) -> JsonObject:
        made.append(arguments)
        return {"success": True, "summary": "s", "hits": [], "engine": "e", "note": "n"}

    searches = SearchRunner(search, 3, timeout=60)
    twin = '{"query": "x", "count": 1}'
    other = '{"count": 1,   "query": "x"}'
    first, second = await searches.run([ToolCall("1", "", twin), ToolCall("2", "", other)])
    assert first == second and len(made) == 1
    again, fresh = await searches.run(
        [ToolCall("3", "", twin), ToolCall("4", "", '{"query": "y"}')]
    )
    assert "error" in again and "error" not in fresh and searches.has_budget
    await searches.run([ToolCall("5", "", twin)])
    assert not searches.has_budget and searches.search_count == 2


def test_results_have_a_size() -> None:
    hit = {"title": "t", "url": "https://a.example/", "snippet": "\n" * 500}
    text = tool_result_json(
        {"note": "n", "summary": '"' * 30_000, "hits": [hit] * 50, "engine": "e"}
    )

    assert len(text) <= MAX_RESULT_CHARS
    assert json.loads(text)["summary"].startswith('"' * 1000)


def test_only_addresses_that_were_found_are_cited() -> None:
    hits = [{"url": "https://a.example/x", "title": "A"}, {"url": "https://b.example/(y)"}]
    text = (
        "天 https://a.example/x, https://a.example/xyz [b](https://b.example/(y)) https://c.example"
    )

    cited = url_citations(text, hits)

    assert [(text[item["start_index"] : item["end_index"]], item["url"]) for item in cited] == [
        ("https://a.example/x", "https://a.example/x"),
        ("https://b.example/(y)", "https://b.example/(y)"),
    ]


def test_parked_turns_are_their_owners(clock: Clock) -> None:
    parked = ChatContinuations(60)
    user = {"role": "user", "content": "hello"}
    mine = {"role": "assistant", "tool_calls": [{"id": "call_0"}]}
    turn: list[JsonObject] = [{"role": "assistant"}, {"role": "tool"}]
    parked.keep("me", [user], ["call_0"], turn)

    assert parked.restore("me", [user, mine]) == [user, *turn]
    assert parked.restore("you", [user, mine]) == [user, mine]
    other = {"role": "user", "content": "something else"}
    assert parked.restore("me", [other, mine]) == [other, mine]
    clock.skip(60)
    assert parked.restore("me", [user, mine]) == [user, mine]
    for number in range(MAX_ENTRIES + 10):
        parked.keep("me", [user], [str(number)], turn)
    assert len(parked._hidden_messages._entries) == MAX_ENTRIES


def test_which_upstream_serves() -> None:
    one = Upstream("one", "http://x", None, ("gpt-*", "o3"))
    two = Upstream("two", "http://y", None, ("*",))

    assert Upstreams((one, two), None).for_model("gpt-5") == one
    assert Upstreams((one, two), None).for_model("llama") == two
    assert Upstreams((one,), None).for_model("llama") is None
    assert Upstreams((one,), one).for_model("") == one
