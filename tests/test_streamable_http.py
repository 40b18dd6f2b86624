"""MCP over HTTP: real servers, clients of both protocol eras, unauthorized and broken requests."""

import json
import random
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from scripts.benchmark.team_server_load import load
from tests.support import (
    QUESTION,
    TOOLS,
    Stub,
    eventually,
    fake_gemini,
    model_answer,
    search_with_sources,
    wait_until,
)
from tests.support.cli import run_command
from tests.support.disconnecting_client import post_and_disconnect
from tests.support.http_server import (
    TOKENS,
    RunningServer,
    call_tool,
    connected_client,
    request_headers,
    running_server,
    tool_call_request,
)
from tests.support.matrix import needs_posix, representatives
from tests.support.mcp_clients import CLIENTS, MCP1, needs_mcp1, needs_node, node
from tests.support.mcp_server import INITIALIZE_REQUEST

HANGING_QUERY = "PLEASE HANG"
TURN = {
    "text": model_answer("Blue."),
    "searches": [search_with_sources("blue sky", "nasa")],
    "hangs": HANGING_QUERY,
    "rounds": [
        {
            "text": model_answer("Blue.", verified=True),
            "searches": [search_with_sources("red sky", "noaa")],
        },
    ],
}
PROGRESS = ["starting gemini", "asking the model", "searching “blue sky”", "writing the answer"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    stub = Stub(tmp_path_factory.mktemp("http"))
    stub.plays(TURN)
    with running_server(stub) as running:
        yield running


@pytest.fixture
def server(shared: RunningServer) -> Generator[RunningServer]:
    """The module's shared server, without the runs of earlier tests."""
    shared.stub.clear_runs()
    yield shared
    wait_until(lambda: not shared.stub.live_pids())


# Clients


def http_clients() -> list[Any]:
    return [
        pytest.param([str(MCP1), str(CLIENTS / "http_mcp1.py")], id="mcp 1.x", marks=needs_mcp1),
        *(
            pytest.param(
                [node(), str(CLIENTS / "http.mjs"), version],
                id=f"TypeScript {version}.x",
                marks=needs_node,
            )
            for version in "12"
        ),
    ]


@pytest.mark.parametrize("client", http_clients())
def test_other_sdks_can_search_cancel_and_read_reports(
    server: RunningServer, client: list[str]
) -> None:
    completed = subprocess.run(
        [*client, server.address, TOKENS[0]], capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    output = json.loads(completed.stdout)
    # The call that the client abandoned was cancelled, and its processes were terminated.
    wait_until(lambda: not server.stub.live_pids())

    assert output["tools"] == TOOLS
    assert [message.partition(" (")[0] for message in output["progress"]] == PROGRESS
    assert output["result"]["result"] == "Blue."
    assert output["left"] != "an answer"
    assert output["job"]["verified"] is True
    assert f"report://{output['job']['job_id']}" in output["resources"]
    assert "Blue." in output["report"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_both_protocol_eras_can_search_and_resume_jobs(
    server: RunningServer, mode: str
) -> None:
    messages: list[str] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        messages.append(str(message))

    async with connected_client(server, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
        answer = await client.call_tool("search", {"query": QUESTION}, progress_callback=record)
        job = await call_tool(client, "deep_search", query=QUESTION, wait_seconds=0)
    # Another connection of the same owner resumes the job.
    async with connected_client(server, mode) as client:
        job_result = await call_tool(client, "deep_search_result", job_id=job["job_id"])
        resource_uris = [
            str(resource.uri) for resource in (await client.list_resources()).resources
        ]
        contents = (await client.read_resource(f"report://{job['job_id']}")).contents[0]

    assert (answer.structured_content or {})["result"] == "Blue."
    assert [message.partition(" (")[0] for message in messages] == PROGRESS
    assert job_result["verified"] is True and "Blue." in str(contents)
    assert f"report://{job['job_id']}" in resource_uris


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_cancelling_a_call_terminates_its_processes(server: RunningServer, mode: str) -> None:
    async with connected_client(server, mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "search", {"query": HANGING_QUERY})
            await eventually(lambda: server.stub.hanging_pids)
            tasks.cancel_scope.cancel()
        await eventually(lambda: not server.stub.live_pids())
        assert (await call_tool(client, "search", query=QUESTION))["success"]


CANCELLATIONS = [
    ("2025-11-25", "disconnect"),
    ("2025-11-25", "notification"),
    ("2025-11-25", "session end"),
    ("2026-07-28", "disconnect"),  # the only way in this protocol version
]


@pytest.mark.parametrize(("version", "cancellation"), CANCELLATIONS)
async def test_a_call_ends_on_disconnect_notification_or_session_end(
    server: RunningServer, version: str, cancellation: str
) -> None:
    """The connection closes, the client sends a notification, or the session is deleted."""
    stub = server.stub
    headers = {"mcp-protocol-version": version}
    if version == "2025-11-25":
        headers["mcp-session-id"] = server.post(INITIALIZE_REQUEST).headers["mcp-session-id"]
    body = tool_call_request("search", query=HANGING_QUERY)
    if version == "2026-07-28":
        headers |= {"mcp-method": "tools/call", "mcp-name": "search"}
        body["params"]["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    replies: list[httpx2.Response] = []
    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            all_headers = {**request_headers(), **headers}
            replies.append(await client.post(server.address, json=body, headers=all_headers))

        tasks.start_soon(call)
        await eventually(lambda: stub.hanging_pids)
        if cancellation == "disconnect":
            tasks.cancel_scope.cancel()
        elif cancellation == "notification":
            params = {"requestId": 2}
            notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            # Ignored from another session of the same owner, rejected from another owner.
            other_session = {
                **headers,
                "mcp-session-id": server.post(INITIALIZE_REQUEST).headers["mcp-session-id"],
            }
            assert server.post(notification, **other_session).status_code == 202
            assert server.post(notification, TOKENS[1], **headers).status_code == 404
            await anyio.sleep(0.3)  # long enough for a wrong cancellation to take effect
            assert stub.live_pids() and not replies
            assert server.post(notification, **headers).status_code == 202
        else:
            all_headers = {"authorization": f"Bearer {TOKENS[0]}", **headers}
            httpx2.delete(server.address, headers=all_headers)
    await eventually(lambda: not stub.live_pids())
    if cancellation != "disconnect":
        assert "-32800" in replies[0].text
    next_reply = server.post(
        tool_call_request("search", query=QUESTION),
        **{name: value for name, value in headers.items() if name == "mcp-session-id"},
    )
    assert "Blue." in next_reply.text


async def test_an_ambiguous_cancel_notification_cancels_no_call(server: RunningServer) -> None:
    """Two clients of one owner without sessions use the same request id."""
    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        body = tool_call_request("search", query=HANGING_QUERY)
        for _ in range(2):
            call = partial(client.post, server.address, json=body, headers=request_headers())
            tasks.start_soon(call)
        await eventually(lambda: len(server.stub.hanging_pids) == 2)
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        assert server.post({**notification, "params": {"requestId": 2}}).status_code == 202
        await anyio.sleep(0.3)  # long enough for a wrong cancellation to take effect
        assert len(server.stub.live_pids()) == 2
        tasks.cancel_scope.cancel()


# Owners


async def test_fifty_clients_with_equal_request_ids_get_their_own_replies(
    server: RunningServer,
) -> None:
    replies: dict[int, str] = {}

    async def get_prompt(client: httpx2.AsyncClient, number: int) -> None:
        headers = request_headers(TOKENS[number % 2])
        initialized = await client.post(server.address, json=INITIALIZE_REQUEST, headers=headers)
        headers["mcp-session-id"] = initialized.headers["mcp-session-id"]
        body = {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "prompts/get",
            "params": {"name": "research", "arguments": {"topic": f"nonce-{number}."}},
        }
        replies[number] = (await client.post(server.address, json=body, headers=headers)).text

    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(get_prompt, client, number)
    for number, reply in replies.items():
        assert f"nonce-{number}." in reply
    assert len(replies) == 50


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_jobs_and_reports_are_visible_only_to_their_owner(stub: Stub, mode: str) -> None:
    stub.plays(TURN)
    with running_server(stub) as server:
        async with (
            connected_client(server, mode) as owner_client,
            connected_client(server, mode, TOKENS[1]) as other_client,
        ):
            job = await call_tool(owner_client, "deep_search", query=QUESTION)
            assert job["success"] and (await owner_client.list_resources()).resources
            assert (await other_client.list_resources()).resources == []
            for tool in ("deep_search_result", "deep_search_cancel"):
                rejected = await call_tool(other_client, tool, job_id=job["job_id"])
                assert rejected["error"]["code"] == "NOT_FOUND"
            uri = str((await owner_client.list_resources()).resources[0].uri)
            with pytest.raises(Exception, match=r"(?i)not found|unknown"):
                await other_client.read_resource(uri)
            # The same query from another owner starts a separate job.
            other_job = await call_tool(other_client, "deep_search", query=QUESTION)
            assert other_job["job_id"] != job["job_id"]


def test_a_session_id_is_valid_only_for_its_owner(server: RunningServer) -> None:
    session = server.post(INITIALIZE_REQUEST).headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

    def status(token: str, session_id: str) -> int:
        return server.post(listing, token, **{"mcp-session-id": session_id}).status_code

    assert status(TOKENS[0], session) == 200
    assert status(TOKENS[1], session) == 404
    assert status(TOKENS[0], session[:-1]) == status(TOKENS[0], "made-up") == 404


# Unauthorized and malformed requests


@pytest.mark.parametrize("bind_host", representatives(["127.0.0.1", "0.0.0.0"], ["0.0.0.0"]))
def test_only_valid_tokens_hosts_and_origins_are_accepted(stub: Stub, bind_host: str) -> None:
    with running_server(
        stub, "--host", bind_host, "--allowed-host", "mcp.example.com:443"
    ) as server:
        for token in ("x", "wrong-token", TOKENS[0][:-1]):
            rejected = server.post(INITIALIZE_REQUEST, token)
            assert (rejected.status_code, rejected.headers["www-authenticate"]) == (401, "Bearer")
        assert server.post(INITIALIZE_REQUEST).status_code == 200
        assert server.post(INITIALIZE_REQUEST, host="evil.example").status_code == 421
        assert server.post(INITIALIZE_REQUEST, origin="https://evil.example").status_code == 403
        for origin in ("null", "evil.example", "chrome-extension://x", "http://["):
            assert server.post(INITIALIZE_REQUEST, origin=origin).status_code == 403
        for host in ("evil@localhost", "[", "localhost:x"):
            assert server.post(INITIALIZE_REQUEST, host=host).status_code in (400, 421)
        assert server.post(INITIALIZE_REQUEST, host="mcp.example.com").status_code == 200
        allowed_origin = "https://mcp.example.com"
        assert (
            server.post(
                INITIALIZE_REQUEST, host="mcp.example.com:8443", origin=allowed_origin
            ).status_code
            == 200
        )
        assert httpx2.get(server.root + "/healthz").json() == {"status": "ok"}
        assert httpx2.get(server.root + "/metrics").status_code == 401
        assert httpx2.get(server.root + "/healthz", headers={"host": "evil"}).status_code == 421


def test_without_tokens_only_local_requests_are_accepted(stub: Stub) -> None:
    completed = run_command(stub, "serve", "--http", "--host", "0.0.0.0")
    assert completed.returncode == 1
    assert "CONFIG_ERROR" in completed.stderr and "GEMINI_MCP_HTTP_TOKENS" in completed.stderr
    for name in ("https://mcp.example.com", "2001:db8::1", "a b"):
        completed = run_command(stub, "serve", "--http", "--port", "0", "--allowed-host", name)
        assert completed.returncode == 1 and f"--allowed-host {name}: " in completed.stderr
    with running_server(stub, tokens=False) as server:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            assert server.post(INITIALIZE_REQUEST, **headers).status_code in (403, 421)
        assert server.post(INITIALIZE_REQUEST).status_code == 200


@pytest.mark.parametrize("requests", representatives([500, 2000], [500]))
def test_the_server_survives_many_malformed_requests(server: RunningServer, requests: int) -> None:
    rng = random.Random(7)
    valid_body = json.dumps(tool_call_request("search", query=QUESTION)).encode()
    reply_count = 0
    for number in range(requests):
        body = bytearray(valid_body)
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        length = rng.choice([len(body), len(body), len(body) + 9, 0, "x", -1])
        version = rng.choice(["2025-11-25", "2026-07-28", "1999-01-01", "\x7f", ""])
        method = rng.choice(["POST", "POST", "POST", "GET", "PUT", "DELETE", "P\x00T", ""])
        head = (
            f"{method} /mcp HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKENS[0]}\r\nAccept: application/json, text/event-stream"
            f"\r\nContent-Type: application/json\r\nMcp-Protocol-Version: {version}\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()
        request = head + bytes(body)
        if number % 3 == 0:
            position = rng.randrange(len(request))
            request = request[:position] + bytes([rng.randrange(256)]) + request[position + 1 :]
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(request)
            if number % 3 and length in (0, "x", -1):  # these get an immediate response
                reply_count += connection.recv(9).startswith(b"HTTP/1.1 ")
    assert reply_count > requests / 4
    assert "Blue." in server.post(valid_body).text


def test_an_oversized_body_is_rejected(server: RunningServer) -> None:
    assert server.post(b" " * (20 << 20)).status_code == 413


def test_oversized_headers_are_rejected(server: RunningServer) -> None:
    try:
        status = server.post(INITIALIZE_REQUEST, **{"x-large": "a" * 300_000}).status_code
    except httpx2.HTTPError:
        status = None  # the connection was closed while the client was still sending
    assert status in (None, 400, 431)
    assert server.post(INITIALIZE_REQUEST).status_code == 200


def test_slow_clients_are_disconnected(stub: Stub) -> None:
    stub.plays(TURN)
    with running_server(stub, request_head_timeout=2) as server:
        server_address = ("127.0.0.1", server.port)
        keep_alive = socket.create_connection(server_address, timeout=30)
        keep_alive.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        keep_alive.recv(1000)
        keep_alive.sendall(b"G")
        slow_clients = [socket.create_connection(server_address, timeout=30) for _ in range(50)]
        for number, connection in enumerate(slow_clients):
            connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"[: 10 + number])
        assert "Blue." in server.post(tool_call_request("search", query=QUESTION)).text
        assert slow_clients[0].recv(100) == b"", "an incomplete request must be disconnected"
        while keep_alive.recv(1000):
            pass
        for connection in (keep_alive, *slow_clients):
            connection.close()


# Operation


def test_readiness_and_metrics_reflect_the_calls(stub: Stub) -> None:
    stub.plays(TURN)
    stub.environ["GEMINI_API_KEY"] = "a-key-that-is-one"
    with running_server(stub) as server:
        assert httpx2.get(server.root + "/readyz").json() == {"status": "ready"}
        server.post(tool_call_request("search", query=QUESTION))
        server.post(tool_call_request("search", query=""))
        hanging = tool_call_request("search", query=HANGING_QUERY)
        post_and_disconnect(
            server.address, hanging, lambda: stub.hanging_pids, headers=request_headers()
        )
        wait_until(lambda: not stub.live_pids())
        headers = {"authorization": f"Bearer {TOKENS[0]}"}
        cancelled = 'gemini_mcp_calls_total{outcome="cancelled",tool="search"} 1.0'
        metrics = server.root + "/metrics"
        wait_until(lambda: cancelled in httpx2.get(metrics, headers=headers).text)
        page = httpx2.get(metrics, headers=headers).text
    for line in (
        'gemini_mcp_calls_total{outcome="success",tool="search"} 1.0',
        'gemini_mcp_calls_total{outcome="error",tool="search"} 1.0',
        'gemini_mcp_errors_total{code="INVALID_INPUT"} 1.0',
        'gemini_mcp_call_seconds_count{tool="search"} 3.0',
        "gemini_mcp_queue 0.0",
        "gemini_mcp_cli_processes 0.0",
    ):
        assert line in page
    assert float(page.partition("\ngemini_mcp_tokens_total ")[2].split()[0]) > 0
    assert "[INFO] POST /mcp: 200 for " in server.log and QUESTION not in server.log


@needs_posix
def test_the_server_is_not_ready_without_credentials(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(fake_gemini.install(stub.home))
    with running_server(stub) as server:
        answer = httpx2.get(server.root + "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "AUTH_ERROR")


def test_subscriptions_are_not_available_over_http(server: RunningServer) -> None:
    version = "2026-07-28"
    meta: Any = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }

    def post(method: str, **params: object) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 5, "method": method, "params": {**params, "_meta": meta}}
        return server.post(body, **{"mcp-protocol-version": version, "mcp-method": method})

    listen = post("subscriptions/listen", notifications={"resourcesListChanged": True})
    discover = post("server/discover")

    assert (listen.status_code, listen.json()["error"]["code"]) == (404, -32601)
    assert discover.json()["result"]["capabilities"] == {
        "prompts": {"listChanged": False},
        "resources": {"listChanged": False, "subscribe": False},
        "tools": {"listChanged": False},
    }


@pytest.mark.parametrize(("calls", "clients"), representatives([(12, 6), (40, 10)], [(12, 6)]))
@needs_posix
async def test_all_calls_succeed_under_a_small_load(calls: int, clients: int) -> None:
    """A small version of the load test that scripts/bench runs with 1,000 calls."""
    results = await load(calls, clients)

    assert results.outcomes == {"success": calls}
    assert results.leftovers == 0


def test_the_server_is_not_ready_without_a_cli(stub: Stub, tmp_path: Path) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(tmp_path / "nowhere")
    with running_server(stub) as server:
        answer = httpx2.get(server.root + "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "CLI_NOT_FOUND")


def wait_until_not_listening(server: RunningServer) -> None:
    """Wait until a server that received SIGTERM has begun to shut down."""

    def is_refused() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", server.port)) != 0

    wait_until(is_refused)


class BackgroundSearch(threading.Thread):
    """A search call that runs in parallel with the test."""

    def __init__(self, server: RunningServer, query: str) -> None:
        super().__init__()
        self._server = server
        self._query = query
        self.reply = ""
        self.start()

    def run(self) -> None:
        self.reply = self._server.post(tool_call_request("search", query=self._query)).text


@needs_posix
def test_graceful_shutdown_waits_for_running_calls(stub: Stub) -> None:
    stub.plays({**TURN, "gate": True})
    with running_server(stub) as server:
        search = BackgroundSearch(server, QUESTION)
        wait_until(lambda: len(stub.runs) == 1)
        server.process.terminate()
        wait_until_not_listening(server)
        stub.open_gate()
        search.join()
        server.process.wait(30)  # another signal while it exits would kill it
    assert "Blue." in search.reply


@pytest.mark.parametrize("twice", [False, True])
@needs_posix
def test_shutdown_cancels_calls_that_exceed_the_grace_period(stub: Stub, twice: bool) -> None:
    stub.plays(TURN)
    stub.environ["GEMINI_MCP_GRACE"] = "60" if twice else "1"
    with running_server(stub) as server:
        search = BackgroundSearch(server, HANGING_QUERY)
        wait_until(lambda: stub.hanging_pids)
        started = time.monotonic()
        server.process.terminate()
        if twice:
            wait_until_not_listening(server)
            server.process.terminate()
        server.process.wait(50)
        search.join()
        elapsed = time.monotonic() - started
    assert "-32800" in search.reply, "the waiting client must receive the cancellation"
    assert twice or 0.9 < elapsed < 9, "the configured grace period applies"
    assert "ASGI" not in server.log
