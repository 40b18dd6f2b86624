"""What the gateway decides: who gets the tool, what is fed back, what is kept for later."""

import json
from typing import Any

import anyio
import pytest

from gemini_cli_mcp.gateway.annotations import citations
from gemini_cli_mcp.gateway.continuations import MOST, ParkedTurns
from gemini_cli_mcp.gateway.search_runner import LARGEST, Searches, bounded
from gemini_cli_mcp.gateway.tool_calls import Call, Calls
from gemini_cli_mcp.gateway.tool_injection import injection, with_search
from gemini_cli_mcp.json_values import Object
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


def asked(text: str = "search the web", **more: object) -> Object:
    return {"messages": [{"role": "user", "content": text}], **more}


def gets(request: Object, engines: Engines = GOOGLE) -> bool:
    return injection(request, engines, "substring") is not None


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
def test_who_does_not(more: Object) -> None:
    assert not gets({**asked(), **more})
    assert not gets({**asked(), **more}, ALWAYS)


def test_system_text_asks_for_nothing() -> None:
    request: Object = {"messages": [{"role": "system", "content": "search the web"}]}

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
    everything = injection(asked(), several, "substring")
    narrowed = injection(asked("google the news"), several, "substring")

    assert everything and narrowed
    assert [engine.id for engine in everything.engines] == ["wide", "google-news", "cli", "api"]
    assert everything.parameters["required"] == ["query"]
    assert narrowed.parameters["properties"]["engine"]["enum"] == ["google-news", "cli", "api"]
    assert narrowed.parameters["required"] == ["query", "engine"]
    wide = Engines(several.engines[:1], "wide")
    assert injection(asked("google the news"), wide, "substring") == wide


def test_what_was_forced_is_forced_once() -> None:
    request = asked(tools=[OTHER, HOSTED], tool_choice=HOSTED, parallel_tool_calls=False)

    first = with_search(request, GOOGLE, [])
    assert [tool["function"]["name"] for tool in first["tools"]] == ["other", "web_search"]
    assert first["tool_choice"] == OWN
    later = with_search(request, GOOGLE, [{"role": "tool"}])
    assert "tool_choice" not in later and later["parallel_tool_calls"] is False
    last = with_search(asked(tools=[HOSTED]), None, [{"role": "tool"}])
    assert not {"tools", "tool_choice"} & last.keys()
    assert request == asked(tools=[OTHER, HOSTED], tool_choice=HOSTED, parallel_tool_calls=False)


def test_calls_are_shown_as_soon_as_they_are_not_ours() -> None:
    calls = Calls(1000)

    def take(index: int, **function: str) -> list[Object]:
        return calls.take([{"index": index, "id": f"id-{index}", "function": function}])

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
    assert [delta["index"] for delta in calls.rest()] == [2]
    assert [call.name for call in calls.all] == ["web_search", "mi", "web_search", "web", "we"]


async def test_searches_end_when_time_is_up() -> None:
    async def never(arguments: Object) -> Object:
        await anyio.sleep(60)
        return {}

    searches = Searches(never, 3, seconds=0.2)
    assert searches.may_go_on
    (result,) = await searches.results([Call("1", "web_search", '{"query": "x"}')])

    assert result["error"]["code"] == "TIMEOUT"
    assert not searches.may_go_on


async def test_twins_share_a_search() -> None:
    made: list[Object] = []

    async def search(arguments: Object) -> Object:
        made.append(arguments)
        return {"success": True, "summary": "s", "hits": [], "engine": "e", "note": "n"}

    searches = Searches(search, 3, seconds=60)
    twin = '{"query": "x", "count": 1}'
    other = '{"count": 1,   "query": "x"}'
    first, second = await searches.results([Call("1", "", twin), Call("2", "", other)])
    assert first == second and len(made) == 1
    again, fresh = await searches.results([Call("3", "", twin), Call("4", "", '{"query": "y"}')])
    assert "error" in again and "error" not in fresh and searches.may_go_on
    await searches.results([Call("5", "", twin)])
    assert not searches.may_go_on and searches.made == 2


def test_results_have_a_size() -> None:
    hit = {"title": "t", "url": "https://a.example/", "snippet": "\n" * 500}
    text = bounded({"note": "n", "summary": '"' * 30_000, "hits": [hit] * 50, "engine": "e"})

    assert len(text) <= LARGEST
    assert json.loads(text)["summary"].startswith('"' * 1000)


def test_only_addresses_that_were_found_are_cited() -> None:
    hits = [{"url": "https://a.example/x", "title": "A"}, {"url": "https://b.example/(y)"}]
    text = (
        "天 https://a.example/x, https://a.example/xyz [b](https://b.example/(y)) https://c.example"
    )

    cited = citations(text, hits)

    assert [(text[item["start_index"] : item["end_index"]], item["url"]) for item in cited] == [
        ("https://a.example/x", "https://a.example/x"),
        ("https://b.example/(y)", "https://b.example/(y)"),
    ]


def test_parked_turns_are_their_owners(clock: Clock) -> None:
    parked = ParkedTurns(60)
    user = {"role": "user", "content": "hello"}
    mine = {"role": "assistant", "tool_calls": [{"id": "call_0"}]}
    turn: list[Object] = [{"role": "assistant"}, {"role": "tool"}]
    parked.keep("me", [user], ["call_0"], turn)

    assert parked.completed("me", [user, mine]) == [user, *turn]
    assert parked.completed("you", [user, mine]) == [user, mine]
    other = {"role": "user", "content": "something else"}
    assert parked.completed("me", [other, mine]) == [other, mine]
    clock.skip(60)
    assert parked.completed("me", [user, mine]) == [user, mine]
    for number in range(MOST + 10):
        parked.keep("me", [user], [str(number)], turn)
    assert len(parked._turns._kept) == MOST


def test_which_upstream_serves() -> None:
    one = Upstream("one", "http://x", None, ("gpt-*", "o3"))
    two = Upstream("two", "http://y", None, ("*",))

    assert Upstreams((one, two), None).of("gpt-5") == one
    assert Upstreams((one, two), None).of("llama") == two
    assert Upstreams((one,), None).of("llama") is None
    assert Upstreams((one,), one).of("") == one
