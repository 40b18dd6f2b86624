"""Running one command to completion, with real processes."""

import asyncio
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.process import child
from gemini_cli_mcp.process.child import TERMINATE_GRACE
from gemini_cli_mcp.process.guardian_handle import GUARDIAN_TIMEOUT
from gemini_cli_mcp.process.line_process import LineProcess
from gemini_cli_mcp.process.run import Completed, run
from tests.support import PROC, Clock, eventually, is_alive, wait_until


@pytest.fixture(params=["linux", "darwin"] if PROC.exists() else ["darwin"], autouse=True)
def platform(request: pytest.FixtureRequest, mocker: MockerFixture) -> None:
    """Run each test with the guardian of Linux, and with that of macOS."""
    mocker.patch.object(sys, "platform", request.param)


async def run_python(
    code: str,
    *,
    stdin: bytes = b"",
    idle_timeout: float = 30,
    timeout: float = 60,
    lines: list[bytes] | None = None,
    **limits: Any,
) -> Completed:
    return await run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=stdin,
        env=os.environ,
        cwd=Path("/"),
        on_line=(lines if lines is not None else []).append,
        idle_timeout=lambda: idle_timeout,
        timeout=timeout,
        **limits,
    )


async def test_output_is_passed_line_by_line_with_the_exit_code() -> None:
    lines: list[bytes] = []

    completed = await run_python(
        "import sys; print('a\\n\\nb'); sys.stdout.write('end'); sys.exit(3)", lines=lines
    )

    assert (completed.end_reason, completed.exit_code) == ("exited", 3)
    assert lines == [b"a", b"", b"b", b"end"]


async def test_a_line_longer_than_any_buffer_is_passed_whole() -> None:
    lines: list[bytes] = []

    await run_python("print('x' * 3_000_000)", lines=lines)

    assert [len(line) for line in lines] == [3_000_000]


async def test_a_child_that_writes_before_it_reads_does_not_block() -> None:
    lines: list[bytes] = []

    await run_python(
        "import sys; print('y' * 4_000_000); print(len(sys.stdin.read()))",
        stdin=b"x" * 4_000_000,
        lines=lines,
    )

    assert lines[1] == b"4000000"


async def test_a_child_that_does_not_read_stdin_is_not_a_failure() -> None:
    completed = await run_python("print('hi')", stdin=b"x" * 4_000_000)

    assert completed.exit_code == 0


async def test_only_the_tail_of_stderr_is_kept() -> None:
    completed = await run_python("import sys; sys.stderr.write('x' * 5_000_000 + 'the end')")

    assert completed.exit_code == 0
    assert completed.stderr.endswith("the end")
    assert len(completed.stderr) == child.STDERR_TAIL_BYTES


PRINT_READY = "print('ready', flush=True)"


async def test_an_idle_command_is_ended(clock: Clock) -> None:
    lines: list[bytes] = []
    call = asyncio.ensure_future(
        run_python(f"import time; {PRINT_READY}; time.sleep(60)", lines=lines)
    )
    await eventually(lambda: lines)

    clock.skip(30)
    completed = await call

    assert (completed.end_reason, completed.exit_code) == ("idle", -15)


async def test_constant_output_does_not_extend_the_deadline(clock: Clock) -> None:
    lines: list[bytes] = []
    code = "import time\nwhile True: print('.', flush=True); time.sleep(0.05)"
    call = asyncio.ensure_future(run_python(code, lines=lines, idle_timeout=100, timeout=150))
    await eventually(lambda: lines)

    for seconds in (80, 60):  # output in between resets the idle timeout
        clock.skip(seconds)
        line_count = len(lines)
        await eventually(lambda line_count=line_count: len(lines) > line_count)
    assert not call.done()
    clock.skip(20)

    assert (await call).end_reason == "timeout"


async def test_output_beyond_the_limit_is_cut_off() -> None:
    lines: list[bytes] = []

    completed = await run_python(
        "while True: print('x' * 1000)", lines=lines, max_stdout_bytes=1 << 20
    )

    assert completed.end_reason == "output_limit"
    assert sum(map(len, lines)) <= 1 << 20


async def test_a_child_that_ignores_sigterm_is_killed(clock: Clock) -> None:
    lines: list[bytes] = []
    code = f"""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        {PRINT_READY}
        time.sleep(60)
    """
    call = asyncio.ensure_future(run_python(code, lines=lines, grace=0.1))
    await eventually(lambda: lines)

    clock.skip(30)

    assert (await call).exit_code == -9


async def test_a_grandchild_that_holds_the_pipes_does_not_outlive_the_command() -> None:
    lines: list[bytes] = []
    code = """
        import os, time
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        print(pid)
    """

    completed = await run_python(code, lines=lines)

    assert (completed.end_reason, completed.exit_code) == ("exited", 0)
    await eventually(lambda: not is_alive(int(lines[0])))


async def test_cancelling_the_caller_ends_all_processes() -> None:
    lines: list[bytes] = []
    code = """
        import os, time
        os.fork()
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    """

    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await run_python(code, lines=lines)

        tasks.start_soon(call)
        await eventually(lambda: len(lines) == 2)
        tasks.cancel_scope.cancel()

    await eventually(lambda: not any(is_alive(int(pid)) for pid in lines))


async def test_a_cancelled_command_still_passes_what_it_wrote() -> None:
    """Its last lines may name the session whose files are to be deleted."""
    lines: list[bytes] = []
    code = """
        import signal, sys, time
        def stop(*_):
            print("last", flush=True)
            sys.exit()
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        time.sleep(60)
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run_python(code, lines=lines))
        await eventually(lambda: lines)
        tasks.cancel_scope.cancel()

    assert lines == [b"ready", b"last"]


@pytest.mark.parametrize("iterations", [3, 5])
async def test_a_cancellation_during_startup_ends_all_processes(
    tmp_path: Path, iterations: int
) -> None:
    """Use `Task.cancel()`, which ignores shields, after a busy event loop let the command start."""
    code = f"""
        import os, time
        os.fork()
        open("{tmp_path}/%d" % os.getpid(), "x").close()
        time.sleep(60)
    """
    call = asyncio.ensure_future(run_python(code))
    for _ in range(iterations):
        await asyncio.sleep(0)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)  # blocks the event loop meanwhile

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await eventually(lambda: not any(is_alive(int(path.name)) for path in tmp_path.iterdir()))


async def test_a_missing_command_raises_file_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        await run(
            ["/nowhere/at/all"],
            stdin=b"",
            env={},
            cwd=Path("/"),
            on_line=print,
            idle_timeout=lambda: 1,
            timeout=1,
        )


async def test_the_output_limit_of_a_long_running_command_applies_per_line() -> None:
    line_lengths: list[int] = []
    code = "for _ in range(20): print('x' * 1_000_000)\nprint('end')\ninput()"

    async with LineProcess.open(
        [sys.executable, "-c", code],
        env=os.environ,
        cwd=Path("/"),
    ) as line_process:
        async for line in line_process.lines():
            line_lengths.append(len(line))
            if line == b"end":
                break
        assert not line_process.is_finished

    assert sum(line_lengths) > child.MAX_STDOUT_BYTES


async def test_the_memory_of_a_command_is_known(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; text = b'x' * 50_000_000; time.sleep(60)"]
    async with LineProcess.open(argv, env=os.environ, cwd=tmp_path) as process:
        await eventually(lambda: process.memory_bytes > 50_000_000)


async def test_many_runs_leak_no_file_descriptors() -> None:
    await run_python("pass")
    descriptors_before = len(list(Path("/dev/fd").iterdir()))

    for _ in range(10):
        await run_python("import os, sys; os.close(0)", stdin=b"x" * 1_000_000)

    assert len(list(Path("/dev/fd").iterdir())) <= descriptors_before


def test_termination_is_faster_than_clients_wait_for_a_server() -> None:
    """Most clients wait two seconds; a server with several calls to end exits after four."""
    assert TERMINATE_GRACE <= 1
    assert TERMINATE_GRACE + GUARDIAN_TIMEOUT < Limits().stdio_shutdown_timeout <= 4
