"""The provider of the gemini CLI: its files, its threads, and the states of its processes."""

import asyncio
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import CliNotFound, GeminiMcpError
from gemini_cli_mcp.providers.base import Provider
from gemini_cli_mcp.providers.gemini.acp_lifecycle import Lifecycle, ProcessState
from gemini_cli_mcp.providers.gemini.dedicated_run import finish_in_thread
from gemini_cli_mcp.providers.gemini.launcher import Launcher, RunLaunch
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.workspace import Workspace
from tests.support import (
    Stub,
    eventually,
    model_answer,
    search_with_sources,
)

FILE_MODULES = {
    "binary.py",
    "child_environment.py",
    "failures.py",
    "launcher.py",
    "run_result.py",
    "session_record.py",
    "telemetry_events.py",
    "telemetry_evidence.py",
    "telemetry_reader.py",
    "workspace.py",
}
"""Modules that access files, or that interpret what was read."""


@contextmanager
def provider_of(stub: Stub) -> Generator[Provider]:
    workspace = Workspace(stub.settings.config_dir)
    try:
        [provider] = ProviderRegistry(stub.settings, workspace, stub.environ).configured
        yield provider
    finally:
        workspace.close()


def files_of_runs(stub: Stub) -> list[Path]:
    """Return the session records and temporary folders in the homes of the CLI."""
    homes = stub.config_dir.glob("servers/*/*/home")
    return [
        path
        for home in homes
        for pattern in ("tmp*", ".gemini/tmp/*/chats/*")
        for path in home.glob(pattern)
    ]


@contextmanager
def modules_entered(names: set[str]) -> Generator[None]:
    """Collect the file names of the project's modules that this thread enters."""

    def record(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and "gemini_cli_mcp" in path.parts:
            names.add(path.name)

    sys.setprofile(record)
    try:
        yield
    finally:
        sys.setprofile(None)


async def test_a_dedicated_run_accesses_files_only_in_worker_threads(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "searches": [search_with_sources("sky", "nasa")]})
    names: set[str] = set()

    with provider_of(stub) as provider:
        with modules_entered(names):
            reply = await provider.ask("Why is the sky blue?", CallContext())
        assert files_of_runs(stub) == []

    assert reply.searches[0].sources
    assert "provider.py" in names
    assert not names & FILE_MODULES


async def test_a_cancelled_run_deletes_its_files_before_it_ends(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "hang": "trickle"})

    with provider_of(stub) as provider:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider.ask, "Why is the sky blue?", CallContext())
            await eventually(
                lambda: any(path.name.startswith("session-") for path in files_of_runs(stub))
            )
            tasks.cancel_scope.cancel()
        assert files_of_runs(stub) == []


async def test_a_failed_run_deletes_its_files(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "status": "error", "exit_code": 1})

    with provider_of(stub) as provider:
        with pytest.raises(GeminiMcpError):
            await provider.ask("Why is the sky blue?", CallContext())
        assert stub.runs
        assert files_of_runs(stub) == []


async def test_a_run_that_is_cancelled_while_it_is_prepared_leaves_no_files(
    stub: Stub, mocker: MockerFixture
) -> None:
    started, may_go_on, finished = threading.Event(), threading.Event(), threading.Event()
    original_prepare = Launcher.prepare_run

    def prepare_slowly(*arguments: Any) -> RunLaunch:
        started.set()
        may_go_on.wait(30)
        try:
            return original_prepare(*arguments)
        finally:
            finished.set()

    mocker.patch.object(Launcher, "prepare_run", prepare_slowly)
    with provider_of(stub) as provider:
        call = asyncio.ensure_future(provider.ask("Why is the sky blue?", CallContext()))
        await eventually(started.is_set)
        call.cancel()  # as Ctrl-C does: it goes through shields
        asyncio.get_running_loop().call_later(0.2, may_go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert files_of_runs(stub) == []
    may_go_on.set()
    await eventually(finished.is_set)
    assert stub.runs == [] and stub.leftover_files() == []


async def test_a_missing_cli_is_reported_before_anything_is_started(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = "/nowhere/gemini"
    messages: list[str] = []

    with provider_of(stub) as provider, pytest.raises(CliNotFound):
        await provider.ask("Why is the sky blue?", CallContext(progress=messages.append))

    assert messages == []


async def test_file_work_is_finished_before_a_cancellation_takes_effect() -> None:
    started, may_finish = threading.Event(), threading.Event()
    finished: list[bool] = []

    def work() -> None:
        started.set()
        may_finish.wait()
        finished.append(True)

    task = asyncio.ensure_future(finish_in_thread(work))
    await eventually(started.is_set)
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    may_finish.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished


# States of an ACP process


async def test_a_process_does_not_return_to_an_earlier_state() -> None:
    lifecycle = Lifecycle(max_drain_time=60)
    lifecycle.advance(ProcessState.READY)
    lifecycle.retire("replaced")
    lifecycle.advance(ProcessState.WORN)

    assert lifecycle.is_retired
    with anyio.fail_after(1):
        await lifecycle.wait_for(ProcessState.READY)
        await lifecycle.wait_for(ProcessState.DRAINING)


async def test_a_process_keeps_the_first_reason_for_its_retirement() -> None:
    lifecycle = Lifecycle(max_drain_time=60)
    lifecycle.retire("idle")
    lifecycle.retire("exited", 0, has_failed=True)

    assert not lifecycle.has_failed


async def test_a_shorter_drain_time_applies_to_those_who_already_wait() -> None:
    lifecycle = Lifecycle(max_drain_time=1000)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lifecycle.wait_drained, lambda: False)
            lifecycle.retire("replaced")
            await anyio.wait_all_tasks_blocked()
            lifecycle.retire("exited", 0)


async def test_a_retired_process_is_drained_when_its_last_run_ends() -> None:
    lifecycle = Lifecycle(max_drain_time=1000)
    runs = ["a"]

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lifecycle.wait_drained, lambda: not runs)
            lifecycle.retire("replaced")
            await anyio.wait_all_tasks_blocked()
            runs.clear()
            lifecycle.notify()
