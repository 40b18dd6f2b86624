"""`gemini-cli-mcp search` and `deep-search` as people and scripts use them."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support import (
    QUESTION,
    REDIRECT,
    Stub,
    command,
    eventually,
    model_answer,
    search_with_sources,
    wait_until,
)
from tests.support.cli import run_command


def run_in_subprocess(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process, where that makes a difference."""
    return subprocess.run(
        command(*arguments), env=stub.environ, capture_output=True, text=True, timeout=60
    )


def test_the_report_is_on_stdout_and_the_rest_on_stderr(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer("# Blue\n\nYes."),
            "searches": [search_with_sources("blue sky", "nasa")],
        }
    )

    completed = run_in_subprocess(stub, "search", QUESTION)

    assert completed.returncode == 0
    assert completed.stdout == (
        f"# Blue\n\nYes.\n\n## Sources\n\n1. [nasa.org]({REDIRECT}nasa) (found, not cited)\n"
    )
    assert completed.stderr.count("searching “blue sky” (") == 1
    assert "1 search · 1 source · " in completed.stderr


def test_json_prints_the_structured_result(stub: Stub) -> None:
    stub.plays({"text": model_answer("Blue.")})

    completed = run_command(stub, "search", "--json", QUESTION)

    assert json.loads(completed.stdout)["result"] == "Blue."


def test_an_error_has_exit_code_one_and_a_next_step(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    completed = run_command(stub, "search", QUESTION)

    assert (completed.returncode, completed.stdout) == (1, "")
    assert "AUTH_ERROR: " in completed.stderr
    assert "GEMINI_API_KEY" in completed.stderr


def test_json_errors_are_on_stdout(stub: Stub) -> None:
    completed = run_command(stub, "search", "--json", "  ")

    assert completed.returncode == 2
    assert json.loads(completed.stdout)["error"]["code"] == "INVALID_INPUT"


def test_a_misspelt_variable_is_one_warning_at_start(stub: Stub) -> None:
    stub.environ |= {"GEMINI_MCP_TIMEOT": "10", "GEMINI_MCP_WARMM": "0"}

    completed = run_command(stub, "search", QUESTION)

    [warning] = [line for line in completed.stderr.splitlines() if "[WARNING]" in line]
    assert "GEMINI_MCP_TIMEOT: unknown variable; did you mean GEMINI_MCP_TIMEOUT?" in warning
    assert "GEMINI_MCP_WARMM: unknown variable; did you mean GEMINI_MCP_WARM?" in warning


def test_in_a_terminal_the_server_says_that_it_waits_for_a_client(stub: Stub) -> None:
    primary, secondary = pty.openpty()
    stub.environ["GEMINI_MCP_LOG_LEVEL"] = "ERROR"  # the line is for a person, not for a log
    with subprocess.Popen(
        command(), env=stub.environ, stdin=secondary, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stderr and server.stdout
        try:
            line = server.stderr.readline().decode()
        finally:
            server.kill()
        assert (server.stdout.read(), server.stderr.read()) == (b"", b"")
    os.close(primary)
    os.close(secondary)

    assert line == (
        "[INFO] Waiting for an MCP client on stdin; for other uses, see gemini-cli-mcp --help\n"
    )


def test_a_command_removes_its_files(stub: Stub) -> None:
    stub.plays_scenario("good")

    run_command(stub, "search", QUESTION)

    assert stub.leftover_files() == []


def test_terminal_escapes_in_a_report_are_neutralized(stub: Stub) -> None:
    stub.plays({"text": '{"success": true, "report": "a\\u001b]0;evil\\u0007b"}'})

    completed = run_command(stub, "search", QUESTION)

    assert "\x1b" not in completed.stdout and "\x07" not in completed.stdout


def test_characters_that_stdout_cannot_encode_are_replaced(stub: Stub) -> None:
    stub.environ["PYTHONIOENCODING"] = "ascii"
    stub.plays({"text": model_answer("Blue 天.")})

    completed = run_in_subprocess(stub, "search", QUESTION)

    assert (completed.returncode, completed.stdout) == (0, "Blue ?.\n")


def test_a_closed_stdout_pipe_is_not_a_failure(stub: Stub) -> None:
    stub.plays({"text": model_answer("x" * 200_000)})
    reader, writer = os.pipe()
    os.close(reader)

    completed = subprocess.run(
        command("search", QUESTION), env=stub.environ, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)

    assert completed.returncode == 0
    assert b"Traceback" not in completed.stderr and b"BrokenPipe" not in completed.stderr


def test_in_a_terminal_the_report_is_rendered(stub: Stub) -> None:
    stub.plays({"text": model_answer("# Blue\n\nVery **blue**.")})
    primary, secondary = pty.openpty()

    process = subprocess.Popen(
        command("search", QUESTION),
        env=stub.environ | {"TERM": "xterm-256color", "COLUMNS": "80"},
        stdout=secondary,
        stderr=subprocess.DEVNULL,
    )
    process.wait(60)
    os.close(secondary)
    output = os.read(primary, 1 << 16).decode()
    os.close(primary)

    assert "Very" in output and "**" not in output and "\x1b[1m" in output


VERIFIED_ROUND = {
    "text": model_answer("# Blue\n\nProved.", verified=True),
    "searches": [search_with_sources("b", "esa")],
}


def test_a_deep_search_shows_rounds_and_report(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer("Draft."),
            "searches": [search_with_sources("a", "nasa")],
            "rounds": [VERIFIED_ROUND],
        }
    )

    completed = run_command(stub, "deep-search", QUESTION, "--max-iterations", "3")

    assert completed.returncode == 0
    assert completed.stdout.startswith("# Blue\n\nProved.\n\n## Sources\n\n1. ")
    assert "[INFO] Deep search round 2/3...\n" in completed.stderr
    assert "round 2/3: searching “b” (" in completed.stderr
    assert "verified · 2 rounds · 2 searches · 2 sources · " in completed.stderr


def test_a_deep_search_can_print_json_and_write_a_file(stub: Stub, tmp_path: Path) -> None:
    stub.plays({"text": model_answer("Draft."), "rounds": [VERIFIED_ROUND]})
    output = tmp_path / "report.md"
    output.write_text("old")

    completed = run_command(stub, "deep-search", QUESTION, "--json", "--output", str(output))

    assert json.loads(completed.stdout)["verified"] is True
    assert output.read_text().startswith("# Blue\n\nProved.\n\n## Sources\n\n1. ")


@pytest.mark.parametrize(
    "redirect", [">/dev/full", ">&-", "| true", "2>/dev/full", "2>&-", "2> >(head -1 >/dev/null)"]
)
def test_the_output_file_is_written_even_if_stdout_or_stderr_fails(
    stub: Stub, tmp_path: Path, redirect: str
) -> None:
    if "/dev/full" in redirect and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, so Linux")
    long_answer = model_answer("word " * 60_000, verified=True)
    stub.plays(
        {"text": model_answer("Draft."), "rounds": [{**VERIFIED_ROUND, "text": long_answer}]}
    )
    output = tmp_path / "report.md"
    shell_command = shlex.join(command("deep-search", QUESTION, "--output", str(output)))

    completed = subprocess.run(
        ["bash", "-c", f"{shell_command} {redirect}"],
        env=stub.environ,
        capture_output=True,
        timeout=60,
    )

    report, _, sources = output.read_text().partition("\n## Sources\n")
    assert len(report.rstrip()) == 299_999 and "esa.org" in sources
    assert b"Traceback" not in completed.stderr


def test_forced_colours_do_not_hide_the_log(stub: Stub) -> None:
    stub.environ["FORCE_COLOR"] = "1"
    stub.plays({"text": model_answer("Draft."), "rounds": [VERIFIED_ROUND]})

    assert (
        "[INFO] Deep search round 2/5...\n"
        in run_in_subprocess(stub, "deep-search", QUESTION).stderr
    )


def test_ctrl_c_writes_the_best_report_to_the_output_file(stub: Stub, tmp_path: Path) -> None:
    stub.plays({"text": model_answer("Draft."), "rounds": [{"hang": "start"}]})
    output = tmp_path / "report.md"

    interrupt(stub, "deep-search", QUESTION, "--output", str(output), after_runs=2)

    assert output.read_text() == "Draft.\n"


@pytest.mark.parametrize("name", ["", "no/such/folder/report.md", "x" * 300, "pipe"])
def test_an_unwritable_output_file_is_reported_before_the_search(
    stub: Stub, tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")

    completed = run_command(stub, "deep-search", QUESTION, "--output", str(tmp_path / name))

    assert (completed.returncode, stub.runs) == (2, [])
    assert "cannot be written" in completed.stderr


def test_a_failed_deep_search_does_not_change_the_output_file(stub: Stub, tmp_path: Path) -> None:
    stub.plays_scenario("no-sign-in")
    output = tmp_path / "report.md"
    output.write_text("old")

    completed = run_command(stub, "deep-search", QUESTION, "--output", str(output))

    assert (completed.returncode, output.read_text()) == (1, "old")
    assert "AUTH_ERROR" in completed.stderr


def interrupt(
    stub: Stub, *arguments: str, after_runs: int = 1, times: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run a command and press Ctrl-C, again if needed, once this many runs have started."""
    process = subprocess.Popen(
        command(*arguments),
        env=stub.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    anyio.run(eventually, lambda: len(stub.runs) == after_runs)
    process.send_signal(signal.SIGINT)
    if times == 2:
        while "Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, stdout, stderr)


def test_ctrl_c_prints_the_best_report_so_far(stub: Stub) -> None:
    stub.plays({"text": model_answer("Draft."), "rounds": [{"hang": "start", "children": 1}]})

    completed = interrupt(stub, "deep-search", QUESTION, after_runs=2)

    assert (completed.returncode, completed.stdout) == (0, "Draft.\n")
    assert "Stopping. Press Ctrl-C again to leave at once.\n" in completed.stderr
    assert "not verified · 2 rounds" in completed.stderr
    assert "Round 2 was stopped." in completed.stderr
    assert "Traceback" not in completed.stderr
    assert stub.live_pids() == []
    assert stub.leftover_files() == []


@pytest.mark.parametrize("name", ["deep-search", "search"])
def test_ctrl_c_without_a_report_exits_with_130(stub: Stub, name: str) -> None:
    stub.plays({"hang": "start"})

    completed = interrupt(stub, name, QUESTION)

    assert (completed.returncode, completed.stdout) == (130, "")
    assert "CANCELLED: " in completed.stderr and "Traceback" not in completed.stderr
    assert "Run the command again" in completed.stderr
    assert stub.live_pids() == []


@pytest.mark.parametrize("name", ["deep-search", "search"])
def test_a_second_ctrl_c_leaves_at_once_and_leaves_nothing_behind(stub: Stub, name: str) -> None:
    stub.plays({"hang": "start", "children": 1, "stubborn": True})

    completed = interrupt(stub, name, QUESTION, times=2)

    assert (completed.returncode, completed.stdout) == (130, "")
    assert "CANCELLED" not in completed.stderr and "Traceback" not in completed.stderr
    wait_until(lambda: stub.live_pids() == [] and stub.leftover_files() == [])


def test_in_a_terminal_the_rounds_are_shown(stub: Stub) -> None:
    failing: dict[str, Any] = {"exit_code": 1, "stderr": "boom"}
    unsearched = {"text": model_answer("Draft.", verified=True)}
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    draft = {
        "text": model_answer("Draft."),
        "searches": [search_with_sources("a\u001b[2J", "nasa")],
    }
    stub.plays({**draft, "rounds": [failing, unsearched, VERIFIED_ROUND]})
    primary, secondary = pty.openpty()

    process = subprocess.Popen(
        command("deep-search", QUESTION),
        env=stub.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        stdout=subprocess.DEVNULL,
        stderr=secondary,
    )
    os.close(secondary)
    output = ""
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(primary, 1 << 16):
            output += chunk.decode(errors="replace")
    process.wait(60)
    os.close(primary)

    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output)
    assert "✓ round 1/5 · 1 search · 1 source · " in plain
    assert "“a\ufffd[2J”" in plain and "nasa.org" in plain
    assert "✗ round 2/5 · " in plain and "EXECUTION_ERROR" in plain
    assert "claims to be verified, but it did not search" in plain
    assert "· verified" in plain
    assert "[INFO]" not in plain and "Traceback" not in plain
    assert "Deep search round 2 failed" not in plain  # the view says it
    assert process.returncode == 0
