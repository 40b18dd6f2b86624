"""MCP over HTTP: real servers, real clients of both eras, and strangers of all kinds."""

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
from tests.support.matrix import representatives
from tests.support.mcp_clients import CLIENTS, MCP1, needs_node, node
from tests.support.mcp_server import INITIALIZE_REQUEST

HANG = "PLEASE HANG"
TURN = {
    "text": model_answer("Blue."),
    "searches": [search_with_sources("blue sky", "nasa")],
    "hangs": HANG,
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
    """A server that other tests have used, and others will."""
    shared.stub.clear_runs()
    yield shared
    wait_until(lambda: not shared.stub.live_pids())


# Clients


def visitors() -> list[Any]:
    return [
        pytest.param([str(MCP1), str(CLIENTS / "http_mcp1.py")], id="mcp 1.x"),
        *(
            pytest.param(
                [node(), str(CLIENTS / "http.mjs"), version],
                id=f"TypeScript {version}.x",
                marks=needs_node,
            )
            for version in "12"
        ),
    ]


@pytest.mark.parametrize("visitor", visitors())
def test_clients_of_other_makers(server: RunningServer, visitor: list[str]) -> None:
    done = subprocess.run(
        [*visitor, server.address, TOKENS[0]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # The call that the client left is gone with everything that it started.
    wait_until(lambda: not server.stub.live_pids())

    assert told["tools"] == TOOLS
    assert [message.partition(" (")[0] for message in told["progress"]] == PROGRESS
    assert told["result"]["result"] == "Blue."
    assert told["left"] != "an answer"
    assert told["job"]["verified"] is True
    assert f"report://{told['job']['job_id']}" in told["resources"]
    assert "Blue." in told["report"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_both_eras(server: RunningServer, mode: str) -> None:
    seen: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(str(message))

    async with connected_client(server, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
        answer = await client.call_tool("search", {"query": QUESTION}, progress_callback=note)
        job = await call_tool(client, "deep_search", query=QUESTION, wait_seconds=0)
    # Another connection of the same owner goes on with it.
    async with connected_client(server, mode) as client:
        done = await call_tool(client, "deep_search_result", job_id=job["job_id"])
        listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
        text = (await client.read_resource(f"report://{job['job_id']}")).contents[0]

    assert (answer.structured_content or {})["result"] == "Blue."
    assert [message.partition(" (")[0] for message in seen] == PROGRESS
    assert done["verified"] is True and "Blue." in str(text)
    assert f"report://{job['job_id']}" in listed


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_is_cancelled_ends(server: RunningServer, mode: str) -> None:
    async with connected_client(server, mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "search", {"query": HANG})
            await eventually(lambda: server.stub.hanging_pids)
            tasks.cancel_scope.cancel()
        await eventually(lambda: not server.stub.live_pids())
        assert (await call_tool(client, "search", query=QUESTION))["success"]


LEAVING = [
    ("2025-11-25", "dropped"),
    ("2025-11-25", "said"),
    ("2025-11-25", "session"),
    ("2026-07-28", "dropped"),  # in this era there is no other way
]


@pytest.mark.parametrize(("version", "way"), LEAVING)
async def test_every_way_to_leave_a_call(server: RunningServer, version: str, way: str) -> None:
    """The table of ways: the connection goes, a notification says so, the session ends."""
    stub = server.stub
    headers = {"mcp-protocol-version": version}
    if version == "2025-11-25":
        headers["mcp-session-id"] = server.post(INITIALIZE_REQUEST).headers["mcp-session-id"]
    body = tool_call_request("search", query=HANG)
    if version == "2026-07-28":
        headers |= {"mcp-method": "tools/call", "mcp-name": "search"}
        body["params"]["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    answers: list[httpx2.Response] = []
    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:

        async def ask() -> None:
            sent = {**request_headers(), **headers}
            answers.append(await client.post(server.address, json=body, headers=sent))

        tasks.start_soon(ask)
        await eventually(lambda: stub.hanging_pids)
        if way == "dropped":
            tasks.cancel_scope.cancel()
        elif way == "said":
            params = {"requestId": 2}
            told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            # The word of another client of the same owner counts for nothing, nor a stranger's.
            other = {
                **headers,
                "mcp-session-id": server.post(INITIALIZE_REQUEST).headers["mcp-session-id"],
            }
            assert server.post(told, **other).status_code == 202
            assert server.post(told, TOKENS[1], **headers).status_code == 404
            await anyio.sleep(0.3)  # in which it would end
            assert stub.live_pids() and not answers
            assert server.post(told, **headers).status_code == 202
        else:
            sent = {"authorization": f"Bearer {TOKENS[0]}", **headers}
            httpx2.delete(server.address, headers=sent)
    await eventually(lambda: not stub.live_pids())
    if way != "dropped":
        assert "-32800" in answers[0].text
    good = server.post(
        tool_call_request("search", query=QUESTION),
        **{name: value for name, value in headers.items() if name == "mcp-session-id"},
    )
    assert "Blue." in good.text


async def test_a_cancel_that_may_mean_two_calls_ends_neither(server: RunningServer) -> None:
    """Two clients of one owner that never said hello, and number their calls alike."""
    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        body = tool_call_request("search", query=HANG)
        for _ in range(2):
            ask = partial(client.post, server.address, json=body, headers=request_headers())
            tasks.start_soon(ask)
        await eventually(lambda: len(server.stub.hanging_pids) == 2)
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        assert server.post({**told, "params": {"requestId": 2}}).status_code == 202
        await anyio.sleep(0.3)  # in which they would end
        assert len(server.stub.live_pids()) == 2
        tasks.cancel_scope.cancel()


# Owners


async def test_fifty_clients_with_equal_ids_get_their_own_answers(server: RunningServer) -> None:
    answers: dict[int, str] = {}

    async def ask(client: httpx2.AsyncClient, number: int) -> None:
        headers = request_headers(TOKENS[number % 2])
        told = await client.post(server.address, json=INITIALIZE_REQUEST, headers=headers)
        headers["mcp-session-id"] = told.headers["mcp-session-id"]
        body = {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "prompts/get",
            "params": {"name": "research", "arguments": {"topic": f"nonce-{number}."}},
        }
        answers[number] = (await client.post(server.address, json=body, headers=headers)).text

    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(ask, client, number)
    for number, answer in answers.items():
        assert f"nonce-{number}." in answer
    assert len(answers) == 50


async def test_jobs_and_reports_are_their_owners(stub: Stub) -> None:
    stub.plays(TURN)
    with running_server(stub) as server:
        async with (
            connected_client(server) as mine,
            connected_client(server, token=TOKENS[1]) as yours,
        ):
            job = await call_tool(mine, "deep_search", query=QUESTION)
            assert job["success"] and (await mine.list_resources()).resources
            assert (await yours.list_resources()).resources == []
            for tool in ("deep_search_result", "deep_search_cancel"):
                refused = await call_tool(yours, tool, job_id=job["job_id"])
                assert refused["error"]["code"] == "NOT_FOUND"
            uri = str((await mine.list_resources()).resources[0].uri)
            with pytest.raises(Exception, match=r"(?i)not found|unknown"):
                await yours.read_resource(uri)
            # The same question of somebody else is another job.
            other = await call_tool(yours, "deep_search", query=QUESTION)
            assert other["job_id"] != job["job_id"]


def test_a_session_id_belongs_to_its_owner(server: RunningServer) -> None:
    session = server.post(INITIALIZE_REQUEST).headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

    def status(token: str, session_id: str) -> int:
        return server.post(listing, token, **{"mcp-session-id": session_id}).status_code

    assert status(TOKENS[0], session) == 200
    assert status(TOKENS[1], session) == 404
    assert status(TOKENS[0], session[:-1]) == status(TOKENS[0], "made-up") == 404


# Strangers


@pytest.mark.parametrize("bound", representatives(["127.0.0.1", "0.0.0.0"], ["0.0.0.0"]))
def test_who_may_come_in(stub: Stub, bound: str) -> None:
    with running_server(stub, "--host", bound, "--allowed-host", "mcp.example.com:443") as server:
        for token in ("x", "wrong-token", TOKENS[0][:-1]):
            refused = server.post(INITIALIZE_REQUEST, token)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert server.post(INITIALIZE_REQUEST).status_code == 200
        assert server.post(INITIALIZE_REQUEST, host="evil.example").status_code == 421
        assert server.post(INITIALIZE_REQUEST, origin="https://evil.example").status_code == 403
        for origin in ("null", "evil.example", "chrome-extension://x", "http://["):
            assert server.post(INITIALIZE_REQUEST, origin=origin).status_code == 403
        for host in ("evil@localhost", "[", "localhost:x"):
            assert server.post(INITIALIZE_REQUEST, host=host).status_code in (400, 421)
        assert server.post(INITIALIZE_REQUEST, host="mcp.example.com").status_code == 200
        ours = "https://mcp.example.com"
        assert (
            server.post(INITIALIZE_REQUEST, host="mcp.example.com:8443", origin=ours).status_code
            == 200
        )
        assert httpx2.get(server.root + "/healthz").json() == {"status": "ok"}
        assert httpx2.get(server.root + "/metrics").status_code == 401
        assert httpx2.get(server.root + "/healthz", headers={"host": "evil"}).status_code == 421


def test_without_tokens_it_stays_at_home(stub: Stub) -> None:
    done = run_command(stub, "serve", "--http", "--host", "0.0.0.0")
    assert done.returncode == 1
    assert "CONFIG_ERROR" in done.stderr and "GEMINI_MCP_HTTP_TOKENS" in done.stderr
    for name in ("https://mcp.example.com", "2001:db8::1", "a b"):
        done = run_command(stub, "serve", "--http", "--port", "0", "--allowed-host", name)
        assert done.returncode == 1 and f"--allowed-host {name}: " in done.stderr
    with running_server(stub, tokens=False) as server:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            assert server.post(INITIALIZE_REQUEST, **headers).status_code in (403, 421)
        assert server.post(INITIALIZE_REQUEST).status_code == 200


@pytest.mark.parametrize("requests", representatives([500, 2000], [500]))
def test_many_broken_requests_and_then_a_good_one(server: RunningServer, requests: int) -> None:
    chance = random.Random(7)
    good = json.dumps(tool_call_request("search", query=QUESTION)).encode()
    answered = 0
    for number in range(requests):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        length = chance.choice([len(body), len(body), len(body) + 9, 0, "x", -1])
        version = chance.choice(["2025-11-25", "2026-07-28", "1999-01-01", "\x7f", ""])
        method = chance.choice(["POST", "POST", "POST", "GET", "PUT", "DELETE", "P\x00T", ""])
        head = (
            f"{method} /mcp HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKENS[0]}\r\nAccept: application/json, text/event-stream"
            f"\r\nContent-Type: application/json\r\nMcp-Protocol-Version: {version}\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()
        request = head + bytes(body)
        if number % 3 == 0:
            at = chance.randrange(len(request))
            request = request[:at] + bytes([chance.randrange(256)]) + request[at + 1 :]
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            raw.sendall(request)
            if number % 3 and length in (0, "x", -1):  # these are answered at once
                answered += raw.recv(9).startswith(b"HTTP/1.1 ")
    assert answered > requests / 4
    assert "Blue." in server.post(good).text


def test_a_body_that_is_too_large(server: RunningServer) -> None:
    assert server.post(b" " * (20 << 20)).status_code == 413


def test_a_head_that_is_too_large(server: RunningServer) -> None:
    try:
        status = server.post(INITIALIZE_REQUEST, **{"x-large": "a" * 300_000}).status_code
    except httpx2.HTTPError:
        status = None  # the connection was closed while the client still spoke
    assert status in (None, 400, 431)
    assert server.post(INITIALIZE_REQUEST).status_code == 200


def test_slow_clients_are_not_waited_for(stub: Stub) -> None:
    stub.plays(TURN)
    with running_server(stub, request_head_timeout=2) as server:
        connect = ("127.0.0.1", server.port)
        again = socket.create_connection(connect, timeout=30)
        again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        again.recv(1000)
        again.sendall(b"G")
        slow = [socket.create_connection(connect, timeout=30) for _ in range(50)]
        for number, each in enumerate(slow):
            each.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"[: 10 + number])
        assert "Blue." in server.post(tool_call_request("search", query=QUESTION)).text
        assert slow[0].recv(100) == b"", "whoever does not come to an end is shown the door"
        while again.recv(1000):
            pass
        for each in (again, *slow):
            each.close()


# Operation


def test_ready_healthy_and_measured(stub: Stub) -> None:
    stub.plays(TURN)
    stub.environ["GEMINI_API_KEY"] = "a-key-that-is-one"
    with running_server(stub) as server:
        assert httpx2.get(server.root + "/readyz").json() == {"status": "ready"}
        server.post(tool_call_request("search", query=QUESTION))
        server.post(tool_call_request("search", query=""))
        hanging = tool_call_request("search", query=HANG)
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
    assert "[INFO] POST /mcp: 200 for " in server.said and QUESTION not in server.said


def test_not_ready_without_a_sign_in(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(fake_gemini.install(stub.home))
    with running_server(stub) as server:
        answer = httpx2.get(server.root + "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "AUTH_ERROR")


def test_nobody_is_told_of_others_reports(server: RunningServer) -> None:
    version = "2026-07-28"
    meta: Any = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 5, "method": "subscriptions/listen"}
    headers = {"mcp-protocol-version": version, "mcp-method": "subscriptions/listen"}
    answer = server.post({**body, "params": {"_meta": meta}}, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize(("calls", "clients"), representatives([(12, 6), (40, 10)], [(12, 6)]))
async def test_a_small_load(calls: int, clients: int) -> None:
    """The small version of what scripts/bench does with 1,000 calls."""
    came_of_it = await load(calls, clients)

    assert came_of_it.outcomes == {"success": calls}
    assert came_of_it.left == 0


def test_not_ready_without_a_cli(stub: Stub, tmp_path: Path) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(tmp_path / "nowhere")
    with running_server(stub) as server:
        answer = httpx2.get(server.root + "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "CLI_NOT_FOUND")


def stops_listening(server: RunningServer) -> None:
    """Wait until a server that was told to stop has begun to."""

    def is_refused() -> bool:
        with socket.socket() as raw:
            return raw.connect_ex(("127.0.0.1", server.port)) != 0

    wait_until(is_refused)


class Asking(threading.Thread):
    """A call that goes on beside the test."""

    def __init__(self, server: RunningServer, query: str) -> None:
        super().__init__()
        self._server = server
        self._query = query
        self.answer = ""
        self.start()

    def run(self) -> None:
        self.answer = self._server.post(tool_call_request("search", query=self._query)).text


def test_a_server_that_is_told_to_stop_lets_calls_end(stub: Stub) -> None:
    stub.plays({**TURN, "gate": True})
    with running_server(stub) as server:
        asking = Asking(server, QUESTION)
        wait_until(lambda: len(stub.runs) == 1)
        server.process.terminate()
        stops_listening(server)
        stub.open_gate()
        asking.join()
    assert "Blue." in asking.answer


@pytest.mark.parametrize("twice", [False, True])
def test_a_call_that_does_not_end_in_time_is_ended(stub: Stub, twice: bool) -> None:
    stub.plays(TURN)
    stub.environ["GEMINI_MCP_GRACE"] = "60" if twice else "1"
    with running_server(stub) as server:
        asking = Asking(server, HANG)
        wait_until(lambda: stub.hanging_pids)
        begin = time.monotonic()
        server.process.terminate()
        if twice:
            stops_listening(server)
            server.process.terminate()
        server.process.wait(50)
        asking.join()
        took = time.monotonic() - begin
    assert "-32800" in asking.answer, "whoever waits is told"
    assert twice or 0.9 < took < 9, "it has its grace, and not that of others"
    assert "ASGI" not in server.said
