"""Parsing of upstream streams: events split anywhere, tool calls in every format seen."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_cli_mcp.gateway.search_runner import SearchArguments, search_arguments
from gemini_cli_mcp.gateway.sse import format_event, parse_events
from gemini_cli_mcp.gateway.tool_call_assembler import ToolCallAssembler, call_json
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.limits import Limits


async def split(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_events_are_parsed_from_chunks_of_any_size() -> None:
    expected = ['{"a": "搜索 🙂"}', "two\nlines", "[DONE]"]
    data = (
        b": ping\r\n\r\n"
        + format_event(expected[0])
        + b"data:two\r\ndata:lines\r\n\r\n"
        + b"data: [DONE]"
    )

    for size in range(1, len(data) + 1):
        assert [text async for text in parse_events(split(data, size), Limits())] == expected


def assemble(*deltas: JsonObject) -> list[Any]:
    assembler = ToolCallAssembler(1000)
    for delta in deltas:
        assembler.add_deltas([delta])
    return [call_json(call) for call in assembler.calls]


def delta(arguments: object = None, **fields: object) -> JsonObject:
    function = {"name": fields.pop("name", None), "arguments": arguments}
    return {
        "function": {name: value for name, value in function.items() if value is not None},
        **fields,
    }


def complete_call(call_id: str, arguments: str, name: str = "web_search") -> JsonObject:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def test_deltas_are_joined_by_index() -> None:
    assert assemble(
        delta("", index=0, id="a", name="web_search"),
        delta("", index=1, id="b", name="mine"),
        delta('{"q', index=0),
        delta("{}", index=1),
        delta('": 1}', index=0),
    ) == [complete_call("a", '{"q": 1}'), complete_call("b", "{}", "mine")]


def test_the_first_id_of_a_call_is_used() -> None:
    assert assemble(
        delta('{"', index=0, id="a", name="web_search"), delta('"}', index=0, id="b")
    ) == [complete_call("a", '{""}')]


def test_deltas_without_an_index_are_joined_in_order() -> None:
    assert assemble(
        delta("1", id="a", name="web_search"), delta("2"), delta("3", id="b", name="web_search")
    ) == [complete_call("a", "12"), complete_call("b", "3")]


def test_arguments_may_be_objects_and_ids_may_be_missing() -> None:
    call, other = assemble(
        delta({"query": "é"}, name="web_search"), delta({"query": 2}, name="web_search")
    )

    assert call["function"]["arguments"] == '{"query": "\\u00e9"}'
    assert call["id"] and other["id"] and call["id"] != other["id"]


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_malformed_deltas_do_not_raise(garbage: object) -> None:
    assembler = ToolCallAssembler(1000)
    assembler.add_deltas(garbage)
    assembler.add_deltas([garbage])
    assembler.add_deltas([{"function": garbage, "index": garbage}])

    assert all(isinstance(call.arguments, str) for call in assembler.calls)


def test_search_arguments_must_be_an_object_or_a_string_of_one() -> None:
    def parse(text: str) -> SearchArguments | None:
        return search_arguments(ToolCall("1", "web_search", text))

    assert [parse(text) for text in ("", "null", "[]", "no", '"x"')] == [None] * 5
    assert parse(json.dumps('{"query": "x"}')) == parse('{"query": "x"}')
    assert parse('{"query": "x"}') == SearchArguments("x", None, None, None, '{"query": "x"}')


@pytest.mark.parametrize(
    ("arguments", "engine", "recency", "count"),
    [
        ({"engine": "google", "recency": "oneDay", "count": 3}, "google", "oneDay", 3),
        ({"engine": "", "recency": "lastCentury", "count": "7.9"}, None, None, 7),
        ({"engine": None, "recency": ["oneDay"], "count": 1000}, None, None, 50),
        ({"count": -1}, None, None, 1),
        ({"count": "many"}, None, None, None),
        ({"count": float("inf")}, None, None, None),
        ({"count": [3]}, None, None, None),
    ],
)
def test_invalid_search_options_are_left_out(
    arguments: JsonObject, engine: str | None, recency: str | None, count: int | None
) -> None:
    text = json.dumps({"query": "x", **arguments})
    parsed = search_arguments(ToolCall("1", "web_search", text))

    assert parsed
    assert (parsed.query, parsed.engine, parsed.recency, parsed.count) == (
        "x",
        engine,
        recency,
        count,
    )
