"""What users ask, what is answered and what is secret: in no log, and no secret in a result."""

import json
import logging
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.deep_search import DeepSearch
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.server.call_registry import CallRegistry
from gemini_cli_mcp.workspace import Workspace
from tests.support import Stub, Turn, command, model_answer, search_with_sources
from tests.support.matrix import representatives
from tests.support.mcp_server import INITIALIZE_REQUEST, in_process_client, structured_result
from tests.support.openai_clients import gateway_environment, running_gateway
from tests.support.scripted_upstream import ScriptedReply, ScriptedUpstream
from tests.support.scripted_upstream import search as searching

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
    "a model that gives up": {"text": json.dumps({"success": False, "error": ECHO})},
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
QUICK = ("an API error", "a quota", "a model that gives up", "a failed correction")


@pytest.mark.parametrize("failure", representatives(FAILURES, QUICK))
async def test_no_failure_of_any_tool_brings_words_into_the_log(
    stub: Stub, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.environ |= {"GEMINI_MCP_PROVIDERS": "gemini,antigravity", "GEMINI_MCP_MAX_CYCLES": "2"}
    stub.environ |= {"GEMINI_MCP_AGY_PATH": "/nowhere/agy"}
    stub.plays(FAILURES[failure])
    settings = stub.settings
    calls = CallRegistry(settings.secrets)
    with stub.researcher(settings) as desk:
        providers = ProviderRegistry(settings, Workspace(settings.config_dir), stub.environ)
        engines = WebSearch(settings, providers, stub.environ, desk.sleep)
        deep = DeepSearch(desk, settings, QUERY, 2)
        works: list[Callable[[], Awaitable[dict[str, Any]]]] = [
            lambda: search(desk, QUERY, timeout=30, progress=stub.messages.append),
            lambda: grounded_search(desk, settings, QUERY, progress=stub.messages.append),
            lambda: engines.search(QUERY, progress=stub.messages.append),
            lambda: deep.run(stub.messages.append),
        ]
        for work in works:
            await calls.run(work)

    assert stub.runs and stub.messages
    assert not [marker for marker in MARKERS if marker in caplog.text]


def test_the_log_of_a_server_says_that_a_call_failed_and_not_what_was_asked(stub: Stub) -> None:
    stub.environ |= {"GEMINI_MCP_LOG_LEVEL": "DEBUG", "GEMINI_MCP_MAX_CYCLES": "1"}
    stub.plays(FAILURES["a quota"])
    tools = ("search", "grounded_search", "web_search", "deep_search", QUERY)
    frames = [INITIALIZE_REQUEST, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    for number, name in enumerate(tools, 2):
        params = {"name": name, "arguments": {"query": QUERY}}
        frames.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    frames.append({"jsonrpc": "2.0", "id": QUERY, "method": QUERY})  # a method that is none
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
        answers = [json.loads(server.stdout.readline()) for _ in range(len(frames) - 1)]
        server.stdin.close()
        log = server.stderr.read()

    assert QUERY in json.dumps(answers)
    assert log.count("[ERROR] Tool call failed: QUOTA_EXHAUSTED") == 4
    assert not [marker for marker in MARKERS if marker in log]


def test_the_log_of_a_gateway_holds_no_words(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("private")
    environ = gateway_environment(folder, upstream) | {"GEMINI_MCP_LOG_LEVEL": "DEBUG"}
    log: list[str] = []
    upstream.plays("asks", ScriptedReply(calls=[searching(QUERY)]), ScriptedReply(ANSWER))
    with running_gateway(environ, log=log) as base:
        for path, model in (("chat/completions", "asks"), ("chat/completions", QUERY)):
            body = {"model": model, "messages": [{"role": "user", "content": f"/search {QUERY}"}]}
            httpx2.post(f"{base}/{path}", json=body, timeout=30)
            httpx2.post(f"{base}/responses", json={"model": model, "input": QUERY}, timeout=30)
        httpx2.get(f"{base}/models/{QUERY}")

    assert "listens" in log[0]
    assert not [marker for marker in MARKERS if marker in log[0]]


async def test_the_cli_sees_what_is_allowed_and_what_the_user_adds(stub: Stub) -> None:
    stub.environ |= {**SECRETS, "SESSION": "x", "ADDED_NAME": "added", "HTTPS_PROXY": "http://p:1"}
    stub.environ |= {"GEMINI_MCP_PASS_ENV": "ADDED_NAME, GEMINI_MCP_HTTP_TOKENS"}
    stub.environ |= {"GEMINI_MCP_HTTP_TOKENS": "some-token"}
    stub.plays({"text": model_answer()})

    await stub.search()

    [run] = stub.runs
    seen = run["environment"]
    assert seen["ADDED_NAME"] == "added" and seen["HTTPS_PROXY"] == "http://p:1"
    assert not {*SECRETS, "SESSION", "GEMINI_MCP_HTTP_TOKENS"} & seen.keys()


async def test_known_secrets_leave_in_nothing(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stub.limits = Limits(progress_interval=0.05)
    stub.environ |= {**SECRETS, "GEMINI_MCP_MAX_CYCLES": "1"}
    words = " ".join(SECRETS.values()) + " mysql-\nsecret-1 github\x1b[31m-secret-2"
    told: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(str(message))

    async with in_process_client(stub) as client:
        stub.plays({"text": model_answer(words), "searches": [search_with_sources(words, "nasa")]})
        good = await client.call_tool("search", {"query": "x"}, progress_callback=note)
        deep = await client.call_tool("deep_search", {"query": "y", "max_iterations": 2})
        uri = f"report://{structured_result(deep)['job_id']}"
        read = await client.read_resource(uri)
        stub.plays({"exit_code": 1, "status": "error", "message": words, "stderr": words})
        bad = await client.call_tool("search", {"query": "z"}, progress_callback=note)

    sent = [good, deep, read, bad]
    everything = "".join(each.model_dump_json() for each in sent) + "".join(told) + caplog.text
    assert structured_result(good)["success"] and not structured_result(bad)["success"]
    assert "[redacted]" in everything
    for secret in SECRETS.values():
        assert secret not in everything
    assert "secret-" not in everything.replace("[redacted]", "")


def test_a_bad_variable_is_named_without_the_secret_in_it(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_UPSTREAM_URL"] = "ftp://user:url-secret@host"

    done = subprocess.run(command("doctor"), env=stub.environ, capture_output=True, text=True)
    started = subprocess.run(command("search", "x"), env=stub.environ, capture_output=True)

    assert "GEMINI_MCP_UPSTREAM_URL" in done.stdout
    assert "url-secret" not in done.stdout + done.stderr + started.stderr.decode()


def test_pass_env_takes_names_alone(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_PASS_ENV"] = "GOOD,NOT=good"

    done = subprocess.run(command("search", "x"), env=stub.environ, capture_output=True, text=True)

    assert done.returncode == 1
    assert "GEMINI_MCP_PASS_ENV='GOOD,NOT=good': should be comma-separated" in done.stderr
