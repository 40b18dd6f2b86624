"""Processes that are started ahead, on the real CLI or a fake one, and a fake API on loopback."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import CliNotFound, ConfigError, ExecutionFailed
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.process import run
from gemini_cli_mcp.process.run import StartedCommand
from gemini_cli_mcp.providers.gemini.home import Profile
from gemini_cli_mcp.providers.gemini.launcher import Launcher, ProcessKind
from gemini_cli_mcp.providers.gemini.process_pools import ProcessSource
from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider
from gemini_cli_mcp.providers.gemini.ready_plan import ReadyPlan
from gemini_cli_mcp.providers.gemini.ready_process import ReadyProcess, expiry_time
from gemini_cli_mcp.providers.gemini.session_record import delete_unused_records
from gemini_cli_mcp.providers.gemini.sign_ins import SignIns
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research import requests
from gemini_cli_mcp.research.deep_search import DeepSearchEvent, RoundFinished, deep_search
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.requests import DeepSearchRequest, SearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import GroundedResult, SearchResult
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.research.web_search import EngineProviders, web_search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace
from tests.support import (
    QUESTION,
    REDIRECT,
    Clock,
    Stub,
    eventually,
    fake_gemini,
    is_alive,
    use_real_cli,
)
from tests.support.cli_processes import acp_pids, dedicated_pids
from tests.support.fake_api import SEARCH, FakeApi
from tests.support.matrix import needs_real_cli
from tests.support.mcp_server import SEARCH_FRAMES, in_process_client, start_server

QUICK = Limits(
    ready_first_start_delay=0,
    ready_start_time=0.05,
    ready_check_interval=0.05,
    run_start_time=0.05,
    restart_delays=(0.05,),
)
LIST_TOOLS = '{"jsonrpc": "2.0", "id": 3, "method": "tools/list"}'


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.long, needs_real_cli])])
def cli(request: pytest.FixtureRequest, stub: Stub, api: FakeApi) -> Stub:
    """The program with a fake CLI, to test our own behaviour; with the real one in test-long."""
    use_real_cli(stub, api)
    stub.environ["GEMINI_MCP_GROUNDED_MODEL"] = "gemini-2.5-flash"
    stub.limits = QUICK
    api.calls = [SEARCH]
    if request.param == "fake":
        stub.environ["GEMINI_MCP_CLI_PATH"] = str(fake_gemini.install(stub.home))
    return stub


@pytest.fixture
def real_cli(stub: Stub, api: FakeApi) -> Stub:
    """The program with the real CLI and one process started ahead."""
    api.calls = [SEARCH]
    return use_real_cli(stub, api)


class Program:
    """A program that starts processes ahead, as `serve` does."""

    def __init__(self, stub: Stub, providers: ProviderRegistry, researcher: Researcher) -> None:
        self._stub = stub
        self._researcher = researcher
        [self.provider] = providers.configured
        assert isinstance(self.provider, GeminiCliProvider) and providers.pools
        self._pools = providers.pools
        self.source = ProcessSource(providers.pools, self.provider.search_kind)
        self.limiter = providers.limiter

    async def search(self, query: str = QUESTION) -> SearchResult:
        context = CallContext(progress=self._stub.messages.append)
        return await search(SearchRequest(query), context, self._researcher)

    def deep_search(self, rounds: int) -> AsyncGenerator[DeepSearchEvent]:
        return deep_search(DeepSearchRequest(QUESTION, rounds), CallContext(), self._researcher)

    async def grounded_search(self) -> GroundedResult:
        request = requests.parse_grounded_search({"query": QUESTION}, self._researcher.settings)
        return await grounded_search(request, CallContext(), self._researcher)

    @property
    def has_waiting_process(self) -> bool:
        return self._pools.ready.has_process

    def pids(self) -> list[int]:
        """Return the pids of all processes for one run, whether they run or wait."""
        return dedicated_pids(self._stub)

    async def wait_ready(self, count: int = 1) -> list[int]:
        """Wait until there are this many processes, one of which waits; return their pids."""
        await eventually(
            lambda: len(self.pids()) == count and self.has_waiting_process == bool(count)
        )
        return self.pids()


@asynccontextmanager
async def program(stub: Stub) -> AsyncGenerator[Program]:
    settings = stub.settings
    workspace = Workspace(settings.config_dir)
    providers = ProviderRegistry(settings, workspace, stub.environ, keeps_processes=True)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(providers.run_search_pools)
            yield Program(stub, providers, Researcher(settings, providers.configured, workspace))
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()
    assert dedicated_pids(stub) == [] and stub.leftover_files() == []


# Runs


@needs_real_cli
async def test_a_run_in_a_process_started_ahead_matches_a_cold_one(
    real_cli: Stub, api: FakeApi
) -> None:
    async with program(real_cli) as running:
        await running.wait_ready()
        await anyio.sleep(1.5)  # until the CLI would have exited without the first input
        assert len(running.pids()) == 1 and api.requests == []
        ready = await running.search()
        api.requests.clear()
        real_cli.environ["GEMINI_MCP_READY"] = "0"
    async with program(real_cli) as running:
        cold = await running.search()

    assert (ready.metadata.process, cold.metadata.process) == ("ready", "cold")
    assert ready.report == cold.report == f"Blue, says [nasa.gov]({REDIRECT}nasa)."
    for field in ("evidence", "grounded", "sources", "queries", "usage", "model"):
        assert getattr(ready.metadata, field) == getattr(cold.metadata, field), field
    assert ready.metadata.evidence == "ledger" and ready.metadata.sources
    assert ready.citations == cold.citations
    assert sum(request.size for request in api.requests) <= 9_500


@needs_real_cli
async def test_searches_of_one_turn_run_at_the_same_time(real_cli: Stub, api: FakeApi) -> None:
    api.calls = [(SEARCH[0], {"query": f"query {number}"}) for number in range(4)]
    api.calls_per_turn = 4
    async with program(real_cli) as running:
        await running.wait_ready()
        api.hold_kind = "search"
        call = asyncio.ensure_future(running.search())
        await eventually(lambda: api.waiting == 4)
        api.release.set()
        result = await call

    assert result.metadata.process == "ready"
    assert len(result.metadata.queries) == 4


async def test_single_searches_use_a_process_started_ahead(
    cli: Stub, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    processes: dict[str, list[Any]] = {}
    async with in_process_client(cli) as client:
        await client.list_tools()
        for tool in ("search", "grounded_search", "web_search"):
            processes[tool] = []
            for _ in range(2):
                await eventually(lambda: "A process was started ahead" in caplog.messages)
                caplog.clear()
                reply = await client.call_tool(tool, {"query": QUESTION})
                content: Any = reply.structured_content
                processes[tool].append(content["metadata"]["process"])

    assert processes["search"] == ["ready", "ready"]
    assert processes["grounded_search"][1:] == processes["web_search"][1:] == ["ready"]


async def test_the_rounds_of_a_deep_search_use_processes_started_ahead(
    cli: Stub, api: FakeApi
) -> None:
    async with program(cli) as running:
        await running.wait_ready()
        async for event in running.deep_search(rounds=3):
            if isinstance(event, RoundFinished):
                await running.wait_ready()
        assert running.limiter.finished_runs == {"ready": 3}


async def test_the_gateways_searches_use_a_process_started_ahead(cli: Stub, api: FakeApi) -> None:
    settings = cli.settings
    workspace = Workspace(settings.config_dir)
    providers = ProviderRegistry(settings, workspace, cli.environ, keeps_processes=True)
    engines = EngineProviders(settings, providers, cli.environ)
    request = requests.parse_web_search({"query": "blue sky"}, settings.engines)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engines.run_pools)
            await eventually(lambda: providers.has_ready_process)
            result = await web_search(request, CallContext(), engines)
            assert (result.process, result.hits[0].url) == ("ready", f"{REDIRECT}nasa")
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()


async def test_a_used_process_is_replaced_at_once(cli: Stub, api: FakeApi) -> None:
    api.hold_text = "HELD"
    async with program(cli) as running:
        [first] = await running.wait_ready()
        held_call = asyncio.ensure_future(running.search("HELD"))
        await eventually(lambda: api.waiting)
        pids = await running.wait_ready(2)  # the run and the next process
        assert first in pids
        assert (await running.search()).metadata.process == "ready"
        api.release.set()
        assert (await held_call).metadata.process == "ready"


async def test_a_second_call_at_the_same_time_starts_cold(cli: Stub, api: FakeApi) -> None:
    api.hold_text = QUESTION
    async with program(cli) as running:
        await running.wait_ready()
        calls = [asyncio.ensure_future(running.search()) for _ in range(3)]
        await eventually(lambda: api.waiting == 3)
        api.release.set()
        processes = [(await call).metadata.process for call in calls]
        assert acp_pids(cli) == []

    assert sorted(map(str, processes)) == ["cold", "cold", "ready"]


async def test_no_process_is_started_ahead_while_calls_wait(cli: Stub, api: FakeApi) -> None:
    cli.environ |= {"GEMINI_MCP_CONCURRENCY": "1", "GEMINI_MCP_WARM": "0", "GEMINI_MCP_READY": "1"}
    api.hold_text = QUESTION
    async with program(cli) as running:
        await running.wait_ready()
        calls = [asyncio.ensure_future(running.search()) for _ in range(3)]
        await eventually(lambda: api.waiting == 2)
        await anyio.sleep(0.3)  # long enough for a third process to start
        assert running.limiter.waiting == 1
        assert len(dedicated_pids(cli)) == 2
        api.release.set()
        await asyncio.gather(*calls)
        await running.wait_ready()


async def test_a_cancelled_run_leaves_nothing_behind(cli: Stub, api: FakeApi) -> None:
    api.hold_text = QUESTION
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        call = asyncio.ensure_future(running.search())
        await eventually(lambda: api.waiting == 1)
        call.cancel()
        await asyncio.wait({call})
        assert not is_alive(pid)
        assert not [path for path in cli.leftover_files() if path.name.startswith("session-")]
        api.release.set()
        await running.wait_ready()


async def test_a_process_that_nobody_uses_after_all_goes_back(cli: Stub) -> None:
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        slot = running.source.take_ready()
        assert slot
        slot.release()
        slot = running.source.take_ready()
        assert slot
        assert [pid] == running.pids()
        slot.release()


# Processes that are lost


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_process_that_dies_while_it_waits_is_replaced(
    cli: Stub, api: FakeApi, signal_number: signal.Signals
) -> None:
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        os.kill(pid, signal_number)
        result = await running.search()
        assert result.metadata.process == "cold"
        await eventually(lambda: running.has_waiting_process and pid not in running.pids())
        assert (await running.search()).metadata.process == "ready"


async def test_a_process_that_dies_at_the_prompt_costs_a_cold_start(
    cli: Stub, api: FakeApi, mocker: MockerFixture
) -> None:
    sent_prompt = mocker.spy(StartedCommand, "run")
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.ensure_future(running.search())
        await eventually(lambda: sent_prompt.called)
        os.kill(pid, signal.SIGKILL)
        result = await call

    assert result.metadata.process == "cold"
    assert [request.kind for request in api.requests] == ["main", "search", "main"]
    assert cli.messages.count("asking the model") == 1


async def test_a_process_that_hangs_at_the_prompt_costs_a_cold_start(
    cli: Stub, api: FakeApi, clock: Clock, mocker: MockerFixture
) -> None:
    sent_prompt = mocker.spy(StartedCommand, "run")
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.ensure_future(running.search())
        await eventually(lambda: sent_prompt.called)
        clock.skip(cli.limits.ready_prompt_timeout)
        result = await call
        assert not is_alive(pid)

    assert result.metadata.process == "cold"


async def test_a_run_that_dies_after_it_used_the_api_is_not_repeated_unseen(
    cli: Stub, api: FakeApi
) -> None:
    cli.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    api.hold_text = QUESTION
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        call = asyncio.ensure_future(running.search())
        await eventually(lambda: api.waiting == 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ExecutionFailed):
            await call
        api.release.set()

    assert api.waiting == 1


async def test_an_api_error_is_not_taken_for_a_lost_process(cli: Stub, api: FakeApi) -> None:
    api.failure = (403, {"error": {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}})
    async with program(cli) as running:
        await running.wait_ready()
        with pytest.raises(Exception, match="no") as caught:
            await running.search()

    assert getattr(caught.value, "code", None) == "AUTH_ERROR"
    assert len(api.requests) == 1
    assert "starting gemini" not in cli.messages


@pytest.mark.parametrize(
    ("owner", "step", "error"),
    [
        (Launcher, "prepare_run", ConfigError("No space left on device.")),
        (run, "spawn_child", OSError(errno.EAGAIN, "Resource temporarily unavailable")),
    ],
    ids=["the disk is full", "too many processes"],
)
async def test_a_process_that_cannot_be_started_is_tried_again(
    cli: Stub,
    api: FakeApi,
    mocker: MockerFixture,
    owner: object,
    step: str,
    error: Exception,
) -> None:
    real_step = getattr(owner, step)
    results = iter([error, error])

    def fail_twice(*arguments: Any) -> Any:
        if failure := next(results, None):
            raise failure
        return real_step(*arguments)

    mocker.patch.object(owner, step, fail_twice)
    async with program(cli) as running:
        await running.wait_ready()
        assert (await running.search()).metadata.process == "ready"
    assert next(results, None) is None


async def test_an_unexpected_error_leaves_the_program_running(
    cli: Stub, api: FakeApi, mocker: MockerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    mocker.patch.object(ReadyProcess, "start", side_effect=RuntimeError("secret"))
    async with program(cli) as running:
        await eventually(lambda: "RuntimeError" in caplog.text)
        assert (await running.search()).metadata.process == "cold"
    assert "secret" not in caplog.text


async def test_a_kind_that_cannot_be_started_does_not_stop_the_others(
    cli: Stub, api: FakeApi, mocker: MockerFixture
) -> None:
    cli.environ["GEMINI_MCP_READY"] = "2"
    cli.limits = replace(QUICK, restart_delays=(60,))
    start = ReadyProcess.start

    async def start_search(kind: ProcessKind, *arguments: Any) -> ReadyProcess:
        if kind != running.source.kind:
            raise OSError
        return await start(kind, *arguments)

    mocker.patch.object(ReadyProcess, "start", start_search)
    async with program(cli) as running:
        assert (await running.grounded_search()).process == "cold"
        for _ in range(2):
            await running.wait_ready()
            assert (await running.search()).metadata.process == "ready"


# Outdated processes


def replace_binary(stub: Stub) -> None:
    """Install another version in place of the binary, as npm does."""
    path = Path(stub.environ["GEMINI_MCP_CLI_PATH"])
    if path.is_symlink():  # the real one belongs to all tests
        target = path.resolve()
        path = stub.home / "gemini.js"
        path.symlink_to(target)
        stub.environ["GEMINI_MCP_CLI_PATH"] = str(path)
        return
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o755)


async def test_a_process_from_before_a_new_binary_is_not_used(stub: Stub, api: FakeApi) -> None:
    use_real_cli(stub, api).limits = QUICK
    api.calls = [SEARCH]
    program_path = fake_gemini.install(stub.home)
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(program_path)
    async with program(stub) as running:
        [pid] = await running.wait_ready()
        replace_binary(stub)
        assert (await running.search()).metadata.process == "cold"
        await eventually(lambda: not is_alive(pid) and running.has_waiting_process)
        assert (await running.search()).metadata.process == "ready"
        program_path.unlink()
        with pytest.raises(CliNotFound):
            await running.search()


async def test_a_process_from_before_a_new_key_is_not_used(cli: Stub, api: FakeApi) -> None:
    del cli.environ["GEMINI_API_KEY"]
    env_file = cli.home / ".gemini" / ".env"
    env_file.parent.mkdir(exist_ok=True)
    env_file.write_text("GEMINI_API_KEY=old-key\n")
    stat = env_file.stat()
    async with program(cli) as running:
        await running.wait_ready()
        env_file.write_text("GEMINI_API_KEY=new-key\n")
        os.utime(env_file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        result = await running.search()

    assert result.metadata.process == "cold"
    assert {request.key for request in api.requests} == {"new-key"}


@pytest.mark.parametrize("hours", [1, -1], ids=["an hour of sleep", "the clock was set back"])
async def test_a_process_from_another_time_is_not_used(
    cli: Stub, api: FakeApi, mocker: MockerFixture, hours: int
) -> None:
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        # The monotonic clock stands still meanwhile.
        mocker.patch("time.time", return_value=time.time() + hours * 3600)
        assert (await running.search()).metadata.process == "cold"
        await eventually(lambda: not is_alive(pid))


async def test_a_process_is_replaced_before_it_is_too_old(cli: Stub) -> None:
    cli.limits = replace(QUICK, ready_max_age=1.5)
    async with program(cli) as running:
        [pid] = await running.wait_ready()
        await eventually(lambda: not is_alive(pid) and running.pids())


UNUSED_RECORD = '{"sessionId": "1"}\n{"$set": {"messages": []}}\n'


def write_record(home: Path, name: str, text: str, age: int) -> Path:
    """Write a session record of this age in seconds."""
    path = home / f".gemini/tmp/work/chats/session-2026-11-19T00-00-{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    written_at = time.time() - age
    os.utime(path, (written_at, written_at))
    return path


async def test_records_of_processes_that_got_no_prompt_are_deleted(cli: Stub) -> None:
    cli.limits = replace(QUICK, ready_max_age=1.5)
    async with program(cli) as running:
        await running.wait_ready()
        [home] = cli.config_dir.glob("servers/*/*/home")
        record = write_record(home, "a", UNUSED_RECORD, 3600)
        await eventually(lambda: not record.exists())


@needs_real_cli
@pytest.mark.long
async def test_a_cli_that_starts_leaves_the_records_of_others_alone(real_cli: Stub) -> None:
    real_cli.environ["GEMINI_MCP_READY"] = "2"
    async with program(real_cli) as running:
        await running.wait_ready(2)
        records = "servers/*/*/home/.gemini/tmp/*/chats/session-*.jsonl"
        await eventually(lambda: len(list(real_cli.config_dir.glob(records))) == 2)


def test_records_that_may_be_in_use_are_kept(tmp_path: Path) -> None:
    unused = write_record(tmp_path, "a", UNUSED_RECORD, 100)
    waiting = write_record(tmp_path, "b", UNUSED_RECORD, 20)
    running = write_record(tmp_path, "c", UNUSED_RECORD + '{"type": "user"}\n', 100)

    delete_unused_records(tmp_path, min_age=60)

    assert (unused.exists(), waiting.exists(), running.exists()) == (False, True, True)


async def test_a_call_that_is_cancelled_with_the_program_leaves_no_process(
    cli: Stub, mocker: MockerFixture
) -> None:
    is_outdated = ReadyProcess.is_outdated

    async def check_slowly(process: ReadyProcess) -> bool:
        await anyio.sleep(0.2)
        return await is_outdated(process)

    async with program(cli) as running:
        await running.wait_ready()
        mocker.patch.object(ReadyProcess, "is_outdated", check_slowly)
        call = asyncio.ensure_future(running.search())
        await eventually(lambda: not running.has_waiting_process)
        asyncio.get_running_loop().call_later(0.1, call.cancel)
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize(
    ("started", "expires"),
    [
        ("2026-03-01T12:00:00", "2026-03-01T12:05:00"),
        ("2026-03-01T23:59:00", "2026-03-02T00:00:00"),
    ],
    ids=["five minutes", "midnight"],
)
def test_a_process_is_used_for_five_minutes_of_one_day(started: str, expires: str) -> None:
    start, end = (datetime.fromisoformat(text).timestamp() for text in (started, expires))

    assert expiry_time(start, Limits().ready_max_age) == end


# How many, and when


async def test_an_unused_program_gives_its_process_back_until_it_is_asked(
    cli: Stub, api: FakeApi
) -> None:
    cli.limits = replace(QUICK, ready_first_use_timeout=2)
    async with program(cli) as running:
        await running.wait_ready()
        await running.wait_ready(0)
        await anyio.sleep(0.3)
        assert running.pids() == []
        assert (await running.search()).metadata.process == "cold"
        await running.wait_ready()


async def test_an_idle_program_gives_its_process_back(cli: Stub, api: FakeApi) -> None:
    cli.environ["GEMINI_MCP_WARM_IDLE"] = "2"
    async with program(cli) as running:
        await running.wait_ready()
        assert (await running.search()).metadata.process == "ready"
        await running.wait_ready()
        api.hold_text = QUESTION
        call = asyncio.ensure_future(running.search())
        await running.wait_ready(2)  # the run and the next process
        await anyio.sleep(2.2)  # longer than an idle program keeps it
        assert len(running.pids()) == 2
        api.release.set()
        assert (await call).metadata.process == "ready"
        await running.wait_ready(0)
        assert (await running.search()).metadata.process == "cold"


async def test_several_processes_are_started_one_after_another(cli: Stub) -> None:
    cli.environ["GEMINI_MCP_READY"] = "20"
    cli.limits = replace(QUICK, ready_start_time=0.02)
    async with program(cli) as running:
        await running.wait_ready(20)
        await anyio.sleep(0.1)
        assert len(running.pids()) == 20


async def test_zero_starts_nothing_ahead(cli: Stub, api: FakeApi) -> None:
    cli.environ["GEMINI_MCP_READY"] = "0"
    async with program(cli) as running:
        assert (await running.search()).metadata.process == "cold"
        await anyio.sleep(0.3)  # long enough for a process to start
        assert running.pids() == []


async def test_a_cli_that_is_not_official_is_not_started_ahead(stub: Stub) -> None:
    stub.limits = QUICK
    stub.environ["GEMINI_API_KEY"] = "test-key"
    async with program(stub) as running:
        result = await running.search()
        await anyio.sleep(0.3)  # long enough for a process to start
        assert dedicated_pids(stub) == []

    assert result.metadata.process == "cold"
    assert len(stub.runs) == 1


async def test_without_a_sign_in_nothing_is_started_ahead(cli: Stub) -> None:
    del cli.environ["GEMINI_API_KEY"]
    async with program(cli) as running:
        await anyio.sleep(0.3)  # long enough for a process to start
        assert running.pids() == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"GEMINI_MCP_READY": "0"}, 0),
        ({"GEMINI_MCP_WARM": "0"}, 0),
        ({"GEMINI_MCP_WARM": "0", "GEMINI_MCP_READY": "3"}, 3),
    ],
    ids=["default", "off", "nothing kept", "only started ahead"],
)
def test_the_number_of_processes_follows_the_variables(
    variables: dict[str, str], expected: int
) -> None:
    assert Settings.from_env(variables).ready_count == expected


async def test_no_process_starts_before_the_handshake_is_complete(cli: Stub) -> None:
    initialize, initialized, _ = SEARCH_FRAMES
    with start_server(cli, initialize) as server:
        assert server.stdin and server.stdout
        assert "serverInfo" in server.stdout.readline()
        await anyio.sleep(1.5)  # long enough for imports and for a process to start
        assert dedicated_pids(cli) == []
        server.stdin.write(initialized + "\n" + LIST_TOOLS + "\n")
        server.stdin.flush()
        await eventually(lambda: len(dedicated_pids(cli)) == 1)
        server.stdin.close()
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not dedicated_pids(cli))
    assert acp_pids(cli) == [] and cli.leftover_files() == []


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_one_server_ends_only_its_processes(
    cli: Stub, api: FakeApi, signal_number: signal.Signals
) -> None:
    initialize, initialized, _ = SEARCH_FRAMES
    frames = (initialize, initialized, LIST_TOOLS)
    with start_server(cli, *frames) as first, start_server(cli, *frames) as second:
        await eventually(lambda: len(dedicated_pids(cli)) == 2)
        first.send_signal(signal_number)
        await eventually(lambda: first.poll() is not None)
        await eventually(lambda: len(dedicated_pids(cli)) == 1)
        await eventually(lambda: len(list((cli.config_dir / "servers").iterdir())) == 1)
        second.terminate()
        await eventually(lambda: second.poll() is not None)

    await eventually(lambda: not dedicated_pids(cli) and not cli.leftover_files())
    assert api.requests == []  # the end of its input is not a prompt


# Which kinds


@pytest.fixture
def kinds(stub: Stub) -> dict[str, ProcessKind]:
    workspace = Workspace(stub.config_dir)
    launcher = Launcher(stub.settings, workspace, stub.environ, SignIns(stub.environ))
    return {name: ProcessKind(launcher, Profile(name, (), None)) for name in "ABC"}


@pytest.mark.parametrize(
    ("count", "runs", "expected"),
    [
        (1, "A", "A"),
        (1, "B", "B"),
        (1, "AAAB", "B"),
        (1, "ABA", "B"),
        (1, "ABAB", "B"),
        (1, "ABABA", "B"),
        (1, "ABAA", "A"),
        (1, "ABCABC", "C"),
        (2, "", "AA"),
        (2, "B", "AB"),
        (2, "ABABAB", "AB"),
        (2, "BB", "AB"),
        (2, "ABC", "BC"),
        (3, "AAAB", "AAB"),
        (0, "AB", ""),
    ],
)
def test_what_was_used_last_is_kept_ready_unless_kinds_alternate(
    kinds: dict[str, ProcessKind], count: int, runs: str, expected: str
) -> None:
    plan = ReadyPlan(count)
    plan.fill(kinds["A"])
    for name in runs:
        plan.record_run(kinds[name])

    assert "".join(sorted(kind.profile.name for kind in plan.kinds)) == expected


async def test_alternating_tools_do_not_start_more_processes_than_runs(
    cli: Stub, api: FakeApi
) -> None:
    seen: set[int] = set()
    processes: list[str | None] = []
    async with program(cli) as running:
        for _ in range(4):
            for call in (running.search, running.grounded_search):
                seen.update(await running.wait_ready())
                result = await call()
                processes.append(
                    result.process
                    if isinstance(result, GroundedResult)
                    else result.metadata.process
                )

    assert processes == ["ready", "cold", *["cold", "ready"] * 3]
    assert len(seen) <= 6  # two of the kinds at the start, then one for each ready run
