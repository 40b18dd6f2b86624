"""One command, seen to its end: with real processes."""

import os
import sys
import textwrap
import time
from pathlib import Path

import anyio
import pytest

from gemini_cli_mcp.process import child as process
from gemini_cli_mcp.process.run import Completed, run
from tests.support import eventually, is_alive


@pytest.fixture(params=["linux", "elsewhere"], autouse=True)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a guardian, and with a process group as on other systems."""
    monkeypatch.setattr(sys, "platform", request.param)


async def python(
    code: str,
    *,
    stdin: bytes = b"",
    idle: float = 20,
    timeout: float = 20,
    lines: list[bytes] | None = None,
) -> Completed:
    return await run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=stdin,
        env=os.environ,
        cwd=Path("/"),
        on_line=(lines if lines is not None else []).append,
        idle=lambda: idle,
        timeout=timeout,
    )


async def test_output_comes_line_by_line_with_the_exit_code() -> None:
    lines: list[bytes] = []

    completed = await python(
        "import sys; print('a\\n\\nb'); sys.stdout.write('end'); sys.exit(3)", lines=lines
    )

    assert (completed.ended, completed.exit_code) == ("exited", 3)
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
    assert len(completed.stderr) == process.STDERR_TAIL


async def test_silence_ends_it() -> None:
    completed = await python("import time; time.sleep(60)", idle=0.3)

    assert (completed.ended, completed.exit_code) == ("idle", -15)


async def test_output_without_end_of_time_meets_the_deadline() -> None:
    code = "import time\nwhile True: print('.', flush=True); time.sleep(0.05)"

    completed = await python(code, idle=10, timeout=0.5)

    assert completed.ended == "timeout"


async def test_output_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_STDOUT", 1 << 20)
    lines: list[bytes] = []

    completed = await python("while True: print('x' * 1000)", lines=lines)

    assert completed.ended == "flood"
    assert sum(map(len, lines)) <= 1 << 20


async def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE", 0.3)
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(60)
    """

    completed = await python(code, idle=0.5)

    assert completed.exit_code == -9


async def test_a_grandchild_that_holds_the_pipes_does_not_outlive_it() -> None:
    lines: list[bytes] = []
    code = """
        import os, time
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        print(pid)
    """

    started = time.monotonic()
    completed = await python(code, lines=lines)

    assert completed.exit_code == 0
    assert time.monotonic() - started < 10
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

    await eventually(lambda: not any(is_alive(int(pid)) for pid in lines), seconds=5)


async def test_a_command_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run(
            ["/nowhere/at/all"],
            stdin=b"",
            env={},
            cwd=Path("/"),
            on_line=print,
            idle=lambda: 1,
            timeout=1,
        )


async def test_many_calls_leave_no_descriptor_open() -> None:
    await python("pass")
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(10):
        await python("import os, sys; os.close(0)", stdin=b"x" * 1_000_000)

    assert len(list(Path("/proc/self/fd").iterdir())) <= before
