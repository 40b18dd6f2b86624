"""The gateway beside its searches: what passes, who may come in, what ends what."""

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


def post(base: str, body: Any, **more: Any) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(f"{base}/chat/completions", content=content, timeout=30, **more)


# What is not ours passes


def test_what_is_not_ours_passes_byte_for_byte(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    upstream.plays(model, ScriptedReply("Hi.", headers={"x-ratelimit-remaining-requests": "7"}))
    odd = {"model": model, "messages": HELLO, "x_unknown": {"深": [1.0, None]}, "seed": 10**30}

    answer = post(
        f"{base}",
        odd,
        params={"api-version": "2"},
        headers={"authorization": "Bearer client", "x-own": "mine", "cookie": "a=b"},
    )

    assert upstream.contents[-1] == json.dumps(odd).encode()
    assert answer.headers["x-ratelimit-remaining-requests"] == "7"
    sent = upstream.headers[model][0]
    assert sent["authorization"] == "Bearer upstream-key"
    assert (sent["x-own"], sent.get("cookie")) == ("mine", None)


def test_rate_limits_are_told_beside_searches_too(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    limits = {"x-ratelimit-remaining-requests": "7"}
    for stream in (False, True):
        upstream.plays(
            model, ScriptedReply(calls=[search("x")]), ScriptedReply("Hi.", headers=limits)
        )
        upstream.scripts[model][0].headers = limits
        answer = post(base, {"model": model, "messages": SEARCHING, "stream": stream})
        assert answer.headers["x-ratelimit-remaining-requests"] == "7"


def test_errors_pass_with_status_body_and_headers(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    for messages in (HELLO, SEARCHING):
        for stream in (False, True):
            refused = ScriptedReply(status=418, body=b"<teapot>", headers={"retry-after": "3"})
            upstream.plays(model, refused)
            answer = post(base, {"model": model, "messages": messages, "stream": stream})
            told = (answer.status_code, answer.content, answer.headers["retry-after"])
            assert told == (418, b"<teapot>", "3")


def test_a_compressed_answer_passes_as_it_is(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    packed = gzip.compress(b'{"a": 1}')
    upstream.plays(model, ScriptedReply(body=packed, headers={"content-encoding": "gzip"}))

    answer = post(base, {"model": model, "messages": HELLO}, headers={"accept-encoding": "gzip"})

    assert upstream.headers[model][0]["accept-encoding"] == "gzip"
    assert (answer.headers["content-encoding"], answer.json()) == ("gzip", {"a": 1})


def test_models_are_the_upstreams(base: str) -> None:
    with openai.OpenAI(base_url=base, api_key="x") as client:
        assert [model.id for model in client.models.list()] == ["a", "b"]


def test_several_upstreams_share_the_models(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    entry = {"baseUrl": f"{upstream.address}/v1"}
    dead = {"id": "dead", "baseUrl": "http://127.0.0.1:9/v1", "models": ["dead-*"]}
    several = [
        {**entry, "id": "one", "models": ["a"]},
        {**entry, "id": "two", "models": ["b"], "apiKeyEnv": "NOT_SET"},
        dead,
    ]
    environ = gateway_environment(tmp_path, upstream, upstreams=several)
    with running_gateway(environ) as base:
        listed = httpx2.get(f"{base}/models").json()["data"]
        assert [model["id"] for model in listed] == ["a"]  # the key of the other one is missing
        mine = {"authorization": "Bearer mine", "x-api-key": "mine"}
        assert post(base, {"model": "a", "messages": HELLO}, headers=mine).status_code == 200
        assert not mine.keys() & upstream.headers["a"][-1].keys()  # it has no key of its own
        for model, status, word in (
            ("b", 502, "NOT_SET"),
            ("dead-1", 502, "'dead' cannot be reached"),
            ("c", 404, "No upstream serves"),
        ):
            for stream in (False, True):
                for messages in (HELLO, SEARCHING):
                    body = {"model": model, "messages": messages, "stream": stream}
                    answer = post(base, body)
                    assert answer.status_code == status
                    assert word in answer.json()["error"]["message"]


def test_no_path_leads_elsewhere_at_the_upstream(upstream: ScriptedUpstream, base: str) -> None:
    for path in ("..%2ffiles", "a/..%2f..%2fadmin", "./x"):
        with socket.create_connection(("127.0.0.1", httpx2.URL(base).port or 0)) as raw:
            request = f"GET /v1/models/{path} HTTP/1.1\r\nHost: localhost\r\n"
            raw.sendall(f"{request}Connection: close\r\n\r\n".encode())
            assert b" 404 " in raw.makefile("rb").readline()
    httpx2.get(f"{base}/models/x%3Fa=b%23c")
    assert upstream.paths[-1] == "/v1/models/x%3Fa%3Db%23c"


def test_upstreams_leave_no_cookies_for_others(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    upstream.plays(model, ScriptedReply("Hi.", headers={"set-cookie": "session=alice; Path=/"}))

    answers = [post(base, {"model": model, "messages": HELLO}) for _ in range(2)]

    assert all("set-cookie" not in answer.headers for answer in answers)
    assert all("cookie" not in sent for sent in upstream.headers[model])


def test_headers_pass_as_bytes(upstream: ScriptedUpstream, base: str, model: str) -> None:
    upstream.plays(model, ScriptedReply("Hi.", headers={"x-told": "Größe"}))
    body = {"model": model, "messages": HELLO}
    sent = [
        ("x-title", "Größe".encode("latin-1")),
        ("connection", b"x-hop"),
        ("x-hop", b"1"),
        ("idempotency-key", b"2"),
    ]

    answer = post(base, body, headers=sent)

    assert dict(answer.headers.raw)[b"x-told"] == "Größe".encode("latin-1")
    got = upstream.headers[model][0]
    assert (got["x-title"], got.get("x-hop"), got["idempotency-key"]) == ("Größe", None, "2")
    upstream.plays(model, ScriptedReply("Hi."))
    post(base, {**body, "messages": SEARCHING}, headers=sent)
    assert "idempotency-key" not in upstream.headers[model][1]


# Bad input


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'"text"'])
def test_a_body_that_is_none(base: str, body: bytes) -> None:
    answer = post(base, body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_body"


def test_odd_requests_reach_the_upstream_or_are_refused(
    upstream: ScriptedUpstream, base: str, model: str
) -> None:
    for odd in (
        {"messages": None},
        {"messages": "text"},
        {"messages": [None, 1, "x", {"role": "user", "content": 5}]},
        {"messages": SEARCHING, "tools": {"not": "a list"}},
        {"messages": SEARCHING, "tools": [None, "x"], "tool_choice": 7, "stream_options": 1},
        {"messages": SEARCHING, "response_format": "x", "modalities": 1},
        {"messages": [{"role": "assistant", "tool_calls": "x"}, *SEARCHING]},
    ):
        assert post(base, {"model": model, **odd}).status_code == 200, odd
    assert len(upstream.asked[model]) == 7


def test_limits_of_bodies_and_headers(base: str) -> None:
    large = b" " * (33 << 20)
    assert post(base, large).status_code == 413
    packed = post(base, gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    assert packed.status_code == 415
    try:
        status = post(base, b"{}", headers={"x-large": "a" * 200_000}).status_code
    except httpx2.HTTPError:
        status = None  # the connection was closed while the client still spoke
    assert status in (None, 400, 431)
    assert httpx2.get(base.removesuffix("/v1") + "/healthz").json()["status"] == "ok"


def test_paths_that_are_not_there(base: str) -> None:
    root = base.removesuffix("/v1")
    assert httpx2.get(root + "/").json()["error"]["code"] == "not_found"
    answer = httpx2.get(base + "/chat/completions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


# Who may come in


def test_a_page_of_somebody_else_may_not_come_in(base: str) -> None:
    def status(**headers: str) -> int:
        return httpx2.get(base + "/models", headers=headers).status_code

    assert status() == 200
    assert status(host="localhost:1") == status(host="[::1]") == 200
    assert status(host="evil.example") == status(host="[") == 421
    assert status(origin="http://[") == 403
    assert status(origin="https://evil.example") == status(origin="null") == 403
    assert status(origin="http://localhost:3000") == status(origin="app://obsidian.md") == 200


def test_tokens(upstream: ScriptedUpstream, tmp_path: Path, model: str) -> None:
    environ = gateway_environment(tmp_path, upstream) | TOKENS
    upstream.plays(model, ScriptedReply("Hi."))
    with running_gateway(environ, "--host", "0.0.0.0") as base:
        base = base.replace("0.0.0.0", "127.0.0.1")
        body = {"model": model, "messages": HELLO}

        def ask(authorization: str) -> httpx2.Response:
            return post(base, body, headers={"authorization": authorization.encode("latin-1")})

        for wrong in ("", "Bearer", "Bearer x", "first-token", "Basic first-token", "Bearer é"):
            refused = ask(wrong)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert ask("Bearer first-token").status_code == 200
        assert ask("bearer second-token").status_code == 200
        assert httpx2.get(base.removesuffix("/v1") + "/healthz").status_code == 200
        assert httpx2.get(base + "/models").status_code == 401
    assert {sent["authorization"] for sent in upstream.headers[model]} == {"Bearer upstream-key"}


def test_the_clients_key_is_passed_on_only_if_that_is_wanted(
    upstream: ScriptedUpstream, tmp_path: Path, model: str
) -> None:
    entry = {"id": "one", "baseUrl": f"{upstream.address}/v1", "passAuthorization": True}
    environ = gateway_environment(tmp_path, upstream, upstreams=[entry])
    upstream.plays(model, ScriptedReply(calls=[search("x")]), ScriptedReply("Hi."))
    with running_gateway(environ) as base:
        body = {"model": model, "messages": SEARCHING}
        post(base, body, headers={"authorization": "Bearer mine"})

    assert [sent["authorization"] for sent in upstream.headers[model]] == ["Bearer mine"] * 2


# A start that cannot be


def refusal(environ: dict[str, str], *options: str) -> str:
    done = run_command_in(environ, "gateway", "--port", "0", *options)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    return done.stderr


def test_a_start_that_cannot_be(upstream: ScriptedUpstream, stub: Stub, tmp_path: Path) -> None:
    bare = stub.environ
    assert "Set GEMINI_MCP_UPSTREAM_URL" in refusal(bare)
    assert "GEMINI_MCP_UPSTREAM_URL='ollama'" in refusal(
        bare | {"GEMINI_MCP_UPSTREAM_URL": "ollama"}
    )
    environ = gateway_environment(tmp_path, upstream)
    said = refusal(environ, "--host", "0.0.0.0")
    assert "CONFIG_ERROR" in said and "GEMINI_MCP_HTTP_TOKENS" in said
    odd = refusal(environ | {"GEMINI_MCP_HTTP_TOKENS": "good-token,no good"})
    assert "token 2" in odd and "no good" not in odd
    entry = {"id": "one", "baseUrl": "http://127.0.0.1/v1"}
    for entries, word in (
        ([entry, entry], "must be unique"),
        ([{**entry, "default": True}, {**entry, "id": "b", "default": True}], "more than one"),
        ([{**entry, "surprise": 1}], "gateway.upstreams.0.surprise"),
        ([{**entry, "baseUrl": "ftp://x"}], "gateway.upstreams.0.baseUrl"),
    ):
        assert word in refusal(gateway_environment(tmp_path, upstream, upstreams=entries))
    passed = gateway_environment(
        tmp_path, upstream, upstreams=[{**entry, "passAuthorization": True}]
    )
    assert "passAuthorization" in refusal(passed | TOKENS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "Address already in use" in refusal(environ, "--port", port)


# Waiting and leaving


def test_a_slow_search_shows_that_it_lives(
    upstream: ScriptedUpstream, quick_base: str, model: str
) -> None:
    query = f"slow {model}"[:60]
    upstream.engine_delays[query] = 2
    script = ScriptedReply(calls=[search(query)])
    models = [f"{model}-{number}" for number in range(3)]
    for each in models:
        upstream.plays(each, script, ScriptedReply("There."))
    got: dict[str, str] = {}

    def of(name: str, ask: Any, each: str) -> None:
        got[name] = ask(quick_base, "raw", {"model": each, "messages": SEARCHING}).text

    threads = [threading.Thread(target=of, args=("python", ask_python, models[0]))]
    node_client = NodeClient() if NODE_SDK.exists() else None
    if node_client:
        threads.append(threading.Thread(target=of, args=("node", node_client.ask, models[1])))
    for thread in threads:
        thread.start()
    body = {"model": models[2], "messages": SEARCHING, "stream": True}
    answer = httpx2.post(f"{quick_base}/chat/completions", json=body, timeout=60)
    for thread in threads:
        thread.join()
    if node_client:
        node_client.close()

    assert set(got.values()) == {"There."}
    waiting = answer.text.partition("There.")[0]
    assert waiting.startswith(":") and 3 <= waiting.count(": keep-alive") < 20


def test_a_slow_upstream_is_waited_for_with_signs_of_life(
    upstream: ScriptedUpstream, quick_base: str, model: str
) -> None:
    told = {"error": {"message": "Too late.", "type": "x", "param": None, "code": None}}
    upstream.plays(model, ScriptedReply(status=500, body=json.dumps(told).encode(), delay=2))

    answer = post(quick_base, {"model": model, "messages": SEARCHING, "stream": True})

    assert (answer.status_code, answer.text.startswith(":")) == (200, True)
    assert "Too late." in answer.text and "[DONE]" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_leaves_ends_the_search(
    upstream: ScriptedUpstream, base: str, model: str, stream: bool
) -> None:
    query = f"left {stream} {model}"[:60]
    upstream.engine_delays[query] = 30
    upstream.plays(model, ScriptedReply(calls=[search(query)]))

    body = {"model": model, "messages": SEARCHING, "stream": stream}
    post_and_disconnect(f"{base}/chat/completions", body, lambda: query in upstream.searched)

    wait_until(lambda: query in upstream.left)


@pytest.mark.parametrize("messages", [HELLO, SEARCHING], ids=["passed", "searching"])
@pytest.mark.parametrize("stream", [False, True])
def test_whoever_leaves_ends_the_upstreams_work(
    upstream: ScriptedUpstream, base: str, model: str, stream: bool, messages: Any
) -> None:
    upstream.plays(
        model, ScriptedReply("A long story. " * 500, delay=0.0 if stream else 30, pause=0.05)
    )

    body = {"model": model, "messages": messages, "stream": stream}
    heard = b"data: " if stream else b""
    post_and_disconnect(
        f"{base}/chat/completions", body, lambda: model in upstream.asked, expected_bytes=heard
    )

    wait_until(lambda: model in upstream.left)


def test_a_gateway_that_is_told_to_end_ends(
    upstream: ScriptedUpstream, tmp_path: Path, model: str
) -> None:
    upstream.plays(model, ScriptedReply("A long story. " * 500, pause=0.1))
    soon = {"gateway_shutdown_grace": 0.2, "forced_shutdown_delay": 0.2}
    with running_gateway(gateway_environment(tmp_path, upstream), limits=soon) as base:
        thread = threading.Thread(
            target=lambda: ask_python(base, "raw", {"model": model, "messages": SEARCHING})
        )
        thread.start()
        wait_until(lambda: model in upstream.asked)
    thread.join()
    assert not list((tmp_path / "config").rglob("*"))


# As the page says


def test_the_program_of_the_page_runs(
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


# The real CLI behind the engine


@needs_real_cli
def test_a_search_by_the_real_cli(
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
        for way in ("whole", "helper"):
            upstream.plays(
                model, ScriptedReply(calls=[search("blue sky")]), ScriptedReply(f"Blue, see {url}.")
            )
            got = ask_python(base, way, {"model": model, "messages": SEARCHING})
            assert got.text == f"Blue, see {url}."
            assert [cited["url_citation"]["url"] for cited in got.annotations] == [url]
        result = json.loads(upstream.asked[model][1]["messages"][-1]["content"])
        assert result["engine"] == "google" and url in [hit["url"] for hit in result["hits"]]
    assert not real.live_pids()
