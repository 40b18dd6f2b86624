"""One command, seen to its end: with real processes."""

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
from gemini_cli_mcp.process import child as process
from gemini_cli_mcp.process.line_process import LineProcess
from gemini_cli_mcp.process.run import Completed, run
from tests.support import Clock, eventually, is_alive, wait_until


@pytest.fixture(params=["linux", "elsewhere"], autouse=True)
def platform(request: pytest.FixtureRequest, mocker: MockerFixture) -> None:
    """With a guardian, and with a process group as on other systems."""
    mocker.patch.object(sys, "platform", request.param)


async def python(
    code: str,
    *,
    stdin: bytes = b"",
    idle: float = 30,
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
        idle_timeout=lambda: idle,
        timeout=timeout,
        **limits,
    )


async def test_output_comes_line_by_line_with_the_exit_code() -> None:
    lines: list[bytes] = []

    completed = await python(
        "import sys; print('a\\n\\nb'); sys.stdout.write('end'); sys.exit(3)", lines=lines
    )

    assert (completed.end_reason, completed.exit_code) == ("exited", 3)
    assert lines == [b"a", b"", b"b", b"end"]


async def test_a_line_longer_than_any_buffer_comes_whole() -> None:
    lines: list[bytes] = []

    await python("print('x' * 3_000_000)", lines=lines)

    assert [len(line) for line in lines] == [3_000_000]


async def test_a_child_that_writes_before_it_reads_does_not_block() -> None:
    lines: list[bytes] = []

    await python(
        "import sys; print('y' * 4_000_000); print(len(sys.stdin.read()))",
        stdin=b"x" * 4_000_000,
        lines=lines,
    )

    assert lines[1] == b"4000000"


async def test_a_child_that_reads_nothing_is_no_failure() -> None:
    completed = await python("print('hi')", stdin=b"x" * 4_000_000)

    assert completed.exit_code == 0


async def test_only_the_tail_of_stderr_is_kept() -> None:
    completed = await python("import sys; sys.stderr.write('x' * 5_000_000 + 'the end')")

    assert completed.exit_code == 0
    assert completed.stderr.endswith("the end")
    assert len(completed.stderr) == process.STDERR_TAIL_BYTES


READY = "print('ready', flush=True)"


async def test_silence_ends_it(clock: Clock) -> None:
    lines: list[bytes] = []
    call = asyncio.ensure_future(python(f"import time; {READY}; time.sleep(60)", lines=lines))
    await eventually(lambda: lines)

    clock.skip(30)
    completed = await call

    assert (completed.end_reason, completed.exit_code) == ("idle", -15)


async def test_output_without_end_of_time_meets_the_deadline(clock: Clock) -> None:
    lines: list[bytes] = []
    code = "import time\nwhile True: print('.', flush=True); time.sleep(0.05)"
    call = asyncio.ensure_future(python(code, lines=lines, idle=100, timeout=150))
    await eventually(lambda: lines)

    for seconds in (80, 60):  # each time it has said something since
        clock.skip(seconds)
        heard = len(lines)
        await eventually(lambda heard=heard: len(lines) > heard)
    assert not call.done()
    clock.skip(20)

    assert (await call).end_reason == "timeout"


async def test_output_without_end_is_cut_off() -> None:
    lines: list[bytes] = []

    completed = await python("while True: print('x' * 1000)", lines=lines, max_stdout_bytes=1 << 20)

    assert completed.end_reason == "output_limit"
    assert sum(map(len, lines)) <= 1 << 20


async def test_a_child_that_ignores_sigterm_is_killed(clock: Clock) -> None:
    lines: list[bytes] = []
    code = f"""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        {READY}
        time.sleep(60)
    """
    call = asyncio.ensure_future(python(code, lines=lines, grace=0.1))
    await eventually(lambda: lines)

    clock.skip(30)

    assert (await call).exit_code == -9


async def test_a_grandchild_that_holds_the_pipes_does_not_outlive_it() -> None:
    lines: list[bytes] = []
    code = """
        import os, time
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        print(pid)
    """

    completed = await python(code, lines=lines)

    assert (completed.end_reason, completed.exit_code) == ("exited", 0)
    await eventually(lambda: not is_alive(int(lines[0])))


async def test_a_cancelled_caller_leaves_no_process() -> None:
    lines: list[bytes] = []
    code = """
        import os, time
        os.fork()
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    """

    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await python(code, lines=lines)

        tasks.start_soon(call)
        await eventually(lambda: len(lines) == 2)
        tasks.cancel_scope.cancel()

    await eventually(lambda: not any(is_alive(int(pid)) for pid in lines))


@pytest.mark.parametrize("turns", [3, 5])
async def test_a_cancel_while_it_is_started_leaves_nothing(tmp_path: Path, turns: int) -> None:
    """By `Task.cancel()`, which no shield keeps out, on a machine so busy that it runs already."""
    code = f"""
        import os, time
        os.fork()
        open("{tmp_path}/%d" % os.getpid(), "x").close()
        time.sleep(60)
    """
    call = asyncio.ensure_future(python(code))
    for _ in range(turns):
        await asyncio.sleep(0)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)  # the event loop stands still meanwhile

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await eventually(lambda: not any(is_alive(int(path.name)) for path in tmp_path.iterdir()))


async def test_a_command_that_is_not_there_is_an_os_error() -> None:
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


async def test_one_that_stays_may_say_more_over_its_life_than_at_once() -> None:
    lines: list[int] = []
    code = "for _ in range(20): print('x' * 1_000_000)\nprint('end')\ninput()"

    async with LineProcess.open(
        [sys.executable, "-c", code],
        env=os.environ,
        cwd=Path("/"),
        on_line=lambda line: lines.append(len(line)),
    ) as dialogue:
        await eventually(lambda: len(lines) == 21)
        assert not dialogue.is_finished

    assert sum(lines) > process.MAX_STDOUT_BYTES


async def test_many_calls_leave_no_descriptor_open() -> None:
    await python("pass")
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(10):
        await python("import os, sys; os.close(0)", stdin=b"x" * 1_000_000)

    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_an_end_takes_no_longer_than_clients_give_a_server() -> None:
    """Two seconds, of most; a server that has several calls to end leaves after four."""
    assert process.TERMINATE_GRACE <= 1
    assert process.TERMINATE_GRACE + process.GUARDIAN_TIMEOUT < Limits().stdio_shutdown_timeout <= 4
