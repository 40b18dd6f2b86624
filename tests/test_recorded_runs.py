"""Recorded runs of the real CLI 0.61: each is parsed and classified."""

import json
import shutil
from pathlib import Path

import pytest

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.failures import classify_failure, is_usage_error
from gemini_cli_mcp.providers.gemini.session_record import read_and_delete_record
from gemini_cli_mcp.sign_in_errors import KeyRejected, SignInMissing
from gemini_cli_mcp.types import RecordedSearch, Source
from tests.support import REDIRECT

RECORDED = Path(__file__).parent / "recorded"


def replay(name: str, messages: list[str] | None = None) -> tuple[Completed, EventLog]:
    folder = RECORDED / name
    event_log = EventLog((messages if messages is not None else []).append, Limits())
    for line in (folder / "stdout").read_bytes().splitlines():
        event_log.feed_line(line)
    exit_code = int((folder / "exit_code").read_text())
    return Completed("exited", exit_code, (folder / "stderr").read_text()), event_log


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("api-400-bad-key-stream-json", "AUTH_ERROR"),
        ("api-404-invalid-model-stream-json", "CONFIG_ERROR"),
        ("api-429-day-stream-json", "QUOTA_EXHAUSTED"),
        ("api-429-maxAttempts1-stream-json", "RATE_LIMITED"),
        ("api-500-stream-json", "EXECUTION_ERROR"),
        ("auth-missing-stream-json", "AUTH_ERROR"),
        ("auth-oauth-selected-no-creds-json", "AUTH_ERROR"),
        ("connection-refused-json", "EXECUTION_ERROR"),
        ("model-empty-response-stream-json", "EXECUTION_ERROR"),
        ("no-input", "EXECUTION_ERROR"),
        ("settings-invalid-json", "CONFIG_ERROR"),
        ("signal-sigkill-norelaunch", "EXECUTION_ERROR"),
        ("signal-sigterm-norelaunch", "EXECUTION_ERROR"),
        ("turn-limit-stream-json", "EXECUTION_ERROR"),
        ("untrusted-folder", "EXECUTION_ERROR"),
    ],
)
def test_a_recorded_failure_gets_the_right_code(name: str, code: str) -> None:
    error = classify_failure(*replay(name))

    assert error is not None
    assert error.code == code
    assert "    at " not in (error.details or "")


def failed_run(message: str, stderr: str = "", exit_code: int = 1) -> tuple[Completed, EventLog]:
    event_log = EventLog(list[str]().append, Limits())
    if message:
        event_log.feed_line(b'{"type": "init", "session_id": "1", "model": "m"}')
        error = {"type": "unknown", "message": message}
        event = {"type": "result", "status": "error", "error": error, "stats": {}}
        event_log.feed_line(json.dumps(event).encode())
    return Completed("exited", exit_code, stderr), event_log


def test_the_api_is_quoted_in_its_own_words_however_deep_they_are() -> None:
    inner = {
        "error": {"code": 400, "message": "Not “valid”, k-123456.", "status": "API_KEY_INVALID"}
    }
    outer = {"error": {"code": 400, "message": json.dumps(inner, indent=2)}}

    for run in (failed_run(json.dumps(outer)), failed_run("", stderr=json.dumps(outer))):
        error = classify_failure(*run, secrets=("k-123456",))

        assert isinstance(error, KeyRejected)
        assert error.message == "Google refused the API key (400): Not “valid”, [redacted]."


def test_a_message_with_an_invalid_escape_is_quoted_as_it_is() -> None:
    message = r'{"error": {"code": 401, "message": "bad \q escape"}}'

    error = classify_failure(*failed_run(message))

    assert error and error.message == r"Google refused the sign-in (401): bad \q escape"


def test_vertex_ai_without_credentials_is_a_missing_sign_in() -> None:
    message = "[API Error: Could not load the default credentials. Browse to https://x.example.]"

    error = classify_failure(*failed_run(message))

    assert isinstance(error, SignInMissing)
    assert "gcloud auth application-default login" in error.next_step


@pytest.mark.parametrize(
    "name",
    [
        "success-stream-json",
        "success-stream-json-two-searches",
        "success-text",
        "model-maxtokens-stream-json",
        "websearch-subcall-400-stream-json",
        "websearch-429-day-samemodel-stream-json",
    ],
)
def test_a_recorded_success_is_not_a_failure(name: str) -> None:
    completed, event_log = replay(name)

    assert classify_failure(completed, event_log) is None
    assert event_log.text.strip()


def test_a_recorded_usage_error_is_distinguished_from_other_failures() -> None:
    assert is_usage_error(*replay("bad-flag"))
    assert not is_usage_error(*replay("auth-missing-stream-json"))
    assert not is_usage_error(*replay("api-500-stream-json"))


def test_the_main_model_is_distinguished_from_router_and_search_helper() -> None:
    _, event_log = replay("success-stream-json")

    assert event_log.busiest_model == "gemini-3.8-flash"


def test_a_failed_search_is_detected_in_a_successful_run() -> None:
    _, event_log = replay("websearch-subcall-400-stream-json")

    [search] = event_log.searches
    assert search.query == "paris olympics 2024"
    assert "API key not valid" in (search.error or "")


def test_the_session_record_is_read_and_deleted(
    tmp_path: Path,
) -> None:
    chats = tmp_path / ".gemini/tmp/work/chats"
    chats.mkdir(parents=True)
    shutil.copy(
        RECORDED / "session-record.jsonl", chats / "session-2026-11-16T02-54-5001a886.jsonl"
    )

    record = read_and_delete_record(tmp_path, "5001a886-4cb1-406b-be9f-7505d061c007")

    sources = (
        Source(REDIRECT + "AAA111", "olympics.com"),
        Source(REDIRECT + "BBB222", "wikipedia.org"),
    )
    assert record is not None
    assert list(chats.iterdir()) == []  # it contains the whole conversation
    assert record.model == "gemini-2.5-flash"
    assert [(search.query, search.sources) for search in record.searches] == [
        ("first query", sources),
        ("second query", sources),
    ]
    assert record.searches[0].text.startswith("Paris hosted the 2024 Summer Olympics.[1][2] ")
    assert list(chats.iterdir()) == []


def test_a_damaged_record_is_read_as_far_as_possible(tmp_path: Path) -> None:
    chats = tmp_path / ".gemini/tmp/work/chats"
    chats.mkdir(parents=True)
    lines = ["[]", '{"type": "gemini", "toolCalls": [7, {"name": "google_web_search"}]}', '{"ty']
    (chats / "session-x-abcdefgh.jsonl").write_text("\n".join(lines))

    record = read_and_delete_record(tmp_path, "abcdefgh-1")

    assert record is not None
    assert record.searches == (RecordedSearch("", error="the call did not finish"),)


def test_a_session_id_cannot_reach_other_files(tmp_path: Path) -> None:
    chats = tmp_path / ".gemini/tmp/work/chats"
    chats.mkdir(parents=True)
    (chats / "session-x-abcdefgh.jsonl").write_text("")

    assert read_and_delete_record(tmp_path, "*") is None
    assert read_and_delete_record(tmp_path, "../../*") is None
    assert (chats / "session-x-abcdefgh.jsonl").exists()
