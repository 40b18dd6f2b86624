"""The real gemini CLI, pinned, against a fake Gemini API on loopback."""

import asyncio
import json
import os
import re
import signal
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from gemini_cli_mcp.errors import (
    ExecutionFailed,
    GeminiMcpError,
    ModelNotFound,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.execution_errors import ConnectionFailed, Overloaded, SafetyBlocked
from gemini_cli_mcp.process import child
from gemini_cli_mcp.sign_in_errors import AccessDenied
from tests.support import (
    QUESTION,
    REDIRECT,
    Clock,
    Stub,
    descendants,
    eventually,
    is_alive,
    model_answer,
    require_proc,
)
from tests.support.fake_api import SEARCH, Body, FakeApi
from tests.support.matrix import needs_posix, needs_real_cli, representatives
from tests.support.mcp_server import SEARCH_FRAMES, start_server, stdio_client

pytestmark = needs_real_cli


async def test_a_search_reports_its_sources_and_sends_small_requests(
    real: Stub, api: FakeApi
) -> None:
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
    real.require_findings(metadata)
    assert real.leftover_files() == []


async def test_only_the_declared_tools_exist(real: Stub, api: FakeApi) -> None:
    api.calls = [
        ("run_shell_command", {"command": "echo hi"}),
        ("read_file", {"file_path": "/etc/hosts"}),
    ]

    await real.search()

    assert {tuple(sorted(request.tools)) for request in api.requests} == {
        ("google_web_search", "web_fetch")
    }
    contents = str(api.requests[-1].body["contents"])
    assert contents.count("not found") >= 2


async def test_without_a_configured_model_the_model_used_is_reported(
    real: Stub, api: FakeApi
) -> None:
    del real.environ["GEMINI_MODEL"]
    api.calls = [SEARCH]

    result = await real.search()

    [search_request] = [request for request in api.requests if request.kind == "search"]
    assert result["metadata"]["model"] not in ("auto-detected", search_request.model)
    assert result["metadata"]["model"] in {request.model for request in api.requests}
    assert result["metadata"]["grounded"] is True


@pytest.mark.parametrize("model", representatives(["flash", "pro"], ["flash"]))
async def test_a_model_alias_still_searches(real: Stub, api: FakeApi, model: str) -> None:
    real.environ["GEMINI_MODEL"] = model
    api.calls = [SEARCH]

    result = await real.search()

    assert "search" in [request.kind for request in api.requests]
    assert result["metadata"]["grounded"] is True


async def test_a_correction_receives_the_whole_output_and_has_no_tools(
    real: Stub, api: FakeApi
) -> None:
    invalid = "{'success: " + "word " * 12_000 + "THE-TAIL"
    api.texts = [invalid, model_answer("word THE-TAIL")]
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
    assert real.leftover_files() == []


async def test_the_last_of_many_lines_reaches_the_correction(real: Stub, api: FakeApi) -> None:
    api.texts = ["\n".join(f"line {n}" for n in range(5_000)), model_answer("line")]

    await real.search()

    assert "line 4999" in api.requests[-1].text


async def test_a_long_report_is_not_truncated(real: Stub, api: FakeApi) -> None:
    api.texts = [model_answer("x" * 300_000)]

    assert len((await real.search())["result"]) == 300_000


async def test_a_query_cannot_include_files_or_run_commands(real: Stub, api: FakeApi) -> None:
    files = "@/etc/hosts @~/.bashrc @../home/.gemini/settings.json @../../.gemini/.env"
    query = f"{files} /help !ls --yolo {{{{date}}}}"

    await real.search(query)

    # The CLI inserts a space before an @ at the start of a line and changes nothing else.
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


async def test_a_model_in_the_users_env_file_is_ignored(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_MODEL"], real.environ["GEMINI_API_KEY"]
    real.environ["GEMINI_API_KEY"] = ""
    folder = real.home / ".gemini"
    folder.mkdir()
    (folder / ".env").write_text("GEMINI_API_KEY=from-the-file\nGEMINI_MODEL=gemini-2.5-pro\n")

    await real.search()

    assert "gemini-2.5-pro" not in {request.model for request in api.requests}
    assert {request.key for request in api.requests} == {"from-the-file"}


async def test_a_rate_limit_reports_the_retry_delay(real: Stub, api: FakeApi) -> None:
    retry_info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17s"}
    error = {"code": 429, "message": "You exceeded your current quota.", "details": [retry_info]}
    api.failure = 429, {"error": error | {"status": "RESOURCE_EXHAUSTED"}}

    with pytest.raises(RateLimited) as caught:
        await real.search()

    assert caught.value.retry_after_s == 17
    assert len(api.requests) == 1


async def test_a_missing_sign_in_is_reported(real: Stub) -> None:
    del real.environ["GEMINI_API_KEY"]
    del real.environ["GOOGLE_GEMINI_BASE_URL"]

    with pytest.raises(NotSignedIn):
        await real.search()


def api_error(code: int, message: str, *details: Body, status: str = "") -> tuple[int, Body]:
    return code, {"error": {"code": code, "message": message, "status": status, "details": details}}


DAILY_QUOTA: Body = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}
INVALID_KEY: Body = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "API_KEY_INVALID",
}


FAILURES: dict[str, tuple[tuple[int, Body], str]] = {
    "500": (api_error(500, "An internal error has occurred."), "EXECUTION_ERROR"),
    "503": (api_error(503, "The model is overloaded.", status="UNAVAILABLE"), "EXECUTION_ERROR"),
    "invalid key": (api_error(400, "API key not valid.", INVALID_KEY), "AUTH_ERROR"),
    "403": (api_error(403, "Permission denied.", status="PERMISSION_DENIED"), "AUTH_ERROR"),
    "unknown model": (
        api_error(404, "models/gemini-2.5-flash is not found for v1beta."),
        "CONFIG_ERROR",
    ),
    "daily quota": (
        api_error(429, "You exceeded it.", DAILY_QUOTA, status="RESOURCE_EXHAUSTED"),
        "QUOTA_EXHAUSTED",
    ),
    "rate limit": (api_error(429, "You exceeded your current quota."), "RATE_LIMITED"),
}


@pytest.mark.parametrize("name", representatives(FAILURES, ["500", "daily quota"]))
async def test_an_api_failure_is_classified_after_one_request(
    real: Stub, api: FakeApi, name: str
) -> None:
    api.failure, code = FAILURES[name]

    with pytest.raises(GeminiMcpError) as caught:
        await real.search()

    assert caught.value.code == code
    assert caught.value.next_step
    assert len(api.requests) == 1
    assert real.leftover_files() == []


async def test_an_answer_without_text_is_a_failure(real: Stub, api: FakeApi) -> None:
    api.texts = [""]

    with pytest.raises(ExecutionFailed):
        await real.search()


@pytest.mark.parametrize(
    "reason", representatives(["SAFETY", "RECITATION", "PROHIBITED_CONTENT", "prompt"], ["SAFETY"])
)
async def test_a_blocked_answer_is_not_repeated(real: Stub, api: FakeApi, reason: str) -> None:
    real.environ["GEMINI_MCP_MAX_CYCLES"] = "3"
    if reason == "prompt":
        api.raw = json.dumps({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
    api.finish = reason

    with pytest.raises(SafetyBlocked, match="blocked by the model's safety filter") as caught:
        await real.search()

    assert "Reword" in caught.value.next_step
    assert len(api.requests) == 1


async def test_a_dropped_connection_is_a_failure(real: Stub, api: FakeApi) -> None:
    api.drops_connection = True

    with pytest.raises(ExecutionFailed):
        await real.search()

    assert len(api.requests) == 1


async def test_a_hanging_api_times_out(real: Stub, api: FakeApi, clock: Clock) -> None:
    api.hangs = True
    call = asyncio.ensure_future(real.search())
    await eventually(lambda: api.waiting == 1)

    clock.skip(real.limits.idle_timeout)
    with pytest.raises(TimedOut):
        await call

    assert real.leftover_files() == []


async def test_an_exhausted_quota_of_the_search_is_not_an_answer_from_memory(
    real: Stub, api: FakeApi
) -> None:
    api.calls = [SEARCH]
    api.failure, api.failing_kind = (
        api_error(429, "Used up.", DAILY_QUOTA, status="RESOURCE_EXHAUSTED"),
        "search",
    )

    with pytest.raises(QuotaExhausted):
        await real.search()

    assert len(api.requests) == 3


OVERLOADED = api_error(503, "Try again later.", status="UNAVAILABLE")


async def test_a_search_that_keeps_failing_is_named_and_ends_the_run(
    real: Stub, api: FakeApi
) -> None:
    real.environ["GEMINI_MCP_MAX_CYCLES"] = "3"
    real.limits = replace(real.limits, failing_call_timeout=8)  # telemetry comes every 5 s
    api.calls = [SEARCH]
    api.failure, api.failing_kind = OVERLOADED, "search"

    with pytest.raises(Overloaded) as caught:
        await real.search()

    assert caught.value.message == "Google's search is overloaded (503): Try again later."
    progress, *_ = [message for message in real.messages if "failing" in message]
    assert re.fullmatch(
        r"search failing \(503 overloaded\), retrying: (2nd|3rd) try, \d+ s", progress
    )
    assert len([request for request in api.requests if request.kind == "main"]) == 1
    assert real.leftover_files() == []


FAILING_SEARCHES: dict[str, tuple[tuple[int, Body], str, type[GeminiMcpError]]] = {
    "unknown model, which the CLI repeats in a hot loop": (
        api_error(404, "models/x is not found."),
        "",
        ModelNotFound,
    ),
    "rate limit": (api_error(429, "Slow down."), "", RateLimited),
    "internal error": (api_error(500, "Oops."), "", ExecutionFailed),
    "denied": (
        api_error(403, "Not yours.", status="PERMISSION_DENIED"),
        "gemini-2.5-flash",
        AccessDenied,
    ),
}


@pytest.mark.parametrize(
    "name",
    representatives(FAILING_SEARCHES, ["unknown model, which the CLI repeats in a hot loop"]),
)
async def test_a_failing_search_is_reported_in_the_words_of_the_api(
    real: Stub, api: FakeApi, name: str
) -> None:
    api.failure, real.environ["GEMINI_MODEL"], error = FAILING_SEARCHES[name]
    api.failing_kind = "search"
    real.environ["GEMINI_MCP_MAX_CYCLES"] = "3"
    real.limits = replace(real.limits, failing_call_timeout=1)
    api.calls = [SEARCH]

    with pytest.raises(error):
        await real.search()

    assert real.waits == []


@pytest.mark.parametrize("model", representatives(["", "gemini-2.5-flash"], [""]))
async def test_a_missing_connection_is_named_after_one_try(real: Stub, model: str) -> None:
    real.environ |= {
        "GEMINI_MCP_MAX_CYCLES": "3",
        "GEMINI_MODEL": model,  # without a model, the CLI's choice of one fails first
        "HTTPS_PROXY": "http://user:password@127.0.0.1:9",
    }
    del real.environ["GOOGLE_GEMINI_BASE_URL"]
    real.limits = replace(real.limits, connection_timeout=1)

    with pytest.raises(ConnectionFailed) as caught:
        await real.search()

    assert caught.value.message == (
        "No connection to generativelanguage.googleapis.com (via proxy http://127.0.0.1:9)."
    )
    assert "Check the network or HTTPS_PROXY." in caught.value.next_step
    assert (real.waits, real.leftover_files()) == ([], [])


async def test_fetched_pages_are_in_the_ledger(real: Stub, api: FakeApi) -> None:
    page = "https://93.184.216.34/a"
    api.calls = [("web_fetch", {"prompt": f"Summarise {page}"})]
    api.texts = [model_answer(f"It says so ([page]({page})).")]

    metadata = (await real.search())["metadata"]

    assert metadata["sources_visited"] == [page]
    assert metadata["citations"] == {"total": 1, "seen": 1, "domain": 0, "unseen": 0}


async def test_nothing_in_the_users_setup_runs_or_is_sent(
    real: Stub, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trapped"
    mcp_server = {"command": "touch", "args": [str(trap)]}
    hook = {"matcher": "*", "hooks": [{"type": "command", "command": f"touch {trap}"}]}
    settings = {
        "mcpServers": {"canary": mcp_server},
        "hooksConfig": {"enabled": True},
        "hooks": {"SessionStart": [hook], "BeforeTool": [hook], "BeforeAgent": [hook]},
        "tools": {"core": ["run_shell_command", "google_web_search"]},
        "context": {"fileName": "GEMINI.md"},
    }
    caller_folder = tmp_path / "caller"
    for home in (real.home, caller_folder):
        gemini = home / ".gemini"
        for folder in ("extensions/canary", "skills/canary", "agents", "commands", "policies"):
            (gemini / folder).mkdir(parents=True)
        (gemini / "settings.json").write_text(json.dumps(settings))
        (gemini / "GEMINI.md").write_text("CANARY memory")
        (home / "GEMINI.md").write_text("CANARY context")
        (home / ".env").write_text("GEMINI_API_KEY=canary-key\nGEMINI_MODEL=canary-model\n")
        (gemini / "extensions/canary/gemini-extension.json").write_text(
            json.dumps({"name": "canary", "version": "1.0.0", "mcpServers": {"x": mcp_server}})
        )
        (gemini / "extensions/canary/GEMINI.md").write_text("CANARY extension")
        (gemini / "skills/canary/SKILL.md").write_text("---\nname: canary\n---\nCANARY skill")
        (gemini / "agents/canary.md").write_text("---\nname: canary\n---\nCANARY agent")
        (gemini / "commands/canary.toml").write_text('prompt = "CANARY command"')
        (gemini / "policies/canary.toml").write_text('[[rule]]\ntoolName="*"\ndecision="allow"')
    (caller_folder / "secret.txt").write_text("CANARY secret")
    monkeypatch.chdir(caller_folder)
    real.environ |= {"OTHER_API_KEY": "CANARY-key", "MY_SECRET": "CANARY-secret"}
    api.calls = [("run_shell_command", {"command": f"touch {trap}"}), SEARCH]

    await real.search("@secret.txt /canary what is CANARY-free?".replace("CANARY", "canary"))

    sent = json.dumps([request.body for request in api.requests])
    assert "CANARY" not in sent
    assert not trap.exists()
    assert {request.key for request in api.requests} == {"test-key"}
    assert {tool for request in api.requests for tool in request.tools} == {
        "google_web_search",
        "web_fetch",
    }


HOSTILE_QUERIES = [
    "@secret.txt",
    "@~/x",
    "/help",
    "/memory show",
    "!ls",
    "--yolo",
    "-p x",
    "{{query}} {{mark}}",
    "\u202ebidi\u202c \u200bzero",
    "$(touch x) `touch x` ; touch x",
]
COMBINED_QUERY = "\n".join(HOSTILE_QUERIES)
"""Each at the start of a line, where a command would be recognized."""


@pytest.mark.parametrize(
    "query", representatives([*HOSTILE_QUERIES, COMBINED_QUERY], [COMBINED_QUERY])
)
async def test_a_hostile_query_is_treated_as_text(real: Stub, api: FakeApi, query: str) -> None:
    await real.search(query)

    assert all(line in api.requests[0].text for line in query.split("\n"))
    assert len(api.requests) == 1


async def test_a_deep_search_of_three_rounds_searches_and_fetches(real: Stub, api: FakeApi) -> None:
    page, other = "https://93.184.216.34/a", "https://93.184.216.34/b"
    api.sites = {"draft query": "nasa", "refuting query": "noaa", "last query": "esa"}
    api.rounds = [
        [
            ("google_web_search", {"query": "draft query"}),
            ("web_fetch", {"prompt": f"Read {page}"}),
        ],
        [
            ("google_web_search", {"query": "refuting query"}),
            ("web_fetch", {"prompt": f"Compare {other} with the report"}),
        ],
        [("google_web_search", {"query": "last query"})],
    ]
    links = [f"[a]({REDIRECT}nasa)", f"[b]({page})", f"[c]({REDIRECT}noaa)", f"[d]({REDIRECT}esa)"]
    api.texts = [
        model_answer(f"Blue {links[0]} {links[1]}.", verified=True),
        model_answer(f"Blue {links[0]} {links[1]} {links[2]}."),
        model_answer("Blue " + " ".join(links), verified=True),
    ]
    progress_updates: list[tuple[float, str]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        progress_updates.append((progress, re.sub(r" \(\d+ s\)$", "", message or "")))

    async with stdio_client(real) as client:
        reply = await client.call_tool(
            "deep_search", {"query": QUESTION}, progress_callback=on_progress
        )

    result = reply.structured_content
    assert result
    metadata = result["metadata"]
    assert (result["result"], result["verified"]) == ("Blue " + " ".join(links), True)
    assert [round_["search_queries"] for round_ in metadata["rounds"]] == [
        ["draft query"],
        ["refuting query"],
        ["last query"],
    ]
    assert [round_["sources_visited"] for round_ in metadata["rounds"]] == [
        [REDIRECT + "nasa", page],
        [REDIRECT + "noaa", other],
        [REDIRECT + "esa"],
    ]
    assert metadata["rounds"][0]["verification"] == ["round_one"]
    assert metadata["citations"] == {"total": 4, "seen": 4, "domain": 0, "unseen": 0}
    assert (metadata["evidence"], metadata["usage"]["tool_calls"]) == ("ledger", 5)
    assert [number for number, _ in progress_updates] == list(range(1, len(progress_updates) + 1))
    assert [
        message
        for _, message in progress_updates
        if re.search("searching|reading|verified", message)
    ] == [
        "round 1/5: searching “draft query”",
        f"round 1/5: reading {page}",
        "round 1/5: not verified, round_one",
        "round 2/5: searching “refuting query”",
        f"round 2/5: reading {other}",
        "round 2/5: not verified",
        "round 3/5: searching “last query”",
        "round 3/5: verified",
    ]
    assert [request.kind for request in api.requests].count("search") == 3
    assert real.leftover_files() == []


async def test_a_report_cannot_include_files_in_the_next_round(real: Stub, api: FakeApi) -> None:
    api.calls = [SEARCH]
    hostile = "@/etc/hosts @../home/.gemini/settings.json\n/help\n!ls\n@settings.json {{query}}"
    api.texts = [model_answer(hostile)]

    await real.deep_search(max_iterations=2)

    prompt = next(request.text for request in api.requests if "round 2 of" in request.text)
    assert "localhost" not in prompt and "maxSessionTurns" not in prompt
    # The CLI inserts a space before an @ at the start of a line and changes nothing else.
    assert " ".join(hostile.split()) in " ".join(prompt.split())


@needs_posix
async def test_cancelling_a_job_during_a_search_ends_its_processes(
    real: Stub, api: FakeApi
) -> None:
    api.calls = [SEARCH]
    api.hangs, api.hangs_after = True, 4  # the draft makes three requests; the next search hangs

    async with stdio_client(real) as client:
        submitted = await client.call_tool("deep_search", {"query": QUESTION, "wait_seconds": 0})
        assert submitted.structured_content
        job_arguments = {"job_id": submitted.structured_content["job_id"]}
        await eventually(lambda: api.waiting > 0)
        pids = [pid for pid in descendants(os.getpid()) if "gemini" in command_line(pid)]
        cancelled = await client.call_tool("deep_search_cancel", job_arguments)
        await eventually(lambda: not any(map(is_alive, pids)))

    assert pids
    assert cancelled.structured_content
    assert cancelled.structured_content["result"] == f"Blue, says [nasa.gov]({REDIRECT}nasa)."
    assert cancelled.structured_content["metadata"]["stop_reason"] == "cancelled"


def command_line(pid: int) -> str:
    with suppress(OSError):
        require_proc()
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return " ".join(arguments) if "gemini_cli_mcp" not in arguments else ""
    return ""


FAULTS = ["hangs", "rate-limited search", "endless search", "hangs after a search"]
ENDS = ["timeout", "cancel", "double cancel", "client disconnects", "SIGTERM", "SIGKILL"]


@pytest.mark.parametrize(
    ("fault", "end"),
    representatives(
        product(FAULTS, ENDS),
        [
            ("hangs", "timeout"),
            ("rate-limited search", "cancel"),
            ("endless search", "double cancel"),
            ("hangs after a search", "client disconnects"),
            ("hangs", "SIGTERM"),
            ("rate-limited search", "SIGKILL"),
        ],
    ),
)
@needs_posix
async def test_ending_a_run_removes_all_processes_and_files(
    real: Stub, api: FakeApi, clock: Clock, fault: str, end: str
) -> None:
    api.calls = [SEARCH]
    api.hangs = "hangs" in fault
    api.hangs_after = 2 if fault == "hangs after a search" else 0
    if fault == "rate-limited search":
        api.failure, api.failing_kind = api_error(429, "Slow down."), "search"
    if fault == "endless search":
        del real.environ["GEMINI_MODEL"]
        api.failure, api.failing_kind = api_error(404, "models/x is not found."), "search"
    if end in ("client disconnects", "SIGTERM", "SIGKILL"):
        with start_server(real, *SEARCH_FRAMES) as server:
            await eventually(lambda: has_reached_fault(api, fault))
            pids = descendants(server.pid)
            assert server.stdin
            if end == "client disconnects":
                server.stdin.close()
            else:
                server.send_signal(getattr(signal, end))
            await eventually(lambda: server.poll() is not None)
    else:
        call = asyncio.ensure_future(real.search())
        await eventually(lambda: has_reached_fault(api, fault))
        pids = descendants(os.getpid())
        for _ in range({"cancel": 1, "double cancel": 2}.get(end, 0)):
            call.cancel()
            await asyncio.sleep(0.01)
        if end == "timeout":
            clock.skip(real.settings.timeout)
        with pytest.raises(TimedOut if end == "timeout" else asyncio.CancelledError):
            await call
    await eventually(
        lambda: (
            not any(map(is_alive, pids)) and not real.leftover_files() and not child.running_count()
        )
    )
    assert len(pids) >= 2  # at least the guardian and the CLI


def has_reached_fault(api: FakeApi, fault: str) -> bool:
    """Whether the CLI has reached the fault."""
    kinds = [request.kind for request in api.requests]
    return api.waiting > 0 if "hangs" in fault else "search" in kinds
