"""`gemini-cli-mcp search` as a person, or a script, uses it."""

import json
import os
import pty
import subprocess

from tests.support import QUESTION, Stub, command, found, report


def run(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=stub.environ, capture_output=True, text=True, timeout=60
    )


def test_the_report_is_on_stdout_and_the_rest_on_stderr(stub: Stub) -> None:
    stub.plays({"text": report("# Blue\n\nYes."), "searches": [found("blue sky", "nasa")]})

    done = run(stub, "search", QUESTION)

    assert (done.returncode, done.stdout) == (0, "# Blue\n\nYes.\n")
    assert "searching “blue sky”" in done.stderr
    assert "1 search · 1 source · " in done.stderr


def test_json_is_the_structured_result(stub: Stub) -> None:
    stub.plays({"text": report("Blue.")})

    done = run(stub, "search", "--json", QUESTION)

    assert json.loads(done.stdout)["result"] == "Blue."


def test_an_error_has_exit_code_one_and_a_next_step(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    done = run(stub, "search", QUESTION)

    assert (done.returncode, done.stdout) == (1, "")
    assert "AUTH_ERROR: " in done.stderr
    assert "GEMINI_API_KEY" in done.stderr


def test_an_error_in_json_is_on_stdout(stub: Stub) -> None:
    done = run(stub, "search", "--json", "  ")

    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "INVALID_INPUT"


def test_bad_usage_has_exit_code_two(stub: Stub) -> None:
    assert run(stub, "search").returncode == 2
    assert run(stub, "no-such-command").returncode == 2


def test_the_folder_of_a_command_is_gone_afterwards(stub: Stub) -> None:
    stub.plays_scenario("good")

    run(stub, "search", QUESTION)

    assert stub.files_left() == []


def test_terminal_escapes_in_a_report_are_inert(stub: Stub) -> None:
    stub.plays({"text": '{"success": true, "report": "a\\u001b]0;evil\\u0007b"}'})

    done = run(stub, "search", QUESTION)

    assert "\x1b" not in done.stdout and "\x07" not in done.stdout


def test_a_report_is_shown_even_where_a_character_cannot_be(stub: Stub) -> None:
    stub.environ["PYTHONIOENCODING"] = "ascii"
    stub.plays({"text": report("Blue 天.")})

    done = run(stub, "search", QUESTION)

    assert (done.returncode, done.stdout) == (0, "Blue ?.\n")


def test_a_reader_that_leaves_is_no_failure(stub: Stub) -> None:
    stub.plays({"text": report("x" * 200_000)})
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        command("search", QUESTION), env=stub.environ, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)

    assert done.returncode == 0
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


def test_in_a_terminal_the_report_is_rendered(stub: Stub) -> None:
    stub.plays({"text": report("# Blue\n\nVery **blue**.")})
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
