"""Replacement of unsafe characters in output."""

from gemini_cli_mcp.sanitize import replace_unsafe_chars


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert replace_unsafe_chars("a\x00\x1b[2J\x7f\x9b\ud83d\udc4d" + "\ud800") == "a��[2J�����"


def test_ordinary_text_of_any_script_is_unchanged() -> None:
    text = "Tab\tline\nCRLF\r\n \u202eBidi 天空 \U0001f600 é"

    assert replace_unsafe_chars(text) == text
