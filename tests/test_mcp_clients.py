"""Clients of other makers and ages: the same calls, the same answers."""

import json
import re
import subprocess
from typing import Any

import pytest

from tests.support import QUESTION, TOOLS, Stub, command, model_answer, search_with_sources
from tests.support.matrix import representatives
from tests.support.mcp_clients import CLIENTS, INSPECTOR, MCP1, needs_node, node

PROGRESS = ["starting gemini", "asking the model", "searching “blue sky”", "writing the answer"]


def clients() -> list[Any]:
    return [
        pytest.param([str(MCP1), str(CLIENTS / "call_mcp1.py")], id="mcp 1.x"),
        *(
            pytest.param(
                [node(), str(CLIENTS / "call.mjs"), version],
                id=f"TypeScript {version}.x",
                marks=needs_node,
            )
            for version in "12"
        ),
    ]


def call(stub: Stub, client: list[str], arguments: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [*client, json.dumps(command()), json.dumps(arguments)],
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("client", clients())
def test_a_client_gets_a_report_with_progress(stub: Stub, client: list[str]) -> None:
    stub.plays(
        {"text": model_answer("Blue."), "searches": [search_with_sources("blue sky", "nasa")]}
    )

    told = call(stub, client, {"query": QUESTION})

    assert told["tools"] == TOOLS
    assert [re.sub(r" \(\d+ s\)$", "", said) for said in told["progress"]] == PROGRESS
    assert not told["result"].get("isError")
    assert told["result"]["structuredContent"]["result"] == "Blue."


ERRORS = [("no-sign-in", QUESTION, "AUTH_ERROR"), ("good", "", "INVALID_INPUT")]


@pytest.mark.parametrize("client", clients())
@pytest.mark.parametrize(("scenario", "query", "code"), representatives(ERRORS, ERRORS[:1]))
def test_a_client_gets_the_code_and_hint_of_an_error(
    stub: Stub, client: list[str], scenario: str, query: str, code: str
) -> None:
    stub.plays_scenario(scenario)

    result = call(stub, client, {"query": query})["result"]

    error = result["structuredContent"]["error"]
    assert (result["isError"], error["code"]) == (True, code)
    assert error["hint"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@needs_node
@pytest.mark.parametrize(
    ("era", "scenario", "exit_code"),
    representatives(
        [
            ("legacy", "good", 0),
            ("modern", "good", 0),
            ("legacy", "daily-quota", 5),
            ("modern", "daily-quota", 5),
        ],
        [("modern", "good", 0), ("legacy", "daily-quota", 5)],
    ),
)
def test_the_inspector_calls_the_tool(stub: Stub, era: str, scenario: str, exit_code: int) -> None:
    stub.plays_scenario(scenario)
    given = [part for name, value in stub.environ.items() for part in ("-e", f"{name}={value}")]
    inspector = [node(), str(INSPECTOR.resolve()), "--cli", "--protocol-era", era]
    inspect = [*inspector, *command(), *given]

    listed = subprocess.run(
        [*inspect, "--method", "tools/list", "--strict"],
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    called = subprocess.run(
        [*inspect, "--method", "tools/call", "--tool-name", "search", "--tool-arg", "query=x"],
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert listed.returncode == 0, listed.stderr
    assert called.returncode == exit_code, called.stderr
    assert ("QUOTA_EXHAUSTED" in called.stdout) == (exit_code != 0)
