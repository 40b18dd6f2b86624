"""The gateway as an HTTP server: pass-through, access control, disconnects and shutdown."""

import gzip
import json
import socket
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import openai
import pytest

from tests.support import REDIRECT, Stub, wait_until
from tests.support.cli import run_command_in
from tests.support.disconnecting_client import post_and_disconnect
from tests.support.doc_blocks import BLOCKS
from tests.support.fake_api import SEARCH, FakeApi
from tests.support.matrix import needs_real_cli
from tests.support.openai_clients import (
    NODE_SDK,
    NodeClient,
    ask_python,
    gateway_environment,
    running_gateway,
)
from tests.support.scripted_upstream import SEARCH_QUESTION, ScriptedReply, ScriptedUpstream, search

TOKENS = {"GEMINI_MCP_HTTP_TOKENS": "first-token, second-token"}
HELLO = [{"role": "user", "content": "Hello!"}]
SEARCHING = [{"role": "user", "content": SEARCH_QUESTION}]


@pytest.fixture
def model() -> str:
    return f"model-{uuid4().hex}"


def post(base: str, body: Any, **options: Any) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(f"{base}/chat/completions", content=content, timeout=30, **options)


# Pass-through


def test_requests_without_searches_pass_byte_for_byte(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    upstream.plays(model, ScriptedReply("Hi.", headers={"x-ratelimit-remaining-requests": "7"}))
    body = {"model": model, "messages": HELLO, "x_unknown": {"深": [1.0, None]}, "seed": 10**30}

    response = post(
        f"{base}",
        body,
        params={"api-version": "2"},
        headers={"authorization": "Bearer client", "x-own": "mine", "cookie": "a=b"},
    )

    assert upstream.contents[-1] == json.dumps(body).encode()
    assert response.headers["x-ratelimit-remaining-requests"] == "7"
    sent = upstream.headers[model][0]
    assert sent["authorization"] == "Bearer upstream-key"
    assert (sent["x-own"], sent.get("cookie")) == ("mine", None)


def test_rate_limit_headers_are_also_passed_after_searches(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    headers = {"x-ratelimit-remaining-requests": "7"}
    for stream in (False, True):
        upstream.plays(
            model, ScriptedReply(calls=[search("x")]), ScriptedReply("Hi.", headers=headers)
        )
        upstream.scripts[model][0].headers = headers
        response = post(base, {"model": model, "messages": SEARCHING, "stream": stream})
        assert response.headers["x-ratelimit-remaining-requests"] == "7"


def test_upstream_errors_pass_with_status_body_and_headers(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    for messages in (HELLO, SEARCHING):
        for stream in (False, True):
            error_reply = ScriptedReply(status=418, body=b"<teapot>", headers={"retry-after": "3"})
            upstream.plays(model, error_reply)
            response = post(base, {"model": model, "messages": messages, "stream": stream})
            received = (response.status_code, response.content, response.headers["retry-after"])
            assert received == (418, b"<teapot>", "3")


def test_a_compressed_response_passes_unchanged(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    compressed = gzip.compress(b'{"a": 1}')
    upstream.plays(model, ScriptedReply(body=compressed, headers={"content-encoding": "gzip"}))

    response = post(base, {"model": model, "messages": HELLO}, headers={"accept-encoding": "gzip"})

    assert upstream.headers[model][0]["accept-encoding"] == "gzip"
    assert (response.headers["content-encoding"], response.json()) == ("gzip", {"a": 1})


def test_the_model_list_is_the_upstreams(base: str) -> None:
    with openai.OpenAI(base_url=base, api_key="x") as client:
        assert [model.id for model in client.models.list()] == ["a", "b"]


def test_models_are_routed_to_their_upstreams_without_the_clients_key(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    entry = {"baseUrl": f"{upstream.address}/v1"}
    unreachable = {"id": "dead", "baseUrl": "http://127.0.0.1:9/v1", "models": ["dead-*"]}
    upstreams = [
        {**entry, "id": "one", "models": ["a"]},
        {**entry, "id": "two", "models": ["b"], "apiKeyEnv": "NOT_SET"},
        unreachable,
    ]
    environ = gateway_environment(tmp_path, upstream, upstreams=upstreams)
    with running_gateway(environ) as base:
        models = httpx2.get(f"{base}/models").json()["data"]
        # The key of the second upstream is not set.
        assert [model["id"] for model in models] == ["a"]
        client_headers = {"authorization": "Bearer mine", "x-api-key": "mine"}
        assert (
            post(base, {"model": "a", "messages": HELLO}, headers=client_headers).status_code == 200
        )
        # The first upstream has no key, and does not get the client's.
        assert not client_headers.keys() & upstream.headers["a"][-1].keys()
        for model, status, expected in (
            ("b", 502, "NOT_SET"),
            ("dead-1", 502, "'dead' cannot be reached"),
            ("c", 404, "No upstream serves"),
        ):
            for stream in (False, True):
                for messages in (HELLO, SEARCHING):
                    body = {"model": model, "messages": messages, "stream": stream}
                    response = post(base, body)
                    assert response.status_code == status
                    assert expected in response.json()["error"]["message"]


def test_paths_cannot_escape_the_upstreams_base_path(upstream: ScriptedUpstream, base: str) -> None:
    for path in ("..%2ffiles", "a/..%2f..%2fadmin", "./x"):
        with socket.create_connection(("127.0.0.1", httpx2.URL(base).port or 0)) as connection:
            request = f"GET /v1/models/{path} HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
            assert b" 404 " in connection.makefile("rb").readline()
    httpx2.get(f"{base}/models/x%3Fa=b%23c")
    assert upstream.paths[-1] == "/v1/models/x%3Fa%3Db%23c"


def test_cookies_of_upstreams_are_neither_passed_nor_stored(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    upstream.plays(model, ScriptedReply("Hi.", headers={"set-cookie": "session=alice; Path=/"}))

    responses = [post(base, {"model": model, "messages": HELLO}) for _ in range(2)]

    assert all("set-cookie" not in response.headers for response in responses)
    assert all("cookie" not in headers for headers in upstream.headers[model])


def test_headers_pass_as_bytes_except_hop_by_hop_headers(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    upstream.plays(model, ScriptedReply("Hi.", headers={"x-told": "Größe"}))
    body = {"model": model, "messages": HELLO}
    headers = [
        ("x-title", "Größe".encode("latin-1")),
        ("connection", b"x-hop"),
        ("x-hop", b"1"),
        ("idempotency-key", b"2"),
    ]

    response = post(base, body, headers=headers)

    assert dict(response.headers.raw)[b"x-told"] == "Größe".encode("latin-1")
    received = upstream.headers[model][0]
    assert (received["x-title"], received.get("x-hop"), received["idempotency-key"]) == (
        "Größe",
        None,
        "2",
    )
    upstream.plays(model, ScriptedReply("Hi."))
    post(base, {**body, "messages": SEARCHING}, headers=headers)
    assert "idempotency-key" not in upstream.headers[model][1]


# Invalid input


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'"text"'])
def test_a_body_that_is_not_a_json_object_is_refused(base: str, body: bytes) -> None:
    response = post(base, body)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_body"


def test_requests_with_malformed_fields_reach_the_upstream(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    for fields in (
        {"messages": None},
        {"messages": "text"},
        {"messages": [None, 1, "x", {"role": "user", "content": 5}]},
        {"messages": SEARCHING, "tools": {"not": "a list"}},
        {"messages": SEARCHING, "tools": [None, "x"], "tool_choice": 7, "stream_options": 1},
        {"messages": SEARCHING, "response_format": "x", "modalities": 1},
        {"messages": [{"role": "assistant", "tool_calls": "x"}, *SEARCHING]},
    ):
        assert post(base, {"model": model, **fields}).status_code == 200, fields
    assert len(upstream.requests[model]) == 7


def test_large_bodies_compressed_bodies_and_large_headers_are_refused(base: str) -> None:
    large_body = b" " * (33 << 20)
    assert post(base, large_body).status_code == 413
    compressed = post(base, gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    assert compressed.status_code == 415
    try:
        status = post(base, b"{}", headers={"x-large": "a" * 200_000}).status_code
    except httpx2.HTTPError:
        status = None  # the connection was closed while the client was still sending
    assert status in (None, 400, 431)
    assert httpx2.get(base.removesuffix("/v1") + "/healthz").json()["status"] == "ok"


def test_unknown_paths_and_methods_get_json_errors(base: str) -> None:
    root = base.removesuffix("/v1")
    assert httpx2.get(root + "/").json()["error"]["code"] == "not_found"
    response = httpx2.get(base + "/chat/completions")
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")


# Access control


def test_foreign_hosts_and_origins_are_refused(base: str) -> None:
    def status(**headers: str) -> int:
        return httpx2.get(base + "/models", headers=headers).status_code

    assert status() == 200
    assert status(host="localhost:1") == status(host="[::1]") == 200
    assert status(host="evil.example") == status(host="[") == 421
    assert status(origin="http://[") == 403
    assert status(origin="https://evil.example") == status(origin="null") == 403
    assert status(origin="http://localhost:3000") == status(origin="app://obsidian.md") == 200


def test_requests_without_a_valid_token_are_refused(
    upstream: ScriptedUpstream, tmp_path: Path, model: str
) -> None:
    environ = gateway_environment(tmp_path, upstream) | TOKENS
    upstream.plays(model, ScriptedReply("Hi."))
    with running_gateway(environ, "--host", "0.0.0.0") as base:
        base = base.replace("0.0.0.0", "127.0.0.1")
        body = {"model": model, "messages": HELLO}

        def post_with(authorization: str) -> httpx2.Response:
            return post(base, body, headers={"authorization": authorization.encode("latin-1")})

        for invalid in ("", "Bearer", "Bearer x", "first-token", "Basic first-token", "Bearer é"):
            response = post_with(invalid)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert post_with("Bearer first-token").status_code == 200
        assert post_with("bearer second-token").status_code == 200
        assert httpx2.get(base.removesuffix("/v1") + "/healthz").status_code == 200
        assert httpx2.get(base + "/models").status_code == 401
    assert {sent["authorization"] for sent in upstream.headers[model]} == {"Bearer upstream-key"}


def test_pass_authorization_sends_the_clients_key_to_the_upstream(
    upstream: ScriptedUpstream, tmp_path: Path, model: str
) -> None:
    entry = {"id": "one", "baseUrl": f"{upstream.address}/v1", "passAuthorization": True}
    environ = gateway_environment(tmp_path, upstream, upstreams=[entry])
    upstream.plays(model, ScriptedReply(calls=[search("x")]), ScriptedReply("Hi."))
    with running_gateway(environ) as base:
        body = {"model": model, "messages": SEARCHING}
        post(base, body, headers={"authorization": "Bearer mine"})

    assert [sent["authorization"] for sent in upstream.headers[model]] == ["Bearer mine"] * 2


# Startup errors


def startup_error(environ: dict[str, str], *options: str) -> str:
    completed = run_command_in(environ, "gateway", "--port", "0", *options)
    assert completed.returncode == 1 and "Traceback" not in completed.stderr
    return completed.stderr


def test_invalid_configurations_are_refused_at_startup(
    upstream: ScriptedUpstream, stub: Stub, tmp_path: Path
) -> None:
    unconfigured = stub.environ
    assert "Set GEMINI_MCP_UPSTREAM_URL" in startup_error(unconfigured)
    assert "GEMINI_MCP_UPSTREAM_URL='ollama'" in startup_error(
        unconfigured | {"GEMINI_MCP_UPSTREAM_URL": "ollama"}
    )
    environ = gateway_environment(tmp_path, upstream)
    error = startup_error(environ, "--host", "0.0.0.0")
    assert "CONFIG_ERROR" in error and "GEMINI_MCP_HTTP_TOKENS" in error
    token_error = startup_error(environ | {"GEMINI_MCP_HTTP_TOKENS": "good-token,no good"})
    assert "token 2" in token_error and "no good" not in token_error
    entry = {"id": "one", "baseUrl": "http://127.0.0.1/v1"}
    for entries, expected in (
        ([entry, entry], "must be unique"),
        ([{**entry, "default": True}, {**entry, "id": "b", "default": True}], "more than one"),
        ([{**entry, "surprise": 1}], "gateway.upstreams.0.surprise"),
        ([{**entry, "baseUrl": "ftp://x"}], "gateway.upstreams.0.baseUrl"),
    ):
        assert expected in startup_error(gateway_environment(tmp_path, upstream, upstreams=entries))
    pass_authorization = gateway_environment(
        tmp_path, upstream, upstreams=[{**entry, "passAuthorization": True}]
    )
    assert "passAuthorization" in startup_error(pass_authorization | TOKENS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert "Address already in use" in startup_error(environ, "--port", port)


# Keep-alives, disconnects and shutdown


def test_keep_alives_are_sent_during_a_slow_search(
    upstream: ScriptedUpstream, quick_base: str, model: str
) -> None:
    query = f"slow {model}"[:60]
    upstream.engine_delays[query] = 2
    search_reply = ScriptedReply(calls=[search(query)])
    models = [f"{model}-{number}" for number in range(3)]
    for model_name in models:
        upstream.plays(model_name, search_reply, ScriptedReply("There."))
    texts: dict[str, str] = {}

    def request_text(client: str, ask: Any, model_name: str) -> None:
        texts[client] = ask(quick_base, "raw", {"model": model_name, "messages": SEARCHING}).text

    threads = [threading.Thread(target=request_text, args=("python", ask_python, models[0]))]
    node_client = NodeClient() if NODE_SDK.exists() else None
    if node_client:
        threads.append(
            threading.Thread(target=request_text, args=("node", node_client.ask, models[1]))
        )
    for thread in threads:
        thread.start()
    body = {"model": models[2], "messages": SEARCHING, "stream": True}
    response = httpx2.post(f"{quick_base}/chat/completions", json=body, timeout=60)
    for thread in threads:
        thread.join()
    if node_client:
        node_client.close()

    assert set(texts.values()) == {"There."}
    before_answer = response.text.partition("There.")[0]
    assert before_answer.startswith(":") and 3 <= before_answer.count(": keep-alive") < 20


def test_keep_alives_are_sent_while_a_slow_upstream_is_pending(
    upstream: ScriptedUpstream, quick_base: str, model: str
) -> None:
    error_body = {"error": {"message": "Too late.", "type": "x", "param": None, "code": None}}
    upstream.plays(model, ScriptedReply(status=500, body=json.dumps(error_body).encode(), delay=2))

    response = post(quick_base, {"model": model, "messages": SEARCHING, "stream": True})

    assert (response.status_code, response.text.startswith(":")) == (200, True)
    assert "Too late." in response.text and "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_disconnect_cancels_the_search(
    upstream: ScriptedUpstream, base: str, model: str, stream: bool
) -> None:
    query = f"left {stream} {model}"[:60]
    upstream.engine_delays[query] = 30
    upstream.plays(model, ScriptedReply(calls=[search(query)]))

    body = {"model": model, "messages": SEARCHING, "stream": stream}
    post_and_disconnect(f"{base}/chat/completions", body, lambda: query in upstream.queries)

    wait_until(lambda: query in upstream.disconnected)


@pytest.mark.parametrize("messages", [HELLO, SEARCHING], ids=["pass-through", "search"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_disconnect_cancels_the_upstream_request(
    upstream: ScriptedUpstream, base: str, model: str, stream: bool, messages: Any
) -> None:
    upstream.plays(
        model, ScriptedReply("A long story. " * 500, delay=0.0 if stream else 30, pause=0.05)
    )

    body = {"model": model, "messages": messages, "stream": stream}
    first_bytes = b"data: " if stream else b""
    post_and_disconnect(
        f"{base}/chat/completions",
        body,
        lambda: model in upstream.requests,
        expected_bytes=first_bytes,
    )

    wait_until(lambda: model in upstream.disconnected)


def test_shutdown_does_not_wait_for_open_streams(
    upstream: ScriptedUpstream, tmp_path: Path, model: str
) -> None:
    upstream.plays(model, ScriptedReply("A long story. " * 500, pause=0.1))
    short_limits = {"gateway_shutdown_grace": 0.2, "forced_shutdown_delay": 0.2}
    with running_gateway(gateway_environment(tmp_path, upstream), limits=short_limits) as base:
        thread = threading.Thread(
            target=lambda: ask_python(base, "raw", {"model": model, "messages": SEARCHING})
        )
        thread.start()
        wait_until(lambda: model in upstream.requests)
    thread.join()
    assert not list((tmp_path / "config").rglob("*"))


# The example in the documentation


def test_the_python_example_in_the_docs_runs(
    upstream: ScriptedUpstream, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in BLOCKS if block.language == "python"]
    url = upstream.url_of("Oslo")
    upstream.plays(
        "gpt-5-mini", ScriptedReply(calls=[search("Oslo")]), ScriptedReply(f"Rain, says {url}")
    )

    exec(block.text.replace("http://127.0.0.1:8399/v1", base))

    printed = capsys.readouterr().out
    assert f"Rain, says {url}" in printed and "AnnotationURLCitation" in printed


# The real CLI as search engine


@needs_real_cli
def test_the_real_cli_serves_searches(
    upstream: ScriptedUpstream, real: Stub, api: FakeApi, model: str
) -> None:
    api.calls = [SEARCH]
    url = f"{REDIRECT}nasa"
    environ = real.environ | {
        "GEMINI_MCP_UPSTREAM_URL": f"{upstream.address}/v1/",
        "GEMINI_MCP_WARM": "1",
        "GEMINI_MCP_GROUNDED_MODEL": "gemini-2.5-flash",
    }
    upstream.plays(
        model, ScriptedReply(calls=[search("blue sky")]), ScriptedReply(f"Blue, see {url}.")
    )
    with running_gateway(environ) as base:
        for mode in ("whole", "helper"):
            upstream.plays(
                model, ScriptedReply(calls=[search("blue sky")]), ScriptedReply(f"Blue, see {url}.")
            )
            outcome = ask_python(base, mode, {"model": model, "messages": SEARCHING})
            assert outcome.text == f"Blue, see {url}."
            assert [citation["url_citation"]["url"] for citation in outcome.annotations] == [url]
        result = json.loads(upstream.requests[model][1]["messages"][-1]["content"])
        assert result["engine"] == "google" and url in [hit["url"] for hit in result["hits"]]
    assert not real.live_pids()
