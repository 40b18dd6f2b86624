"""Run the server as clients start it, or in this process."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.workspace import Workspace
from tests.support import QUESTION, Stub, command

INITIALIZE_REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def tool_call_frames(tool: str) -> list[str]:
    """Return the frames of a client that calls this tool immediately."""
    params = {"name": tool, "arguments": {"query": QUESTION}}
    frames = (
        INITIALIZE_REQUEST,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params},
    )
    return [json.dumps(frame) for frame in frames]


SEARCH_FRAMES = tool_call_frames("search")
DEEP_SEARCH_FRAMES = tool_call_frames("deep_search")


def start_server(
    stub: Stub, *frames: str, program: Sequence[str] = ("-m", "gemini_cli_mcp")
) -> subprocess.Popen[str]:
    """Start a server and send it these frames."""
    server = subprocess.Popen(
        [sys.executable, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=stub.environ,
        text=True,
    )
    assert server.stdin
    server.stdin.writelines(frame + "\n" for frame in frames)
    server.stdin.flush()
    return server


@asynccontextmanager
async def in_process_client(
    stub: Stub, mode: Any = "auto", **options: Any
) -> AsyncGenerator[Client]:
    """A client of a server in this process; everything but the transport is as in production."""
    app = McpApp(stub.settings, stub.environ, Workspace(stub.config_dir))
    async with Client(app.server, mode=mode, **options) as client:
        yield client


@asynccontextmanager
async def stdio_client(stub: Stub, mode: Any = "auto", **options: Any) -> AsyncGenerator[Client]:
    """A client that starts the server over stdio, as users' clients do."""
    program, *arguments = command("serve")
    server = StdioServerParameters(command=program, args=arguments, env=stub.environ)
    async with Client(server, mode=mode, **options) as client:
        yield client


def structured_result(result: CallToolResult) -> dict[str, Any]:
    """Return the structured content, after checking that the text block equals it."""
    [block] = result.content
    assert block.type == "text"
    assert json.loads(block.text) == result.structured_content
    assert "\n" not in block.text and '": ' not in block.text.replace('\\": ', "")
    assert result.structured_content is not None
    return result.structured_content
