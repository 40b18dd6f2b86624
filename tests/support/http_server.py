"""Start MCP servers over HTTP as deployments do, and call them."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gemini_cli_mcp.workspace import Workspace
from tests.support import IS_WINDOWS, ROOT, TERMINATED_EXIT_CODE, Stub, wait_until

TOKENS = ["first-token", "second-token"]


@dataclass
class RunningServer:
    """A listening server."""

    address: str
    process: "subprocess.Popen[bytes]"
    stub: Stub
    log: str = ""
    """Its log, available after it has stopped."""

    @property
    def root(self) -> str:
        return self.address.removesuffix("/mcp")

    @property
    def port(self) -> int:
        return httpx2.URL(self.address).port or 0

    def post(self, body: object, token: str = TOKENS[0], **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {**request_headers(token), "content-type": "application/json", **headers}
        return httpx2.post(self.address, content=content, headers=all_headers, timeout=30)


def request_headers(token: str = TOKENS[0]) -> dict[str, str]:
    """Return the headers that every MCP request needs."""
    return {
        "authorization": f"Bearer {token}",
        "accept": "application/json, text/event-stream",
    }


@contextmanager
def running_server(
    stub: Stub, *options: str, tokens: bool = True, **limits: float
) -> Generator[RunningServer]:
    """Run a server; on exit, check that nothing of it remains and its log has no secrets."""
    stub.environ["GEMINI_MCP_WARM"] = "0"
    if tokens:
        stub.environ["GEMINI_MCP_HTTP_TOKENS"] = ",".join(TOKENS)
    log = stub.home / "server.log"
    launcher = [sys.executable, "-m", "tests.support.launcher", json.dumps(limits)]
    with log.open("w") as stderr:  # a full pipe without a reader would block the server
        process = subprocess.Popen(
            [*launcher, "serve", "--http", "--port", "0", *options],
            cwd=ROOT,
            env=stub.environ,
            stderr=stderr,
        )
    try:
        wait_until(lambda: "/mcp\n" in log.read_text() or process.poll() is not None)
        match = re.search(r"MCP over HTTP at (\S+)", log.read_text())
        assert match, log.read_text()
        address = match[1].replace("0.0.0.0", "127.0.0.1")
        server = RunningServer(address, process, stub)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
    log_text = log.read_text()
    server.log = log_text
    assert process.returncode == TERMINATED_EXIT_CODE, log_text
    assert "Traceback" not in log_text, log_text
    assert not any(token in log_text for token in TOKENS)
    if IS_WINDOWS:
        Workspace(stub.config_dir).remove_stale()  # as the next start does
    assert stub.live_pids() == [] and stub.leftover_files() == []


@asynccontextmanager
async def connected_client(
    server: RunningServer, mode: Any = "auto", token: str = TOKENS[0]
) -> AsyncGenerator[Client]:
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60)
    transport = streamable_http_client(server.address, http_client=http)
    async with http, Client(transport, mode=mode) as client:
        yield client


async def call_tool(client: Client, name: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert result.structured_content is not None
    return result.structured_content


def tool_call_request(name: str, request_id: int = 2, **arguments: object) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
