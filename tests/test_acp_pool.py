"""Warm processes: `gemini --acp`, the real one or a stand-in, on a loopback fake of the API."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.web_search import WebSearch
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
    use_real_cli,
)
from tests.support.acp import SharedSlotsFirst, acp_pids, acp_program
from tests.support.fake_api import SEARCH, Body, FakeApi
from tests.support.matrix import needs_real_cli
from tests.support.mcp_server import SEARCH_FRAMES as SEARCH_CALL
from tests.support.mcp_server import in_process_client, start_server

SINGLE = "starting gemini"
"""The first word of a run in a process of its own."""


@pytest.fixture
def real(real: Stub, api: FakeApi) -> Stub:
    """The program on the real CLI, with warm processes."""
    real.environ["GEMINI_MCP_WARM"] = "1"
    real.limits = Limits(telemetry_timeout=0)  # five seconds that few of these tests need
    api.calls = [SEARCH]
    return real


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.long, needs_real_cli])])
def cli(request: pytest.FixtureRequest, stub: Stub, api: FakeApi) -> Stub:
    """The same on a stand-in, for what is our own doing; in the long run also on the real one."""
    use_real_cli(stub, api)
    api.calls = [SEARCH]
    if request.param == "fake":
        stub.environ["GEMINI_MCP_CLI_PATH"] = str(fake_gemini.install(stub.home))
    return stub


@needs_real_cli
async def test_a_warm_search_is_like_a_single_one(real: Stub, api: FakeApi) -> None:
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
async def test_a_query_is_never_a_command(real: Stub, api: FakeApi) -> None:
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
async def test_failures_have_the_names_that_single_runs_give_them(
    real: Stub, api: FakeApi, mocker: MockerFixture
) -> None:
    mocker.patch.object(QuotaBreakers, "raise_if_open")  # each is to be met anew
    named: list[tuple[str, float | None]] = []
    async with acp_program(real) as program:
        await program.wait_ready()
        for status, error, _, _ in ERRORS:
            api.failure = (status, {"error": {"code": status, **error}})
            with pytest.raises(GeminiMcpError) as caught:
                await program.search()
            named.append((caught.value.code, caught.value.retry_after_s))
        reports = [path for path in real.leftover_files() if "client-error" in path.name]

    assert named == [(code, after) for _, _, code, after in ERRORS]
    assert SINGLE not in real.messages
    assert reports == []  # they hold the conversation


@needs_real_cli
async def test_a_failed_search_and_an_empty_answer_are_seen(real: Stub, api: FakeApi) -> None:
    async with acp_program(real) as program:
        await program.wait_ready()
        api.failing = "search"
        api.failure = (400, {"error": {"code": 400, "message": "no search today"}})
        result = await program.search()
        api.failure = None
        api.texts = [" "]
        with pytest.raises(GeminiMcpError, match="empty answer"):
            await program.search()

    assert result["metadata"]["grounded"] is False
    assert result["metadata"]["sources_visited"] == []
    assert SINGLE not in real.messages


@needs_real_cli
async def test_a_run_lost_in_turns_is_ended(real: Stub, api: FakeApi) -> None:
    real.limits = Limits(max_turns=2, telemetry_timeout=0)
    async with acp_program(real) as program:
        await program.wait_ready()
        api.calls = [SEARCH, SEARCH, SEARCH]
        with pytest.raises(GeminiMcpError, match="turn limit"):
            await program.search()

    assert SINGLE not in real.messages


async def test_a_cancelled_search_frees_its_seat_and_keeps_the_process(
    cli: Stub, api: FakeApi
) -> None:
    cli.environ |= {"GEMINI_MCP_WARM_SESSIONS": "1", "GEMINI_MCP_CONCURRENCY": "1"}
    async with acp_program(cli) as program:
        await program.wait_ready()
        before = program.pids()
        api.hangs = True
        call = asyncio.ensure_future(program.search())
        await eventually(lambda: api.waiting == 1)
        call.cancel()
        await asyncio.wait({call})
        api.hangs = False
        await program.wait_ready()
        cli.messages.clear()
        await program.search()

        assert SINGLE not in cli.messages
        assert program.pids() == before


@needs_real_cli
async def test_an_unanswered_cancel_costs_nobody_else_more_than_time(
    real: Stub, api: FakeApi
) -> None:
    real.limits = Limits(acp_drain_timeout=0.5, telemetry_timeout=0)
    async with acp_program(real) as program:
        await program.wait_ready()
        before = program.pids()
        api.requests.clear()
        # The search sub-call waits for its next try, and hears nothing meanwhile.
        api.failing, api.failure = "search", (429, {"error": {"code": 429, "message": "Slow down"}})
        lost = asyncio.ensure_future(program.search("lost"))
        await eventually(lambda: len(api.requests) == 2)
        api.hangs = True
        other = asyncio.ensure_future(program.search("other"))
        await eventually(lambda: api.waiting == 1)
        lost.cancel()
        await asyncio.wait({lost})
        api.hangs, api.failure = False, None

        assert (await other)["success"]
        await eventually(lambda: not set(program.pids()) & set(before))


@needs_real_cli
async def test_a_search_that_loops_without_end_is_stopped(
    real: Stub, api: FakeApi, clock: Clock
) -> None:
    del real.environ["GEMINI_MODEL"]  # the search helper has a model of its own then
    violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]
    async with acp_program(real) as program:
        await program.wait_ready()
        api.failing = "search"
        api.failure = (429, {"error": {"code": 429, "message": "Quota", "details": details}})
        call = asyncio.ensure_future(program.search())
        await eventually(lambda: len(api.requests) > 20 and "searching" in real.messages[-1])
        clock.skip(real.limits.search_idle_timeout)
        with pytest.raises(GeminiMcpError, match="did not return"):
            await call
        await eventually(quiet(api))
        api.failure = None
        await program.wait_ready()
        await program.search()


def quiet(api: FakeApi) -> Callable[[], bool]:
    """Whether nothing has come for half a second; a loop of the CLI asks fifty times in that."""
    seen, since = len(api.requests), time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        if len(api.requests) != seen:
            seen, since = len(api.requests), time.monotonic()
        return time.monotonic() - since > 0.5

    return is_quiet


async def test_searches_in_a_killed_process_are_made_again(cli: Stub, api: FakeApi) -> None:
    async with acp_program(cli) as program:
        await program.wait_ready()
        [pid] = program.pids()
        api.requests.clear()
        api.delay = 0.5
        results: list[Result] = []

        async def one(number: int) -> None:
            results.append(await program.search(f"question {number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(one, number)
            await eventually(lambda: len(api.requests) >= 8)
            os.kill(pid, signal.SIGKILL)

        assert len(results) == 8 and all(result["success"] for result in results)
        await program.wait_ready(except_pids=[pid])


async def test_a_worn_process_is_replaced_without_a_gap(cli: Stub, api: FakeApi) -> None:
    cli.limits = Limits(acp_max_sessions=6)
    seen: set[int] = set()
    async with acp_program(cli) as program:
        await program.wait_ready()
        with anyio.fail_after(60):
            while len(seen) < 3:
                await program.search()
                seen.update(program.pids())
        await eventually(lambda: len(program.pids()) <= 2)

    assert SINGLE not in cli.messages


async def test_a_process_that_grows_too_large_is_replaced(cli: Stub, api: FakeApi) -> None:
    cli.limits = Limits(acp_max_memory_bytes=1)
    async with acp_program(cli) as program:
        await program.wait_ready()
        before = program.pids()
        await program.search()
        await program.wait_ready(except_pids=before)
        await eventually(lambda: not set(program.pids()) & set(before))

    assert SINGLE not in cli.messages


async def test_an_idle_process_is_given_back_and_comes_back(cli: Stub, api: FakeApi) -> None:
    cli.environ["GEMINI_MCP_WARM_IDLE"] = "0.5"
    async with acp_program(cli) as program:
        await eventually(lambda: program.pids())
        await eventually(lambda: not program.pids())
        await program.search()
        assert SINGLE in cli.messages
        await program.wait_ready()


async def test_a_changed_sign_in_gets_a_new_process(cli: Stub, api: FakeApi) -> None:
    del cli.environ["GEMINI_API_KEY"]
    env_file = cli.home / ".gemini" / ".env"
    env_file.parent.mkdir()
    env_file.write_text("GEMINI_API_KEY=old-key\n")
    async with acp_program(cli) as program:
        await program.wait_ready()
        before = program.pids()
        env_file.write_text("GEMINI_API_KEY=new-key\n")
        api.requests.clear()
        await program.search()
        assert {request.key for request in api.requests} == {"new-key"}
        await program.wait_ready(except_pids=before)
        api.requests.clear()
        await program.search()

    assert {request.key for request in api.requests} == {"new-key"}
    assert SINGLE not in cli.messages


async def test_without_a_sign_in_there_is_no_warm_process(cli: Stub, api: FakeApi) -> None:
    del cli.environ["GEMINI_API_KEY"]
    async with acp_program(cli) as program:
        with pytest.raises(GeminiMcpError) as caught:
            await program.search()
        assert program.pids() == []

    assert caught.value.code == "AUTH_ERROR"


async def test_a_sign_in_that_sessions_refuse_is_not_tried_again(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    cli.limits = Limits(acp_restart_delays=(0.05,))
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


BROKEN: dict[str, Body] = {
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
async def test_an_answer_that_breaks_off_is_none(real: Stub, api: FakeApi) -> None:
    ended: dict[str, str] = {}
    async with acp_program(real) as program:
        await program.wait_ready()
        api.preface = model_answer("A guess, before any search.")
        for name, api.last in BROKEN.items():
            with pytest.raises(GeminiMcpError) as caught:
                await program.search()
            ended[name] = caught.value.code

    assert ended == dict.fromkeys(BROKEN, "EXECUTION_ERROR")
    assert SINGLE not in real.messages


async def test_searches_in_a_frozen_process_are_made_elsewhere(
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


async def test_several_processes_are_kept_and_come_back(cli: Stub, api: FakeApi) -> None:
    cli.environ |= {"GEMINI_MCP_WARM": "2", "GEMINI_MCP_WARM_IDLE": "1"}
    async with acp_program(cli) as program:
        await eventually(lambda: len(program.pids()) == 2)
        await eventually(lambda: not program.pids())
        await program.search()
        await eventually(lambda: len(program.pids()) == 2)


async def test_long_runs_do_not_let_processes_pile_up(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cli.limits = Limits(acp_max_sessions=2)
    api.held = "A LONG ONE"
    async with acp_program(cli) as program:
        await program.wait_ready()
        [first] = program.pids()
        long = asyncio.ensure_future(program.search("A LONG ONE"))
        await eventually(lambda: api.waiting)
        await program.search()  # that wears the process out, though it still has a run
        await eventually(lambda: caplog.text.count("ACP process ready") == 2)
        [second] = set(program.pids()) - {first}
        await program.search()  # and that its successor
        await anyio.sleep(0.5)  # in which a third one would start
        assert set(program.pids()) == {first, second}

        api.let_go.set()
        assert (await long)["success"]
        await program.wait_ready(except_pids=[first, second])


async def test_a_home_that_cannot_be_read_is_no_end_of_warm_processes(
    cli: Stub, api: FakeApi
) -> None:
    del cli.environ["GEMINI_API_KEY"]
    cli.environ["HOME"] = "/" + "x" * 300  # no name can be that long
    async with acp_program(cli) as program:
        await anyio.wait_all_tasks_blocked()  # it has been looked for
        with pytest.raises(GeminiMcpError):
            await program.search()


async def test_no_process_is_started_before_the_handshake_is_over(cli: Stub) -> None:
    hello, ready, _ = SEARCH_CALL
    with start_server(cli, hello) as server:
        assert server.stdin and server.stdout
        assert json.loads(server.stdout.readline())["id"] == 1
        await anyio.sleep(0.5)  # in which one would have come
        assert acp_pids(cli) == []
        listing = '{"jsonrpc": "2.0", "id": 3, "method": "tools/list"}'
        server.stdin.write(ready + "\n" + listing + "\n")
        server.stdin.flush()
        await eventually(lambda: len(acp_pids(cli)) == 1)
        server.stdin.close()
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not acp_pids(cli))
    assert cli.leftover_files() == []


def ready_in(log: Iterable[str]) -> None:
    """Read a server's log until its warm process is there."""
    assert any("ACP process ready" in line for line in log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_the_server_ends_its_warm_process(
    cli: Stub, number: signal.Signals
) -> None:
    hello, ready, _ = SEARCH_CALL
    listing = '{"jsonrpc": "2.0", "id": 3, "method": "tools/list"}'
    with start_server(cli, hello, ready, listing) as server:
        assert server.stderr
        await anyio.to_thread.run_sync(ready_in, server.stderr, abandon_on_cancel=True)
        assert len(acp_pids(cli)) == 1
        server.send_signal(number)
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not acp_pids(cli) and not cli.leftover_files())


async def test_a_deep_search_runs_warm_while_every_other_place_is_taken(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cli.environ["GEMINI_MCP_CONCURRENCY"] = "1"
    api.held = "HELD"
    api.texts = [model_answer(f"Blue, says [nasa.gov]({REDIRECT}nasa).", verified=True)]
    seen: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with in_process_client(cli) as client, anyio.create_task_group() as tasks:
        await client.list_tools()
        tasks.start_soon(client.call_tool, "search", {"query": "HELD"})
        await eventually(lambda: api.waiting and "ACP process ready" in caplog.text)
        told = await client.call_tool(
            "deep_search", {"query": QUESTION, "max_iterations": 2}, progress_callback=note
        )
        api.let_go.set()

        result: Any = told.structured_content
        assert (result["verified"], result["metadata"]["iterations"]) == (True, 2)
    assert not any(SINGLE in message for message in seen)
    assert any("round 2/2: searching “why is the sky blue”" in message for message in seen)


async def test_web_search_stays_warm_for_the_gateway(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cli.environ |= {"GEMINI_MCP_GROUNDED_MODEL": "gemini-2.5-flash"}
    settings = cli.settings
    workspace = Workspace(settings.config_dir)
    providers = ProviderRegistry(settings, workspace, cli.environ)
    providers.limiter = SharedSlotsFirst(settings.concurrency, settings.queue)
    engines = WebSearch(settings, providers, cli.environ, warm=True)
    messages: list[str] = []
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engines.run_pool)
            await engines.search("blue sky", progress=lambda _: None)  # the first one asks for it
            await eventually(lambda: "ACP process ready" in caplog.text)
            found = await engines.search("blue sky", progress=messages.append)
            assert found["hits"][0]["url"] == f"{REDIRECT}nasa"
            assert len(acp_pids(cli)) == 1
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()
    await eventually(lambda: not acp_pids(cli))
    assert messages and SINGLE not in messages
