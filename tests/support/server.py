"""The server as clients start it, and in this process."""

import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from gemini_cli_mcp.server.app import McpApp
from gemini_cli_mcp.workspace import Workspace
from tests.support import QUESTION, Stub, command

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def calling(tool: str) -> list[str]:
    """The frames of a client that calls this tool at once."""
    params = {"name": tool, "arguments": {"query": QUESTION}}
    frames = (
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params},
    )
    return [json.dumps(frame) for frame in frames]


SEARCH = calling("search")
DEEP_SEARCH = calling("deep_search")


def start(stub: Stub, *frames: str) -> subprocess.Popen[str]:
    """A server whose client has just sent these frames."""
    server = subprocess.Popen(
        command(),
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
async def in_process(stub: Stub, mode: Any = "auto", **options: Any) -> AsyncGenerator[Client]:
    """A client of a server in this process: all but the transport is as users have it."""
    server = McpApp(stub.settings, stub.environ, Workspace(stub.config_dir))
    async with Client(server, mode=mode, **options) as client:
        yield client


@asynccontextmanager
async def connected(stub: Stub, mode: Any = "auto", **options: Any) -> AsyncGenerator[Client]:
    """A client that starts the server over stdio, as users' clients do."""
    program, *arguments = command("serve")
    server = StdioServerParameters(command=program, args=arguments, env=stub.environ)
    async with Client(server, mode=mode, **options) as client:
        yield client


def payload(result: CallToolResult) -> dict[str, Any]:
    """The structured content, which the text block must equal."""
    [block] = result.content
    assert block.type == "text"
    assert json.loads(block.text) == result.structured_content
    assert "\n" not in block.text and '": ' not in block.text.replace('\\": ', "")
    assert result.structured_content is not None
    return result.structured_content
