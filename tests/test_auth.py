"""HTTP authentication: tokens are required behind a proxy, and token owners can be named."""

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

TOKENS_VARIABLE = "GEMINI_MCP_HTTP_TOKENS"
PUBLIC_HOST = "mcp.example.com"
COMMANDS = [("serve", "--http"), ("gateway",)]
needs_nginx = pytest.mark.skipif(
    not shutil.which("nginx") or not shutil.which("openssl"),
    reason="requires nginx and openssl (Debian: apt-get install nginx-light openssl)",
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("tokens", [None, "", ",", " , ", "   "])
def test_a_server_behind_a_proxy_does_not_start_without_tokens(
    stub: Stub, command: tuple[str, ...], tokens: str | None
) -> None:
    stub.environ["GEMINI_MCP_UPSTREAM_URL"] = "http://127.0.0.1:9/v1"
    if tokens is not None:
        stub.environ[TOKENS_VARIABLE] = tokens

    completed = run_command(stub, *command, "--port", "0", "--allowed-host", PUBLIC_HOST)

    assert completed.returncode == 1
    assert "CONFIG_ERROR" in completed.stderr and TOKENS_VARIABLE in completed.stderr


@pytest.mark.parametrize(
    "tokens", ["good-token,carol=", "alice==", "=", "a=same-token,b=same-token"]
)
def test_names_without_tokens_and_duplicate_tokens_are_rejected(tokens: str) -> None:
    with pytest.raises(ConfigError, match=r"a name but no token|must be unique"):
        parse_tokens({TOKENS_VARIABLE: tokens})


@pytest.mark.parametrize("tokens", [",", " , ", "   "])
def test_a_list_of_blanks_and_commas_is_rejected(tokens: str) -> None:
    with pytest.raises(ConfigError, match="only blanks and commas"):
        parse_tokens({TOKENS_VARIABLE: tokens})


def test_local_requests_need_no_token_if_none_is_configured(stub: Stub) -> None:
    stub.environ[TOKENS_VARIABLE] = ""
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
def test_a_token_can_name_its_owner(text: str, value: str, owner: str | None) -> None:
    token = Token.parse(text)

    assert token.value == value
    assert token.owner == owner if owner else len(token.owner) == 16


async def test_a_new_token_of_the_same_owner_can_read_existing_jobs(stub: Stub) -> None:
    stub.plays_scenario("deep")
    stub.environ[TOKENS_VARIABLE] = (
        "alice=old-token-of-alice,alice=new-token-of-alice,bobs-own-token"
    )
    with running_server(stub, tokens=False) as server:
        async with connected_client(server, token="old-token-of-alice") as client:
            job = await call_tool(client, "deep_search", query="why", max_iterations=2)
        arguments = {"job_id": job["job_id"]}
        async with connected_client(server, token="new-token-of-alice") as client:
            own_result = await call_tool(client, "deep_search_result", **arguments)
        async with connected_client(server, token="bobs-own-token") as client:
            foreign_result = await call_tool(client, "deep_search_result", **arguments)
        assert server.post(INITIALIZE_REQUEST, token="alice=old-token-of-alice").status_code == 401

    assert own_result["success"] and foreign_result["error"]["code"] == "NOT_FOUND"
    assert " for alice in " in server.log


def test_a_session_belongs_to_an_owner_with_several_tokens() -> None:
    session_ids = SessionIds([Token("one", "alice"), Token("two", "alice"), Token("three", "bob")])

    session = session_ids.issue("alice")

    assert session_ids.verify(session, "alice") and not session_ids.verify(session, "bob")


def test_the_gateway_accepts_only_allowed_hosts(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    environ = gateway_environment(tmp_path, upstream) | {TOKENS_VARIABLE: "alice=first-token-here"}
    with running_gateway(environ, "--allowed-host", PUBLIC_HOST) as base_url:

        def status(host: str) -> int:
            headers = {"host": host, "authorization": "Bearer first-token-here"}
            return httpx2.get(base_url + "/models", headers=headers).status_code

        assert status(PUBLIC_HOST) == status("localhost") == 200
        assert status("evil.example") == 421
    rejected = run_command_in(environ, "gateway", "--port", "0", "--allowed-host", "http://x")
    assert "--allowed-host http://x: " in rejected.stderr


@contextmanager
def running_nginx(folder: Path, server: RunningServer) -> Generator[int]:
    """Run nginx with the shipped configuration and a self-signed certificate; yield its port."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", f"/CN={PUBLIC_HOST}", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    site = (ROOT / "deploy/nginx.conf").read_text()
    for shipped, replacement in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (f"/etc/letsencrypt/live/{PUBLIC_HOST}/fullchain.pem", str(certificate)),
        (f"/etc/letsencrypt/live/{PUBLIC_HOST}/privkey.pem", str(key)),
        ("http://127.0.0.1:8000", server.root),
    ):
        assert shipped in site
        site = site.replace(shipped, replacement)
    temp_paths = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main_config = folder / "nginx.conf"
    main_config.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {temp_paths}\n{site}\n}}"
    )
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(main_config)])
    try:
        wait_until(lambda: _is_listening(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "error.log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@needs_nginx
def test_the_shipped_nginx_configuration_works(stub: Stub, tmp_path: Path) -> None:
    tls_context = ssl.create_default_context()
    tls_context.check_hostname, tls_context.verify_mode = False, ssl.CERT_NONE
    with (
        running_server(stub, "--allowed-host", PUBLIC_HOST) as server,
        running_nginx(tmp_path, server) as port,
        httpx2.Client(verify=tls_context, timeout=30) as client,
    ):

        def status(token: str, host: str = PUBLIC_HOST) -> int:
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
