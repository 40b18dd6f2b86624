"""What may leave the house."""

import pytest

from gemini_cli_mcp.text import redact, scrub, scrub_all


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert scrub("a\x00\x1b[2J\x7f\x9b\ud83d\udc4d" + "\ud800") == "a��[2J�����"


def test_ordinary_text_of_every_script_stays() -> None:
    text = "Tab\tline\nCRLF\r\n \u202eBidi 天空 \U0001f600 é"

    assert scrub(text) == text


def test_every_string_of_a_value_is_scrubbed() -> None:
    assert scrub_all({"a\x00": ["\ud800", {"b": "\x1b"}, 1, None, True]}) == {
        "a�": ["�", {"b": "�"}, 1, None, True]
    }


@pytest.mark.parametrize(
    "secret",
    [
        "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
        "ya29.a0AfH6SMBx-abc_def",
        "1//0gabcdefghijklmnopqrstuvwxyz",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
        "-----BEGIN " + "PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----",
    ],
)
@pytest.mark.parametrize(
    "frame",
    ["{}", "key={}", "x Bearer {} y", '"api_key": "{}"', "GEMINI_API_KEY={}", "at {}."],
)
def test_secrets_are_redacted_wherever_they_stand(secret: str, frame: str) -> None:
    assert secret not in redact("before " + frame.format(secret) + " after")


@pytest.mark.parametrize(
    "text",
    [
        "API_KEY=s3cretvalue",
        '"access_token": "s3cretvalue"',
        "x_password: s3cretvalue",
        "Authorization: Basic s3cretvalue=",
        "https://user:s3cretvalue@host/path",
        "https://host/?key=s3cretvalue&x=1",
    ],
)
def test_a_secret_of_any_shape_is_known_by_its_place(text: str) -> None:
    assert "s3cretvalue" not in redact(text)


def test_secrets_that_are_known_are_redacted_whatever_their_shape() -> None:
    assert redact("it said open sesame twice", ["open sesame"]) == "it said [redacted] twice"


@pytest.mark.parametrize(
    "text",
    [
        "API key not valid. Please pass a valid API key.",
        "The key to success: keyboard=qwertyuiop, monkey: bananas, author: Anonymous",
        "sort_key: timestamp, max_output_tokens=8192000",
    ],
)
def test_ordinary_words_are_not_redacted(text: str) -> None:
    assert redact(text) == text
