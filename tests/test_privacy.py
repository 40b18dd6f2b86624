"""Queries, answers and secrets stay out of logs; secrets also stay out of results."""

import json
import logging
import subprocess

import httpx2
import pytest

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.results import to_call_tool_result
from tests.support import Stub, Turn, command, model_answer, search_with_sources
from tests.support.matrix import representatives
from tests.support.mcp_server import INITIALIZE_REQUEST, in_process_client, structured_result
from tests.support.openai_clients import gateway_environment, running_gateway
from tests.support.scripted_upstream import ScriptedReply, ScriptedUpstream
from tests.support.scripted_upstream import search as search_call

QUERY = "queryword why is the sky blue"
ANSWER = "answerword"
MARKERS = ("queryword", ANSWER)
SECRETS = {"MYSQL_PWD": "mysql-secret-1", "GITHUB_PAT": "github-secret-2"}
ECHO = f"could not answer {QUERY}: {ANSWER}"
FAILURES: dict[str, Turn] = {
    "none": {"text": model_answer(ANSWER), "searches": [search_with_sources(QUERY, ANSWER)]},
    "an API error": {"exit_code": 1, "status": "error", "message": ECHO, "stderr": ECHO},
    "a rate limit": {"exit_code": 173, "status": "error", "message": f"{ECHO} retry after 1s"},
    "a quota": {"exit_code": 173, "status": "error", "message": f"{ECHO} daily quota"},
    "no sign-in": {"exit_code": 41, "stderr": ECHO},
    "no such model": {"exit_code": 1, "status": "error", "message": f"models/{ECHO} is not found"},
    "a model that reports failure": {"text": json.dumps({"success": False, "error": ECHO})},
    "prose": {"text": ECHO, "correction": {"text": ECHO}},
    "a failed correction": {
        "text": ECHO,
        "correction": {"exit_code": 1, "status": "error", "message": ECHO, "stderr": ECHO},
    },
    "a failed search": {
        "text": model_answer(ANSWER),
        "searches": [{"query": QUERY, "error": ECHO}],
    },
    "a broken answer": {"text": ECHO, "cut": True},
    "a usage error": {"exit_code": 1, "stderr": f"Unknown argument: {ECHO}"},
}
QUICK_FAILURES = ("an API error", "a quota", "a model that reports failure", "a failed correction")


@pytest.mark.parametrize("failure", representatives(FAILURES, QUICK_FAILURES))
async def test_tools_log_neither_queries_nor_answers(
    stub: Stub, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.environ |= {"GEMINI_MCP_PROVIDERS": "gemini,antigravity", "GEMINI_MCP_MAX_CYCLES": "2"}
    stub.environ |= {"GEMINI_MCP_AGY_PATH": "/nowhere/agy"}
    stub.plays(FAILURES[failure])
    for tool_call in (
        stub.search(QUERY),
        stub.grounded_search(QUERY),
        stub.web_search(QUERY),
        stub.deep_search(QUERY, 2),
    ):
        try:
            await tool_call
        except GeminiMcpError as error:
            to_call_tool_result("search", error, stub.settings.secrets)

    assert stub.runs and stub.messages
    assert not [marker for marker in MARKERS if marker in caplog.text]


def test_a_server_logs_failed_calls_without_their_queries(stub: Stub) -> None:
    stub.environ |= {"GEMINI_MCP_LOG_LEVEL": "DEBUG", "GEMINI_MCP_MAX_CYCLES": "1"}
    stub.plays(FAILURES["a quota"])
    tools = ("search", "grounded_search", "web_search", "deep_search", QUERY)
    frames = [INITIALIZE_REQUEST, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    for number, name in enumerate(tools, 2):
        params = {"name": name, "arguments": {"query": QUERY}}
        frames.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    frames.append({"jsonrpc": "2.0", "id": QUERY, "method": QUERY})  # an unknown method
    with subprocess.Popen(
        command("serve"),
        env=stub.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin and server.stdout and server.stderr
        server.stdin.writelines(json.dumps(frame) + "\n" for frame in frames)
        server.stdin.flush()
        responses = [json.loads(server.stdout.readline()) for _ in range(len(frames) - 1)]
        server.stdin.close()
        log = server.stderr.read()

    assert QUERY in json.dumps(responses)
    assert log.count("[ERROR] Tool call failed: QUOTA_EXHAUSTED") == 4
    assert not [marker for marker in MARKERS if marker in log]


def test_a_gateway_logs_neither_queries_nor_answers(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("private")
    environ = gateway_environment(folder, upstream) | {"GEMINI_MCP_LOG_LEVEL": "DEBUG"}
    log: list[str] = []
    upstream.plays("asks", ScriptedReply(calls=[search_call(QUERY)]), ScriptedReply(ANSWER))
    with running_gateway(environ, log=log) as base:
        for path, model in (("chat/completions", "asks"), ("chat/completions", QUERY)):
            body = {"model": model, "messages": [{"role": "user", "content": f"/search {QUERY}"}]}
            httpx2.post(f"{base}/{path}", json=body, timeout=30)
            httpx2.post(f"{base}/responses", json={"model": model, "input": QUERY}, timeout=30)
        httpx2.get(f"{base}/models/{QUERY}")

    assert "listens" in log[0]
    assert not [marker for marker in MARKERS if marker in log[0]]


async def test_the_cli_receives_only_allowed_and_added_variables(stub: Stub) -> None:
    stub.environ |= {**SECRETS, "SESSION": "x", "ADDED_NAME": "added", "HTTPS_PROXY": "http://p:1"}
    stub.environ |= {"GEMINI_MCP_PASS_ENV": "ADDED_NAME, GEMINI_MCP_HTTP_TOKENS"}
    stub.environ |= {"GEMINI_MCP_HTTP_TOKENS": "some-token"}
    stub.plays({"text": model_answer()})

    await stub.search()

    [run] = stub.runs
    environment = run["environment"]
    assert environment["ADDED_NAME"] == "added" and environment["HTTPS_PROXY"] == "http://p:1"
    assert not {*SECRETS, "SESSION", "GEMINI_MCP_HTTP_TOKENS"} & environment.keys()


async def test_known_secrets_appear_in_no_output(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.limits = Limits(progress_interval=0.05)
    stub.environ |= {**SECRETS, "GEMINI_MCP_MAX_CYCLES": "1"}
    secret_text = " ".join(SECRETS.values()) + " mysql-\nsecret-1 github\x1b[31m-secret-2"
    progress_messages: list[str] = []

    async def record_progress(progress: float, total: float | None, message: str | None) -> None:
        progress_messages.append(str(message))

    async with in_process_client(stub) as client:
        stub.plays(
            {
                "text": model_answer(secret_text),
                "searches": [search_with_sources(secret_text, "nasa")],
            }
        )
        succeeded = await client.call_tool(
            "search", {"query": "x"}, progress_callback=record_progress
        )
        deep = await client.call_tool("deep_search", {"query": "y", "max_iterations": 2})
        uri = f"report://{structured_result(deep)['job_id']}"
        resource = await client.read_resource(uri)
        stub.plays(
            {"exit_code": 1, "status": "error", "message": secret_text, "stderr": secret_text}
        )
        failed = await client.call_tool("search", {"query": "z"}, progress_callback=record_progress)

    results = [succeeded, deep, resource, failed]
    output = (
        "".join(result.model_dump_json() for result in results)
        + "".join(progress_messages)
        + caplog.text
    )
    assert structured_result(succeeded)["success"] and not structured_result(failed)["success"]
    assert "[redacted]" in output
    for secret in SECRETS.values():
        assert secret not in output
    assert "secret-" not in output.replace("[redacted]", "")


def test_an_invalid_variable_is_reported_without_its_secret(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_UPSTREAM_URL"] = "ftp://user:url-secret@host"

    doctor_run = subprocess.run(command("doctor"), env=stub.environ, capture_output=True, text=True)
    search_run = subprocess.run(command("search", "x"), env=stub.environ, capture_output=True)

    assert "GEMINI_MCP_UPSTREAM_URL" in doctor_run.stdout
    assert "url-secret" not in doctor_run.stdout + doctor_run.stderr + search_run.stderr.decode()


def test_pass_env_accepts_only_names(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_PASS_ENV"] = "GOOD,NOT=good"

    completed = subprocess.run(
        command("search", "x"), env=stub.environ, capture_output=True, text=True
    )

    assert completed.returncode == 1
    assert "GEMINI_MCP_PASS_ENV='GOOD,NOT=good': should be comma-separated" in completed.stderr
