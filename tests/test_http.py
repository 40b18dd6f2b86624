"""MCP over HTTP: real servers, real clients of both eras, and strangers of all kinds."""

import json
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from scripts.benchmark.http import load
from tests.marks import needs_real_cli
from tests.support import (
    QUESTION,
    REAL_CLI,
    TOOLS,
    Stub,
    command,
    eventually,
    found,
    report,
    wait_until,
)
from tests.test_clients import CLIENTS, MCP1, needs_node, node
from tests.test_server import HELLO

TOKENS = ["first-token", "second-token"]
HANG = "PLEASE HANG"
TURN = {
    "text": report("Blue."),
    "searches": [found("blue sky", "nasa")],
    "hangs": HANG,
    "rounds": [
        {"text": report("Blue.", verified=True), "searches": [found("red sky", "noaa")]},
    ],
}
PROGRESS = ["starting gemini", "asking the model", "searching “blue sky”", "writing the answer"]


class Running:
    """A server as a deployment starts it."""

    def __init__(self, address: str, process: "subprocess.Popen[bytes]") -> None:
        self.address = address
        self.root = address.removesuffix("/mcp")
        self.process = process
        self.said = ""

    def post(self, body: object, token: str = TOKENS[0], **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **headers,
        }
        return httpx2.post(self.address, content=content, headers=sent, timeout=30)


@contextmanager
def serving(stub: Stub, *options: str, tokens: bool = True) -> Generator[Running]:
    stub.environ["GEMINI_MCP_WARM"] = "0"
    if tokens:
        stub.environ["GEMINI_MCP_HTTP_TOKENS"] = ",".join(TOKENS)
    log = stub.home / "server.log"
    with log.open("w") as stderr:  # a pipe that nobody reads would stop the server
        process = subprocess.Popen(
            command("serve", "--http", "--port", "0", *options), env=stub.environ, stderr=stderr
        )
    try:
        wait_until(lambda: "/mcp\n" in log.read_text() or process.poll() is not None)
        found_at = re.search(r"MCP over HTTP at (\S+)", log.read_text())
        assert found_at, log.read_text()
        running = Running(found_at[1], process)
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
    said = log.read_text()
    running.said = said
    assert process.returncode == 0, said
    assert "Traceback" not in said, said
    assert not any(token in said for token in TOKENS)
    assert stub.alive() == [] and stub.files_left() == []


@asynccontextmanager
async def visiting(
    server: Running, mode: Any = "auto", token: str = TOKENS[0]
) -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    http = httpx2.AsyncClient(headers=headers, timeout=60)
    with anyio.fail_after(60):
        transport = streamable_http_client(server.address, http_client=http)
        async with http, Client(transport, mode=mode) as client:
            yield client


async def call(client: Client, name: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert result.structured_content is not None
    return result.structured_content


def call_of(name: str, request_id: int = 2, **arguments: object) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


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
def test_clients_of_other_makers(stub: Stub, visitor: list[str]) -> None:
    stub.plays(TURN)
    with serving(stub) as server:
        done = subprocess.run(
            [*visitor, server.address, TOKENS[0]], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        # The call that the client left is gone with everything that it started.
        wait_until(lambda: not stub.alive())

    assert told["tools"] == TOOLS
    assert [message.partition(" (")[0] for message in told["progress"]] == PROGRESS
    assert told["result"]["result"] == "Blue."
    assert told["left"] != "an answer"
    assert told["job"]["verified"] is True
    assert told["resources"] and "Blue." in told["report"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_both_eras(stub: Stub, mode: str) -> None:
    stub.plays(TURN)
    seen: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(str(message))

    with serving(stub) as server:
        async with visiting(server, mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
            answer = await client.call_tool("search", {"query": QUESTION}, progress_callback=note)
            job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        # Another connection of the same owner goes on with it.
        async with visiting(server, mode) as client:
            done = await call(client, "deep_search_result", job_id=job["job_id"])
            (resource, *_) = (await client.list_resources()).resources
            text = (await client.read_resource(str(resource.uri))).contents[0]

    assert (answer.structured_content or {})["result"] == "Blue."
    assert [message.partition(" (")[0] for message in seen] == PROGRESS
    assert done["verified"] is True and "Blue." in str(text)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_is_cancelled_ends(stub: Stub, mode: str) -> None:
    stub.plays(TURN)
    with serving(stub) as server:
        async with visiting(server, mode) as client:
            with anyio.move_on_after(2):
                await client.call_tool("search", {"query": HANG})
            assert len(stub.runs) == 1
            await eventually(lambda: not stub.alive(), 5)
            assert (await call(client, "search", query=QUESTION))["success"]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("way", ["dropped", "said", "session"])
async def test_every_way_to_leave_a_call(stub: Stub, version: str, way: str) -> None:
    """The table of ways: the connection goes, a notification says so, the session ends."""
    if version == "2026-07-28" and way != "dropped":
        pytest.skip("in this era a client leaves by closing the connection")
    stub.plays(TURN)
    with serving(stub) as server:
        headers = {"mcp-protocol-version": version}
        if version == "2025-11-25":
            headers["mcp-session-id"] = server.post(HELLO).headers["mcp-session-id"]
        body = call_of("search", query=HANG)
        if version == "2026-07-28":
            headers |= {"mcp-method": "tools/call", "mcp-name": "search"}
            body["params"]["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": version,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        answers: list[httpx2.Response] = []
        async with httpx2.AsyncClient(timeout=20) as client, anyio.create_task_group() as tasks:

            async def ask() -> None:
                sent = {
                    "authorization": f"Bearer {TOKENS[0]}",
                    "accept": "application/json, text/event-stream",
                    **headers,
                }
                answers.append(await client.post(server.address, json=body, headers=sent))

            tasks.start_soon(ask)
            await eventually(lambda: len(stub.runs) == 1 and bool(stub.alive()))
            if way == "dropped":
                tasks.cancel_scope.cancel()
            elif way == "said":
                params = {"requestId": 2}
                told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
                # The word of another client of the same owner counts for nothing, nor a stranger's.
                other = {**headers, "mcp-session-id": server.post(HELLO).headers["mcp-session-id"]}
                assert server.post(told, **other).status_code == 202
                assert server.post(told, TOKENS[1], **headers).status_code == 404
                await anyio.sleep(1)
                assert stub.alive()
                assert server.post(told, **headers).status_code == 202
            else:
                sent = {"authorization": f"Bearer {TOKENS[0]}", **headers}
                httpx2.delete(server.address, headers=sent)
        await eventually(lambda: not stub.alive(), 5)
        if way != "dropped":
            assert "-32800" in answers[0].text
        good = server.post(
            call_of("search", query=QUESTION),
            **{name: value for name, value in headers.items() if name == "mcp-session-id"},
        )
        assert "Blue." in good.text


# Owners


async def test_fifty_clients_with_equal_ids_get_their_own_answers(stub: Stub) -> None:
    with serving(stub) as server:
        answers: dict[int, str] = {}

        async def ask(client: httpx2.AsyncClient, number: int) -> None:
            headers = {
                "authorization": f"Bearer {TOKENS[number % 2]}",
                "accept": "application/json, text/event-stream",
            }
            told = await client.post(server.address, json=HELLO, headers=headers)
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
    with serving(stub) as server:
        async with visiting(server) as mine, visiting(server, token=TOKENS[1]) as yours:
            job = await call(mine, "deep_search", query=QUESTION)
            assert job["success"] and (await mine.list_resources()).resources
            assert (await yours.list_resources()).resources == []
            for tool in ("deep_search_result", "deep_search_cancel"):
                refused = await call(yours, tool, job_id=job["job_id"])
                assert refused["error"]["code"] == "NOT_FOUND"
            uri = str((await mine.list_resources()).resources[0].uri)
            with pytest.raises(Exception, match=r"(?i)not found|unknown"):
                await yours.read_resource(uri)
            # The same question of somebody else is another job.
            other = await call(yours, "deep_search", query=QUESTION)
            assert other["job_id"] != job["job_id"]


def test_a_session_id_belongs_to_its_owner(stub: Stub) -> None:
    stub.plays(TURN)
    with serving(stub) as server:
        session = server.post(HELLO).headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

        def status(token: str, session_id: str) -> int:
            return server.post(listing, token, **{"mcp-session-id": session_id}).status_code

        assert status(TOKENS[0], session) == 200
        assert status(TOKENS[1], session) == 404
        assert status(TOKENS[0], session[:-1]) == status(TOKENS[0], "made-up") == 404


# Strangers


def test_who_may_come_in(stub: Stub) -> None:
    stub.plays(TURN)
    for bound in ("127.0.0.1", "0.0.0.0"):
        with serving(stub, "--host", bound, "--allowed-host", "mcp.example.com:443") as server:
            server.address = server.address.replace("0.0.0.0", "127.0.0.1")
            server.root = server.root.replace("0.0.0.0", "127.0.0.1")
            for token in ("x", "wrong-token", TOKENS[0][:-1]):
                refused = server.post(HELLO, token)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert server.post(HELLO).status_code == 200
            assert server.post(HELLO, host="evil.example").status_code == 421
            assert server.post(HELLO, origin="https://evil.example").status_code == 403
            for origin in ("null", "evil.example", "chrome-extension://x", "http://["):
                assert server.post(HELLO, origin=origin).status_code == 403
            for host in ("evil@localhost", "[", "localhost:x"):
                assert server.post(HELLO, host=host).status_code in (400, 421)
            assert server.post(HELLO, host="mcp.example.com").status_code == 200
            ours = "https://mcp.example.com"
            assert server.post(HELLO, host="mcp.example.com:8443", origin=ours).status_code == 200
            assert httpx2.get(server.root + "/healthz").json() == {"status": "ok"}
            assert httpx2.get(server.root + "/metrics").status_code == 401
            assert httpx2.get(server.root + "/healthz", headers={"host": "evil"}).status_code == 421


def test_without_tokens_it_stays_at_home(stub: Stub) -> None:
    done = subprocess.run(
        command("serve", "--http", "--host", "0.0.0.0"),
        env=stub.environ,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "CONFIG_ERROR" in done.stderr and "GEMINI_MCP_HTTP_TOKENS" in done.stderr
    for name in ("https://mcp.example.com", "2001:db8::1", "a b"):
        done = subprocess.run(
            command("serve", "--http", "--port", "0", "--allowed-host", name),
            env=stub.environ,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 1 and f"--allowed-host {name}: " in done.stderr
    stub.plays(TURN)
    with serving(stub, tokens=False) as server:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            assert server.post(HELLO, **headers).status_code in (403, 421)
        assert server.post(HELLO).status_code == 200


def test_two_thousand_broken_requests_and_then_a_good_one(stub: Stub) -> None:
    stub.plays(TURN)
    chance = random.Random(7)
    good = json.dumps(call_of("search", query=QUESTION)).encode()
    with serving(stub) as server:
        port = httpx2.URL(server.address).port or 0
        answered = 0
        for number in range(2000):
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
            with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
                raw.sendall(request)
                if number % 3 and length in (0, "x", -1):  # these are answered at once
                    answered += raw.recv(9).startswith(b"HTTP/1.1 ")
        assert answered > 500
        assert "Blue." in server.post(good).text


def test_large_bodies_and_slow_clients(stub: Stub) -> None:
    stub.plays(TURN)
    with serving(stub) as server:
        assert server.post(b" " * (20 << 20)).status_code == 413
        port = httpx2.URL(server.address).port or 0
        again = socket.create_connection(("127.0.0.1", port))
        again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        again.recv(1000)
        again.sendall(b"G")
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        for number, each in enumerate(slow):
            each.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"[: 10 + number])
        assert "Blue." in server.post(call_of("search", query=QUESTION)).text
        slow[0].settimeout(30)
        assert slow[0].recv(100) == b"", "whoever does not come to an end is shown the door"
        again.settimeout(30)
        while again.recv(1000):
            pass
        for each in (again, *slow):
            each.close()
        with suppress(httpx2.HTTPError):  # it is shown the door while it still talks
            answer = server.post(HELLO, **{"x-large": "a" * 300_000})
            assert answer.status_code in (400, 431)


# Operation


def test_ready_healthy_and_measured(stub: Stub) -> None:
    stub.plays(TURN)
    stub.environ["GEMINI_API_KEY"] = "a-key-that-is-one"
    with serving(stub) as server:
        assert httpx2.get(server.root + "/readyz").json() == {"status": "ready"}
        server.post(call_of("search", query=QUESTION))
        server.post(call_of("search", query=""))
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(
                server.address,
                json=call_of("search", query=HANG),
                headers={
                    "authorization": f"Bearer {TOKENS[0]}",
                    "accept": "application/json, text/event-stream",
                },
                timeout=1,
            )
        wait_until(lambda: not stub.alive())
        headers = {"authorization": f"Bearer {TOKENS[0]}"}
        page = httpx2.get(server.root + "/metrics", headers=headers).text
    for line in (
        'gemini_mcp_calls_total{outcome="success",tool="search"} 1.0',
        'gemini_mcp_calls_total{outcome="error",tool="search"} 1.0',
        'gemini_mcp_errors_total{code="INVALID_INPUT"} 1.0',
        'gemini_mcp_calls_total{outcome="cancelled",tool="search"} 1.0',
        'gemini_mcp_call_seconds_count{tool="search"} 3.0',
        "gemini_mcp_queue 0.0",
        "gemini_mcp_cli_processes 0.0",
    ):
        assert line in page
    assert float(page.partition("\ngemini_mcp_tokens_total ")[2].split()[0]) > 0
    assert "[INFO] POST /mcp: 200 for " in server.said and QUESTION not in server.said


@needs_real_cli
@pytest.mark.real_cli
def test_not_ready_without_a_sign_in(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    with serving(stub) as server:
        answer = httpx2.get(server.root + "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "AUTH_ERROR")


def test_nobody_is_told_of_others_reports(stub: Stub) -> None:
    with serving(stub) as server:
        version = "2026-07-28"
        meta: Any = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body = {"jsonrpc": "2.0", "id": 5, "method": "subscriptions/listen"}
        headers = {"mcp-protocol-version": version, "mcp-method": "subscriptions/listen"}
        answer = server.post({**body, "params": {"_meta": meta}}, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


async def test_a_small_load(tmp_path: Path) -> None:
    """The small version of what scripts/bench does with 1,000 calls."""
    came_of_it = await load(calls=40, clients=10)

    assert came_of_it.outcomes == {"success": 40}
    assert came_of_it.left == 0


def test_not_ready_without_a_cli(stub: Stub, tmp_path: Path) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(tmp_path / "nowhere")
    with serving(stub) as server:
        answer = httpx2.get(server.root + "/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "CLI_NOT_FOUND")


def test_a_server_that_is_told_to_stop_lets_calls_end(stub: Stub) -> None:
    stub.plays({**TURN, "delay": 0.7})
    with serving(stub) as server:
        answers: list[str] = []

        def ask() -> None:
            answers.append(server.post(call_of("search", query=QUESTION)).text)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: len(stub.runs) == 1)
        server.process.terminate()
        thread.join()
    assert "Blue." in answers[0]


@pytest.mark.parametrize("twice", [False, True])
def test_a_call_that_does_not_end_in_time_is_ended(stub: Stub, twice: bool) -> None:
    stub.plays(TURN)
    stub.environ["GEMINI_MCP_GRACE"] = "30" if twice else "1"
    with serving(stub) as server:
        answers: list[str] = []

        def ask() -> None:
            answers.append(server.post(call_of("search", query=HANG)).text)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: len(stub.runs) == 1)
        begin = time.monotonic()
        server.process.terminate()
        if twice:
            time.sleep(0.3)
            server.process.terminate()
        server.process.wait(20)
        thread.join()
        took = time.monotonic() - begin
    assert "-32800" in answers[0], "whoever waits is told"
    assert took < 8 if twice else 0.9 < took < 8
    assert "ASGI" not in server.said
