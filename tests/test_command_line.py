"""The command line itself: words without quotes, mistakes, help and completion."""

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gemini_cli_mcp.cli.arguments import build_parsers, parse_options
from gemini_cli_mcp.cli.command_parser import CommandParser
from gemini_cli_mcp.cli.wording import PROGRAM
from tests.support import QUESTION, Stub, command, model_answer
from tests.support.cli import run_command
from tests.support.matrix import needs_posix

COMMANDS = build_parsers()[1]


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        ("search what is mcp", "what is mcp"),
        ("search 'what is' mcp --quiet", "what is mcp"),
        ("search --json what is --quiet mcp", "what is mcp"),
        ("deep-search what --max-iterations 3 is mcp --json", "what is mcp"),
        ("web-search -q -- -5 --degrees", "-5 --degrees"),
        ("grounded-search - is what", "- is what"),
        ("search what --json -- does -x -- mean", "what does -x -- mean"),
        ("search a --json '-x y' b", "a -x y b"),
    ],
)
def test_the_words_of_a_question_need_no_quotes(arguments: str, question: str) -> None:
    assert parse_options(shlex.split(arguments)).query == question


def test_joined_words_reach_the_model(stub: Stub) -> None:
    stub.plays({"text": model_answer("Blue.")})

    completed = run_command(stub, "search", "why", "is", "--json", "the", "sky", "blue")

    assert completed.returncode == 0
    assert "\nwhy is the sky blue\n" in stub.runs[0]["prompt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "serch x",
            "gemini-cli-mcp: unknown command 'serch'; did you mean `gemini-cli-mcp search`?",
        ),
        (
            "deepsearch x",
            "unknown command 'deepsearch'; did you mean `gemini-cli-mcp deep-search`?",
        ),
        ("'what is mcp'", "to research a question: `gemini-cli-mcp search QUERY`"),
        ("search", "gemini-cli-mcp search: QUERY is missing"),
        ("search --json --", "gemini-cli-mcp search: QUERY is missing"),
        ("doctor -- x", "gemini-cli-mcp doctor: unexpected argument 'x'"),
        ("help", "did you mean `gemini-cli-mcp --help`?"),
        ("--hlp", "gemini-cli-mcp: --hlp: unknown option; did you mean --help?"),
        ("search x --hlp", "--hlp: unknown option; did you mean --help?"),
        ("search x --js", "--js: unknown option; did you mean --json?"),
        ("search x --jsn", "gemini-cli-mcp search: --jsn: unknown option; did you mean --json?"),
        ("search x --jsn=1", "--jsn: unknown option; did you mean --json?"),
        ("search x --zzz", "--zzz: unknown option; put -- before words that start with a dash\n"),
        ("search ''", "gemini-cli-mcp search: QUERY must not be blank."),
        ("search '  ' ' '", "gemini-cli-mcp search: QUERY must not be blank."),
        ("web-search x --count 99", "web-search: --count must be a whole number from 1 to 50."),
        ("web-search x --count 1_0", "--count: must be a whole number, not '1_0'"),
        ("web-search x --count many", "--count: must be a whole number, not 'many'"),
        ("deep-search x --max-iterations 2.5", "--max-iterations: must be a whole number"),
        ("web-search x --recency oneday", "--recency: invalid choice: 'oneday' (choose from "),
        ("web-search x --engine nope", "--engine must be one of"),
        ("grounded-search x --model /", "--model must be a valid model name."),
        ("grounded-search x --include-thoughts", "--include-thoughts is not supported by gemini"),
        ("doctor everything", "gemini-cli-mcp doctor: unexpected argument 'everything'"),
        ("completion powershel", "completion: shell: invalid choice: 'powershel'"),
        ("serve --port 9", "gemini-cli-mcp serve: --port requires --http"),
        ("serve --host ::1", "gemini-cli-mcp serve: --host requires --http"),
        ("serve --allowed-host a.example", "serve: --allowed-host requires --http"),
        ("serve --http --port 65536", "--port: must be a number from 0 to 65535, not '65536'"),
    ],
)
def test_a_mistake_exits_with_two_and_says_what_is_wrong(
    stub: Stub, arguments: str, message: str
) -> None:
    completed = run_command(stub, *shlex.split(arguments))

    assert (completed.returncode, completed.stdout, stub.runs) == (2, "", [])
    assert message in completed.stderr
    assert "--help` for its arguments and examples.\n" in completed.stderr
    assert "INVALID_INPUT" not in completed.stderr and "`query`" not in completed.stderr


def arguments_of(parser: CommandParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help"]


def examples_of(name: str, text: str) -> list[str]:
    """Return the arguments of each example in a help text, the command's name included."""
    lines = text.partition("examples:\n")[2].splitlines()
    commands = [line.rpartition(f" {PROGRAM} ")[2].partition(" > ")[0] for line in lines]
    assert all(command.split()[0] == name for command in commands)
    return commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_argument_and_shows_it_in_an_example(stub: Stub, name: str) -> None:
    examples = examples_of(name, run_command(stub, name, "--help").stdout)

    assert examples
    for example in examples:
        assert parse_options(shlex.split(example)).command == name.replace("-", "_")
    for action in arguments_of(COMMANDS[name]):
        assert action.help
        if action.option_strings:
            assert any(option in " ".join(examples) for option in action.option_strings)


@pytest.mark.parametrize("name", ["search", "deep-search", "web-search", "completion"])
@needs_posix
def test_the_examples_of_the_help_work_as_they_are(stub: Stub, name: str, tmp_path: Path) -> None:
    stub.plays_scenario("good")
    lines = run_command(stub, name, "--help").stdout.partition("examples:\n")[2]
    program = shlex.join(command())
    script = "\n".join(
        re.sub(rf"(?<=\s){PROGRAM}(?= {name})", program, line) for line in lines.splitlines()
    )

    completed = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("columns", ["1", "2", "20"])
def test_help_works_in_a_narrow_terminal(stub: Stub, columns: str) -> None:
    stub.environ["COLUMNS"] = columns

    assert "QUERY" in run_command(stub, "search", "--help").stdout


BASH_COMPLETION = """
source /dev/stdin <<< "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMP_LINE="${*:2}" COMP_POINT=${#COMP_LINE}
$(complete -p gemini-cli-mcp | sed 's/.*-F \\([^ ]*\\).*/\\1/') gemini-cli-mcp "${@: -1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gemini-cli-mcp dee", ["deep-search"]),
        ("gemini-cli-mcp web-search --rec", ["--recency"]),
        ("gemini-cli-mcp web-search --recency oneM", ["oneMonth"]),
        ("gemini-cli-mcp install clau", ["claude-desktop", "claude-code"]),
        ("gemini-cli-mcp deep-search x --output rep", ["report.md"]),
    ],
)
@needs_posix
def test_bash_completes_commands_options_and_values(
    stub: Stub, typed: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "report.md").touch()
    script = run_command(stub, "completion", "bash").stdout

    completed = subprocess.run(
        ["bash", "--norc", "-c", BASH_COMPLETION, "bash", script, *typed.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert sorted(completed.stdout.split()) == sorted(expected), completed.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_valid(stub: Stub, shell: str, tmp_path: Path) -> None:
    script = run_command(stub, "completion", shell)

    assert script.returncode == 0 and "grounded-search" in script.stdout
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script.stdout)
    assert subprocess.run([shell, "-n", path], capture_output=True, timeout=30).stderr == b""


def test_completion_needs_no_valid_configuration(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_TIMEOUT"] = "soon"

    assert run_command(stub, "completion", "fish").returncode == 0
    assert run_command(stub, "search", QUESTION).returncode == 1
