"""The pieces of the wire: events cut anywhere, and calls in every shape that upstreams send."""

import json
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from gemini_cli_mcp.gateway.sse import format_event, parse_events
from gemini_cli_mcp.gateway.tool_calls import ToolCallAssembler, search_arguments
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.limits import Limits


async def cut(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_events_survive_every_cut() -> None:
    sent = ['{"a": "搜索 🙂"}', "two\nlines", "[DONE]"]
    data = (
        b": ping\r\n\r\n"
        + format_event(sent[0])
        + b"data:two\r\ndata:lines\r\n\r\n"
        + b"data: [DONE]"
    )

    for size in range(1, len(data) + 1):
        assert [text async for text in parse_events(cut(data, size), Limits())] == sent


def calls(*deltas: JsonObject) -> list[JsonObject]:
    made = ToolCallAssembler(1000)
    for delta in deltas:
        made.add_deltas([delta])
    return [call.as_message() for call in made.calls]


def delta(arguments: object = None, **more: object) -> JsonObject:
    function = {"name": more.pop("name", None), "arguments": arguments}
    return {"function": {k: v for k, v in function.items() if v is not None}, **more}


def whole(call_id: str, arguments: str, name: str = "web_search") -> JsonObject:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def test_deltas_are_joined_by_index() -> None:
    assert calls(
        delta("", index=0, id="a", name="web_search"),
        delta("", index=1, id="b", name="mine"),
        delta('{"q', index=0),
        delta("{}", index=1),
        delta('": 1}', index=0),
    ) == [whole("a", '{"q": 1}'), whole("b", "{}", "mine")]


def test_an_id_that_changes_is_the_first_one() -> None:
    assert calls(delta('{"', index=0, id="a", name="web_search"), delta('"}', index=0, id="b")) == [
        whole("a", '{""}')
    ]


def test_without_an_index_the_order_counts() -> None:
    assert calls(
        delta("1", id="a", name="web_search"), delta("2"), delta("3", id="b", name="web_search")
    ) == [whole("a", "12"), whole("b", "3")]


def test_arguments_may_be_an_object_and_ids_missing() -> None:
    call, other = calls(
        delta({"query": "é"}, name="web_search"), delta({"query": 2}, name="web_search")
    )

    assert call["function"]["arguments"] == '{"query": "\\u00e9"}'
    assert call["id"] and other["id"] and call["id"] != other["id"]


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_garbage_is_no_call_and_no_crash(garbage: object) -> None:
    made = ToolCallAssembler(1000)
    made.add_deltas(garbage)
    made.add_deltas([garbage])
    made.add_deltas([{"function": garbage, "index": garbage}])

    assert all(isinstance(call.arguments, str) for call in made.calls)


def test_arguments_that_are_none() -> None:
    def asked(text: str) -> JsonObject | None:
        made = ToolCallAssembler(1000)
        made.add_deltas([delta(text, name="web_search")])
        return search_arguments(made.calls[0])

    assert [asked(text) for text in ("", "null", "[]", "no", '"x"')] == [None] * 5
    assert asked(json.dumps('{"query": "x"}')) == {"query": "x"}
