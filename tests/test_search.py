"""`search` with the stub CLI: every scenario of its contract."""

import asyncio
import json
import logging
import re
import stat
from pathlib import Path

import anyio
import pytest

from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.research.researcher import CYCLE_DELAYS
from gemini_cli_mcp.research.result_json import error_json
from tests.support import (
    QUESTION,
    REDIRECT,
    Clock,
    Stub,
    Turn,
    eventually,
    model_answer,
    search_with_sources,
)
from tests.support.matrix import needs_posix

PROSE = "The sky is blue because short waves scatter more than long ones do."


async def test_a_valid_answer_becomes_the_result(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer("Blue."),
            "searches": [
                search_with_sources("blue sky", "nasa", "noaa"),
                search_with_sources("again", "nasa"),
            ],
        }
    )

    result = await stub.search()

    metadata = result["metadata"]
    assert (result["success"], result["result"]) == (True, "Blue.")
    assert metadata["query"] == QUESTION
    assert metadata["search_queries_used"] == ["blue sky", "again"]
    assert metadata["sources_visited"] == [REDIRECT + "nasa", REDIRECT + "noaa"]
    assert (metadata["evidence"], metadata["grounded"]) == ("ledger", True)
    assert (metadata["provider"], metadata["cycles"], metadata["correction"]) == (
        "gemini",
        1,
        "none",
    )
    assert metadata["usage"]["tool_calls"] == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", metadata["timestamp"])
    assert metadata["duration_ms"] > 0


@pytest.mark.parametrize("scenario", ["fenced", "prose", "good"])
async def test_the_answer_object_is_found_inside_other_text(stub: Stub, scenario: str) -> None:
    stub.plays_scenario(scenario)

    result = await stub.search()

    assert result["result"].startswith("## Answer")
    assert result["metadata"]["correction"] == "none"


async def test_the_last_matching_object_wins(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer("Draft.")
            + " I looked again: "
            + model_answer("Final.")
            + ' {"x": 1}'
        }
    )

    assert (await stub.search())["result"] == "Final."


async def test_a_result_field_is_accepted_as_the_report(stub: Stub) -> None:
    stub.plays({"text": '{"success": true, "result": "Blue."}'})

    assert (await stub.search())["result"] == "Blue."


async def test_malformed_json_is_repaired_without_another_run(stub: Stub) -> None:
    stub.plays_scenario("repairable")

    result = await stub.search()

    assert result["metadata"]["correction"] == "repaired"
    assert "truncated" not in result["metadata"]
    assert len(stub.runs) == 1


async def test_a_truncated_report_is_returned_and_marked(stub: Stub) -> None:
    stub.plays_scenario("truncated")

    result = await stub.search()

    assert result["metadata"]["truncated"] is True
    assert result["result"].endswith("scatter more.")


@needs_posix
async def test_a_second_run_corrects_prose_from_a_file(stub: Stub) -> None:
    stub.environ["GEMINI_MODEL"] = "main-model"
    stub.environ["GEMINI_CORRECTION_MODEL"] = "correction-model"
    stub.plays(
        {"text": PROSE, "searches": [search_with_sources("blue sky", "nasa")]},
        {"text": model_answer(PROSE)},
    )

    result = await stub.search()

    main, correction = stub.runs
    assert result["result"] == PROSE
    assert result["metadata"]["correction"] == "corrected"
    assert result["metadata"]["correction_overlap"] == 1.0
    assert result["metadata"]["sources_visited"] == [REDIRECT + "nasa"]
    assert main["argv"][-2:] == ["--model", "main-model"]
    assert correction["argv"][-2:] == ["--model", "correction-model"]
    [(name, content)] = correction["files"].items()
    assert re.fullmatch(r"temp-invalid-output-\d+\.txt", name)
    assert content == PROSE
    assert f"{correction['cwd']}/{name}" in correction["prompt"]
    assert '"success": true' in correction["prompt"]
    assert stub.leftover_files() == []


@needs_posix
async def test_the_correction_file_is_private(stub: Stub) -> None:
    modes: list[int] = []

    def record_modes(message: str) -> None:
        for path in stub.config_dir.rglob("temp-invalid-output-*.txt"):
            modes.extend(stat.S_IMODE(entry.stat().st_mode) for entry in (path, path.parent))

    stub.plays({"text": PROSE}, {"text": model_answer(PROSE)})

    await stub.search(progress=record_modes)

    assert set(modes) == {0o600, 0o700}


async def test_a_wrong_schema_is_corrected(stub: Stub) -> None:
    stub.plays_scenario("wrong-schema")

    assert (await stub.search())["metadata"]["correction"] == "corrected"


async def test_a_correction_with_new_words_is_reported(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.plays(
        {"text": PROSE}, {"text": model_answer("The sky is blue, and dragons guard it jealously.")}
    )

    result = await stub.search()

    assert result["metadata"]["correction_overlap"] == 0.44
    assert "Only 44 % of a correction's words" in caplog.text


async def test_an_uncorrectable_answer_exhausts_all_cycles_and_delays(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "5"
    stub.plays_scenario("hopeless")

    with pytest.raises(ExecutionFailed, match="All retry and correction attempts were exhausted"):
        await stub.search()

    assert stub.waits == [1, 2, 5, 5]
    assert len(stub.runs) == 10
    assert caplog.text.count("JSON correction failed") == 5
    assert stub.leftover_files() == []


async def test_the_default_is_three_cycles(stub: Stub) -> None:
    stub.plays_scenario("server-error")

    with pytest.raises(ExecutionFailed, match="exhausted"):
        await stub.search()

    assert (len(stub.runs), stub.waits) == (3, [1, 2])


async def test_the_first_retry_waits_in_real_time(stub: Stub) -> None:
    stub.plays({"status": "error", "message": "500", "exit_code": 244}, {"text": model_answer()})

    result = await stub.search(sleep=anyio.sleep)

    assert result["metadata"]["duration_ms"] >= CYCLE_DELAYS[0] * 1000


async def test_usage_includes_cycles_that_failed_before_a_success(stub: Stub) -> None:
    stub.plays({"text": PROSE}, {"text": "no"}, {"text": model_answer()})

    result = await stub.search()

    assert (result["metadata"]["cycles"], stub.waits) == (2, [1])
    assert result["metadata"]["usage"]["output_tokens"] == sum(
        len(text) // 4 for text in (PROSE, "no", model_answer())
    )


async def test_success_false_is_retried_but_not_corrected(stub: Stub) -> None:
    stub.plays_scenario("refused")

    with pytest.raises(ExecutionFailed, match=r"No source could be opened\."):
        await stub.search()

    assert len(stub.runs) == 3
    assert not any("temp-invalid-output" in run["prompt"] for run in stub.runs)


async def test_a_rate_limit_waits_for_the_requested_delay(stub: Stub, clock: Clock) -> None:
    async def wait(seconds: float) -> None:
        stub.waits.append(seconds)
        clock.skip(seconds)

    stub.plays_scenario("rate-limit", "good")

    result = await stub.search(sleep=wait)

    assert result["success"]
    assert stub.waits == [7]


async def test_a_rate_limit_beyond_the_deadline_fails_immediately(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_TIMEOUT"] = "60"
    stub.plays_scenario("long-rate-limit")

    with pytest.raises(RateLimited) as caught:
        await stub.search()

    assert (caught.value.retry_after_s, len(stub.runs), stub.waits) == (290, 1, [])


@pytest.mark.parametrize(
    "message",
    [
        "You have exhausted your daily quota on this model.",
        '[API Error: {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]',
    ],
)
async def test_an_exhausted_quota_is_not_retried(stub: Stub, message: str) -> None:
    stub.plays({"status": "error", "message": message, "exit_code": 1})

    with pytest.raises(QuotaExhausted):
        await stub.search()

    assert len(stub.runs) == 1


async def test_an_exhausted_quota_during_a_correction_is_raised(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.plays({"text": PROSE}, {"exit_code": 173, "status": "error", "message": "daily quota"})

    with pytest.raises(QuotaExhausted):
        await stub.search()

    assert "JSON correction failed" in caplog.text


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        ("no-node", "CLI_NOT_FOUND"),
        ("no-sign-in", "AUTH_ERROR"),
        ("consumer-login", "AUTH_ERROR"),
        ("bad-key", "AUTH_ERROR"),
        ("unknown-model", "CONFIG_ERROR"),
        ("bad-settings", "CONFIG_ERROR"),
        ("no-input", "EXECUTION_ERROR"),
        ("turn-limit", "EXECUTION_ERROR"),
        ("untrusted-folder", "EXECUTION_ERROR"),
        ("empty", "EXECUTION_ERROR"),
        ("cut", "EXECUTION_ERROR"),
        ("flood", "EXECUTION_ERROR"),
    ],
)
async def test_each_failure_has_its_code_and_a_hint(stub: Stub, scenario: str, code: str) -> None:
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays_scenario(scenario)

    with pytest.raises(GeminiMcpError) as caught:
        await stub.search()

    error = error_json(caught.value)
    assert error["code"] == code
    assert error["hint"]
    assert len(stub.runs) == 1


async def test_the_error_explains_that_personal_logins_were_discontinued(stub: Stub) -> None:
    stub.plays_scenario("consumer-login")

    with pytest.raises(GeminiMcpError) as caught:
        await stub.search()

    assert "June 2026" in caught.value.message
    assert "GEMINI_API_KEY" in caught.value.next_step


async def test_a_hanging_cli_times_out_without_leftover_files(stub: Stub, clock: Clock) -> None:
    stub.environ["GEMINI_MCP_TIMEOUT"] = "50"
    stub.plays_scenario("hang-in-search")
    call = asyncio.ensure_future(stub.search())
    await eventually(lambda: stub.hanging_pids)

    clock.skip(50)
    with pytest.raises(TimedOut, match="within 50 s"):
        await call

    assert stub.leftover_files() == []


async def test_an_answer_after_failed_searches_is_not_grounded(stub: Stub) -> None:
    stub.plays_scenario("failed-search")

    metadata = (await stub.search())["metadata"]

    assert (metadata["evidence"], metadata["grounded"]) == ("ledger", False)
    assert metadata["sources_visited"] == []
    assert "Every web search failed" in metadata["note"]


async def test_an_answer_without_a_search_is_not_grounded(stub: Stub) -> None:
    stub.plays_scenario("no-search")

    assert (await stub.search())["metadata"]["grounded"] is False


async def test_without_a_session_record_the_events_supply_the_queries(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer(),
            "searches": [search_with_sources("blue sky", "nasa")],
            "record": False,
        }
    )

    metadata = (await stub.search())["metadata"]

    assert metadata["evidence"] == "events"
    assert metadata["search_queries_used"] == ["blue sky"]
    assert metadata["sources_visited"] == []


async def test_the_metadata_of_a_plain_text_answer_is_accepted(stub: Stub) -> None:
    claimed_metadata = {
        "sources_visited": ["https://nasa.gov", 7],
        "search_queries_used": ["blue", "blue"],
    }
    stub.plays({"text": "Loading...\n" + model_answer(metadata=claimed_metadata), "format": "text"})

    metadata = (await stub.search())["metadata"]

    assert (metadata["evidence"], metadata["grounded"]) == ("none", None)
    assert metadata["sources_visited"] == ["https://nasa.gov"]
    assert metadata["search_queries_used"] == ["blue"]
    assert metadata["model"] == "auto-detected"


async def test_flags_that_the_cli_rejects_are_not_passed_again(stub: Stub) -> None:
    stub.environ["GEMINI_MODEL"] = "some-model"
    stub.plays({"text": PROSE, "strict": True, "correction": {"text": model_answer(PROSE)}})

    result = await stub.search()

    rejected = ["--output-format", "stream-json", "--model", "some-model"]
    assert [run["argv"] for run in stub.runs] == [rejected, ["--model", "some-model"], []]
    assert result["metadata"]["model"] == "some-model"
    assert result["metadata"]["evidence"] == "none"


async def test_the_model_is_passed_exactly_as_configured(stub: Stub) -> None:
    stub.environ["GEMINI_MODEL"] = "flash"
    stub.plays({"text": model_answer(), "model": "gemini-9-flash"})

    result = await stub.search()

    assert stub.runs[0]["argv"] == ["--output-format", "stream-json", "--model", "flash"]
    assert result["metadata"]["model"] == "flash"


async def test_without_a_configured_model_the_actual_model_is_reported(
    stub: Stub,
) -> None:
    stub.plays({"text": model_answer(), "model": "gemini-9-flash"})

    result = await stub.search()

    assert stub.runs[0]["argv"] == ["--output-format", "stream-json"]
    assert result["metadata"]["model"] == "gemini-9-flash"


async def test_the_prompt_contains_the_query_unchanged(stub: Stub) -> None:
    query = (
        "{{query}} {{date}} {0} %s $HOME `id` @/etc/passwd /help !ls --yolo \u202e \U0001f600 空"
    )
    stub.plays({"text": model_answer()})

    result = await stub.search(query)

    prompt = stub.runs[0]["prompt"]
    delimited = re.search(r"<question-(\w+)>\n(.*)\n</question-\1>", prompt)
    assert delimited
    assert delimited[2] == query
    assert "{{" not in prompt.replace(query, "")
    assert result["metadata"]["query"] == query


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", "blank"),
        (" \n\t", "blank"),
        ("x" * 10_001, "10001 characters"),
        ("a\0b", "NUL"),
        (None, "must be a string, not null"),
        (7, "must be a string, not a number"),
        (["x"], "must be a string, not an array"),
    ],
)
async def test_an_invalid_query_is_rejected_before_any_run(
    stub: Stub, query: object, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        await stub.search(query)

    assert stub.runs == []


async def test_a_query_of_maximum_length_is_accepted(stub: Stub) -> None:
    stub.plays({"text": model_answer()})

    assert (await stub.search("x" * 10_000))["success"]


async def test_unrelated_secrets_are_not_passed_to_the_cli(stub: Stub) -> None:
    stub.environ |= {"OTHER_API_KEY": "foreign", "MY_TOKEN": "foreign", "GEMINI_API_KEY": "own"}
    stub.plays({"text": model_answer()})

    await stub.search()

    environment = stub.runs[0]["environment"]
    assert "foreign" not in environment.values()
    assert environment["GEMINI_API_KEY"] == "own"


@needs_posix
async def test_a_missing_cli_is_reported_with_install_instructions(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = "/nowhere/gemini"

    with pytest.raises(CliNotFound, match="/nowhere/gemini") as caught:
        await stub.search()

    assert "npm install -g @google/gemini-cli" in caught.value.next_step


async def test_an_unusable_config_folder_is_named_in_the_error(stub: Stub) -> None:
    stub.config_dir.mkdir()
    (stub.config_dir / "servers").write_text("in the way")

    with pytest.raises(ConfigError, match="servers") as caught:
        await stub.search()

    assert "GEMINI_MCP_CONFIG_DIR" in caught.value.next_step


async def test_an_unusable_corrections_folder_is_reported(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    folders: list[Path] = []

    def block_corrections_folder(message: str) -> None:
        if message == "writing the answer" and not folders:
            folders.extend(stub.config_dir.glob("servers/*/search-auto"))
            (folders[0].parent / "corrections").write_text("in the way")

    stub.plays({"text": PROSE}, {"text": model_answer()})

    with pytest.raises(ConfigError, match="servers"):
        await stub.search(progress=block_corrections_folder)

    assert "JSON correction failed" in caplog.text


async def test_progress_reports_each_step(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer(),
            "searches": [search_with_sources("blue  sky\n" + "x" * 100)],
            "fetches": ["https://a.org/b"],
        }
    )

    await stub.search()

    assert stub.messages == [
        "starting gemini",
        "asking the model",
        "searching “blue sky " + "x" * 70 + "…”",
        "reading https://a.org/b",
        "writing the answer",
    ]


async def test_unsafe_characters_in_a_report_are_replaced(stub: Stub) -> None:
    stub.plays({"text": '{"success": true, "report": "a\\ud800b\\u0000c\\u001b[31md\\n"}'})

    assert (await stub.search())["result"] == "a\ufffdb\ufffdc\ufffd[31md\n"


async def test_a_key_of_any_format_is_removed_from_errors(stub: Stub) -> None:
    stub.environ |= {"GEMINI_API_KEY": "plain secret value", "GEMINI_MCP_MAX_CYCLES": "1"}
    error_text = "no: plain secret value"
    stub.plays({"exit_code": 1, "stderr": error_text, "status": "error", "message": error_text})

    with pytest.raises(ExecutionFailed) as caught:
        await stub.search()

    assert "plain secret value" not in str(error_json(caught.value))


@pytest.mark.parametrize(
    "turn",
    [
        {"exit_code": 244, "stderr": 'Error during web search for query "my daily quota": 500\n'},
        {"exit_code": 1, "text": "The daily quota of mails is 500.", "format": "text"},
        {"exit_code": 53, "status": "error", "message": "Reached max session turns."},
    ],
)
async def test_failures_are_not_classified_by_query_or_answer_text(stub: Stub, turn: Turn) -> None:
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays(turn)

    with pytest.raises(ExecutionFailed):
        await stub.search()


async def test_plain_text_may_contain_lines_that_look_like_events(stub: Stub) -> None:
    stub.plays(
        {"text": '{"type": "init"}\n' + model_answer("Blue.", type="report"), "format": "text"}
    )

    assert (await stub.search())["result"] == "Blue."


async def test_success_false_without_a_report_is_not_corrected(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays({"text": '{"success": false, "report": null, "error": "Nothing found."}'})

    with pytest.raises(ExecutionFailed, match=r"Nothing found\."):
        await stub.search()

    assert len(stub.runs) == 1


async def test_unicode_line_separators_in_a_query_do_not_lose_sources(stub: Stub) -> None:
    stub.plays(
        {"text": model_answer(), "searches": [search_with_sources("blue\u2028sky\u0085", "nasa")]}
    )

    assert (await stub.search())["metadata"]["sources_visited"] == [REDIRECT + "nasa"]


async def test_keys_and_stack_traces_never_appear_in_errors_or_logs(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = "AIza" + "Sy0123456789abcdefghijklmnopqrstuv"
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    stub.plays(
        {
            "exit_code": 1,
            "stderr": f"GEMINI_API_KEY={key}\nAuthorization: Bearer ya29.abcdef\n    at x.js:1:2\n",
            "status": "error",
            "message": f"request to https://api?key={key} failed",
        }
    )

    with pytest.raises(ExecutionFailed) as caught:
        await stub.search()

    output = json.dumps(error_json(caught.value)) + caplog.text
    assert key not in output and "ya29.abcdef" not in output and "at x.js" not in output
    assert "[redacted]" in output
