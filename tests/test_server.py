"""The MCP server as seen by a client: a real client, in process or over stdio, and the stub CLI."""

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
from mcp import MCPError
from mcp.shared.subscriptions import ResourcesListChanged
from mcp.types import INVALID_PARAMS, ResourceListChangedNotification, TextContent

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.results import sanitized_result
from tests.support import (
    QUESTION,
    REDIRECT,
    TOOLS,
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
async def test_a_client_lists_the_search_tool_and_gets_a_report(stub: Stub, mode: str) -> None:
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


async def test_the_text_of_every_tool_is_json_or_the_markdown_itself(stub: Stub) -> None:
    stub.plays_scenario("deep")
    arguments: dict[str, Any] = {"query": QUESTION}

    async with in_process_client(stub) as client:
        for tool in TOOLS:
            result = await client.call_tool(tool, arguments)
            content: dict[str, Any] = result.structured_content or {}
            [block] = result.content
            assert isinstance(block, TextContent) and content["success"]
            if tool == "grounded_search":
                assert block.text == content["result"]
                assert block.text.startswith("## Search Results\n\n")
                assert re.search(
                    r"\n### Sources\n- \[[^\]]+\]\(https://\S+\) \(\S+\)\n", block.text
                )
                assert re.search(r'\n### Search Queries Used\n- ".+"$', block.text)
            else:
                assert json.loads(block.text) == content
            if tool == "deep_search":
                arguments = {"job_id": content["job_id"]}


async def test_the_tool_list_is_small(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        tool_list = await client.list_tools()

    assert len(tool_list.model_dump_json(by_alias=True, exclude_none=True)) < 12_000


async def test_progress_is_numbered_and_describes_each_step(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "searches": [search_with_sources("blue sky", "nasa")]})
    updates: list[tuple[float, str | None]] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        updates.append((progress, message))

    async with in_process_client(stub) as client:
        await client.call_tool("search", {"query": QUESTION}, progress_callback=record)

    assert [number for number, _ in updates] == [1, 2, 3, 4]
    assert [re.sub(r" \(\d+ s\)$", "", message or "") for _, message in updates] == [
        "starting gemini",
        "asking the model",
        "searching “blue sky”",
        "writing the answer",
    ]


async def test_an_error_is_returned_as_a_result_with_code_and_hint(stub: Stub) -> None:
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
async def test_invalid_arguments_return_an_invalid_input_error(
    stub: Stub, arguments: dict[str, Any]
) -> None:
    async with in_process_client(stub) as client:
        result = await client.call_tool("search", arguments)

    error = structured_result(result)["error"]
    assert (result.is_error, error["code"]) == (True, "INVALID_INPUT")
    assert "pydantic" not in json.dumps(error)
    assert stub.runs == []


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"q": "x"}, "`q`: unknown; did you mean `query`?"),
        ("deep_search", {"query": "x", "maxIterations": 3}, "did you mean `max_iterations`?"),
        ("grounded_search", {"query": "x", "thinkng": "low"}, "did you mean `thinking`?"),
        ("web_search", {"query": "x", "zzz": 1}, "known: query, engine, recency, count"),
        ("deep_search_result", {"job": "x"}, "did you mean `job_id`?"),
        ("deep_search_cancel", {"id": "x", "job_id": "x"}, "`id`: unknown"),
        ("deep_search", {"query": "x", "fresh": "yes"}, "`fresh` must be true or false"),
    ],
)
async def test_unknown_arguments_are_refused_by_name(
    stub: Stub, tool: str, arguments: dict[str, Any], message: str
) -> None:
    async with in_process_client(stub) as client:
        result = await client.call_tool(tool, arguments)

    assert result.structured_content
    error = result.structured_content["error"]
    assert error["code"] == "INVALID_INPUT"
    assert message in error["message"]
    assert stub.runs == []


async def test_every_argument_is_described_and_no_others_are_allowed(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        tools = (await client.list_tools()).tools

    for tool in tools:
        assert tool.input_schema["additionalProperties"] is False
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), (tool.name, name)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("research", {}, "The prompt research needs `topic`."),
        ("fact-check", {"claim": " "}, "The prompt fact-check needs `claim`."),
        ("research", {"subject": "x"}, "`subject`: unknown; did you mean `topic`?"),
        ("nothing", {}, "Unknown prompt 'nothing'; known: research, fact-check"),
    ],
)
async def test_a_prompt_without_its_argument_is_refused_by_name(
    stub: Stub, name: str, arguments: dict[str, str], message: str
) -> None:
    async with in_process_client(stub) as client:
        with pytest.raises(MCPError) as caught:
            await client.get_prompt(name, arguments)

    assert (caught.value.error.code, caught.value.error.message) == (INVALID_PARAMS, message)


async def test_the_server_keeps_working_after_an_unknown_tool(stub: Stub) -> None:
    stub.plays({"text": model_answer()})

    async with in_process_client(stub) as client:
        unknown = await client.call_tool("no_such_tool", {})
        valid = await client.call_tool("search", {"query": QUESTION})

    assert unknown.is_error
    assert not valid.is_error


async def test_invalid_characters_are_replaced_and_the_server_survives(stub: Stub) -> None:
    hostile = '{"success": true, "report": "a\\ud800b\\u0000\\u001b[2J"}'
    stub.plays({"text": hostile}, {"text": model_answer()})

    async with stdio_client(stub) as client:
        first = await client.call_tool("search", {"query": QUESTION})
        second = await client.call_tool("search", {"query": QUESTION})

    assert structured_result(first)["result"] == "a\ufffdb\ufffd\ufffd[2J"
    assert not second.is_error


def test_results_never_contain_unencodable_characters() -> None:
    payload: dict[str, object] = {"success": True, "a\ud800": ["b\ud800", {"c": "\x1b[2J"}]}
    result = sanitized_result(payload, ())

    result.model_dump_json().encode()
    assert result.structured_content == {
        "success": True,
        "a\ufffd": ["b\ufffd", {"c": "\ufffd[2J"}],
    }


async def test_cancelling_a_call_terminates_the_cli_but_not_the_server(stub: Stub) -> None:
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


def deep_search_turn(*later_rounds: Turn) -> Turn:
    """Return a deep search whose rounds after the first play `later_rounds`."""
    return {
        "text": model_answer("Draft."),
        "searches": [search_with_sources("sky", "nasa")],
        "rounds": list(later_rounds),
    }


async def test_deep_search_progress_names_the_rounds(stub: Stub) -> None:
    verified_round = {
        "text": model_answer("Proved.", verified=True),
        "searches": [search_with_sources("no sky", "esa")],
    }
    stub.plays(deep_search_turn(verified_round))
    updates: list[tuple[float, str]] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        updates.append((progress, message or ""))

    async with in_process_client(stub) as client:
        _, tool, *_ = (await client.list_tools()).tools
        result = await client.call_tool(
            "deep_search", {"query": QUESTION, "max_iterations": 3}, progress_callback=record
        )

    answer = structured_result(result)
    assert (answer["result"], answer["verified"]) == ("Proved.", True)
    assert tool.output_schema is not None
    jsonschema.validate(answer, tool.output_schema)
    assert [number for number, _ in updates] == list(range(1, len(updates) + 1))
    assert all(re.fullmatch(r"round [12]/3: .* \(\d+ s\)", message) for _, message in updates)
    assert [message.rpartition(" (")[0] for _, message in updates if "searching" in message] == [
        "round 1/3: searching “sky”",
        "round 2/3: searching “no sky”",
    ]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_report_is_announced_after_the_call_that_started_it_has_ended(
    stub: Stub, mode: str
) -> None:
    verified_round = {
        "text": model_answer("Proved.", verified=True),
        "searches": [search_with_sources("no sky", "esa")],
        "gate": True,
    }
    stub.plays(deep_search_turn(verified_round))
    announced = anyio.Event()

    async def record(message: object) -> None:
        if isinstance(message, ResourceListChangedNotification):
            announced.set()

    async with in_process_client(stub, mode, message_handler=record) as client:

        async def listen() -> None:
            async with client.listen(resources_list_changed=True) as changes:
                listening.set()
                assert isinstance(await anext(aiter(changes)), ResourcesListChanged)
            announced.set()

        listening = anyio.Event()
        async with anyio.create_task_group() as tasks:
            if mode == "auto":  # only clients of the other era get events without asking
                tasks.start_soon(listen)
                await listening.wait()
            arguments = {"query": QUESTION, "wait_seconds": 0}
            started = await client.call_tool("deep_search", arguments)
            assert not announced.is_set()
            stub.open_gate()
            with anyio.fail_after(30):
                await announced.wait()
            [resource] = (await client.list_resources()).resources
            assert resource.uri == f"report://{structured_result(started)['job_id']}"


async def test_invalid_deep_search_arguments_return_an_invalid_input_error(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        invalid = await client.call_tool(
            "deep_search", {"query": QUESTION, "max_iterations": "many"}
        )
        empty = await client.call_tool("deep_search", {"query": ""})

    assert (
        structured_result(invalid)["error"]["code"]
        == structured_result(empty)["error"]["code"]
        == "INVALID_INPUT"
    )
    assert stub.runs == []


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_killing_the_server_in_the_third_round_leaves_nothing_behind(
    stub: Stub, signal_number: signal.Signals
) -> None:
    stub.plays(deep_search_turn({"text": model_answer("Draft.")}, {"hang": "start", "children": 1}))

    with start_server(stub, *DEEP_SEARCH_FRAMES) as server:
        anyio.run(eventually, lambda: len(stub.runs) == 3 and len(stub.live_pids()) == 2)
        server.send_signal(signal_number)
        anyio.run(eventually, lambda: not stub.live_pids() and not stub.leftover_files())


def test_a_deep_search_logs_its_rounds_to_stderr(stub: Stub) -> None:
    stub.environ["DEEP_SEARCH_MAX_ITERATIONS"] = "3"
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    verified_round = {
        "text": model_answer("Proved.", verified=True),
        "searches": [search_with_sources("no sky", "esa")],
    }
    stub.plays(deep_search_turn({"exit_code": 1, "stderr": "boom"}, verified_round))

    with start_server(stub, *DEEP_SEARCH_FRAMES) as server:
        assert server.stdout and server.stderr
        replies = (json.loads(line) for line in server.stdout)
        next(reply for reply in replies if reply.get("id") == 2)
        _, log = server.communicate(timeout=30)

    assert log.splitlines() == [
        "[INFO] Deep search round 1/3...",
        "[INFO] Round 1 completed, verified: false",
        "[INFO] Deep search round 2/3...",
        "[ERROR] Deep search round 2 failed: EXECUTION_ERROR",
        "[INFO] Deep search round 3/3...",
        "[INFO] Round 3 completed, verified: true",
        "[INFO] Deep search completed: 3 rounds, verified: true",
    ]


async def test_the_last_progress_message_is_repeated_while_nothing_happens(stub: Stub) -> None:
    stub.limits = Limits(progress_interval=0.05)
    stub.plays(
        {"text": model_answer(), "searches": [search_with_sources("sky", "nasa")], "delay": 0.3}
    )
    updates: list[tuple[float, str]] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        updates.append((progress, (message or "").partition(" (")[0]))

    async with in_process_client(stub) as client:
        await client.call_tool("search", {"query": QUESTION}, progress_callback=record)

    numbers = [number for number, _ in updates]
    assert numbers == sorted(set(numbers))
    assert updates.count((numbers[-1], "writing the answer")) == 1
    assert [message for _, message in updates].count("searching “sky”") > 2


async def test_calls_run_concurrently(stub: Stub) -> None:
    stub.plays({"hang": "start"})

    async with in_process_client(stub) as client, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(client.call_tool, "search", {"query": f"question {number}"})
        await eventually(lambda: len(stub.live_pids()) == 4)
        tasks.cancel_scope.cancel()

    await eventually(lambda: not stub.live_pids())


def test_closing_stdin_stops_the_server_and_the_cli(stub: Stub) -> None:
    stub.plays_scenario("hang-in-search")

    server = start_server(stub, *SEARCH_FRAMES)
    anyio.run(eventually, lambda: len(stub.runs) == 1)
    server.communicate(timeout=30)  # closes stdin and waits

    assert server.returncode == 0
    assert not is_alive(stub.runs[0]["pid"])
    assert stub.leftover_files() == []


async def test_an_unsupported_cli_option_is_tried_only_once(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "strict": True})

    async with in_process_client(stub) as client:
        for _ in range(2):
            await client.call_tool("search", {"query": QUESTION})

    assert [run["argv"] for run in stub.runs] == [["--output-format", "stream-json"], [], []]


def run_server(stub: Stub, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(), input=stdin, env=stub.environ, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GEMINI_MCP_TIMEOUT", "abc"), ("GEMINI_MCP_MAX_CYCLES", "0"), ("GEMINI_MCP_LOG_LEVEL", "x")],
)
def test_an_invalid_variable_aborts_startup_with_a_one_line_error(
    stub: Stub, variable: str, value: str
) -> None:
    stub.environ[variable] = value

    completed = run_server(stub)

    assert completed.returncode == 1
    assert completed.stdout == ""
    assert completed.stderr.startswith(f"[ERROR] CONFIG_ERROR: {variable}='{value}': ")
    assert completed.stderr.count("\n") == 1


def test_the_server_survives_malformed_frames(stub: Stub) -> None:
    malformed = ["{", "null", "[]", '{"jsonrpc": "2.0", "id": 9, "method": "\\ud800"}']

    with start_server(stub, *malformed, json.dumps(INITIALIZE_REQUEST)) as server:
        assert server.stdout
        replies = (json.loads(line) for line in server.stdout)
        assert any(reply.get("id") == 1 and "result" in reply for reply in replies)


def test_files_of_a_killed_server_and_guardian_are_removed_at_startup(
    stub: Stub,
) -> None:
    stub.plays({"text": "prose"}, {"hang": "start"})
    with start_server(stub, *SEARCH_FRAMES) as server:
        anyio.run(eventually, lambda: len(stub.runs) == 2)
        guardian = parent_pid(stub.runs[1]["pid"])
        os.kill(server.pid, signal.SIGSTOP)  # so that it cannot clean up before it is killed
        os.kill(guardian, signal.SIGKILL)
        server.kill()
    assert any(path.name.startswith("temp-invalid-output-") for path in stub.leftover_files())

    completed = run_server(stub)

    assert "[INFO] Removed 1 temporary file" in completed.stderr
    assert stub.leftover_files() == []


def test_log_lines_have_a_level_and_contain_no_tracebacks_or_secrets(
    stub: Stub, tmp_path: Path
) -> None:
    program = (
        "import logging; from gemini_cli_mcp import logs; logs.configure('INFO')\n"
        "log = logging.getLogger('gemini_cli_mcp.x')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('two\\nlines, GEMINI_API_KEY=abcdefgh')\n"
        "log.debug('hidden')\n"
        "try: int('a question')\n"
        "except ValueError: logging.getLogger('mcp.server').exception('failed: %s', 'a question')\n"
    )

    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    first, second = completed.stderr.splitlines()
    assert first == "[ERROR] two lines, GEMINI_API_KEY=[redacted]"
    assert second.startswith("[ERROR] mcp.server: line ") and second.endswith("(ValueError)")
    assert "question" not in second


@pytest.mark.parametrize("redirection", ["<&-", ">&-"])
def test_a_closed_stdin_or_stdout_is_reported_in_one_line(stub: Stub, redirection: str) -> None:
    shell_command = f"{shlex.join(command('serve'))} {redirection}"

    completed = subprocess.run(
        ["sh", "-c", shell_command], env=stub.environ, stderr=subprocess.PIPE, text=True
    )

    assert completed.returncode == 1
    assert (
        completed.stderr == "[ERROR] CONFIG_ERROR: stdin or stdout is closed, but MCP needs both.\n"
    )


LIST_TOOLS_REQUEST: dict[str, object] = {"jsonrpc": "2.0", "method": "tools/list", "params": {}}


def test_the_server_exits_even_if_the_client_never_reads(stub: Stub) -> None:
    frames = [json.dumps({**LIST_TOOLS_REQUEST, "id": number}) for number in range(2, 300)]
    server = start_server(stub, *SEARCH_FRAMES[:2], *frames)
    assert server.stdin and server.stdout and server.stderr

    server.stdin.close()
    exit_code = server.wait(30)  # takes five seconds: 3 MB of replies are never read
    log = server.stderr.read()
    server.stdout.close()
    server.stderr.close()

    assert exit_code == 0
    assert "Traceback" not in log
    assert stub.leftover_files() == []


def test_closing_both_pipes_during_a_search_logs_no_traceback(stub: Stub) -> None:
    stub.plays_scenario("hang-in-search")
    server = start_server(stub, *SEARCH_FRAMES)
    assert server.stdin and server.stdout and server.stderr
    anyio.run(eventually, lambda: len(stub.runs) == 1)

    server.stdout.close()
    server.stdin.close()
    log = server.stderr.read()
    server.stderr.close()

    assert server.wait(30) == 0
    assert "Traceback" not in log and "Error" not in log
    assert not is_alive(stub.runs[0]["pid"])
    assert stub.leftover_files() == []
