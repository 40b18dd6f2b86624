"""Prompt templates and their rendering."""

import json

import pytest

from gemini_cli_mcp import prompts
from gemini_cli_mcp.research.json_finder import find_answer
from gemini_cli_mcp.research.model_report import ANSWER_KEYS, parse_model_report


def test_placeholders_in_values_are_not_expanded() -> None:
    prompt = prompts.render("search-prompt", query="{{mark}} {{nope}}", date="D", mark="M")

    assert "\n{{mark}} {{nope}}\n" in prompt
    assert "Today is D." in prompt


def test_a_missing_value_raises_key_error() -> None:
    with pytest.raises(KeyError):
        prompts.render("search-prompt", query="x")


def test_a_missing_template_raises_file_not_found_error() -> None:
    with pytest.raises(FileNotFoundError):
        prompts.render("no-such-prompt")


RESEARCH_PROMPTS = ["search-prompt", "deep-search-prompt", "verify-prompt"]


@pytest.mark.parametrize("name", [*RESEARCH_PROMPTS, "correction-prompt"])
def test_the_example_in_a_prompt_matches_the_schema(name: str) -> None:
    template = prompts.template_path(name).read_text(encoding="utf-8")
    start = template.index(
        '{\n  "success": true' if name not in RESEARCH_PROMPTS else '{"success": true'
    )

    example, _ = json.JSONDecoder().raw_decode(template, start)

    assert parse_model_report(example) is not None


@pytest.mark.parametrize("name", RESEARCH_PROMPTS)
def test_a_repeated_prompt_is_not_a_successful_answer(name: str) -> None:
    match = find_answer(
        prompts.template_path(name).read_text(encoding="utf-8"), parse_model_report, ANSWER_KEYS
    )

    assert match is not None
    assert match.answer.success is False
