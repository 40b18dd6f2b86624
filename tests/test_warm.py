"""Warm processes: the real CLI, pinned, as `gemini --acp` on a loopback fake of the Gemini API."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.models import Progress
from gemini_cli_mcp.providers import gemini_acp, gemini_home, gemini_stream, warm
from gemini_cli_mcp.providers.choice import Providers
from gemini_cli_mcp.providers.quota import Quotas
from gemini_cli_mcp.research.answer import Desk
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.workspace import Workspace
from tests.fake_api import Body, FakeApi
from tests.marks import needs_real_cli
from tests.support import QUESTION, REDIRECT, Result, Stub, eventually, report
from tests.test_real_cli import SEARCH
from tests.test_server import SEARCH as SEARCH_CALL
from tests.test_server import connected, start

pytestmark = [
    pytest.mark.real_cli,
    needs_real_cli,
]

SINGLE = "starting gemini"
"""The first word of a run in a process of its own."""


@pytest.fixture
def real(real: Stub, api: FakeApi) -> Stub:
    real.environ["GEMINI_MCP_WARM"] = "1"
    api.calls = [SEARCH]
    return real


class House:
    """A program with warm processes, as `serve` is one."""

    def __init__(self, stub: Stub, desk: Desk, config: Config) -> None:
        self.stub = stub
        self._desk = desk
        self._config = config

    async def search(self, query: str = QUESTION, progress: Progress | None = None) -> Result:
        told = progress or self.stub.messages.append
        return await search(self._desk, query, timeout=self._config.timeout, progress=told)

    def pids(self) -> list[int]:
        """The warm processes of this program."""
        return warm_processes(self.stub)

    async def warm(self, but: list[int] | None = None) -> None:
        """Wait until a search is warm, in another process than these."""
        with anyio.fail_after(40):
            while True:
                self.stub.messages.clear()
                await self.search()
                if SINGLE not in self.stub.messages and set(self.pids()) - set(but or []):
                    self.stub.messages.clear()
                    return
                await anyio.sleep(0.2)


def warm_processes(stub: Stub) -> list[int]:
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue  # it is gone already
        mine = f"{stub.config_dir}/servers/".encode() in environ
        if mine and b"--acp" in command and b"guard.py" not in command:
            pids.append(int(folder.name))
    return pids


@asynccontextmanager
async def house(stub: Stub) -> AsyncGenerator[House]:
    config = Config.from_env(stub.environ)
    workspace = Workspace(config.config_dir)
    providers = Providers(config, workspace, stub.environ, warm=True)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(providers.stay_warm)
            desk = Desk(providers.listed, workspace, max_cycles=config.max_cycles)
            yield House(stub, desk, config)
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()


async def test_a_warm_search_is_like_a_single_one(real: Stub, api: FakeApi) -> None:
    async with house(real) as program:
        await program.warm()
        api.requests.clear()
        result = await program.search()
        records = [path for path in real.files_left() if path.name.startswith("session-")]
        content = "".join(path.read_text() for path in records)

    metadata = result["metadata"]
    assert result["result"] == f"Blue, says [nasa.gov]({REDIRECT}nasa)."
    assert metadata["search_queries_used"] == ["why is the sky blue"]
    assert metadata["sources_visited"] == [REDIRECT + "nasa", REDIRECT + "noaa"]
    assert (metadata["evidence"], metadata["grounded"]) == ("ledger", True)
    assert metadata["model"] == "gemini-2.5-flash"
    assert metadata["usage"]["tool_calls"] == 1
    assert metadata["usage"]["input_tokens"] == 200
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
    assert real.files_left() == [] and not warm_processes(real)


async def test_a_query_is_never_a_command(real: Stub, api: FakeApi) -> None:
    queries = ["/help", "/memory show", "@settings.json", "$ls", "!ls", "-p x"]
    async with house(real) as program:
        await program.warm()
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


async def test_failures_have_the_names_that_single_runs_give_them(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(quotas: Quotas, name: str) -> None:
        """Each is to be met anew."""

    monkeypatch.setattr(Quotas, "check", forget)
    real.environ["GEMINI_MCP_TIMEOUT"] = "15"
    named: list[tuple[str, float | None]] = []
    async with house(real) as program:
        await program.warm()
        for status, error, _, _ in ERRORS:
            api.failure = (status, {"error": {"code": status, **error}})
            with pytest.raises(GeminiMcpError) as caught:
                await program.search()
            named.append((caught.value.code, caught.value.retry_after_s))
        reports = [path for path in real.files_left() if "client-error" in path.name]

    assert named == [(code, after) for _, _, code, after in ERRORS]
    assert SINGLE not in real.messages
    assert reports == []  # they hold the conversation


async def test_a_failed_search_and_an_empty_answer_are_seen(real: Stub, api: FakeApi) -> None:
    async with house(real) as program:
        await program.warm()
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


async def test_a_run_lost_in_turns_is_ended(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemini_home, "_MAX_TURNS", 2)
    async with house(real) as program:
        await program.warm()
        api.calls = [SEARCH, SEARCH, SEARCH]
        with pytest.raises(GeminiMcpError, match="limit of turns"):
            await program.search()

    assert SINGLE not in real.messages


async def test_a_cancelled_search_frees_its_seat_and_keeps_the_process(
    real: Stub, api: FakeApi
) -> None:
    real.environ |= {"GEMINI_MCP_WARM_SESSIONS": "1", "GEMINI_MCP_CONCURRENCY": "1"}
    async with house(real) as program:
        await program.warm()
        before = program.pids()
        api.hangs = True
        call = asyncio.ensure_future(program.search())
        await eventually(lambda: api.waiting == 1)
        call.cancel()
        await asyncio.wait({call})
        api.hangs = False
        await anyio.sleep(1)
        real.messages.clear()
        await program.search()

        assert SINGLE not in real.messages
        assert program.pids() == before


async def test_an_unanswered_cancel_costs_nobody_else_more_than_time(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemini_acp, "UNHEALTHY", 0.5)
    async with house(real) as program:
        await program.warm()
        before = program.pids()
        api.requests.clear()
        # The search sub-call waits for its next try, and hears nothing meanwhile.
        api.failing, api.failure = "search", (429, {"error": {"code": 429, "message": "Slow down"}})
        lost = asyncio.ensure_future(program.search("lost"))
        await eventually(lambda: len(api.requests) == 2)
        await anyio.sleep(0.3)
        api.hangs = True
        other = asyncio.ensure_future(program.search("other"))
        await eventually(lambda: api.waiting == 1)
        lost.cancel()
        await asyncio.wait({lost})
        api.hangs, api.failure = False, None

        assert (await other)["success"]
        await eventually(lambda: not set(program.pids()) & set(before), 10)


async def test_a_search_that_loops_without_end_is_stopped(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    del real.environ["GEMINI_MODEL"]  # the search helper has a model of its own then
    violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]
    async with house(real) as program:
        await program.warm()
        monkeypatch.setattr(gemini_stream, "IDLE_IN_SEARCH", 2)
        api.failing = "search"
        api.failure = (429, {"error": {"code": 429, "message": "Quota", "details": details}})
        with pytest.raises(GeminiMcpError, match="did not come back"):
            await program.search()
        await anyio.sleep(2.5)  # the time that a cancel has to be answered
        looped = len(api.requests)
        await anyio.sleep(1)
        assert looped > 20 and len(api.requests) == looped
        api.failure = None
        await program.warm()


async def test_searches_in_a_killed_process_are_made_again(real: Stub, api: FakeApi) -> None:
    async with house(real) as program:
        await program.warm()
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
        await program.warm(but=[pid])


async def test_a_worn_process_is_replaced_without_a_gap(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemini_acp, "MOST_SESSIONS", 6)
    seen: set[int] = set()
    async with house(real) as program:
        await program.warm()
        with anyio.fail_after(30):
            while len(seen) < 3:
                await program.search()
                seen.update(program.pids())
        await eventually(lambda: len(program.pids()) <= 2)

    assert SINGLE not in real.messages


async def test_a_process_that_grows_too_large_is_replaced(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(real) as program:
        await program.warm()
        before = program.pids()
        monkeypatch.setattr(gemini_acp, "MOST_MEMORY", 1)
        await program.search()
        monkeypatch.undo()
        await program.warm(but=before)
        await eventually(lambda: not set(program.pids()) & set(before))

    assert SINGLE not in real.messages


async def test_an_idle_process_is_given_back_and_comes_back(real: Stub, api: FakeApi) -> None:
    real.environ["GEMINI_MCP_WARM_IDLE"] = "4"
    async with house(real) as program:
        await eventually(lambda: len(program.pids()) == 1, 20)
        await eventually(lambda: not program.pids(), 20)
        real.messages.clear()
        await program.search()
        assert SINGLE in real.messages
        await program.warm()


async def test_a_changed_sign_in_gets_a_new_process(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_API_KEY"]
    env_file = real.home / ".gemini" / ".env"
    env_file.parent.mkdir()
    env_file.write_text("GEMINI_API_KEY=old-key\n")
    async with house(real) as program:
        await program.warm()
        before = program.pids()
        env_file.write_text("GEMINI_API_KEY=new-key\n")
        api.requests.clear()
        await program.search()
        assert {request.key for request in api.requests} == {"new-key"}
        await program.warm(but=before)
        api.requests.clear()
        await program.search()

    assert {request.key for request in api.requests} == {"new-key"}
    assert SINGLE not in real.messages


async def test_without_a_sign_in_there_is_no_warm_process(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_API_KEY"]
    async with house(real) as program:
        with pytest.raises(GeminiMcpError) as caught:
            await program.search()
        assert program.pids() == []

    assert caught.value.code == "AUTH_ERROR"


async def test_a_sign_in_that_sessions_refuse_is_not_tried_again(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warm, "WAITS", (0.05,))
    caplog.set_level("INFO")
    del real.environ["GEMINI_API_KEY"]
    env_file = real.home / ".gemini" / ".env"
    env_file.parent.mkdir()
    env_file.write_text("OTHER=1\n")
    async with house(real) as program:
        for _ in range(2):
            with pytest.raises(GeminiMcpError):
                await program.search()
        await eventually(lambda: not program.pids(), 20)

    assert caplog.text.count("sessions are refused") == 1


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


async def test_an_answer_that_breaks_off_is_none(real: Stub, api: FakeApi) -> None:
    ended: dict[str, str] = {}
    async with house(real) as program:
        await program.warm()
        api.preface = report("A guess, before any search.")
        for name, api.last in BROKEN.items():
            with pytest.raises(GeminiMcpError) as caught:
                await program.search()
            ended[name] = caught.value.code

    assert ended == dict.fromkeys(BROKEN, "EXECUTION_ERROR")
    assert SINGLE not in real.messages


async def test_searches_in_a_frozen_process_are_made_elsewhere(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemini_stream, "IDLE", 6)
    async with house(real) as program:
        await program.warm()
        [pid] = program.pids()
        os.kill(pid, signal.SIGSTOP)
        result = await program.search()

        assert result["success"]
        await eventually(lambda: pid not in program.pids(), 40)


async def test_several_processes_are_kept_and_come_back(real: Stub, api: FakeApi) -> None:
    real.environ |= {"GEMINI_MCP_WARM": "2", "GEMINI_MCP_WARM_IDLE": "6"}
    async with house(real) as program:
        await eventually(lambda: len(program.pids()) == 2, 20)
        await eventually(lambda: not program.pids(), 30)
        await program.search()
        await eventually(lambda: len(program.pids()) == 2, 20)


async def test_long_runs_do_not_let_processes_pile_up(
    real: Stub, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemini_acp, "MOST_SESSIONS", 3)
    most = 0
    async with house(real) as program:
        await program.warm()
        api.delay = 2
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(program.search, f"question {number}")
                await anyio.sleep(2)
                most = max(most, len(program.pids()))

    assert most <= 2


async def test_a_home_that_cannot_be_read_ends_no_server(real: Stub, api: FakeApi) -> None:
    del real.environ["GEMINI_API_KEY"]
    real.environ["HOME"] = "/" + "x" * 300  # no name can be that long
    async with connected(real) as client:
        await client.list_tools()
        await anyio.sleep(1)
        answer = await client.call_tool("search", {"query": QUESTION})

    assert answer.is_error


async def test_no_process_is_started_before_the_handshake_is_over(real: Stub) -> None:
    hello, ready, _ = SEARCH_CALL
    with start(real, hello) as server:
        assert server.stdin and server.stdout
        assert json.loads(server.stdout.readline())["id"] == 1
        await anyio.sleep(1)
        assert warm_processes(real) == []
        listing = '{"jsonrpc": "2.0", "id": 3, "method": "tools/list"}'
        server.stdin.write(ready + "\n" + listing + "\n")
        server.stdin.flush()
        await eventually(lambda: len(warm_processes(real)) == 1, 10)
        server.stdin.close()
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not warm_processes(real))
    assert real.files_left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_the_server_ends_its_warm_process(
    real: Stub, number: signal.Signals
) -> None:
    hello, ready, _ = SEARCH_CALL
    listing = '{"jsonrpc": "2.0", "id": 3, "method": "tools/list"}'
    with start(real, hello, ready, listing) as server:
        await eventually(lambda: len(warm_processes(real)) == 1, 10)
        await anyio.sleep(2)
        server.send_signal(number)
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not warm_processes(real) and not real.files_left())


async def test_a_deep_search_runs_warm(real: Stub, api: FakeApi) -> None:
    api.texts = [report(f"Blue, says [nasa.gov]({REDIRECT}nasa).", verified=True)]
    seen: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with connected(real) as client:
        await client.list_tools()
        await eventually(lambda: bool(warm_processes(real)), 10)
        await anyio.sleep(4)
        told = await client.call_tool(
            "deep_search", {"query": QUESTION, "max_iterations": 2}, progress_callback=note
        )

    result: Any = told.structured_content
    assert (result["verified"], result["metadata"]["iterations"]) == (True, 2)
    assert not any(SINGLE in message for message in seen)
    assert any("round 2/2: searching “why is the sky blue”" in message for message in seen)


async def test_web_search_stays_warm_for_the_gateway(real: Stub, api: FakeApi) -> None:
    real.environ |= {"GEMINI_MCP_GROUNDED_MODEL": "gemini-2.5-flash"}
    config = Config.from_env(real.environ)
    workspace = Workspace(config.config_dir)
    providers = Providers(config, workspace, real.environ)
    engines = WebSearch(config, providers, real.environ, warm=True)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engines.stay_warm)
            with anyio.fail_after(40):
                while True:
                    messages: list[str] = []
                    found = await engines.search("blue sky", progress=messages.append)
                    assert found["hits"][0]["url"] == f"{REDIRECT}nasa"
                    if SINGLE not in messages:
                        break
                    await anyio.sleep(0.2)
            assert len(warm_processes(real)) == 1
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()
    await eventually(lambda: not warm_processes(real))
