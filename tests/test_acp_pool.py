"""Shared processes: `gemini --acp`, real or fake, against a fake API on loopback."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import GeminiMcpError, QuotaExhausted
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.quota_breaker import INITIAL_DELAY, QuotaBreakers
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.requests import parse_web_search
from gemini_cli_mcp.research.web_search import EngineProviders, web_search
from gemini_cli_mcp.workspace import Workspace
from tests.support import (
    QUESTION,
    REDIRECT,
    Clock,
    Result,
    Stub,
    eventually,
    fake_gemini,
    model_answer,
    require_proc,
    use_real_cli,
)
from tests.support.acp import SharedSlotsFirst, acp_program
from tests.support.cli_processes import acp_pids
from tests.support.fake_api import SEARCH, Body, FakeApi
from tests.support.matrix import needs_real_cli
from tests.support.mcp_server import SEARCH_FRAMES, in_process_client, start_server

DEDICATED_START = "starting gemini"
"""First progress message of a run in a dedicated process."""


@pytest.fixture
def real(real: Stub, api: FakeApi) -> Stub:
    """The program with the real CLI and shared processes."""
    real.environ["GEMINI_MCP_WARM"] = "1"
    real.limits = Limits(telemetry_timeout=0)  # few of these tests need the default of five seconds
    api.calls = [SEARCH]
    return real


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.long, needs_real_cli])])
def cli(request: pytest.FixtureRequest, stub: Stub, api: FakeApi) -> Stub:
    """The program with a fake CLI, to test our own behaviour; with the real one in test-long."""
    use_real_cli(stub, api)
    api.calls = [SEARCH]
    if request.param == "fake":
        stub.environ["GEMINI_MCP_CLI_PATH"] = str(fake_gemini.install(stub.home))
    return stub


@needs_real_cli
async def test_a_search_in_a_shared_process_matches_a_dedicated_run(
    real: Stub, api: FakeApi
) -> None:
    real.limits = Limits()
    async with acp_program(real) as program:
        await program.wait_ready()
        api.requests.clear()
        result = await program.search()
        records = [path for path in real.leftover_files() if path.name.startswith("session-")]
        content = "".join(path.read_text() for path in records)

    metadata = result["metadata"]
    assert result["result"] == f"Blue, says [nasa.gov]({REDIRECT}nasa)."
    assert metadata["search_queries_used"] == ["why is the sky blue"]
    assert metadata["sources_visited"] == [REDIRECT + "nasa", REDIRECT + "noaa"]
    assert (metadata["evidence"], metadata["grounded"]) == ("ledger", True)
    assert metadata["model"] == "gemini-2.5-flash"
    assert metadata["usage"]["tool_calls"] == 1
    assert metadata["usage"]["input_tokens"] == 300  # the search helper's too
    assert [request.kind for request in api.requests] == ["main", "search", "main"]
    assert {request.model for request in api.requests} == {"gemini-2.5-flash"}
    assert sum(request.size for request in api.requests) <= 12_000
    assert {tuple(sorted(request.tools)) for request in api.requests if request.tools} == {
        ("google_web_search", "web_fetch")
    }
    assert real.messages == [
        "asking the model",
        "searching “why is the sky blue”",
        "writing the answer",
    ]
    assert QUESTION not in content
    assert real.leftover_files() == [] and not acp_pids(real)


@needs_real_cli
async def test_a_query_is_never_run_as_a_command(real: Stub, api: FakeApi) -> None:
    queries = ["/help", "/memory show", "@settings.json", "$ls", "!ls", "-p x"]
    async with acp_program(real) as program:
        await program.wait_ready()
        for query in queries:
            api.requests.clear()
            await program.search(query)

            assert query in api.requests[0].text
            assert len(api.requests) == 3


ERRORS: list[tuple[int, Body, str, float | None]] = [
    (429, {"message": "You exceeded your current quota. Please retry in 17s."}, "RATE_LIMITED", 17),
    (
        429,
        {
            "message": "You exceeded your current quota.",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}],
                }
            ],
        },
        "QUOTA_EXHAUSTED",
        None,
    ),
    (403, {"message": "no", "status": "PERMISSION_DENIED"}, "AUTH_ERROR", None),
    (400, {"message": "API key not valid", "status": "INVALID_ARGUMENT"}, "AUTH_ERROR", None),
    (404, {"message": "models/x is not found"}, "CONFIG_ERROR", None),
    (500, {"message": "boom"}, "EXECUTION_ERROR", None),
]


@needs_real_cli
async def test_failures_have_the_same_codes_as_in_dedicated_runs(
    real: Stub, api: FakeApi, mocker: MockerFixture
) -> None:
    mocker.patch.object(QuotaBreakers, "raise_if_open")  # every failure must come from the API
    real.limits = Limits(telemetry_timeout=1e6)  # the error says enough
    failures: list[tuple[str, float | None]] = []
    async with acp_program(real) as program:
        await program.wait_ready()
        for status, error, _, _ in ERRORS:
            api.failure = (status, {"error": {"code": status, **error}})
            with pytest.raises(GeminiMcpError) as caught:
                await program.search()
            failures.append((caught.value.code, caught.value.retry_after_s))
        reports = [path for path in real.leftover_files() if "client-error" in path.name]

    assert failures == [(code, retry_after) for _, _, code, retry_after in ERRORS]
    assert DEDICATED_START not in real.messages
    assert reports == []  # they contain the conversation


@needs_real_cli
async def test_a_failed_search_and_an_empty_answer_are_detected(real: Stub, api: FakeApi) -> None:
    async with acp_program(real) as program:
        await program.wait_ready()
        api.failing_kind = "search"
        api.failure = (400, {"error": {"code": 400, "message": "no search today"}})
        result = await program.search()
        api.failure = None
        api.texts = [" "]
        with pytest.raises(GeminiMcpError, match="empty answer"):
            await program.search()

    assert result["metadata"]["grounded"] is False
    assert result["metadata"]["sources_visited"] == []
    assert DEDICATED_START not in real.messages


@needs_real_cli
async def test_a_run_that_exceeds_the_turn_limit_is_stopped(real: Stub, api: FakeApi) -> None:
    real.limits = Limits(max_turns=2, telemetry_timeout=0)
    async with acp_program(real) as program:
        await program.wait_ready()
        api.calls = [SEARCH, SEARCH, SEARCH]
        with pytest.raises(GeminiMcpError, match="turn limit"):
            await program.search()

    assert DEDICATED_START not in real.messages


async def test_a_cancelled_search_frees_its_slot_and_keeps_the_process(
    cli: Stub, api: FakeApi
) -> None:
    cli.environ |= {"GEMINI_MCP_WARM_SESSIONS": "1", "GEMINI_MCP_CONCURRENCY": "1"}
    async with acp_program(cli) as program:
        await program.wait_ready()
        old_pids = program.pids()
        api.hangs = True
        call = asyncio.ensure_future(program.search())
        await eventually(lambda: api.waiting == 1)
        call.cancel()
        await asyncio.wait({call})
        api.hangs = False
        await program.wait_ready()
        cli.messages.clear()
        await program.search()

        assert DEDICATED_START not in cli.messages
        assert program.pids() == old_pids


@needs_real_cli
async def test_a_process_that_ignores_a_cancel_is_replaced_and_other_runs_succeed(
    real: Stub, api: FakeApi
) -> None:
    real.limits = Limits(acp_drain_timeout=0.5, telemetry_timeout=0)
    async with acp_program(real) as program:
        await program.wait_ready()
        old_pids = program.pids()
        api.requests.clear()
        # While the search sub-call waits for its next retry, it does not react to a cancellation.
        api.failing_kind, api.failure = (
            "search",
            (429, {"error": {"code": 429, "message": "Slow down"}}),
        )
        cancelled_call = asyncio.ensure_future(program.search("lost"))
        await eventually(lambda: len(api.requests) == 2)
        api.hangs = True
        other_call = asyncio.ensure_future(program.search("other"))
        await eventually(lambda: api.waiting == 1)
        cancelled_call.cancel()
        await asyncio.wait({cancelled_call})
        api.hangs, api.failure = False, None

        assert (await other_call)["success"]
        await eventually(lambda: not set(program.pids()) & set(old_pids))


@needs_real_cli
async def test_an_endlessly_looping_search_is_stopped(
    real: Stub, api: FakeApi, clock: Clock
) -> None:
    del real.environ["GEMINI_MODEL"]  # then the search helper uses its own model
    violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]
    async with acp_program(real) as program:
        await program.wait_ready()
        api.failing_kind = "search"
        api.failure = (429, {"error": {"code": 429, "message": "Quota", "details": details}})
        call = asyncio.ensure_future(program.search())
        with pytest.raises(QuotaExhausted):
            await call
        assert len(api.requests) > 20
        await eventually(no_recent_requests(api))
        api.failure = None
        clock.skip(INITIAL_DELAY)  # until a run may try whether there is quota again
        await program.wait_ready()
        await program.search()


def no_recent_requests(api: FakeApi) -> Callable[[], bool]:
    """Return a check for half a second without requests; a looping CLI sends fifty in that time."""
    request_count, last_change = len(api.requests), time.monotonic()

    def is_quiet() -> bool:
        nonlocal request_count, last_change
        if len(api.requests) != request_count:
            request_count, last_change = len(api.requests), time.monotonic()
        return time.monotonic() - last_change > 0.5

    return is_quiet


async def test_searches_in_a_killed_process_are_repeated(cli: Stub, api: FakeApi) -> None:
    async with acp_program(cli) as program:
        await program.wait_ready()
        [pid] = program.pids()
        api.requests.clear()
        api.delay = 0.5
        results: list[Result] = []

        async def search(number: int) -> None:
            results.append(await program.search(f"question {number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(search, number)
            await eventually(lambda: len(api.requests) >= 8)
            os.kill(pid, signal.SIGKILL)

        assert len(results) == 8 and all(result["success"] for result in results)
        await program.wait_ready(except_pids=[pid])


async def test_a_process_at_its_session_limit_is_replaced_without_a_gap(
    cli: Stub, api: FakeApi
) -> None:
    cli.limits = Limits(acp_max_sessions=6)
    pids: set[int] = set()
    async with acp_program(cli) as program:
        await program.wait_ready()
        with anyio.fail_after(60):
            while len(pids) < 3:
                await program.search()
                pids.update(program.pids())
        await eventually(lambda: len(program.pids()) <= 2)

    assert DEDICATED_START not in cli.messages


async def test_a_process_over_the_memory_limit_is_replaced(cli: Stub, api: FakeApi) -> None:
    cli.limits = Limits(acp_max_memory_bytes=1)
    async with acp_program(cli) as program:
        await program.wait_ready()
        old_pids = program.pids()
        await program.search()
        await program.wait_ready(except_pids=old_pids)
        await eventually(lambda: not set(program.pids()) & set(old_pids))

    assert DEDICATED_START not in cli.messages


async def test_an_idle_process_is_stopped_and_restarted_on_demand(cli: Stub, api: FakeApi) -> None:
    cli.environ["GEMINI_MCP_WARM_IDLE"] = "0.5"
    async with acp_program(cli) as program:
        await program.wait_ready()
        await eventually(lambda: not program.pids())
        await program.search()
        assert DEDICATED_START in cli.messages
        await program.wait_ready()


async def test_a_changed_sign_in_starts_a_new_process(cli: Stub, api: FakeApi) -> None:
    del cli.environ["GEMINI_API_KEY"]
    env_file = cli.home / ".gemini" / ".env"
    env_file.parent.mkdir()
    env_file.write_text("GEMINI_API_KEY=old-key\n")
    async with acp_program(cli) as program:
        await program.wait_ready()
        old_pids = program.pids()
        env_file.write_text("GEMINI_API_KEY=new-key\n")
        api.requests.clear()
        await program.search()
        assert {request.key for request in api.requests} == {"new-key"}
        await program.wait_ready(except_pids=old_pids)
        api.requests.clear()
        await program.search()

    assert {request.key for request in api.requests} == {"new-key"}
    assert DEDICATED_START not in cli.messages


async def test_without_a_sign_in_no_shared_process_is_started(cli: Stub, api: FakeApi) -> None:
    del cli.environ["GEMINI_API_KEY"]
    async with acp_program(cli) as program:
        with pytest.raises(GeminiMcpError) as caught:
            await program.search()
        assert program.pids() == []

    assert caught.value.code == "AUTH_ERROR"


async def test_a_sign_in_rejected_by_sessions_is_not_retried(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    cli.limits = Limits(restart_delays=(0.05,))
    caplog.set_level("INFO")
    del cli.environ["GEMINI_API_KEY"]
    env_file = cli.home / ".gemini" / ".env"
    env_file.parent.mkdir()
    env_file.write_text("OTHER=1\n")
    async with acp_program(cli) as program:
        for _ in range(2):
            with pytest.raises(GeminiMcpError):
                await program.search()
        await eventually(lambda: not program.pids())

    assert caplog.text.count("session refused") == 1


INCOMPLETE_CANDIDATES: dict[str, Body] = {
    "malformed": {"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0},
    "blocked": {"finishReason": "SAFETY", "index": 0},
    "half": {
        "content": {
            "role": "model",
            "parts": [{"text": '{"success": true, "report": "Half of it'}],
        },
        "finishReason": "MALFORMED_FUNCTION_CALL",
    },
}


@needs_real_cli
async def test_an_incomplete_answer_is_a_failure(real: Stub, api: FakeApi) -> None:
    codes: dict[str, str] = {}
    async with acp_program(real) as program:
        await program.wait_ready()
        api.preface = model_answer("A guess, before any search.")
        for name, api.final_candidate in INCOMPLETE_CANDIDATES.items():
            with pytest.raises(GeminiMcpError) as caught:
                await program.search()
            codes[name] = caught.value.code

    assert codes == dict.fromkeys(INCOMPLETE_CANDIDATES, "EXECUTION_ERROR")
    assert DEDICATED_START not in real.messages


async def test_searches_in_a_frozen_process_are_repeated_elsewhere(
    cli: Stub, api: FakeApi, clock: Clock
) -> None:
    cli.limits = Limits(acp_cancel_timeout=0.2, acp_drain_timeout=0.2)
    async with acp_program(cli) as program:
        await program.wait_ready()
        [pid] = program.pids()
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.ensure_future(program.search())
        await eventually(lambda: cli.messages == ["asking the model"])
        clock.skip(cli.limits.idle_timeout)

        assert (await call)["success"]
        await eventually(lambda: pid not in program.pids())


async def test_a_second_process_is_started_when_the_first_is_full(cli: Stub, api: FakeApi) -> None:
    cli.environ |= {"GEMINI_MCP_WARM": "2", "GEMINI_MCP_WARM_SESSIONS": "1"}
    api.hold_text = "HELD"
    async with acp_program(cli) as program:
        await anyio.wait_all_tasks_blocked()  # the pool waits for requests
        await program.wait_ready()
        [first] = program.pids()
        held_call = asyncio.ensure_future(program.search("HELD"))
        await eventually(lambda: api.waiting)
        await program.wait_ready(except_pids=[first])
        assert len(program.pids()) == 2
        api.release.set()
        assert (await held_call)["success"]


async def test_an_unused_process_makes_room_for_one_of_another_kind(
    cli: Stub, api: FakeApi
) -> None:
    cli.limits = Limits(restart_delays=(600,))
    async with acp_program(cli) as program:
        await program.wait_ready()
        [first] = program.pids()
        await program.wait_ready(except_pids=[first], model="gemini-2.5-pro")
        [second] = program.pids()
        require_proc()
        command = Path(f"/proc/{second}/cmdline").read_bytes().split(b"\0")
        environ = Path(f"/proc/{second}/environ").read_bytes().split(b"\0")
        await program.wait_ready(except_pids=[second])  # to make room is not a failure

    assert b"gemini-2.5-pro" in command
    assert b"NO_BROWSER=true" in environ


async def test_long_runs_do_not_accumulate_processes(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cli.limits = Limits(acp_max_sessions=2)
    api.hold_text = "A LONG ONE"
    async with acp_program(cli) as program:
        await program.wait_ready()
        [first] = program.pids()
        long_call = asyncio.ensure_future(program.search("A LONG ONE"))
        await eventually(lambda: api.waiting)
        await program.search()  # reaches the session limit of the process, which still has a run
        await eventually(lambda: caplog.text.count("ACP process ready") == 2)
        [second] = set(program.pids()) - {first}
        await program.search()  # reaches that of its successor
        await anyio.sleep(0.5)  # long enough for a third process to start
        assert set(program.pids()) == {first, second}

        api.release.set()
        assert (await long_call)["success"]
        await program.wait_ready(except_pids=[first, second])


async def test_an_unreadable_home_does_not_crash_the_pool(cli: Stub, api: FakeApi) -> None:
    del cli.environ["GEMINI_API_KEY"]
    cli.environ["HOME"] = "/" + "x" * 300  # longer than a file name can be
    async with acp_program(cli) as program:
        await anyio.wait_all_tasks_blocked()  # the pool has looked for a sign-in
        with pytest.raises(GeminiMcpError):
            await program.search()


def wait_for_ready_line(log: Iterable[str]) -> None:
    """Read a server's log until its shared process is ready."""
    assert any("ACP process ready" in line for line in log)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_the_server_ends_its_shared_process(
    cli: Stub, api: FakeApi, signal_number: signal.Signals
) -> None:
    cli.environ |= {"GEMINI_MCP_READY": "0", "GEMINI_MCP_CONCURRENCY": "1"}
    api.hold_text = QUESTION
    initialize, initialized, call = SEARCH_FRAMES
    with start_server(cli, initialize, initialized, call, call.replace('"id": 2', '"id": 3')) as (
        server
    ):
        assert server.stderr
        await anyio.to_thread.run_sync(wait_for_ready_line, server.stderr, abandon_on_cancel=True)
        assert len(acp_pids(cli)) == 1
        server.send_signal(signal_number)
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not acp_pids(cli) and not cli.leftover_files())


async def test_a_deep_search_uses_a_shared_process_while_all_other_slots_are_taken(
    cli: Stub, api: FakeApi
) -> None:
    cli.environ |= {"GEMINI_MCP_READY": "0", "GEMINI_MCP_CONCURRENCY": "1"}
    api.hold_text = "HELD"
    api.texts = [model_answer(f"Blue, says [nasa.gov]({REDIRECT}nasa).", verified=True)]
    progress_messages: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        progress_messages.append(message or "")

    async with in_process_client(cli) as client, anyio.create_task_group() as tasks:
        await client.list_tools()
        tasks.start_soon(client.call_tool, "search", {"query": "HELD"})
        await eventually(lambda: api.waiting)
        reply = await client.call_tool(
            "deep_search", {"query": QUESTION, "max_iterations": 2}, progress_callback=on_progress
        )
        api.release.set()

        result: Any = reply.structured_content
        assert (result["verified"], result["metadata"]["iterations"]) == (True, 2)
        assert result["metadata"]["process"] == "shared"
    assert any(
        "round 2/2: searching “why is the sky blue”" in message for message in progress_messages
    )


async def test_the_gateways_web_search_uses_a_shared_process(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cli.environ |= {"GEMINI_MCP_GROUNDED_MODEL": "gemini-2.5-flash"}
    cli.environ["GEMINI_MCP_READY"] = "0"
    settings = cli.settings
    workspace = Workspace(settings.config_dir)
    providers = ProviderRegistry(settings, workspace, cli.environ, keeps_processes=True)
    providers.limiter = SharedSlotsFirst(settings.concurrency, settings.queue)
    engines = EngineProviders(settings, providers, cli.environ)
    request = parse_web_search({"query": "blue sky"}, settings.engines)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engines.run_pools)
            await web_search(request, CallContext(), engines)  # requests a shared process
            await eventually(lambda: "ACP process ready" in caplog.text)
            result = await web_search(request, CallContext(), engines)
            assert result.hits[0].url == f"{REDIRECT}nasa"
            assert result.process == "shared"
            assert len(acp_pids(cli)) == 1
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()
    await eventually(lambda: not acp_pids(cli))
