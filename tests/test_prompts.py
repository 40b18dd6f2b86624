"""The templates and how they are filled."""

import json

import pytest

from gemini_cli_mcp import prompts
from gemini_cli_mcp.research.json_finder import find_object
from gemini_cli_mcp.research.researcher import ANSWER_KEYS, match_schema


def test_a_value_is_never_looked_at_again() -> None:
    filled = prompts.render("search-prompt", query="{{mark}} {{nope}}", date="D", mark="M")

    assert "\n{{mark}} {{nope}}\n" in filled
    assert "Today is D." in filled


def test_a_missing_value_is_a_crash() -> None:
    with pytest.raises(KeyError):
        prompts.render("search-prompt", query="x")


def test_a_missing_template_is_a_crash() -> None:
    with pytest.raises(FileNotFoundError):
        prompts.render("no-such-prompt")


ASKING = ["search-prompt", "deep-search-prompt", "verify-prompt"]


@pytest.mark.parametrize("name", [*ASKING, "correction-prompt"])
def test_the_example_shown_to_the_model_is_what_we_accept(name: str) -> None:
    template = prompts.template_path(name).read_text(encoding="utf-8")
    start = template.index('{\n  "success": true' if name not in ASKING else '{"success": true')

    example, _ = json.JSONDecoder().raw_decode(template, start)

    assert match_schema(example) is not None


@pytest.mark.parametrize("name", ASKING)
def test_a_model_that_repeats_the_prompt_has_not_answered(name: str) -> None:
    found = find_object(
        prompts.template_path(name).read_text(encoding="utf-8"), match_schema, ANSWER_KEYS
    )

    assert found is not None
    assert found.object["success"] is False
