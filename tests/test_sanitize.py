"""Unsafe characters, and secrets by known value and by pattern, are removed from output."""

import json
from pathlib import Path

import pytest

from gemini_cli_mcp.sanitize import (
    REDACTED,
    is_secret_name,
    redact,
    redact_known,
    replace_unsafe_chars,
    sanitize_json,
    secret_values,
)

SECRET = "hunter2-Zx81"


def test_every_string_in_a_json_value_is_sanitized() -> None:
    assert sanitize_json({"a\x00": ["\ud800", {"b": "\x1b"}, 1, None, True]}, ()) == {
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
    "context",
    ["{}", "key={}", "x Bearer {} y", '"api_key": "{}"', "GEMINI_API_KEY={}", "at {}."],
)
def test_secrets_are_redacted_in_any_context(secret: str, context: str) -> None:
    assert secret not in redact("before " + context.format(secret) + " after")


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
def test_a_secret_of_any_format_is_recognised_by_its_context(text: str) -> None:
    assert "s3cretvalue" not in redact(text)


def test_known_secrets_of_any_format_are_redacted() -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"before{SECRET}after",
        "hunter2\n-Zx81",
        "hunter2\r\n   -Zx81",
        "hun\x1b[31mter2-\x1b[0mZx81",
        "hun\N{REPLACEMENT CHARACTER}[31mter2-Zx81",
        "hunter2\u200b-Zx\u00ad81",
        json.dumps("hunter2\n-Zx81"),
        json.dumps("hunter2\x1b[1m-Zx81"),
        "h u n t e r 2 - Z x 8 1",
        "hunter2\x1b[38:5:1m-Zx81",
        "hunter2\x1b(B-Zx\ufe0f81",
        "hunter2\\-Zx81",
        "hunter2\\u200b-Zx81",
    ],
)
def test_a_known_secret_is_redacted_even_if_split(text: str) -> None:
    assert redact_known(text, [SECRET]).replace(REDACTED, "").strip('"') in ("", "beforeafter")


def test_encoded_forms_of_a_secret_are_redacted() -> None:
    secret = 'p@ss/"word\\1'

    for text in (secret, "p%40ss%2F%22word%5C1", json.dumps(secret)):
        assert redact_known(text, [secret]).strip('"') == REDACTED


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("MYSQL_PWD", "GITHUB_PAT", "PGPASSWORD", "client_secret")),
        *(
            (name, True)
            for name in ("AWS_SECRET_ACCESS_KEY", "GEMINI_MCP_HTTP_TOKENS", "REDIS_AUTH")
        ),
        *((name, False) for name in ("PWD", "OLDPWD", "PATH", "KEYBOARD", "PATTERN", "COMPASS")),
    ],
)
def test_secret_variables_are_recognised_by_name(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_secret_values_exclude_short_common_and_public_values(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.touch()
    environ = {
        "MYSQL_PWD": SECRET,
        "GEMINI_MCP_HTTP_TOKENS": "team=first-token, second-token==",
        "GEMINI_MCP_DATABASE_URL": "postgres://me:db-secret@host/x",
        "WORK_ACCOUNT": "account-value",
        "SHORT_KEY": "abc",
        "SORT_KEY": "success",
        "POSTGRES_PASSWORD": "postgres",
        "DEEP_SEARCH_MAX_TOKENS": "10000000",
        "GOOGLE_APPLICATION_CREDENTIALS": str(file),
        "EDITOR": "an editor",
    }

    values = secret_values(environ, ["WORK_ACCOUNT"])

    assert {SECRET, "first-token", "second-token==", "db-secret", "account-value"} <= set(values)
    assert not {"abc", "success", "postgres", "10000000", str(file), "an editor"} & set(values)


def test_known_secrets_are_removed_from_every_string_of_a_result() -> None:
    payload = {"success": True, "a": [f"x {SECRET}", {"x": SECRET}], "b": None}

    assert SECRET not in json.dumps(sanitize_json(payload, [SECRET]))
    # Keys are never redacted.
    assert sanitize_json({"success": True}, ["success"]) == {"success": True}


@pytest.mark.timeout(30)
def test_text_with_many_token_prefixes_is_processed_quickly() -> None:
    assert redact("eyJ" * 100_000)


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert replace_unsafe_chars("a\x00\x1b[2J\x7f\x9b\ud83d\udc4d" + "\ud800") == "a��[2J�����"


def test_ordinary_text_of_any_script_is_unchanged() -> None:
    text = "Tab\tline\nCRLF\r\n \u202eBidi 天空 \U0001f600 é"

    assert replace_unsafe_chars(text) == text
