"""Who may come in over HTTP: never anybody without a token through a proxy; owners have names."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.http_common.auth import Token, parse_tokens
from gemini_cli_mcp.server.session_ids import SessionIds
from tests.support import ROOT, Stub, wait_until
from tests.support.cli import run_command, run_command_in
from tests.support.http_server import RunningServer, call_tool, connected_client, running_server
from tests.support.mcp_server import INITIALIZE_REQUEST
from tests.support.openai_clients import gateway_environment, running_gateway
from tests.support.scripted_upstream import ScriptedUpstream

VARIABLE = "GEMINI_MCP_HTTP_TOKENS"
NAME = "mcp.example.com"
COMMANDS = [("serve", "--http"), ("gateway",)]
needs_nginx = pytest.mark.skipif(
    not shutil.which("nginx") or not shutil.which("openssl"),
    reason="there is no nginx here (Debian: apt-get install nginx-light)",
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("tokens", [None, "", ",", " , ", "   "])
def test_behind_a_proxy_nobody_comes_in_without_a_token(
    stub: Stub, command: tuple[str, ...], tokens: str | None
) -> None:
    stub.environ["GEMINI_MCP_UPSTREAM_URL"] = "http://127.0.0.1:9/v1"
    if tokens is not None:
        stub.environ[VARIABLE] = tokens

    done = run_command(stub, *command, "--port", "0", "--allowed-host", NAME)

    assert done.returncode == 1
    assert "CONFIG_ERROR" in done.stderr and VARIABLE in done.stderr


@pytest.mark.parametrize(
    "tokens", ["good-token,carol=", "alice==", "=", "a=same-token,b=same-token"]
)
def test_a_name_without_a_token_and_a_token_twice_are_refused(tokens: str) -> None:
    with pytest.raises(ConfigError, match=r"a name but no token|must be unique"):
        parse_tokens({VARIABLE: tokens})


@pytest.mark.parametrize("tokens", [",", " , ", "   "])
def test_a_list_without_a_token_is_no_list(tokens: str) -> None:
    with pytest.raises(ConfigError, match="only blanks and commas"):
        parse_tokens({VARIABLE: tokens})


def test_without_a_list_this_machine_may_come_in(stub: Stub) -> None:
    stub.environ[VARIABLE] = ""
    with running_server(stub, "--allowed-host", "localhost:8443", tokens=False) as server:
        assert server.post(INITIALIZE_REQUEST).status_code == 200


@pytest.mark.parametrize(
    ("text", "value", "owner"),
    [
        ("alice=first-token", "first-token", "alice"),
        ("team.a@x=abc=def==", "abc=def==", "team.a@x"),
        ("c2VjcmV0IHRva2Vu==", "c2VjcmV0IHRva2Vu==", None),
        ("c2VjcmV0IHRva2Vu=", "c2VjcmV0IHRva2Vu=", None),
        ("=token", "=token", None),
        ("plain-token", "plain-token", None),
    ],
)
def test_a_token_may_have_a_name(text: str, value: str, owner: str | None) -> None:
    token = Token.parse(text)

    assert token.value == value
    assert token.owner == owner if owner else len(token.owner) == 16


async def test_a_changed_token_keeps_its_owners_jobs(stub: Stub) -> None:
    stub.plays_scenario("deep")
    stub.environ[VARIABLE] = "alice=old-token-of-alice,alice=new-token-of-alice,bobs-own-token"
    with running_server(stub, tokens=False) as server:
        async with connected_client(server, token="old-token-of-alice") as client:
            started = await call_tool(client, "deep_search", query="why", max_iterations=2)
        asked = {"job_id": started["job_id"]}
        async with connected_client(server, token="new-token-of-alice") as client:
            kept = await call_tool(client, "deep_search_result", **asked)
        async with connected_client(server, token="bobs-own-token") as client:
            foreign = await call_tool(client, "deep_search_result", **asked)
        assert server.post(INITIALIZE_REQUEST, token="alice=old-token-of-alice").status_code == 401

    assert kept["success"] and foreign["error"]["code"] == "NOT_FOUND"
    assert " for alice in " in server.said


def test_sessions_are_their_owners_with_any_of_its_tokens() -> None:
    both = SessionIds([Token("one", "alice"), Token("two", "alice"), Token("three", "bob")])

    session = both.issue("alice")

    assert both.verify(session, "alice") and not both.verify(session, "bob")


def test_the_gateway_knows_its_names(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    environ = gateway_environment(tmp_path, upstream) | {VARIABLE: "alice=first-token-here"}
    with running_gateway(environ, "--allowed-host", NAME) as base:

        def status(host: str) -> int:
            headers = {"host": host, "authorization": "Bearer first-token-here"}
            return httpx2.get(base + "/models", headers=headers).status_code

        assert status(NAME) == status("localhost") == 200
        assert status("evil.example") == 421
    refused = run_command_in(environ, "gateway", "--port", "0", "--allowed-host", "http://x")
    assert "--allowed-host http://x: " in refused.stderr


@contextmanager
def nginx(folder: Path, server: RunningServer) -> Generator[int]:
    """The shipped configuration, with another port and a certificate of our own; its port."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", f"/CN={NAME}", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = (ROOT / "deploy/nginx.conf").read_text()
    for shipped, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (f"/etc/letsencrypt/live/{NAME}/fullchain.pem", str(certificate)),
        (f"/etc/letsencrypt/live/{NAME}/privkey.pem", str(key)),
        ("http://127.0.0.1:8000", server.root),
    ):
        assert shipped in site
        site = site.replace(shipped, here)
    temp = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {temp}\n{site}\n}}"
    )
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(main)])
    try:
        wait_until(lambda: _accepts(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "error.log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@needs_nginx
def test_the_shipped_nginx_in_front(stub: Stub, tmp_path: Path) -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with (
        running_server(stub, "--allowed-host", NAME) as server,
        nginx(tmp_path, server) as port,
        httpx2.Client(verify=trusting, timeout=30) as client,
    ):

        def status(token: str, host: str = NAME) -> int:
            headers = {"host": host, "accept": "application/json, text/event-stream"}
            if token:
                headers["authorization"] = f"Bearer {token}"
            return client.post(
                f"https://127.0.0.1:{port}/mcp", json=INITIALIZE_REQUEST, headers=headers
            ).status_code

        assert status("first-token") == 200
        assert status("") == status("wrong") == 401
        assert status("first-token", "evil.example") == 421
        assert client.get(f"https://127.0.0.1:{port}/metrics").status_code in (401, 421)
