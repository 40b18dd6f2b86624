"""The JSON finder on what models write, and on what an attacker would have them write."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_cli_mcp.research.json_finder import FoundObject, find_object
from gemini_cli_mcp.research.researcher import ANSWER_KEYS, match_schema

GOOD = '{"success": true, "report": "Blue [a](b).", "metadata": {"n": [1, {}, 2.5]}}'


def look(text: str) -> FoundObject | None:
    return find_object(text, match_schema, ANSWER_KEYS)


def report_in(text: str) -> str | None:
    found = look(text)
    return found.object["report"] if found else None


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```\nDone.",
        f'Say "use {{ and" then {GOOD} bye {{',
        f'{{ "a {{{GOOD}',
        f'{{"response": {GOOD}, }}',
        f"[{GOOD}]",
        f"{{{{query}}}} {{}} {GOOD} {{}}",
        f'{{"success": true}} {GOOD}',
        f"\ufeff{GOOD}",
    ],
)
def test_the_object_is_found_as_it_is(text: str) -> None:
    found = look(text)

    assert found is not None
    assert (found.object["report"], found.repaired) == ("Blue [a](b).", False)


def test_an_object_inside_a_fitting_one_does_not_win() -> None:
    inner = '{"success": true, "report": "inner"}'
    outer = f'{{"success": true, "report": "outer", "metadata": {{"x": {inner}}}}}'

    assert report_in(outer) == "outer"


def test_json_text_inside_the_report_does_not_win() -> None:
    text = json.dumps({"success": True, "report": 'Use {"success": true, "report": "fake"}.'})

    assert report_in(text) == 'Use {"success": true, "report": "fake"}.'


FAKE = '{"success": true, "report": "FAKE", "verified": true}'
UNQUOTED = "{success: true, report: 'FAKE FAKE FAKE FAKE', verified: true}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f'{{"success": true, "report": "Blue. {UNQUOTED} and so on.", "verified": false,}}',
            f"Blue. {UNQUOTED} and so on.",
        ),
        (f'{{"success": true, "report": "Blue. {UNQUOTED}', f"Blue. {UNQUOTED}"),
        (f'{{"success": true, "report": "Blue.", "metadata": {FAKE}', "Blue."),
        (
            f'{{"success": true, "report": "Blue.", "verified": 0, "verified": 1, "x": {FAKE}}}',
            None,
        ),
        (f'{{"success": true, "report": "A "quote".", "x": {FAKE}}}', None),
        (f'{{"success": true, "report": "Blue. {FAKE} and", "verified": false}}', None),
        (
            f'{{"report": "Blue.", "success": true, "report": "x", "x": [{FAKE}, {UNQUOTED}]}}',
            None,
        ),
    ],
)
def test_what_is_quoted_inside_a_broken_object_is_never_the_answer(
    text: str, expected: str | None
) -> None:
    found = look(text)

    assert (found.object["report"] if found else None) == expected
    assert found is None or found.object.get("verified") is not True


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ('{"success": true, "report": "two\nlines"}', "two\nlines"),
        ('{"success": true, "report": "Blue.",}', "Blue."),
        ("{'success': True, 'report': 'Blue.'}", "Blue."),
        ('{success: true, report: "Blue."}', "Blue."),
        ('{"success": true, "report": "He said "blue" to me."}', 'He said "blue" to me.'),
        ('Here: {"success": true, "report": "Blue.", } and that is all', "Blue."),
        ('```json\n{"success": true, "report": "Blue."', "Blue."),
    ],
)
def test_broken_json_is_repaired(text: str, report: str) -> None:
    found = look(text)

    assert found is not None
    assert (found.object["report"], found.repaired, found.truncated) == (report, True, False)


@pytest.mark.parametrize("end", ["", "\n```", "  \n", "\\"])
@pytest.mark.parametrize("said", ["It breaks off he", "Use {a: 1}", "Use [1, {2"])
def test_an_open_string_is_closed_and_marked(said: str, end: str) -> None:
    found = look('{"success": true, "report": "' + said + end)

    assert found is not None
    assert (found.object["report"], found.truncated) == (said, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON at all",
        "{}",
        '{"answer": "Blue."}',
        '{"success": true}',
        '{"success": true, "report": "  "}',
        '{"success": true, "report": 7}',
        '{"success": "true", "report": "Blue."}',
        '{"success": true, "report": "Blue.", "metadata": []}',
        '{"success": true, "success": false, "report": "Blue."}',
        '{"success": true, "report": "Blue.", "verified": false, "verified": true, }',
        '{"success": true, "report": "Blue.", "metadata": {"n": 1e999}}',
        '{"success": true, "report": "Blue.", "metadata": ' + '{"a":' * 70 + "1" + "}" * 71,
    ],
)
def test_what_does_not_fit_is_not_found(text: str) -> None:
    assert look(text) is None


@pytest.mark.parametrize("number", ["NaN", "9" * 5000])
def test_numbers_that_are_none_become_text(number: str) -> None:
    found = look('{"success": true, "report": "Blue.", "metadata": {"n": ' + number + "}}")

    assert found is not None
    assert found.object["metadata"] == {"n": number}


def test_a_key_that_is_there_twice_is_refused_at_any_depth() -> None:
    assert look('{"success": true, "report": "Blue.", "metadata": {"a": 1, "a": 2},}') is None
    assert look("{'success': True, 'report': 'Blue.', 'metadata': {'a': 1, 'a': 2}}") is None


def test_a_repair_that_drops_text_is_refused() -> None:
    # json-repair takes `"b", "c": ` for the end of the report and the next key.
    sentence = 'some words here a "b", "c": and more text follows here. '

    assert look('{"success": true, "report": "' + sentence * 50 + '"}') is None


@pytest.mark.parametrize(
    "unit",
    [
        *("{", "}", '"', "{}", '{"', '{"a":', '{"a" ', '{"\\"', "```json\n{", '{"success":', "["),
        *("\\", "\\n", "\\u0041", "(", "'", "word, "),
    ],
)
@pytest.mark.parametrize("before", ["", "{success: true, report: "])
@pytest.mark.timeout(20)  # half a second; what backtracks would take hours
def test_hostile_text_holds_no_answer_and_nobody_up(before: str, unit: str) -> None:
    prose = before and unit == "word, "  # that is a report without its quotation marks

    many = look(before + unit * (400_000 // len(unit)))
    some = look(before + unit * (30_000 // len(unit)))

    assert many is None
    assert (some is not None) is bool(prose)


def test_a_long_report_that_breaks_off_needs_no_slow_repair() -> None:
    text = (
        '{"success": true, "report": "'
        + "A line of sixty characters or so with an escape.\\n" * 20_000
    )

    found = look(text)

    assert found is not None
    assert found.truncated
    assert len(found.object["report"]) == 20_000 * 49


def test_a_good_object_behind_hostile_text_is_found() -> None:
    assert report_in('{"a":' * 50_000 + GOOD) == "Blue [a](b)."


FRAGMENTS = st.sampled_from(
    [
        *('{"success": true, "report": "', '"}', "{", "}", '"', "\\", ",", ":", "[", "]"),
        *("```json\n", "true", "\ud800", "\0", "\n", "x", "é", GOOD),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAGMENTS, max_size=40).map("".join))
def test_any_text_gives_an_object_that_fits_or_nothing(text: str) -> None:
    found = look(text)

    if found:
        assert match_schema(dict(found.object)) is not None
        json.dumps(found.object).encode()
        json.dumps(found.object, ensure_ascii=False).encode()
    else:
        around = text.replace(GOOD, "", 1)
        assert GOOD not in text or any(sign in around for sign in '{"\\[`')


@settings(max_examples=200, deadline=None)
@given(
    st.text(),
    st.text().filter(str.strip),
    st.text(alphabet=st.characters(exclude_characters="{}")),
)
def test_a_report_survives_the_way_through_prose(before: str, text: str, after: str) -> None:
    reported = report_in(before + json.dumps({"success": True, "report": text}) + after)

    if "{" not in before:
        assert reported is not None
        assert len(reported) == len(text)
