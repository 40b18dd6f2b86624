"""`find_answer` on model output, including output that an attacker controls."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.json_finder import FoundAnswer, find_answer
from gemini_cli_mcp.research.model_report import ANSWER_KEYS, ModelReport, parse_model_report

GOOD = '{"success": true, "report": "Blue [a](b).", "metadata": {"n": [1, {}, 2.5]}}'


def find_report(text: str) -> FoundAnswer[ModelReport] | None:
    return find_answer(text, parse_model_report, ANSWER_KEYS)


def find_object(text: str) -> JsonObject | None:
    """Return the JSON of the report that `find_report` finds."""
    match = find_answer(
        text, lambda candidate: parse_model_report(candidate) and candidate, ANSWER_KEYS
    )
    return match.answer if match else None


def report_in(text: str) -> str | None:
    match = find_report(text)
    return match.answer.text if match else None


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
def test_a_valid_object_is_found_without_repair(text: str) -> None:
    match = find_report(text)

    assert match is not None
    assert (match.answer.text, match.repaired) == ("Blue [a](b).", False)


def test_an_object_nested_in_an_answer_is_ignored() -> None:
    inner = '{"success": true, "report": "inner"}'
    outer = f'{{"success": true, "report": "outer", "metadata": {{"x": {inner}}}}}'

    assert report_in(outer) == "outer"


def test_json_text_inside_the_report_is_ignored() -> None:
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
def test_an_object_quoted_in_a_malformed_one_is_never_the_answer(
    text: str, expected: str | None
) -> None:
    match = find_report(text)

    assert (match.answer.text if match else None) == expected
    assert match is None or match.answer.verified is not True


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
def test_malformed_json_is_repaired(text: str, report: str) -> None:
    match = find_report(text)

    assert match is not None
    assert (match.answer.text, match.repaired, match.truncated) == (report, True, False)


@pytest.mark.parametrize("end", ["", "\n```", "  \n", "\\"])
@pytest.mark.parametrize("report", ["It breaks off he", "Use {a: 1}", "Use [1, {2"])
def test_an_unterminated_string_is_closed_and_marked(report: str, end: str) -> None:
    match = find_report('{"success": true, "report": "' + report + end)

    assert match is not None
    assert (match.answer.text, match.truncated) == (report, True)


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
def test_text_without_a_valid_answer_yields_nothing(text: str) -> None:
    assert find_report(text) is None


@pytest.mark.parametrize("number", ["NaN", "9" * 5000])
def test_unsupported_numbers_become_strings(number: str) -> None:
    text = '{"success": true, "report": "Blue.", "metadata": {"n": ' + number + "}}"

    assert (find_object(text) or {})["metadata"] == {"n": number}


def test_duplicate_keys_are_rejected_at_any_depth() -> None:
    assert (
        find_report('{"success": true, "report": "Blue.", "metadata": {"a": 1, "a": 2},}') is None
    )
    assert find_report("{'success': True, 'report': 'Blue.', 'metadata': {'a': 1, 'a': 2}}") is None


def test_a_repair_that_drops_text_is_rejected() -> None:
    # json-repair interprets `"b", "c": ` as the end of the report and the next key.
    sentence = 'some words here a "b", "c": and more text follows here. '

    assert find_report('{"success": true, "report": "' + sentence * 50 + '"}') is None


@pytest.mark.parametrize(
    "unit",
    [
        *("{", "}", '"', "{}", '{"', '{"a":', '{"a" ', '{"\\"', "```json\n{", '{"success":', "["),
        *("\\", "\\n", "\\u0041", "(", "'", "word, "),
    ],
)
@pytest.mark.parametrize("prefix", ["", "{success: true, report: "])
@pytest.mark.timeout(20)  # takes half a second; backtracking would take hours
def test_hostile_text_is_rejected_in_linear_time(prefix: str, unit: str) -> None:
    is_report = prefix and unit == "word, "  # a report without quotation marks

    long_match = find_report(prefix + unit * (400_000 // len(unit)))
    short_match = find_report(prefix + unit * (30_000 // len(unit)))

    assert long_match is None
    assert (short_match is not None) is bool(is_report)


def test_a_long_truncated_report_needs_no_slow_repair() -> None:
    text = (
        '{"success": true, "report": "'
        + "A line of sixty characters or so with an escape.\\n" * 20_000
    )

    match = find_report(text)

    assert match is not None
    assert match.truncated
    assert len(match.answer.text) == 20_000 * 49


def test_a_valid_object_after_hostile_text_is_found() -> None:
    assert report_in('{"a":' * 50_000 + GOOD) == "Blue [a](b)."


FRAGMENTS = st.sampled_from(
    [
        *('{"success": true, "report": "', '"}', "{", "}", '"', "\\", ",", ":", "[", "]"),
        *("```json\n", "true", "\ud800", "\0", "\n", "x", "é", GOOD),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAGMENTS, max_size=40).map("".join))
def test_any_text_yields_a_valid_answer_or_nothing(text: str) -> None:
    match = find_report(text)

    if match:
        assert match.answer.text.strip() or not match.answer.success
        candidate = find_object(text)
        json.dumps(candidate).encode()
        json.dumps(candidate, ensure_ascii=False).encode()
    else:
        remainder = text.replace(GOOD, "", 1)
        assert GOOD not in text or any(char in remainder for char in '{"\\[`')


@settings(max_examples=200, deadline=None)
@given(
    st.text(),
    st.text().filter(str.strip),
    st.text(alphabet=st.characters(exclude_characters="{}")),
)
def test_a_report_embedded_in_prose_is_found(before: str, text: str, after: str) -> None:
    report = report_in(before + json.dumps({"success": True, "report": text}) + after)

    if "{" not in before:
        assert report is not None
        assert len(report) == len(text)
