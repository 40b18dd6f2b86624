"""Who is measured: each is something that answers one question, however often it is asked."""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL
from gemini_cli_mcp.providers.gemini.home import Profile, available_sign_ins, prepare_home
from gemini_cli_mcp.workspace import Workspace
from scripts.benchmark.api import Api

ROOT = Path(__file__).parent.parent.parent
CLI = ROOT / "tests/real-cli/node_modules/.bin/gemini"
PEERS = ROOT / ".bench"
MODEL = "gemini-2.5-flash"
QUESTION = "Why is the sky blue?"

SETTLED = 8.0
"""Seconds: a user's first question does not come with the handshake."""

Ask = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Place:
    """A home with nothing in it but the way to the fake API."""

    folder: Path
    api: Api

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
    def work(self) -> Path:
        """An empty folder to run in."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return work


@dataclass(frozen=True)
class Subject:
    """One way to get an answer."""

    name: str
    open: "Callable[[Place], Any]"
    """An async context manager that yields what asks the question once."""
    times: int = 7
    """Calls in a row."""
    at_once: tuple[int, ...] = (1, 10)


def command_line(*, lean: bool, telemetry: bool = False) -> Callable[[Place], Any]:
    """A new process of the CLI for every question, as people and scripts run it."""

    @asynccontextmanager
    async def opened(place: Place) -> AsyncGenerator[Ask]:
        environ, cwd = place.environ, place.work
        command = [str(CLI), "-m", MODEL, "-o", "stream-json", "-p", QUESTION]
        if lean:
            workspace = Workspace(place.folder / "lean")
            profile = Profile("search", (SEARCH_TOOL, FETCH_TOOL), MODEL)
            home = prepare_home(workspace, profile, available_sign_ins(environ)[0], Limits())
            home = replace(home, has_telemetry=telemetry)
            environ, cwd = home.environment(environ, place.folder), home.working_folder

        async def ask() -> None:
            done = await anyio.run_process(command, cwd=cwd, env=environ, stdin=-3)
            assert b'"status":"success"' in done.stdout, done.stdout

        yield ask

    return opened


def server(
    command: list[str], tool: str, arguments: dict[str, Any], **environ: str
) -> Callable[[Place], Any]:
    """An MCP server, asked by a real client."""

    @asynccontextmanager
    async def opened(place: Place) -> AsyncGenerator[Ask]:
        config = {"GEMINI_MCP_CONFIG_DIR": str(place.folder / "config"), **environ}
        parameters = StdioServerParameters(
            command=command[0],
            args=command[1:],
            env={**place.environ, **config},
            cwd=place.work,
        )
        with (place.folder / "stderr").open("w") as errors:
            async with Client(stdio_client(parameters, errlog=errors)) as client:
                await client.list_tools()
                await anyio.sleep(SETTLED)

                async def ask() -> CallToolResult:
                    answer = await client.call_tool(tool, arguments)
                    assert "nasa" in str(answer), answer
                    return answer

                yield ask

    return opened


OURS = [sys.executable, "-m", "gemini_cli_mcp"]
REAL = {"GEMINI_MODEL": MODEL, "GEMINI_MCP_CLI_PATH": str(CLI)}
WARM = Subject(
    "gemini-cli-mcp",
    server(OURS, "search", {"query": QUESTION}, **REAL),
    times=30,
    at_once=(1, 10, 50),
)
SINGLE = Subject(
    "gemini-cli-mcp, no shared process",
    server(OURS, "search", {"query": QUESTION}, **REAL, GEMINI_MCP_WARM="0"),
)
DEEP = server(OURS, "deep_search", {"query": QUESTION}, **REAL)
LEAN = Subject("`gemini -p`, cold, our lean settings", command_line(lean=True))
DEFAULT = Subject("`gemini -p`, cold, as installed", command_line(lean=False))

PEER_SUBJECTS = [
    Subject(
        "gemini-mcp-tool 1.1.8",
        server(
            ["node", str(PEERS / "node_modules/gemini-mcp-tool/dist/index.js")],
            "ask-gemini",
            {"prompt": QUESTION, "model": MODEL},
            GEMINI_MCP_BACKEND="gemini",
        ),
    ),
    Subject(
        "@choplin/mcp-gemini-cli 0.2.0",
        server(
            [str(PEERS / "node_modules/.bin/mcp-gemini-cli")],
            "googleSearch",
            {"query": QUESTION, "model": MODEL},
        ),
    ),
    Subject(
        "gemini-bridge 1.3.2",
        server(
            [str(PEERS / "venv/bin/gemini-bridge")],
            "web_search",
            {"query": QUESTION, "directory": str(ROOT / "docs")},
        ),
    ),
]
