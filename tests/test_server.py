"""The server as an MCP client meets it: a real client, real stdio, the stub CLI."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.call_registry import to_call_tool_result
from tests.support import (
    QUESTION,
    REDIRECT,
    Stub,
    Turn,
    command,
    eventually,
    is_alive,
    model_answer,
    parent_pid,
    search_with_sources,
)
from tests.support.mcp_server import (
    DEEP_SEARCH_FRAMES,
    INITIALIZE_REQUEST,
    SEARCH_FRAMES,
    in_process_client,
    start_server,
    stdio_client,
    structured_result,
)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_lists_the_tool_and_gets_a_report(stub: Stub, mode: str) -> None:
    stub.plays(
        {"text": model_answer("Blue."), "searches": [search_with_sources("blue sky", "nasa")]}
    )

    async with stdio_client(stub, mode) as client:
        assert "`search`" in (client.instructions or "")
        tool, *_ = (await client.list_tools()).tools
        result = await client.call_tool("search", {"query": QUESTION})

    answer = structured_result(result)
    assert not result.is_error
    assert (answer["success"], answer["result"]) == (True, "Blue.")
    assert answer["metadata"]["sources_visited"] == [REDIRECT + "nasa"]
    assert (tool.name, tool.title) == ("search", "Web search with sources")
    assert tool.annotations is not None
    assert (tool.annotations.read_only_hint, tool.annotations.open_world_hint) == (True, True)
    assert tool.input_schema["required"] == ["query"]
    assert tool.output_schema is not None
    assert tool.output_schema["required"] == ["success"]
    jsonschema.validate(answer, tool.output_schema)


async def test_the_list_of_tools_is_small(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        listed = await client.list_tools()

    assert len(listed.model_dump_json(by_alias=True, exclude_none=True)) < 12_000


async def test_progress_comes_in_order_and_in_words(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "searches": [search_with_sources("blue sky", "nasa")]})
    seen: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with in_process_client(stub) as client:
        await client.call_tool("search", {"query": QUESTION}, progress_callback=note)

    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert [re.sub(r" \(\d+ s\)$", "", message or "") for _, message in seen] == [
        "starting gemini",
        "asking the model",
        "searching “blue sky”",
        "writing the answer",
    ]


async def test_an_error_is_a_result_with_code_and_hint(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    async with in_process_client(stub) as client:
        tool, *_ = (await client.list_tools()).tools
        result = await client.call_tool("search", {"query": QUESTION})

    error = structured_result(result)["error"]
    assert result.is_error
    assert error["code"] == "AUTH_ERROR"
    assert error["retryable"] is False
    assert "GEMINI_API_KEY" in error["hint"]
    assert tool.output_schema is not None
    jsonschema.validate(result.structured_content, tool.output_schema)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": ""},
        {"query": 7},
        {"query": None},
        {"query": ["x"]},
        {"query": "a\0b"},
        {"query": "x" * 10_001},
        {"question": "x"},
    ],
)
async def test_bad_arguments_are_answered_in_our_own_words(
    stub: Stub, arguments: dict[str, Any]
) -> None:
    async with in_process_client(stub) as client:
        result = await client.call_tool("search", arguments)

    error = structured_result(result)["error"]
    assert (result.is_error, error["code"]) == (True, "INVALID_INPUT")
    assert "pydantic" not in json.dumps(error)
    assert stub.runs == []


async def test_an_unknown_tool_is_an_error_and_the_server_goes_on(stub: Stub) -> None:
    stub.plays({"text": model_answer()})

    async with in_process_client(stub) as client:
        unknown = await client.call_tool("no_such_tool", {})
        known = await client.call_tool("search", {"query": QUESTION})

    assert unknown.is_error
    assert not known.is_error


async def test_hostile_characters_do_not_end_the_server(stub: Stub) -> None:
    hostile = '{"success": true, "report": "a\\ud800b\\u0000\\u001b[2J"}'
    stub.plays({"text": hostile}, {"text": model_answer()})

    async with stdio_client(stub) as client:
        first = await client.call_tool("search", {"query": QUESTION})
        second = await client.call_tool("search", {"query": QUESTION})

    assert structured_result(first)["result"] == "a\ufffdb\ufffd\ufffd[2J"
    assert not second.is_error


def test_nothing_goes_out_that_a_transport_cannot_encode() -> None:
    sent = to_call_tool_result({"success": True, "a\ud800": ["b\ud800", {"c": "\x1b[2J"}]}, ())

    sent.model_dump_json().encode()
    assert sent.structured_content == {"success": True, "a\ufffd": ["b\ufffd", {"c": "\ufffd[2J"}]}


async def test_a_cancelled_call_ends_the_cli_and_the_server_goes_on(stub: Stub) -> None:
    stub.plays_scenario("hang-in-search,good")

    async with stdio_client(stub) as client:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await client.call_tool("search", {"query": QUESTION})

            tasks.start_soon(call)
            await eventually(lambda: len(stub.runs) == 1)
            assert is_alive(stub.runs[0]["pid"])
            tasks.cancel_scope.cancel()
        await eventually(lambda: not is_alive(stub.runs[0]["pid"]))
        assert (await client.call_tool("search", {"query": QUESTION})).is_error is False


def deep(*turns: Turn) -> Turn:
    """A deep search whose rounds after the first play these turns."""
    return {
        "text": model_answer("Draft."),
        "searches": [search_with_sources("sky", "nasa")],
        "rounds": list(turns),
    }


async def test_a_deep_search_tells_its_rounds_through_a_client(stub: Stub) -> None:
    proved = {
        "text": model_answer("Proved.", verified=True),
        "searches": [search_with_sources("no sky", "esa")],
    }
    stub.plays(deep(proved))
    seen: list[tuple[float, str]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message or ""))

    async with in_process_client(stub) as client:
        _, tool, *_ = (await client.list_tools()).tools
        result = await client.call_tool(
            "deep_search", {"query": QUESTION, "max_iterations": 3}, progress_callback=note
        )

    answer = structured_result(result)
    assert (answer["result"], answer["verified"]) == ("Proved.", True)
    assert tool.output_schema is not None
    jsonschema.validate(answer, tool.output_schema)
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    assert all(re.fullmatch(r"round [12]/3: .* \(\d+ s\)", message) for _, message in seen)
    assert [message.rpartition(" (")[0] for _, message in seen if "searching" in message] == [
        "round 1/3: searching “sky”",
        "round 2/3: searching “no sky”",
    ]


async def test_a_deep_search_fails_in_our_own_words(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        bad = await client.call_tool("deep_search", {"query": QUESTION, "max_iterations": "many"})
        blank = await client.call_tool("deep_search", {"query": ""})

    assert (
        structured_result(bad)["error"]["code"]
        == structured_result(blank)["error"]["code"]
        == "INVALID_INPUT"
    )
    assert stub.runs == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_killed_in_the_third_round_leaves_nothing(
    stub: Stub, number: signal.Signals
) -> None:
    stub.plays(deep({"text": model_answer("Draft.")}, {"hang": "start", "children": 1}))

    with start_server(stub, *DEEP_SEARCH_FRAMES) as server:
        anyio.run(eventually, lambda: len(stub.runs) == 3 and len(stub.live_pids()) == 2)
        server.send_signal(number)
        anyio.run(eventually, lambda: not stub.live_pids() and not stub.leftover_files())


def test_the_log_of_a_deep_search_is_on_stderr_word_for_word(stub: Stub) -> None:
    stub.environ["DEEP_SEARCH_MAX_ITERATIONS"] = "3"
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    proved = {
        "text": model_answer("Proved.", verified=True),
        "searches": [search_with_sources("no sky", "esa")],
    }
    stub.plays(deep({"exit_code": 1, "stderr": "boom"}, proved))

    with start_server(stub, *DEEP_SEARCH_FRAMES) as server:
        assert server.stdout and server.stderr
        answers = (json.loads(line) for line in server.stdout)
        next(answer for answer in answers if answer.get("id") == 2)
        _, logged = server.communicate(timeout=30)

    assert logged.splitlines() == [
        "[INFO] Deep search round 1/3...",
        "[INFO] Round 1 completed, verified: false",
        "[INFO] Deep search round 2/3...",
        "[ERROR] Deep search round 2 failed: EXECUTION_ERROR",
        "[INFO] Deep search round 3/3...",
        "[INFO] Round 3 completed, verified: true",
        "[INFO] Deep search completed: 3 rounds, verified: true",
    ]


async def test_silence_is_filled_with_the_last_news(stub: Stub) -> None:
    stub.limits = Limits(progress_interval=0.05)
    stub.plays(
        {"text": model_answer(), "searches": [search_with_sources("sky", "nasa")], "delay": 0.3}
    )
    seen: list[tuple[float, str]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, (message or "").partition(" (")[0]))

    async with in_process_client(stub) as client:
        await client.call_tool("search", {"query": QUESTION}, progress_callback=note)

    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers))
    assert seen.count((numbers[-1], "writing the answer")) == 1
    assert [message for _, message in seen].count("searching “sky”") > 2


async def test_calls_run_side_by_side(stub: Stub) -> None:
    stub.plays({"hang": "start"})

    async with in_process_client(stub) as client, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(client.call_tool, "search", {"query": f"question {number}"})
        await eventually(lambda: len(stub.live_pids()) == 4)
        tasks.cancel_scope.cancel()

    await eventually(lambda: not stub.live_pids())


def test_a_client_that_leaves_takes_everything_with_it(stub: Stub) -> None:
    stub.plays_scenario("hang-in-search")

    server = start_server(stub, *SEARCH_FRAMES)
    anyio.run(eventually, lambda: len(stub.runs) == 1)
    server.communicate(timeout=30)  # closes stdin, and waits

    assert server.returncode == 0
    assert not is_alive(stub.runs[0]["pid"])
    assert stub.leftover_files() == []


async def test_what_was_learned_of_a_cli_is_remembered(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "strict": True})

    async with in_process_client(stub) as client:
        for _ in range(2):
            await client.call_tool("search", {"query": QUESTION})

    assert [run["argv"] for run in stub.runs] == [["--output-format", "stream-json"], [], []]


def serve(stub: Stub, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(), input=stdin, env=stub.environ, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GEMINI_MCP_TIMEOUT", "abc"), ("GEMINI_MCP_MAX_CYCLES", "0"), ("GEMINI_MCP_LOG_LEVEL", "x")],
)
def test_a_bad_variable_stops_the_start_with_one_clear_line(
    stub: Stub, variable: str, value: str
) -> None:
    stub.environ[variable] = value

    done = serve(stub)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"[ERROR] CONFIG_ERROR: {variable}='{value}': ")
    assert done.stderr.count("\n") == 1


def test_frames_that_are_no_json_do_not_end_the_server(stub: Stub) -> None:
    bad = ["{", "null", "[]", '{"jsonrpc": "2.0", "id": 9, "method": "\\ud800"}']

    with start_server(stub, *bad, json.dumps(INITIALIZE_REQUEST)) as server:
        assert server.stdout
        answers = (json.loads(line) for line in server.stdout)
        assert any(answer.get("id") == 1 and "result" in answer for answer in answers)


def test_files_of_a_server_that_was_killed_with_its_guardian_are_swept_and_counted(
    stub: Stub,
) -> None:
    stub.plays({"text": "prose"}, {"hang": "start"})
    with start_server(stub, *SEARCH_FRAMES) as server:
        anyio.run(eventually, lambda: len(stub.runs) == 2)
        guardian = parent_pid(stub.runs[1]["pid"])
        os.kill(server.pid, signal.SIGSTOP)  # so that it cannot clean up in between
        os.kill(guardian, signal.SIGKILL)
        server.kill()
    assert any(path.name.startswith("temp-invalid-output-") for path in stub.leftover_files())

    done = serve(stub)

    assert "[INFO] Removed 1 temporary file" in done.stderr
    assert stub.leftover_files() == []


def test_log_lines_have_their_level_and_no_stack_traces(stub: Stub, tmp_path: Path) -> None:
    program = (
        "import logging; from gemini_cli_mcp import logs; logs.configure('INFO')\n"
        "log = logging.getLogger('gemini_cli_mcp.x')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('two\\nlines, GEMINI_API_KEY=abcdefgh')\n"
        "log.debug('hidden')\n"
        "try: int('a question')\n"
        "except ValueError: logging.getLogger('mcp.server').exception('failed: %s', 'a question')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    first, second = done.stderr.splitlines()
    assert first == "[ERROR] two lines, GEMINI_API_KEY=[redacted]"
    assert second.startswith("[ERROR] mcp.server: line ") and second.endswith("(ValueError)")
    assert "question" not in second


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_without_stdin_or_stdout_there_is_one_clear_line(stub: Stub, closed: str) -> None:
    line = f"{shlex.join(command('serve'))} {closed}"

    done = subprocess.run(["sh", "-c", line], env=stub.environ, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 1
    assert done.stderr == "[ERROR] CONFIG_ERROR: stdin or stdout is closed, but MCP needs both.\n"


LIST: dict[str, object] = {"jsonrpc": "2.0", "method": "tools/list", "params": {}}


def test_a_client_that_never_reads_does_not_keep_the_server(stub: Stub) -> None:
    frames = [json.dumps({**LIST, "id": number}) for number in range(2, 300)]
    server = start_server(stub, *SEARCH_FRAMES[:2], *frames)
    assert server.stdin and server.stdout and server.stderr

    server.stdin.close()
    code = server.wait(30)  # of them it takes five; nobody reads 3 MB of answers
    said = server.stderr.read()
    server.stdout.close()
    server.stderr.close()

    assert code == 0
    assert "Traceback" not in said
    assert stub.leftover_files() == []


def test_a_client_that_closes_both_pipes_in_a_search_leaves_no_stack_trace(stub: Stub) -> None:
    stub.plays_scenario("hang-in-search")
    server = start_server(stub, *SEARCH_FRAMES)
    assert server.stdin and server.stdout and server.stderr
    anyio.run(eventually, lambda: len(stub.runs) == 1)

    server.stdout.close()
    server.stdin.close()
    said = server.stderr.read()
    server.stderr.close()

    assert server.wait(30) == 0
    assert "Traceback" not in said and "Error" not in said
    assert not is_alive(stub.runs[0]["pid"])
    assert stub.leftover_files() == []
