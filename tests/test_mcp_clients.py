"""Other MCP clients, old and new: the same calls give the same results."""

import json
import re
import subprocess
from typing import Any

import pytest

from tests.support import QUESTION, TOOLS, Stub, command, model_answer, search_with_sources
from tests.support.matrix import representatives
from tests.support.mcp_clients import CLIENTS, INSPECTOR, MCP1, needs_mcp1, needs_node, node

PROGRESS = ["starting gemini", "asking the model", "searching “blue sky”", "writing the answer"]


def clients() -> list[Any]:
    return [
        pytest.param([str(MCP1), str(CLIENTS / "call_mcp1.py")], id="mcp 1.x", marks=needs_mcp1),
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
    completed = subprocess.run(
        [*client, json.dumps(command()), json.dumps(arguments)],
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.mark.parametrize("client", clients())
def test_a_client_gets_a_report_with_progress(stub: Stub, client: list[str]) -> None:
    stub.plays(
        {"text": model_answer("Blue."), "searches": [search_with_sources("blue sky", "nasa")]}
    )

    output = call(stub, client, {"query": QUESTION})

    assert output["tools"] == TOOLS
    assert [re.sub(r" \(\d+ s\)$", "", message) for message in output["progress"]] == PROGRESS
    assert not output["result"].get("isError")
    assert output["result"]["structuredContent"]["result"] == "Blue."


ERRORS = [("no-sign-in", QUESTION, "AUTH_ERROR"), ("good", "", "INVALID_INPUT")]


@pytest.mark.parametrize("client", clients())
@pytest.mark.parametrize(("scenario", "query", "code"), representatives(ERRORS, ERRORS[:1]))
def test_a_client_gets_the_error_code_and_hint(
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
def test_the_inspector_lists_and_calls_the_tools(
    stub: Stub, era: str, scenario: str, exit_code: int
) -> None:
    stub.plays_scenario(scenario)
    environment_options = [
        part for name, value in stub.environ.items() for part in ("-e", f"{name}={value}")
    ]
    inspector = [node(), str(INSPECTOR.resolve()), "--cli", "--protocol-era", era]
    inspect = [*inspector, *command(), *environment_options]

    tool_list = subprocess.run(
        [*inspect, "--method", "tools/list", "--strict"],
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    tool_call = subprocess.run(
        [*inspect, "--method", "tools/call", "--tool-name", "search", "--tool-arg", "query=x"],
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert tool_list.returncode == 0, tool_list.stderr
    assert tool_call.returncode == exit_code, tool_call.stderr
    assert ("QUOTA_EXHAUSTED" in tool_call.stdout) == (exit_code != 0)
