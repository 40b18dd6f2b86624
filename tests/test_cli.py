"""`gemini-cli-mcp search` as a person, or a script, uses it."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support import QUESTION, Stub, command, eventually, model_answer, search_with_sources
from tests.support.cli import run_command


def run_alone(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where that makes a difference."""
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

    done = run_alone(stub, "search", QUESTION)

    assert (done.returncode, done.stdout) == (0, "# Blue\n\nYes.\n")
    assert "searching “blue sky”" in done.stderr
    assert "1 search · 1 source · " in done.stderr


def test_json_is_the_structured_result(stub: Stub) -> None:
    stub.plays({"text": model_answer("Blue.")})

    done = run_command(stub, "search", "--json", QUESTION)

    assert json.loads(done.stdout)["result"] == "Blue."


def test_an_error_has_exit_code_one_and_a_next_step(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    done = run_command(stub, "search", QUESTION)

    assert (done.returncode, done.stdout) == (1, "")
    assert "AUTH_ERROR: " in done.stderr
    assert "GEMINI_API_KEY" in done.stderr


def test_an_error_in_json_is_on_stdout(stub: Stub) -> None:
    done = run_command(stub, "search", "--json", "  ")

    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "INVALID_INPUT"


def test_bad_usage_has_exit_code_two(stub: Stub) -> None:
    assert run_command(stub, "search").returncode == 2
    assert run_command(stub, "no-such-command").returncode == 2


def test_the_folder_of_a_command_is_gone_afterwards(stub: Stub) -> None:
    stub.plays_scenario("good")

    run_command(stub, "search", QUESTION)

    assert stub.leftover_files() == []


def test_terminal_escapes_in_a_report_are_inert(stub: Stub) -> None:
    stub.plays({"text": '{"success": true, "report": "a\\u001b]0;evil\\u0007b"}'})

    done = run_command(stub, "search", QUESTION)

    assert "\x1b" not in done.stdout and "\x07" not in done.stdout


def test_a_report_is_shown_even_where_a_character_cannot_be(stub: Stub) -> None:
    stub.environ["PYTHONIOENCODING"] = "ascii"
    stub.plays({"text": model_answer("Blue 天.")})

    done = run_alone(stub, "search", QUESTION)

    assert (done.returncode, done.stdout) == (0, "Blue ?.\n")


def test_a_reader_that_leaves_is_no_failure(stub: Stub) -> None:
    stub.plays({"text": model_answer("x" * 200_000)})
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        command("search", QUESTION), env=stub.environ, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)

    assert done.returncode == 0
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


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
    shown = os.read(primary, 1 << 16).decode()
    os.close(primary)

    assert "Very" in shown and "**" not in shown and "\x1b[1m" in shown


VERIFIED = {
    "text": model_answer("# Blue\n\nProved.", verified=True),
    "searches": [search_with_sources("b", "esa")],
}


def test_a_deep_search_shows_rounds_and_report(stub: Stub) -> None:
    stub.plays(
        {
            "text": model_answer("Draft."),
            "searches": [search_with_sources("a", "nasa")],
            "rounds": [VERIFIED],
        }
    )

    done = run_command(stub, "deep-search", QUESTION, "--max-iterations", "3")

    assert (done.returncode, done.stdout) == (0, "# Blue\n\nProved.\n")
    assert "[INFO] Deep search round 2/3...\n" in done.stderr
    assert "round 2/3: searching “b” (" in done.stderr
    assert "verified · 2 rounds · 2 searches · 2 sources · " in done.stderr


def test_a_deep_search_can_be_json_and_a_file_at_once(stub: Stub, tmp_path: Path) -> None:
    stub.plays({"text": model_answer("Draft."), "rounds": [VERIFIED]})
    output = tmp_path / "report.md"
    output.write_text("old")

    done = run_command(stub, "deep-search", QUESTION, "--json", "--output", str(output))

    assert json.loads(done.stdout)["verified"] is True
    assert output.read_text() == "# Blue\n\nProved.\n"


@pytest.mark.parametrize(
    "redirect", [">/dev/full", ">&-", "| true", "2>/dev/full", "2>&-", "2> >(head -1 >/dev/null)"]
)
def test_a_file_is_written_whatever_becomes_of_the_screen(
    stub: Stub, tmp_path: Path, redirect: str
) -> None:
    long = model_answer("word " * 60_000, verified=True)
    stub.plays({"text": model_answer("Draft."), "rounds": [{**VERIFIED, "text": long}]})
    output = tmp_path / "report.md"
    asked = shlex.join(command("deep-search", QUESTION, "--output", str(output)))

    done = subprocess.run(
        ["bash", "-c", f"{asked} {redirect}"], env=stub.environ, capture_output=True, timeout=60
    )

    assert len(output.read_text()) == 300_001
    assert b"Traceback" not in done.stderr


def test_colours_that_are_forced_do_not_hide_the_log(stub: Stub) -> None:
    stub.environ["FORCE_COLOR"] = "1"
    stub.plays({"text": model_answer("Draft."), "rounds": [VERIFIED]})

    assert "[INFO] Deep search round 2/5...\n" in run_alone(stub, "deep-search", QUESTION).stderr


def test_ctrl_c_may_be_pressed_often(stub: Stub, tmp_path: Path) -> None:
    stub.plays({"text": model_answer("Draft."), "rounds": [{"hang": "start"}]})
    output = tmp_path / "report.md"
    process = subprocess.Popen(
        command("deep-search", QUESTION, "--output", str(output)),
        env=stub.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    anyio.run(eventually, lambda: len(stub.runs) == 2)
    while process.poll() is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        if output.exists():
            break
        time.sleep(0.01)
    process.communicate(timeout=60)

    assert output.read_text() == "Draft.\n"


@pytest.mark.parametrize("name", ["", "no/such/folder/report.md", "x" * 300, "pipe"])
def test_a_file_that_cannot_be_written_is_told_before_the_search(
    stub: Stub, tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")

    done = run_command(stub, "deep-search", QUESTION, "--output", str(tmp_path / name))

    assert (done.returncode, stub.runs) == (2, [])
    assert "cannot be written" in done.stderr


def test_a_failed_deep_search_leaves_the_file_alone(stub: Stub, tmp_path: Path) -> None:
    stub.plays_scenario("no-sign-in")
    output = tmp_path / "report.md"
    output.write_text("old")

    done = run_command(stub, "deep-search", QUESTION, "--output", str(output))

    assert (done.returncode, output.read_text()) == (1, "old")
    assert "AUTH_ERROR" in done.stderr


def interrupted(stub: Stub, at_run: int) -> subprocess.CompletedProcess[str]:
    """A deep search whose user pressed Ctrl-C in this round."""
    process = subprocess.Popen(
        command("deep-search", QUESTION),
        env=stub.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    anyio.run(eventually, lambda: len(stub.runs) == at_run)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_ctrl_c_prints_the_best_report_so_far(stub: Stub) -> None:
    stub.plays({"text": model_answer("Draft."), "rounds": [{"hang": "start", "children": 1}]})

    done = interrupted(stub, at_run=2)

    assert (done.returncode, done.stdout) == (0, "Draft.\n")
    assert "not verified · 2 rounds" in done.stderr
    assert "cancelled" in done.stderr
    assert "Traceback" not in done.stderr
    assert stub.live_pids() == []
    assert stub.leftover_files() == []


def test_ctrl_c_in_the_first_round_says_that_there_is_nothing_yet(stub: Stub) -> None:
    stub.plays({"hang": "start"})

    done = interrupted(stub, at_run=1)

    assert (done.returncode, done.stdout) == (130, "")
    assert "CANCELLED: " in done.stderr and "Traceback" not in done.stderr
    assert stub.live_pids() == []


def test_in_a_terminal_the_rounds_are_seen(stub: Stub) -> None:
    bad: dict[str, Any] = {"exit_code": 1, "stderr": "boom"}
    lying = {"text": model_answer("Draft.", verified=True)}
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    draft = {
        "text": model_answer("Draft."),
        "searches": [search_with_sources("a\u001b[2J", "nasa")],
    }
    stub.plays({**draft, "rounds": [bad, lying, VERIFIED]})
    primary, secondary = pty.openpty()

    process = subprocess.Popen(
        command("deep-search", QUESTION),
        env=stub.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        stdout=subprocess.DEVNULL,
        stderr=secondary,
    )
    os.close(secondary)
    shown = ""
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(primary, 1 << 16):
            shown += chunk.decode(errors="replace")
    process.wait(60)
    os.close(primary)

    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    assert "✓ round 1/5 · 1 search · 1 source · " in plain
    assert "“a\ufffd[2J”" in plain and "nasa.org" in plain
    assert "✗ round 2/5 · " in plain and "EXECUTION_ERROR" in plain
    assert "claims to be verified, but it did not search" in plain
    assert "· verified" in plain
    assert "[INFO]" not in plain and "Traceback" not in plain
    assert process.returncode == 0
