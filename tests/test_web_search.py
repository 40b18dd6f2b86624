"""`web_search`: engine configuration, hits, and no fallback from one engine to another."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from gemini_cli_mcp.errors import (
    ConfigError,
    EngineFailed,
    EngineRefused,
    GeminiMcpError,
    InvalidInput,
    NoResults,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.research.hits import renumber_marks
from gemini_cli_mcp.settings.engines import EngineTarget, default_engines
from gemini_cli_mcp.settings.engines_file import parse_provider_key
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Hit
from tests.support import (
    QUESTION,
    REAL_CLI,
    REDIRECT,
    ROOT,
    Result,
    Stub,
    model_answer,
    search_with_sources,
)
from tests.support.cli import run_command
from tests.support.fake_api import POLL_INTERVAL, SEARCH, FakeApi, fake_api
from tests.support.matrix import needs_posix, needs_real_cli
from tests.support.mcp_server import in_process_client

HIT = {
    "title": "天空为什么是蓝色的",
    "link": "https://example.cn/sky?utm_source=x",
    "media": "示例网",
    "publish_date": "2026年11月1日",
    "content": "瑞利散射。" * 200,
    "icon": "https://example.cn/i.png",
    "refer": "ref_1",
}
CHAT_RESPONSE = {
    "id": "1",
    "choices": [{"message": {"role": "assistant", "content": "因为瑞利散射[ref_1]。"}}],
    "web_search": [HIT],
}
API_RESPONSE = {"id": "1", "search_intent": [], "search_result": [HIT]}


@dataclass
class FakeGlm:
    """A loopback GLM server that sends prepared responses and records its requests."""

    url: str
    status: int = 200
    responses: list[Any] = field(default_factory=lambda: [CHAT_RESPONSE])
    """One per request; the last one repeats. A string is sent verbatim."""
    hang_until: threading.Event | None = None
    endless: bool = False
    """Whether to send a body that never ends."""
    requests: list[tuple[str, Result, str | None]] = field(
        default_factory=list[tuple[str, Result, str | None]]
    )


@contextmanager
def fake_glm() -> Generator[FakeGlm]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((self.path, body, self.headers["Authorization"]))
            if fake.hang_until:
                fake.hang_until.wait()
            if fake.endless:
                self._send_until_disconnected()
                return
            response = fake.responses[min(len(fake.requests), len(fake.responses)) - 1]
            data = (response if isinstance(response, str) else json.dumps(response)).encode()
            self.send_response(fake.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _send_until_disconnected(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(b" " * 1_000_000)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeGlm(f"http://127.0.0.1:{server.server_port}/api/paas/v4")
    thread = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL,))
    thread.start()
    try:
        yield fake
    finally:
        if fake.hang_until:
            fake.hang_until.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def fake() -> Generator[FakeGlm]:
    with fake_glm() as server:
        yield server


def engine(name: str, key: str, **options: object) -> dict[str, object]:
    return {"id": name, "providerKey": key, "description": f"Engine {name}", **options}


class Searcher:
    """Run `web_search` with the engines of a file, against test doubles."""

    def __init__(self, stub: Stub, folder: Path) -> None:
        self.stub = stub
        self._path = folder / "engines.json"

    def configure(self, *entries: dict[str, object], **sections: object) -> None:
        self.write_file(json.dumps({"webSearch": {"engines": entries}, **sections}))

    def write_file(self, text: str) -> None:
        self._path.write_text(text)
        self.stub.environ["GEMINI_MCP_WEB_SEARCH"] = str(self._path)

    @property
    def settings(self) -> Settings:
        return self.stub.settings

    async def search(self, *arguments: object) -> Result:
        return await self.stub.web_search(*arguments)


@pytest.fixture
def searcher(stub: Stub, tmp_path: Path) -> Searcher:
    stub.plays(
        {
            "text": "done",
            "searches": [{**search_with_sources("sky", "nasa", "noaa"), "text": "Blue.[1]"}],
        }
    )
    return Searcher(stub, tmp_path)


# Engine file


async def test_without_a_file_the_only_engine_uses_the_default_provider(
    searcher: Searcher,
) -> None:
    result = await searcher.search()

    assert (result["engine"], result["provider"], result["model"]) == (
        "google",
        "gemini-cli",
        "flash",
    )
    assert result["summary"] == "Blue.[1]"
    assert result["hits"] == [
        {"title": "nasa.org", "url": REDIRECT + "nasa", "source": "nasa.org"},
        {"title": "noaa.org", "url": REDIRECT + "noaa", "source": "noaa.org"},
    ]
    assert "untrusted" in result["note"]


def test_comments_and_trailing_commas_are_accepted(searcher: Searcher) -> None:
    searcher.write_file(
        """{ // the engines
        "webSearch": {"engines": [
            /* one, with a // in its text */
            {"id": "a", "providerKey": "glm.glm-4.6", "description": "see https://z.ai /* no */",},
        ],}, // end
        }"""
    )

    [loaded] = searcher.settings.engines.engines
    assert loaded.description == "see https://z.ai /* no */"


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("glm.glm-4.6", EngineTarget("glm", None, "glm-4.6")),
        ("gemini-cli.flash", EngineTarget("gemini-cli", None, "flash")),
        ("gemini-api.gemini-2.5-flash", EngineTarget("gemini-api", None, "gemini-2.5-flash")),
        ("antigravity.auto", EngineTarget("antigravity", None, "auto")),
        ("glm.work.glm-4.6", EngineTarget("glm", "work", "glm-4.6")),
        ("gemini-api.work.custom.model", EngineTarget("gemini-api", "work", "custom.model")),
    ],
)
def test_a_provider_key_is_parsed_into_family_alias_and_model(
    key: str, target: EngineTarget
) -> None:
    assert parse_provider_key(key, {}) == target


INVALID_FILES: dict[str, tuple[str, str]] = {
    "invalid JSON": ('{"webSearch": ', "the file: is not valid JSON: EOF while parsing"),
    "no engines": ('{"webSearch": {"engines": []}}', "webSearch.engines"),
    "no webSearch": ("{}", "webSearch"),
    "no description": (
        '{"webSearch": {"engines": [{"id": "a", "providerKey": "glm.glm-4"}]}}',
        "webSearch.engines.0.description",
    ),
    "a misspelled key": (
        json.dumps({"webSearch": {"engines": [engine("a", "glm.glm-4", defualt=True)]}}),
        "webSearch.engines.0.defualt",
    ),
    "an invalid form": (
        json.dumps({"webSearch": {"engines": [engine("a", "glm.glm-4", glm={"form": "x"})]}}),
        "webSearch.engines.0.glm.form",
    ),
    "a duplicate id": (
        json.dumps(
            {"webSearch": {"engines": [engine("a", "glm.glm-4"), engine("a", "glm.glm-5")]}}
        ),
        "webSearch.engines.1.id: duplicate id 'a'",
    ),
    "two defaults": (
        json.dumps(
            {
                "webSearch": {
                    "engines": [
                        engine("a", "glm.glm-4", default=True),
                        engine("b", "glm.glm-5", default=True),
                    ]
                }
            }
        ),
        "more than one default (a, b)",
    ),
    "an unknown family": (
        json.dumps({"webSearch": {"engines": [engine("a", "bing.gemini-x")]}}),
        "webSearch.engines.0.providerKey: 'bing' is not a known family",
    ),
    "no model": (
        json.dumps({"webSearch": {"engines": [engine("a", "glm.work")]}}),
        "webSearch.engines.0.providerKey: 'glm.work' has no model",
    ),
    "a flag as a model": (
        json.dumps({"webSearch": {"engines": [engine("a", "gemini-cli.work.--yolo")]}}),
        "'--yolo' is not a valid model name",
    ),
    "an account named like a model": (
        json.dumps(
            {
                "webSearch": {"engines": [engine("a", "glm.glm-4")]},
                "accounts": {"production": {"apiKeyEnv": "X"}},
            }
        ),
        "accounts.production",
    ),
    "an invalid address": (
        json.dumps(
            {"webSearch": {"engines": [engine("a", "glm.x.y", glm={"baseUrl": "http://["})]}}
        ),
        "webSearch.engines.0.glm.baseUrl",
    ),
    "a target without a route": (
        json.dumps(
            {
                "webSearch": {"engines": [engine("a", "glm.glm-4")]},
                "virtualrouter": {
                    "routing": {"web_search": [{"id": "r", "targets": ["glm.glm-5"]}]}
                },
            }
        ),
        "webSearch.engines.0.providerKey: 'glm.glm-4' of engine 'a' is not a target",
    ),
}


@pytest.mark.parametrize("case", INVALID_FILES)
def test_an_invalid_file_is_rejected_with_the_location_of_the_error(
    searcher: Searcher, case: str
) -> None:
    text, location = INVALID_FILES[case]
    searcher.write_file(text)

    with pytest.raises(ConfigError) as caught:
        _ = searcher.settings

    assert caught.value.message.startswith("GEMINI_MCP_WEB_SEARCH: ")
    assert location in caught.value.message


@needs_posix
def test_a_missing_file_is_rejected_with_its_path(searcher: Searcher) -> None:
    searcher.stub.environ["GEMINI_MCP_WEB_SEARCH"] = "/nowhere/engines.json"

    with pytest.raises(ConfigError, match=r"/nowhere/engines\.json"):
        _ = searcher.settings


# Engine selection


@pytest.mark.parametrize(
    ("defaults", "requested", "expected"),
    [([False], None, "a"), ([False, True], None, "b"), ([False, True], "a", "a")],
)
async def test_the_requested_or_default_engine_is_used(
    searcher: Searcher, defaults: list[bool], requested: str | None, expected: str
) -> None:
    searcher.configure(
        *(
            engine(name, "gemini-cli.flash", default=default)
            for name, default in zip("ab", defaults, strict=False)
        )
    )

    assert (await searcher.search(QUESTION, requested))["engine"] == expected


@pytest.mark.parametrize("requested", [None, "c", 7])
async def test_without_a_default_a_configured_engine_must_be_named(
    searcher: Searcher, requested: object
) -> None:
    searcher.configure(engine("a", "gemini-cli.flash"), engine("b", "glm.glm-4"))

    with pytest.raises(InvalidInput, match="a, b"):
        await searcher.search(QUESTION, requested)

    assert searcher.stub.runs == []


@pytest.mark.parametrize(
    "arguments",
    [
        (7,),
        ("",),
        (QUESTION, None, "twoDays"),
        (QUESTION, None, 7),
        (QUESTION, None, None, 0),
        (QUESTION, None, None, 51),
        (QUESTION, None, None, 2.5),
        (QUESTION, None, None, True),
        (QUESTION, None, None, "many"),
    ],
)
async def test_invalid_arguments_are_rejected(
    searcher: Searcher, arguments: tuple[object, ...]
) -> None:
    with pytest.raises(InvalidInput):
        await searcher.search(*arguments)


async def test_a_failed_engine_is_not_replaced_by_another(
    searcher: Searcher, fake: FakeGlm
) -> None:
    searcher.configure(
        engine("mine", "glm.glm-4", glm={"baseUrl": fake.url}),
        engine("google", "gemini-cli.flash", default=True),
    )
    searcher.stub.environ["ZAI_API_KEY"] = "k" * 20
    fake.status, fake.responses = 500, [{"error": {"code": "500", "message": "broken"}}]

    with pytest.raises(EngineFailed, match="Engine 'mine': GLM answered 500, code 500: broken"):
        await searcher.search(QUESTION, "mine")

    assert searcher.stub.runs == []
    assert searcher.stub.waits == [1, 2, 4]


# Tool schema


async def read_schema(searcher: Searcher) -> tuple[Result, int]:
    async with in_process_client(searcher.stub) as client:
        tool_list = await client.list_tools()
    [tool] = [tool for tool in tool_list.tools if tool.name == "web_search"]
    return tool.input_schema, len(tool_list.model_dump_json(by_alias=True, exclude_none=True))


async def test_the_schema_lists_the_engines(searcher: Searcher) -> None:
    searcher.configure(
        *(
            engine(name, f"glm.glm-{name}") | {"description": f"Engine {name} " * 50}
            for name in "abcd"
        )
    )

    schema, size = await read_schema(searcher)

    assert schema["required"] == ["query", "engine"]
    assert schema["properties"]["engine"]["enum"] == ["a", "b", "c", "d"]
    assert "c: Engine c" in schema["properties"]["engine"]["description"]
    assert "default" not in schema["properties"]["engine"]
    assert size < 12_000


@pytest.mark.parametrize("count", [1, 2])
async def test_the_engine_argument_is_optional_if_there_is_a_default(
    searcher: Searcher, count: int
) -> None:
    searcher.configure(*[engine("a", "glm.glm-4", default=True), engine("b", "glm.glm-5")][:count])

    schema, _ = await read_schema(searcher)

    assert schema["required"] == ["query"]
    assert schema["properties"]["engine"]["default"] == "a"


# Google


async def test_recency_and_count_are_written_into_the_prompt_of_a_cli(searcher: Searcher) -> None:
    result = await searcher.search(QUESTION, None, "oneWeek", 1)

    prompt = searcher.stub.runs[0]["prompt"]
    assert "(at least 1 sources) (only pages of the last week)" in prompt
    assert result["metadata"]["applied"] == {"recency": "prompt", "count": "prompt"}
    assert len(result["hits"]) == 1


async def test_the_api_applies_recency_as_a_time_filter(searcher: Searcher) -> None:
    searcher.configure(engine("a", "gemini-api.gemini-2.5-flash"))
    with fake_api() as api:
        searcher.stub.environ |= {"GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": api.url}
        result = await searcher.search(QUESTION, None, "oneDay")

    [request] = api.requests
    assert request.body["tools"][0]["googleSearch"]["timeRangeFilter"].keys() == {
        "start_time",
        "end_time",
    }
    assert result["metadata"]["applied"]["recency"] == "filter"
    assert [hit["source"] for hit in result["hits"]] == ["nasa.gov", "noaa.gov"]


@pytest.mark.skipif(not REAL_CLI.exists(), reason="scripts/test installs it if Node is available")
async def test_hits_of_the_real_cli_are_the_sources_in_its_ledger(searcher: Searcher) -> None:
    with fake_api() as api:
        api.calls = [("google_web_search", {"query": QUESTION})]
        api.texts = ["done"]
        searcher.stub.environ |= {
            "GEMINI_MCP_CLI_PATH": str(REAL_CLI),
            "GEMINI_API_KEY": "k",
            "GOOGLE_GEMINI_BASE_URL": api.url,
        }
        result = await searcher.search()

    assert [hit["url"] for hit in result["hits"]] == [REDIRECT + "nasa", REDIRECT + "noaa"]
    assert result["summary"] == "Blue[1][2], says NASA."


async def test_an_account_gets_only_its_own_key(searcher: Searcher) -> None:
    accounts = {"work": {"apiKeyEnv": "WORK"}, "home": {"apiKeyEnv": "HOME_SECRET_NAME"}}
    searcher.configure(engine("a", "gemini-cli.work.flash"), accounts=accounts)
    searcher.stub.environ |= {"WORK": "work-key", "HOME_SECRET_NAME": "home-key"}

    await searcher.search()

    environment = searcher.stub.runs[0]["environment"]
    assert environment["GEMINI_API_KEY"] == "work-key"
    assert "WORK" not in environment and "HOME_SECRET_NAME" not in environment


def test_an_alias_without_an_account_logs_a_warning_and_is_ignored(
    searcher: Searcher,
) -> None:
    searcher.configure(engine("a", "gemini-cli.work.flash"))

    completed = run_command(searcher.stub, "web-search", QUESTION)

    assert completed.returncode == 0
    assert (
        "[WARNING] GEMINI_MCP_WEB_SEARCH: the account alias 'work' has no entry" in completed.stderr
    )


async def test_an_account_without_a_key_does_not_use_other_credentials(
    searcher: Searcher,
) -> None:
    searcher.configure(
        engine("a", "gemini-cli.work.flash"), accounts={"work": {"apiKeyEnv": "WORK"}}
    )
    searcher.stub.environ |= {"GOOGLE_API_KEY": "other", "GEMINI_API_KEY": "another"}

    with pytest.raises(NotSignedIn) as caught:
        await searcher.search()

    assert "WORK" in caught.value.next_step
    assert searcher.stub.runs == []


async def test_a_model_that_the_engine_cannot_use_is_a_config_error(searcher: Searcher) -> None:
    searcher.configure(engine("a", "gemini-cli.pro"))

    with pytest.raises(ConfigError, match="Engine 'a'"):
        await searcher.search()


async def test_accounts_of_one_model_are_tried_in_order_of_priority(
    searcher: Searcher, fake: FakeGlm, caplog: pytest.LogCaptureFixture
) -> None:
    routes = [
        {"id": "low", "priority": 1, "targets": ["glm.a.glm-4"]},
        {"id": "high", "priority": 9, "targets": ["glm.b.glm-4", "glm.glm-5"]},
    ]
    searcher.configure(
        engine("mine", "glm.a.glm-4", glm={"baseUrl": fake.url}),
        accounts={"a": {"apiKeyEnv": "A_KEY"}, "b": {"apiKeyEnv": "B_KEY"}},
        virtualrouter={"routing": {"web_search": routes}},
    )
    searcher.stub.environ |= {"A_KEY": "key-of-a"}

    result = await searcher.search()

    assert [authorization for _, _, authorization in fake.requests] == ["Bearer key-of-a"]
    assert result["metadata"]["account"] == "a"
    assert "account b failed (AUTH_ERROR)" in caplog.text


# GLM


def use_glm(searcher: Searcher, fake: FakeGlm, **options: object) -> None:
    searcher.configure(engine("glm", "glm.glm-4.6", glm={"baseUrl": fake.url, **options}))
    searcher.stub.environ["ZAI_API_KEY"] = "secret-key-of-glm"


async def test_the_glm_chat_form_returns_hits_and_the_model_summary(
    searcher: Searcher, fake: FakeGlm
) -> None:
    use_glm(searcher, fake, searchEngine="search_pro")

    result = await searcher.search("天空为什么是蓝色的？", None, "oneMonth", 3)

    [(path, body, authorization)] = fake.requests
    assert (path, authorization) == ("/api/paas/v4/chat/completions", "Bearer secret-key-of-glm")
    assert body["model"] == "glm-4.6"
    assert body["thinking"] == {"type": "disabled"}
    assert body["stream"] is False
    assert body["tools"] == [
        {
            "type": "web_search",
            "web_search": {
                "enable": True,
                "search_engine": "search_pro",
                "search_query": "天空为什么是蓝色的？",
                "search_result": True,
                "search_recency_filter": "oneMonth",
                "count": 3,
            },
        }
    ]
    [hit] = result["hits"]
    assert result["summary"] == "因为瑞利散射[ref_1]。"
    assert (hit["title"], hit["source"], hit["date"]) == (
        "天空为什么是蓝色的",
        "示例网",
        "2026年11月1日",
    )
    assert len(hit["snippet"]) == 500
    assert result["metadata"]["applied"] == {"recency": "field", "count": "field"}
    assert result["metadata"]["summary_from"] == "model"


async def test_the_glm_api_form_returns_hits_and_a_summary_of_them(
    searcher: Searcher, fake: FakeGlm
) -> None:
    use_glm(searcher, fake, form="api")
    fake.responses = [API_RESPONSE]

    result = await searcher.search("x" * 200, None, "oneDay", 50)

    [(path, body, _)] = fake.requests
    assert path == "/api/paas/v4/web_search"
    assert body == {
        "search_query": "x" * 70,
        "search_engine": "search_std",
        "search_intent": False,
        "count": 50,
        "search_recency_filter": "oneDay",
    }
    assert result["summary"].startswith("- 天空为什么是蓝色的: 瑞利散射")
    assert result["metadata"]["summary_from"] == "hits"


@pytest.mark.parametrize(
    "response",
    [
        {**CHAT_RESPONSE, "web_search": []},
        {"choices": CHAT_RESPONSE["choices"], "error": None},
        {**CHAT_RESPONSE, "web_search": None},
        {**CHAT_RESPONSE, "web_search": [{"icon": "x"}]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": "javascript:alert(1)"}]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": "data:text/html,x"}, "text", None]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": "https://"}]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": "https://a.org/x\n\n# heading"}]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": "https://h .org/x"}]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": "https://a\u200b.org/x"}]},
        {**CHAT_RESPONSE, "web_search": [{"title": "x", "link": 'https://a.org/"><script>'}]},
    ],
)
async def test_a_response_without_usable_hits_raises_no_results(
    searcher: Searcher, fake: FakeGlm, response: Result
) -> None:
    use_glm(searcher, fake)
    fake.responses = [response]

    with pytest.raises(NoResults, match="Engine 'glm'"):
        await searcher.search()


async def test_incomplete_hits_are_completed_and_duplicates_dropped(
    searcher: Searcher, fake: FakeGlm
) -> None:
    use_glm(searcher, fake)
    duplicate = {"link": "http://www.example.cn/sky"}
    bare = {"link": "https://bare.example/x", "title": 7}
    fake.responses = [{**CHAT_RESPONSE, "choices": [], "web_search": [HIT, duplicate, bare]}]

    result = await searcher.search()

    assert result["summary"] == ""
    assert [hit["url"] for hit in result["hits"]] == [HIT["link"], bare["link"]]
    assert result["hits"][1] == {
        "title": "bare.example",
        "url": bare["link"],
        "source": "bare.example",
    }


@pytest.mark.parametrize(
    ("status", "response", "error"),
    [
        (401, {"error": {"code": "1001", "message": "no key"}}, NotSignedIn),
        (429, {"error": {"code": "1302", "message": "slow"}}, RateLimited),
        (429, {"error": {"code": "1113", "message": "no money"}}, QuotaExhausted),
        (200, {"error": {"code": "1113", "message": "no money"}}, QuotaExhausted),
        (503, {"error": {"code": "", "message": "busy"}}, EngineFailed),
        (502, "<html>secret-key-of-glm</html>", EngineFailed),
        (400, {"error": {"code": "1214", "message": "bad"}}, EngineRefused),
        (200, {"code": 1001, "msg": "no key", "success": False}, NotSignedIn),
        (200, {"error": "secret-key-of-glm"}, EngineFailed),
        (200, "[" * 100_000, EngineFailed),
        (200, "no json", EngineFailed),
        (200, "[]", EngineFailed),
    ],
)
async def test_glm_failures_raise_the_matching_error_without_the_key(
    searcher: Searcher, fake: FakeGlm, status: int, response: Any, error: type[GeminiMcpError]
) -> None:
    use_glm(searcher, fake)
    fake.status, fake.responses = status, [response]

    with pytest.raises(error) as caught:
        await searcher.search()

    error_text = caught.value.message + caught.value.next_step
    assert "Engine 'glm': GLM" in error_text
    assert "secret-key-of-glm" not in error_text
    error_body = object_or_empty(object_or_empty(response).get("error"))
    if error_body.get("code"):
        assert f"code {error_body['code']}: {error_body['message']}" in error_text


async def test_transient_glm_failures_are_retried(searcher: Searcher, fake: FakeGlm) -> None:
    use_glm(searcher, fake)
    fake.responses = ["no json", "no json", CHAT_RESPONSE]

    assert (await searcher.search())["hits"]
    assert searcher.stub.waits == [1, 2]


async def test_a_glm_response_that_never_ends_is_not_read_to_the_end(
    searcher: Searcher, fake: FakeGlm
) -> None:
    use_glm(searcher, fake)
    fake.endless = True

    with anyio.fail_after(20), pytest.raises(EngineFailed, match="without the requested data"):
        await searcher.search()


async def test_an_unresponsive_glm_server_times_out(searcher: Searcher, fake: FakeGlm) -> None:
    searcher.stub.limits = Limits(glm_timeout=0.2)
    use_glm(searcher, fake)
    fake.hang_until = threading.Event()

    with pytest.raises(TimedOut, match="Engine 'glm'"):
        await searcher.search()


async def test_the_call_timeout_limits_an_engine(searcher: Searcher, fake: FakeGlm) -> None:
    use_glm(searcher, fake)
    searcher.stub.environ["GEMINI_MCP_TIMEOUT"] = "0.3"
    fake.hang_until = threading.Event()

    with pytest.raises(TimedOut, match="Engine 'glm'"):
        await searcher.search()


async def test_glm_without_a_key_names_the_variable_to_set(
    searcher: Searcher, fake: FakeGlm
) -> None:
    use_glm(searcher, fake)
    del searcher.stub.environ["ZAI_API_KEY"]

    with pytest.raises(NotSignedIn) as caught:
        await searcher.search()

    assert "ZAI_API_KEY" in caught.value.next_step
    assert fake.requests == []


# Interfaces and edge cases


async def test_clients_get_hits_and_input_errors(searcher: Searcher) -> None:
    async with in_process_client(searcher.stub) as client:
        result = await client.call_tool("web_search", {"query": QUESTION})
        invalid = await client.call_tool("web_search", {"query": QUESTION, "count": 99})

    assert result.structured_content and invalid.structured_content
    assert len(result.structured_content["hits"]) == 2
    assert invalid.structured_content["error"]["code"] == "INVALID_INPUT"


def test_the_command_prints_hits_as_markdown_or_json(searcher: Searcher) -> None:
    as_text = run_command(
        searcher.stub, "web-search", QUESTION, "--recency", "oneYear", "--count", "5"
    )
    as_json = run_command(searcher.stub, "web-search", QUESTION, "--json")

    assert f"1. [nasa.org]({REDIRECT}nasa) (nasa.org)" in as_text.stdout
    assert "engine google · 2 hits · " in as_text.stderr
    assert "result" not in json.loads(as_json.stdout)


def test_the_default_engine_uses_the_configured_provider() -> None:
    assert default_engines("api", "flash").engines[0].targets == (
        EngineTarget("gemini-api", None, "flash"),
    )


def test_hostile_hits_are_escaped_in_the_terminal(searcher: Searcher, fake: FakeGlm) -> None:
    use_glm(searcher, fake)
    title = "T](http://evil) **b** \u202e"
    hit = {
        "title": title,
        "link": "https://e.org/a)[click](javascript:x",
        "content": "# no\n\n# no",
    }
    fake.responses = [{**CHAT_RESPONSE, "web_search": [hit]}]

    completed = run_command(searcher.stub, "web-search", QUESTION)

    assert "](http://evil" not in completed.stdout.replace("\\](http://evil", "")
    assert "](javascript" not in completed.stdout and "\n#" not in completed.stdout
    assert "\u202e" not in completed.stdout


async def test_later_hits_lose_their_snippets_if_there_are_many_long_hits(
    searcher: Searcher, fake: FakeGlm
) -> None:
    use_glm(searcher, fake)
    hits = [{**HIT, "link": f"https://a.org/{'x' * 1500}{number}"} for number in range(200)]
    fake.responses = [{**CHAT_RESPONSE, "web_search": hits}]

    returned_hits = (await searcher.search(QUESTION, None, None, 50))["hits"]

    assert len(returned_hits) == 50
    assert "snippet" in returned_hits[0] and "snippet" not in returned_hits[-1]


@pytest.mark.timeout(5)  # takes milliseconds; a backtracking regex would take hours
def test_unclosed_comments_are_rejected_quickly(searcher: Searcher) -> None:
    searcher.write_file("/* " * 50_000 + '"' * 1001)

    with pytest.raises(ConfigError):
        _ = searcher.settings


def test_a_run_without_a_search_fails_with_no_results(stub: Stub) -> None:
    stub.plays({"text": model_answer()})

    completed = run_command(stub, "web-search", QUESTION)

    assert completed.returncode == 1
    assert "NO_RESULTS: Engine 'google'" in completed.stderr


def test_the_example_in_the_documentation_is_valid(searcher: Searcher) -> None:
    page = (ROOT / "docs/web-search.md").read_text(encoding="utf-8")
    searcher.write_file(page.partition("```jsonc\n")[2].partition("```")[0])

    engines_file = searcher.settings.engines

    assert [engine.id for engine in engines_file.engines] == ["google", "google-api", "glm"]
    assert engines_file.default == "google"
    assert [target.alias for target in engines_file.engines[1].targets] == ["work", "home"]
    assert engines_file.warnings == ()


def hit(name: str) -> Hit:
    return Hit(name, f"https://{name}.example/", name)


@pytest.mark.parametrize(
    ("summary", "shown", "renumbered"),
    [
        ("Use `xs[1]` and ``a`[1]``[1].", "b", "Use `xs[1]` and ``a`[1]``."),
        ("[1]: definition\nA[1]: b `[1] alone", "b", "[1]: definition\nA: b ` alone"),
        ("Blue.[1][2] Red.[3]", "ab", "Blue.[1][2] Red."),
        ("Blue. [1, 3] Red [2].", "a", "Blue. [1] Red."),
        ("Blue.[2]", "b", "Blue.[1]"),
        ("蓝色[ref_2]。[ref_3]", "b", "蓝色[ref_1]。"),
        ("Blue.[2, 3]", "cb", "Blue.[2, 1]"),
        ("In [2024] and [4] and [0].", "a", "In [2024] and [4] and [0]."),
        ("See [1](https://a.example/).", "b", "See [1](https://a.example/)."),
    ],
)
def test_marks_count_the_hits_that_are_shown(summary: str, shown: str, renumbered: str) -> None:
    found = [hit(name) for name in "abc"]

    assert renumber_marks(summary, found, [hit(name) for name in shown]) == renumbered


@needs_real_cli
async def test_a_small_count_leaves_no_marks_of_other_hits(real: Stub, api: FakeApi) -> None:
    api.calls = [SEARCH]

    result = await real.web_search(count=1)

    assert [hit["url"] for hit in result["hits"]] == [REDIRECT + "nasa"]
    assert "[1]" in result["summary"] and "[2]" not in result["summary"]
