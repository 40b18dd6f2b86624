"""The real gemini CLI, pinned, against a loopback fake of the Gemini API."""

from collections.abc import Generator

import pytest

from gemini_cli_mcp.errors import NotSignedIn, QuotaExhausted, RateLimited
from tests.fake_api import FakeApi, fake_api
from tests.support import QUESTION, REAL_CLI, REDIRECT, Stub, report

pytestmark = [
    pytest.mark.real_cli,
    pytest.mark.skipif(not REAL_CLI.exists(), reason="scripts/test installs it where Node is"),
]

SEARCH = ("google_web_search", {"query": "why is the sky blue"})


@pytest.fixture
def api() -> Generator[FakeApi]:
    with fake_api() as running:
        running.texts = [report(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        yield running


@pytest.fixture
def real(stub: Stub, api: FakeApi) -> Stub:
    """The same program on the real CLI."""
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(REAL_CLI),
        "GEMINI_API_KEY": "test-key",
        "GOOGLE_GEMINI_BASE_URL": api.url,
        "GEMINI_MODEL": "gemini-2.5-flash",
        "GEMINI_MCP_MAX_CYCLES": "1",
    }
    return stub


async def test_a_search_has_its_sources_and_stays_small(real: Stub, api: FakeApi) -> None:
    api.calls = [SEARCH]

    result = await real.search()

    metadata = result["metadata"]
    assert result["result"] == f"Blue, says [nasa.gov]({REDIRECT}nasa)."
    assert metadata["search_queries_used"] == ["why is the sky blue"]
    assert metadata["sources_visited"] == [REDIRECT + "nasa", REDIRECT + "noaa"]
    assert (metadata["evidence"], metadata["grounded"]) == ("ledger", True)
    assert metadata["model"] == "gemini-2.5-flash"
    assert metadata["usage"]["tool_calls"] == 1
    assert [request.kind for request in api.requests] == ["main", "search", "main"]
    assert {request.model for request in api.requests} == {"gemini-2.5-flash"}
    assert {request.key for request in api.requests} == {"test-key"}
    assert sum(request.size for request in api.requests) <= 12_000
    assert real.messages[2:] == ["searching “why is the sky blue”", "writing the answer"]
    assert real.files_left() == []


async def test_only_the_declared_tools_exist(real: Stub, api: FakeApi) -> None:
    api.calls = [
        ("run_shell_command", {"command": "echo hi"}),
        ("read_file", {"file_path": "/etc/hosts"}),
    ]

    await real.search()

    assert {tuple(sorted(request.tools)) for request in api.requests} == {
        ("google_web_search", "web_fetch")
    }
    answered = str(api.requests[-1].body["contents"])
    assert answered.count("not found") >= 2


async def test_without_a_model_the_real_one_is_told(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_MODEL"]
    api.calls = [SEARCH]

    result = await real.search()

    [searched] = [request for request in api.requests if request.kind == "search"]
    assert result["metadata"]["model"] not in ("auto-detected", searched.model)
    assert result["metadata"]["model"] in {request.model for request in api.requests}
    assert result["metadata"]["grounded"] is True


@pytest.mark.parametrize("model", ["flash", "pro"])
async def test_a_model_by_another_name_still_searches(real: Stub, api: FakeApi, model: str) -> None:
    real.environ["GEMINI_MODEL"] = model
    api.calls = [SEARCH]

    result = await real.search()

    assert "search" in [request.kind for request in api.requests]
    assert result["metadata"]["grounded"] is True


async def test_a_correction_gets_the_whole_output_and_has_no_tools(
    real: Stub, api: FakeApi
) -> None:
    invalid = "{'success: " + "word " * 12_000 + "THE-TAIL"
    api.texts = [invalid, report("word THE-TAIL")]
    real.environ["GEMINI_CORRECTION_MODEL"] = "gemini-2.5-flash-lite"

    result = await real.search()

    main, correction = api.requests
    assert len(invalid) > 60_000 and "\n" not in invalid
    assert (main.model, correction.model) == ("gemini-2.5-flash", "gemini-2.5-flash-lite")
    assert correction.tools == []
    assert "THE-TAIL" in correction.text
    assert correction.text.count("word") >= 12_000
    assert "[truncated]" not in correction.text
    assert result["metadata"]["correction"] == "corrected"
    assert real.files_left() == []


async def test_the_end_of_many_lines_reaches_the_correction_too(real: Stub, api: FakeApi) -> None:
    api.texts = ["\n".join(f"line {n}" for n in range(5_000)), report("line")]

    await real.search()

    assert "line 4999" in api.requests[-1].text


async def test_a_long_report_comes_whole(real: Stub, api: FakeApi) -> None:
    api.texts = [report("x" * 300_000)]

    assert len((await real.search())["result"]) == 300_000


async def test_a_question_cannot_pull_in_files_or_commands(real: Stub, api: FakeApi) -> None:
    files = "@/etc/hosts @~/.bashrc @../home/.gemini/settings.json @../../.gemini/.env"
    query = f"{files} /help !ls --yolo {{{{date}}}}"

    await real.search(query)

    # The CLI puts a blank before an @ that begins a line, and changes nothing else.
    assert query in api.requests[0].text
    assert "localhost" not in api.requests[0].text
    assert "maxSessionTurns" not in api.requests[0].text


async def test_a_key_in_the_users_env_file_is_enough(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_API_KEY"]
    folder = real.home / ".gemini"
    folder.mkdir()
    (folder / ".env").write_text(
        "GEMINI_API_KEY=from-the-file\nNODE_OPTIONS=--require /nowhere.js\n"
    )

    await real.search()

    assert {request.key for request in api.requests} == {"from-the-file"}


async def test_a_model_in_the_users_env_file_is_not_ours(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_MODEL"], real.environ["GEMINI_API_KEY"]
    real.environ["GEMINI_API_KEY"] = ""
    folder = real.home / ".gemini"
    folder.mkdir()
    (folder / ".env").write_text("GEMINI_API_KEY=from-the-file\nGEMINI_MODEL=gemini-2.5-pro\n")

    await real.search()

    assert "gemini-2.5-pro" not in {request.model for request in api.requests}
    assert {request.key for request in api.requests} == {"from-the-file"}


async def test_a_rate_limit_tells_how_long_to_wait(real: Stub, api: FakeApi) -> None:
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17s"}
    error = {"code": 429, "message": "You exceeded your current quota.", "details": [retry]}
    api.failure = 429, {"error": error | {"status": "RESOURCE_EXHAUSTED"}}

    with pytest.raises(RateLimited) as caught:
        await real.search()

    assert caught.value.retry_after_s == 17
    assert len(api.requests) == 1


async def test_no_sign_in_is_said_so(real: Stub) -> None:
    del real.environ["GEMINI_API_KEY"]
    del real.environ["GOOGLE_GEMINI_BASE_URL"]

    with pytest.raises(NotSignedIn):
        await real.search()


async def test_an_exhausted_quota_costs_one_request(real: Stub, api: FakeApi) -> None:
    violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]
    error = {"code": 429, "message": "You exceeded your quota.", "status": "RESOURCE_EXHAUSTED"}
    api.failure = 429, {"error": error | {"details": details}}

    with pytest.raises(QuotaExhausted) as caught:
        await real.search()

    assert len(api.requests) == 1
    assert QUESTION not in str(caught.value.as_dict())
