"""What people see in a terminal: progress, reports, sources, warnings and errors."""

import io
import json
import re
import signal
import subprocess

import pytest
from pytest_mock import MockerFixture
from rich.console import Console

from gemini_cli_mcp import errors, execution_errors, sign_in_errors
from gemini_cli_mcp.cli.live_progress import MAX_STEPS, SPINNER_FRAMES, LiveView
from gemini_cli_mcp.cli.wording import format_duration, format_tokens
from gemini_cli_mcp.errors import Busy, GeminiMcpError, NotFound, RateLimited
from gemini_cli_mcp.research.deep_search import RoundFindings, RoundStarted, RoundStep
from gemini_cli_mcp.types import Findings
from tests.support import QUESTION, REDIRECT, Clock, Stub, Turn, model_answer, search_with_sources
from tests.support.cli import run_command
from tests.support.terminal import run_in_terminal, view_lines

# Those of jobs and of the server's queue do not happen in a terminal.
NOT_IN_TERMINALS = (GeminiMcpError, Busy, NotFound)
ERROR_CLASSES = [
    item
    for module in (errors, execution_errors, sign_in_errors)
    for item in vars(module).values()
    if isinstance(item, type)
    and item.__module__ == module.__name__
    and item not in NOT_IN_TERMINALS
]
LONG_QUERY = "what a very long query " * 6
CITING = {
    "text": model_answer(f"Blue, says [NASA]({REDIRECT}nasa)."),
    "searches": [search_with_sources(LONG_QUERY, "noaa", "nasa")],
}
VERIFIED = {**CITING, "text": model_answer(f"Blue, says [NASA]({REDIRECT}nasa).", verified=True)}


def test_the_report_ends_with_numbered_sources_to_read_and_copy(stub: Stub) -> None:
    stub.plays(CITING)

    run = run_in_terminal(stub, "search", QUESTION, columns=200)

    assert "Blue, says NASA [1]." in run.text
    assert re.search(rf"Sources\n  \[1\] nasa\.org\n      {REDIRECT}nasa\n", run.text)
    assert re.search(rf"not cited\n  \[2\] noaa\.org\n      {REDIRECT}noaa\n", run.text)
    assert f";{REDIRECT}nasa\x1b\\" in run.output  # OSC 8, in addition
    assert "1 search · 2 sources · " in run.text


def test_a_long_address_is_one_line_for_whoever_copies_it(stub: Stub) -> None:
    url = REDIRECT + "x" * 300
    stub.plays({**CITING, "searches": [{"query": "q", "sources": [["a.org", url]]}]})

    run = run_in_terminal(stub, "search", QUESTION)

    assert f"{url}\x1b" in run.output


def test_in_a_pipe_the_report_ends_with_numbered_sources_too(stub: Stub) -> None:
    stub.plays(CITING)

    completed = run_command(stub, "search", QUESTION)

    assert completed.stdout.endswith(
        "\n\n## Sources\n\n"
        f"1. [nasa.org]({REDIRECT}nasa)\n"
        f"2. [noaa.org]({REDIRECT}noaa) (found, not cited)\n"
    )


def test_the_models_own_marks_and_list_are_not_mixed_up_with_ours(stub: Stub) -> None:
    report = f"Blue [2], says [NASA]({REDIRECT}nasa).\n\n## Sources\n\n1. NOAA"
    stub.plays({**CITING, "text": model_answer(report)})

    rendered = run_in_terminal(stub, "search", QUESTION, columns=200).text
    piped = run_command(stub, "search", QUESTION).stdout

    assert "Blue [2], says NASA [S1]." in rendered
    assert f"All sources\n  [S1] nasa.org\n      {REDIRECT}nasa\n" in rendered
    assert f"## All sources\n\n- S1. [nasa.org]({REDIRECT}nasa)\n- S2. [noaa.org]" in piped


def test_invisible_characters_in_an_address_are_encoded(stub: Stub) -> None:
    stub.plays(
        {**CITING, "searches": [{"query": "q", "sources": [["a.org", "https://a.org/\u202eb"]]}]}
    )

    run = run_in_terminal(stub, "search", QUESTION)

    assert "https://a.org/%E2%80%AEb" in run.text and "\u202e" not in run.output


def test_a_terminal_without_unicode_gets_the_report(stub: Stub) -> None:
    stub.environ["PYTHONIOENCODING"] = "ascii"
    stub.plays({**CITING, "text": model_answer("Blue 天.")})

    run = run_in_terminal(stub, "search", QUESTION)

    assert run.exit_code == 0 and "Blue ?." in run.text


def test_each_hit_of_a_web_search_shows_its_address(stub: Stub) -> None:
    stub.plays(CITING)

    run = run_in_terminal(stub, "web-search", QUESTION, columns=120)

    assert f"  [1] noaa.org\n      {REDIRECT}noaa\n" in run.text
    assert f"  [2] nasa.org\n      {REDIRECT}nasa\n" in run.text


def test_a_grounded_answer_lists_the_addresses_in_the_order_of_its_marks(stub: Stub) -> None:
    stub.plays(CITING)

    run = run_in_terminal(stub, "grounded-search", QUESTION, columns=200)

    assert f"  [1] noaa.org\n      {REDIRECT}noaa\n  [2] nasa.org\n" in run.text
    assert run.text.count("Sources") == 1
    assert f"“{LONG_QUERY.strip()}”" in run.text


def test_a_grounded_answer_in_a_pipe_has_numbered_sources_too(stub: Stub) -> None:
    stub.plays(CITING)

    completed = run_command(stub, "grounded-search", QUESTION)

    assert completed.stdout.startswith("## Search Results\n\nText.\n\n## Sources\n\n1. [noaa.org](")
    assert completed.stdout.endswith(f'\n\n### Search Queries Used\n\n- "{LONG_QUERY.strip()}"\n')


def test_a_query_cannot_bring_a_link_that_no_search_returned(stub: Stub) -> None:
    stub.plays({**CITING, "searches": [search_with_sources("see https://evil.example/x", "nasa")]})

    completed = run_command(stub, "grounded-search", QUESTION)

    assert '- "see ' in completed.stdout and "https://evil" not in completed.stdout


def test_an_unverified_report_is_a_warning_even_for_quiet_commands(stub: Stub) -> None:
    stub.plays(CITING)

    completed = run_command(stub, "deep-search", QUESTION, "--quiet", "--max-iterations", "2")

    assert completed.stderr == "\nWarning: Verification was not completed in 2 rounds.\n"


def test_a_report_without_any_search_is_a_warning(stub: Stub) -> None:
    stub.plays({"text": model_answer("Blue.")})

    normal = run_command(stub, "search", QUESTION)
    quiet = run_command(stub, "search", QUESTION, "--quiet")

    warning = "Warning: No web search was made, so the text is from the model's memory.\n"
    assert warning in normal.stderr
    assert quiet.stderr.strip() + "\n" == warning


@pytest.mark.parametrize("option", ["--quiet", "-q", "GEMINI_MCP_LOG_LEVEL=ERROR"])
@pytest.mark.parametrize("name", ["search", "deep-search", "grounded-search", "web-search"])
def test_quiet_commands_print_only_the_result(stub: Stub, name: str, option: str) -> None:
    stub.plays({**CITING, "rounds": [VERIFIED]})
    variable, _, value = option.partition("=")
    stub.environ |= {variable: value} if value else {}

    completed = run_command(stub, name, QUESTION, *([] if value else [option]))

    assert (completed.returncode, completed.stderr) == (0, "")
    assert "nasa" in completed.stdout


def test_a_quiet_command_in_a_terminal_has_no_live_view(stub: Stub) -> None:
    stub.plays(CITING)

    run = run_in_terminal(stub, "search", QUESTION, "--quiet")

    assert not any(view_lines(moment, SPINNER_FRAMES) for moment in run.moments)
    assert "Blue, says NASA" in run.text


def test_an_error_shows_details_and_when_to_try_again(stub: Stub) -> None:
    message = "Please retry in 75s. RESOURCE_EXHAUSTED"
    stub.plays({"exit_code": 173, "status": "error", "message": message, "stderr": "one\ntwo"})
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"

    completed = run_command(stub, "search", QUESTION)

    lines = completed.stderr.splitlines()
    start = next(number for number, line in enumerate(lines) if "RATE_LIMITED" in line)
    assert lines[start + 1] == RateLimited.terminal_hint
    assert re.fullmatch(r"Try again in 1 min 15 s, at \d\d:\d\d:\d\d\.", lines[start + 2])
    assert lines[start + 3 :] == ["Details:", "  one", "  two"]
    assert "not starting runs" not in completed.stderr


def test_a_sign_in_error_has_the_next_step_for_a_terminal(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    completed = run_command(stub, "search", QUESTION)

    assert "in this shell" in completed.stderr
    assert "Claude Desktop" not in completed.stderr


@pytest.mark.parametrize("error", ERROR_CLASSES, ids=lambda error: error.__name__)
def test_next_steps_are_for_people_in_a_terminal(error: type[GeminiMcpError]) -> None:
    step = error("No.").for_terminal().next_step

    assert step
    for words in ("server's environment", "restart", "all again", "Claude", "another search tool"):
        assert words not in step


def test_without_a_provider_each_one_has_a_line_of_its_own(stub: Stub) -> None:
    stub.environ |= {
        "GEMINI_MCP_PROVIDERS": "gemini,api",
        "GEMINI_MCP_CLI_PATH": "/nowhere/gemini",
    }

    completed = run_command(stub, "search", QUESTION)

    assert "NO_PROVIDER" in completed.stderr and "server's" not in completed.stderr
    assert "\ngemini: Install it with" in completed.stderr
    assert "\napi: Set GEMINI_API_KEY" in completed.stderr


def test_a_configuration_error_is_json_too(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_PROVIDERS"] = "gemni"

    completed = run_command(stub, "search", QUESTION, "--json")

    assert completed.returncode == 1
    assert json.loads(completed.stdout)["error"]["code"] == "CONFIG_ERROR"


@pytest.mark.parametrize(("asked", "used"), [("9", 5), ("1", 2)])
def test_a_clamped_number_of_rounds_is_said(stub: Stub, asked: str, used: int) -> None:
    stub.plays({**CITING, "rounds": [VERIFIED]})

    completed = run_command(stub, "deep-search", QUESTION, "--max-iterations", asked)

    assert f"[WARNING] --max-iterations {asked}: using {used}, the m" in completed.stderr


def test_in_a_pipe_each_event_is_one_line(stub: Stub) -> None:
    stub.plays({**CITING, "rounds": [VERIFIED]})

    completed = run_command(stub, "deep-search", QUESTION)

    lines = [re.sub(r" \(\d+ s\)$", "", line) for line in completed.stderr.splitlines() if line]
    assert len(set(lines)) == len(lines)
    assert "[INFO] Round 2 completed, verified: true" in lines
    assert "round 2/5: verified" not in lines  # the log line says it
    assert "\x1b" not in completed.stderr


SLOW: Turn = {"delay": 0.05, "searches": [search_with_sources(LONG_QUERY, "nasa")] * 8}


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (32, 10)])
def test_the_live_view_stays_in_place(stub: Stub, columns: int, lines: int) -> None:
    stub.plays({**CITING, **SLOW, "rounds": [{**VERIFIED, **SLOW}]})

    run = run_in_terminal(stub, "deep-search", QUESTION, columns=columns, lines=lines)

    views = [view_lines(moment, SPINNER_FRAMES) for moment in run.moments]
    assert max(map(len, views)) == 1  # never drawn twice
    for moment in run.moments:
        steps = [line for line in moment if line.startswith("    searching")]
        assert len(steps) <= MAX_STEPS
        assert all(line.endswith("…") for line in steps)  # cut, not wrapped
    assert "✓ round 1/5" in run.text and "✓ round 2/5" in run.text
    assert not view_lines(run.text.splitlines(), SPINNER_FRAMES)
    assert run.output.rstrip().count("\x1b[?25l") == run.output.count("\x1b[?25h")


def test_the_live_view_shows_round_time_sources_and_tokens(clock: Clock) -> None:
    console = Console(width=80)
    view = LiveView(console, (), 5)
    for event in (
        RoundStarted(2),
        RoundStep(2, "searching “a”"),
        RoundFindings(2, Findings(("https://a.org", "https://b.org"), 40_000)),
        RoundFindings(2, Findings(("https://b.org", "https://c.org"), 1_200)),
    ):
        view.show_event(event)
    clock.skip(65)

    with console.capture() as capture:
        console.print(view)

    header, step = capture.get().splitlines()
    assert header[1:] == " round 2/5 · 1 min 5 s · 3 sources · 41k tokens"
    assert step == "    searching “a”"


def test_numbers_are_short() -> None:
    assert [format_duration(seconds) for seconds in (0.4, 59.4, 60, 3725)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "1 h 2 min",
    ]
    assert [format_tokens(count) for count in (1, 999, 41_234, 999_500)] == [
        "1 token",
        "999 tokens",
        "41k tokens",
        "1.0M tokens",
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_restores_the_cursor(stub: Stub, times: int) -> None:
    stub.plays({"hang": "start", "stubborn": True})
    pressed: list[int] = []

    def press_ctrl_c(process: subprocess.Popen[bytes], text: str) -> None:
        is_due = "Ctrl-C again" in text if pressed else stub.hanging_pids
        if is_due and len(pressed) < times:
            pressed.append(signal.SIGINT)
            process.send_signal(signal.SIGINT)

    run = run_in_terminal(stub, "search", QUESTION, on_text=press_ctrl_c)

    assert (run.exit_code, len(pressed)) == (130, times)
    assert run.output.rindex("\x1b[?25h") > run.output.rindex("\x1b[?25l")
    assert not view_lines(run.text.splitlines(), SPINNER_FRAMES)


def test_a_narrower_window_leaves_no_rows_of_the_old_view(mocker: MockerFixture) -> None:
    """Most terminals wrap what they show, but the emulator of these tests does not."""
    console = Console(width=80, force_terminal=True, file=io.StringIO())
    view = LiveView(console, (), 5)
    view.show_event(RoundStarted(1))
    view.show_step("searching “" + "x" * 60 + "”")
    width = mocker.patch.object(Console, "width", new_callable=mocker.PropertyMock)
    width.return_value = 80
    with console.capture():
        console.print(view)

    width.return_value = 30  # the step has 76 columns, so it takes three rows now
    with console.capture() as capture:
        console.print(view)

    assert capture.get().startswith("\x1b[2K\x1b[1A" * 2 + "\x1b[1m")
    with console.capture() as capture:
        console.print(view)
    assert "\x1b[1A" not in capture.get()
