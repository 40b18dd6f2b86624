"""The contenders: programs that answer the same question, each called many times."""

import itertools
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL
from gemini_cli_mcp.providers.gemini.home import Profile, inherited_variables, prepare_home
from gemini_cli_mcp.providers.gemini.sign_ins import available_sign_ins
from gemini_cli_mcp.workspace import Workspace
from scripts.benchmark.api import ApiProcess

ROOT = Path(__file__).parent.parent.parent
CLI = ROOT / "tests/real-cli/node_modules/.bin/gemini"
PEERS_FOLDER = ROOT / ".bench"
MODEL = "gemini-2.5-flash"
QUESTION = "Why is the sky blue?"

Ask = Callable[[], Coroutine[Any, Any, Any]]
"""Asks the question once."""


@dataclass(frozen=True)
class BenchHome:
    """A home directory with only the settings that the CLI needs to call the fake API."""

    folder: Path
    api: ApiProcess

    @property
    def environ(self) -> dict[str, str]:
        home = self.folder / "home"
        settings = home / ".gemini" / "settings.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
        return {
            "PATH": f"{CLI.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "GEMINI_API_KEY": "bench-key",
            "GOOGLE_GEMINI_BASE_URL": self.api.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }

    @property
    def working_folder(self) -> Path:
        """The folder to run in; empty."""
        folder = self.folder / "work"
        folder.mkdir(exist_ok=True)
        return folder


@dataclass(frozen=True)
class Contender:
    """One way to get an answer."""

    name: str
    connect: Callable[[BenchHome], Any]
    """Return an async context manager that yields an `Ask`."""


def cold_cli(*, telemetry: bool = False) -> Callable[[BenchHome], Any]:
    """Start a new CLI process for every question, with our settings."""

    @asynccontextmanager
    async def connect(bench_home: BenchHome) -> AsyncGenerator[Ask]:
        command = [str(CLI), "-m", MODEL, "-o", "stream-json", "-p", QUESTION]
        workspace = Workspace(bench_home.folder / "lean")
        profile = Profile("search", (SEARCH_TOOL, FETCH_TOOL), MODEL)
        sign_in = available_sign_ins(bench_home.environ)[0]
        home = prepare_home(workspace, profile, sign_in, Limits())
        home = replace(home, has_telemetry=telemetry)
        environ = home.environment(inherited_variables(bench_home.environ), bench_home.folder)

        async def ask() -> None:
            completed = await anyio.run_process(
                command, cwd=home.working_folder, env=environ, stdin=DEVNULL
            )
            assert b'"status":"success"' in completed.stdout, completed.stdout

        yield ask

    return connect


def mcp_server(
    command: list[str], *calls: tuple[str, dict[str, Any]], **environ: str
) -> Callable[[BenchHome], Any]:
    """Start an MCP server and call it through a real client, with each of the calls in turn."""

    @asynccontextmanager
    async def connect(bench_home: BenchHome) -> AsyncGenerator[Ask]:
        server_environ = {"GEMINI_MCP_CONFIG_DIR": str(bench_home.folder / "config"), **environ}
        parameters = StdioServerParameters(
            command=command[0],
            args=command[1:],
            env={**bench_home.environ, **server_environ},
            cwd=bench_home.working_folder,
        )
        next_call = itertools.cycle(calls)
        with (bench_home.folder / "stderr").open("w") as stderr:
            async with Client(stdio_client(parameters, errlog=stderr)) as client:
                await client.list_tools()

                async def ask() -> CallToolResult:
                    tool, arguments = next(next_call)
                    result = await client.call_tool(tool, arguments)
                    assert "nasa" in str(result), result
                    return result

                yield ask

    return connect


SERVER_COMMAND = [sys.executable, "-m", "gemini_cli_mcp"]
SERVER_ENVIRON = {"GEMINI_MODEL": MODEL, "GEMINI_MCP_CLI_PATH": str(CLI)}


def our_server(*tools: str, **environ: str) -> Callable[[BenchHome], Any]:
    """Start our server and call these tools in turn."""
    calls = [(tool, {"query": QUESTION}) for tool in tools]
    return mcp_server(SERVER_COMMAND, *calls, **SERVER_ENVIRON, **environ)


OURS = Contender("gemini-cli-mcp", our_server("search"))
OUR_TOOLS = [
    Contender(f"gemini-cli-mcp, `{tool}`", our_server(tool))
    for tool in ("search", "grounded_search", "web_search")
]
OUR_DEEP_SEARCH = Contender(
    "gemini-cli-mcp, `deep_search`",
    mcp_server(
        SERVER_COMMAND,
        ("deep_search", {"query": QUESTION, "max_iterations": 3, "wait_seconds": 120}),
        **SERVER_ENVIRON,
    ),
)
OURS_COLD = Contender(
    "gemini-cli-mcp, `GEMINI_MCP_READY=0`", our_server("search", GEMINI_MCP_READY="0")
)
CLI_LEAN = Contender("`gemini -p`, lean settings", cold_cli())

PEER = Contender(
    "gemini-mcp-tool 1.1.8",
    mcp_server(
        ["node", str(PEERS_FOLDER / "node_modules/gemini-mcp-tool/dist/index.js")],
        ("ask-gemini", {"prompt": QUESTION, "model": MODEL}),
        GEMINI_MCP_BACKEND="gemini",
    ),
)
OTHER_PEERS = [
    Contender(
        "@choplin/mcp-gemini-cli 0.2.0",
        mcp_server(
            [str(PEERS_FOLDER / "node_modules/.bin/mcp-gemini-cli")],
            ("googleSearch", {"query": QUESTION, "model": MODEL}),
        ),
    ),
    Contender(
        "gemini-bridge 1.3.2",
        mcp_server(
            [str(PEERS_FOLDER / "venv/bin/gemini-bridge")],
            ("web_search", {"query": QUESTION, "directory": str(ROOT / "docs")}),
        ),
    ),
]
