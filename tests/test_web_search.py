"""`web_search`: engines as they are configured, hits as they are found, no engine for another."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.engines_file import EngineTarget, default_engines
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace
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
from tests.support.fake_api import POLL, fake_api
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
CHAT = {
    "id": "1",
    "choices": [{"message": {"role": "assistant", "content": "因为瑞利散射[ref_1]。"}}],
    "web_search": [HIT],
}
API = {"id": "1", "search_intent": [], "search_result": [HIT]}


@dataclass
class FakeGlm:
    """GLM on loopback: it answers what it is told and remembers what it was asked."""

    url: str
    status: int = 200
    answers: list[Any] = field(default_factory=lambda: [CHAT])
    """One for each request; the last one goes on. A string is sent as it is."""
    hangs: threading.Event | None = None
    requests: list[tuple[str, Result, str | None]] = field(
        default_factory=list[tuple[str, Result, str | None]]
    )


@contextmanager
def fake_glm() -> Generator[FakeGlm]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((self.path, body, self.headers["Authorization"]))
            if fake.hangs:
                fake.hangs.wait()
            answer = fake.answers[min(len(fake.requests), len(fake.answers)) - 1]
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(fake.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeGlm(f"http://127.0.0.1:{server.server_port}/api/paas/v4")
    thread = threading.Thread(target=server.serve_forever, args=(POLL,))
    thread.start()
    try:
        yield fake
    finally:
        if fake.hangs:
            fake.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def fake() -> Generator[FakeGlm]:
    with fake_glm() as running:
        yield running


def engine(name: str, key: str, **more: object) -> dict[str, object]:
    return {"id": name, "providerKey": key, "description": f"Engine {name}", **more}


class Searcher:
    """Engines of a file, on their counterparts."""

    def __init__(self, stub: Stub, folder: Path) -> None:
        self.stub = stub
        self._path = folder / "engines.json"

    def has(self, *entries: dict[str, object], **more: object) -> None:
        self.reads(json.dumps({"webSearch": {"engines": entries}, **more}))

    def reads(self, text: str) -> None:
        self._path.write_text(text)
        self.stub.environ["GEMINI_MCP_WEB_SEARCH"] = str(self._path)

    @property
    def settings(self) -> Settings:
        return self.stub.settings

    async def search(self, *asked: object) -> Result:
        settings = self.settings
        workspace = Workspace(settings.config_dir)
        providers = ProviderRegistry(settings, workspace, self.stub.environ)
        search = WebSearch(settings, providers, self.stub.environ, self._note_wait)
        try:
            return await search.search(*asked or (QUESTION,), progress=self.stub.messages.append)
        finally:
            workspace.close()

    async def _note_wait(self, seconds: float) -> None:
        self.stub.waits.append(seconds)


@pytest.fixture
def searcher(stub: Stub, tmp_path: Path) -> Searcher:
    stub.plays(
        {
            "text": "done",
            "searches": [{**search_with_sources("sky", "nasa", "noaa"), "text": "Blue.[1]"}],
        }
    )
    return Searcher(stub, tmp_path)


# The file


async def test_without_a_file_there_is_one_engine_on_the_default_provider(
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


def test_comments_and_last_commas_are_taken(searcher: Searcher) -> None:
    searcher.reads(
        """{ // the engines
        "webSearch": {"engines": [
            /* one, with a // in its text */
            {"id": "a", "providerKey": "glm.glm-4.6", "description": "see https://z.ai /* no */",},
        ],}, // end
        }"""
    )

    [only] = searcher.settings.engines.engines
    assert only.description == "see https://z.ai /* no */"


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
def test_a_provider_key_is_family_alias_and_model(key: str, target: EngineTarget) -> None:
    assert EngineTarget.parse(key, {}) == target


BROKEN: dict[str, tuple[str, str]] = {
    "bad JSON": ('{"webSearch": ', "the file"),
    "no engines": ('{"webSearch": {"engines": []}}', "webSearch.engines"),
    "no webSearch": ("{}", "webSearch"),
    "no description": (
        '{"webSearch": {"engines": [{"id": "a", "providerKey": "glm.glm-4"}]}}',
        "webSearch.engines.0.description",
    ),
    "a misspelt key": (
        json.dumps({"webSearch": {"engines": [engine("a", "glm.glm-4", defualt=True)]}}),
        "webSearch.engines.0.defualt",
    ),
    "a bad form": (
        json.dumps({"webSearch": {"engines": [engine("a", "glm.glm-4", glm={"form": "x"})]}}),
        "webSearch.engines.0.glm.form",
    ),
    "an id twice": (
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
    "a flag for a model": (
        json.dumps({"webSearch": {"engines": [engine("a", "gemini-cli.work.--yolo")]}}),
        "'--yolo' is not a valid model name",
    ),
    "an account that looks like a model": (
        json.dumps(
            {
                "webSearch": {"engines": [engine("a", "glm.glm-4")]},
                "accounts": {"production": {"apiKeyEnv": "X"}},
            }
        ),
        "accounts.production",
    ),
    "an address that is none": (
        json.dumps(
            {"webSearch": {"engines": [engine("a", "glm.x.y", glm={"baseUrl": "http://["})]}}
        ),
        "webSearch.engines.0.glm.baseUrl",
    ),
    "a target that is not routed": (
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


@pytest.mark.parametrize("way", BROKEN)
def test_a_file_is_refused_that_has(searcher: Searcher, way: str) -> None:
    text, place = BROKEN[way]
    searcher.reads(text)

    with pytest.raises(ConfigError) as caught:
        _ = searcher.settings

    assert caught.value.message.startswith("GEMINI_MCP_WEB_SEARCH: ")
    assert place in caught.value.message


def test_a_missing_file_is_refused_with_its_name(searcher: Searcher) -> None:
    searcher.stub.environ["GEMINI_MCP_WEB_SEARCH"] = "/nowhere/engines.json"

    with pytest.raises(ConfigError, match=r"/nowhere/engines\.json"):
        _ = searcher.settings


# The choice


@pytest.mark.parametrize(
    ("defaults", "asked", "chosen"),
    [([False], None, "a"), ([False, True], None, "b"), ([False, True], "a", "a")],
)
async def test_an_engine_is_chosen(
    searcher: Searcher, defaults: list[bool], asked: str | None, chosen: str
) -> None:
    searcher.has(
        *(
            engine(name, "gemini-cli.flash", default=default)
            for name, default in zip("ab", defaults, strict=False)
        )
    )

    assert (await searcher.search(QUESTION, asked))["engine"] == chosen


@pytest.mark.parametrize("asked", [None, "c", 7])
async def test_without_a_default_one_must_be_named(searcher: Searcher, asked: object) -> None:
    searcher.has(engine("a", "gemini-cli.flash"), engine("b", "glm.glm-4"))

    with pytest.raises(InvalidInput, match="a, b"):
        await searcher.search(QUESTION, asked)

    assert searcher.stub.runs == []


@pytest.mark.parametrize(
    "asked",
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
async def test_bad_arguments_are_refused(searcher: Searcher, asked: tuple[object, ...]) -> None:
    with pytest.raises(InvalidInput):
        await searcher.search(*asked)


async def test_no_engine_answers_for_another(searcher: Searcher, fake: FakeGlm) -> None:
    searcher.has(
        engine("mine", "glm.glm-4", glm={"baseUrl": fake.url}),
        engine("google", "gemini-cli.flash", default=True),
    )
    searcher.stub.environ["ZAI_API_KEY"] = "k" * 20
    fake.status, fake.answers = 500, [{"error": {"code": "500", "message": "broken"}}]

    with pytest.raises(EngineFailed, match="Engine 'mine': GLM answered 500, code 500: broken"):
        await searcher.search(QUESTION, "mine")

    assert searcher.stub.runs == []
    assert searcher.stub.waits == [1, 2, 4]


# The schema


async def schema(searcher: Searcher) -> tuple[Result, int]:
    async with in_process_client(searcher.stub) as client:
        listed = await client.list_tools()
    [tool] = [tool for tool in listed.tools if tool.name == "web_search"]
    return tool.input_schema, len(listed.model_dump_json(by_alias=True, exclude_none=True))


async def test_the_schema_shows_the_engines(searcher: Searcher) -> None:
    searcher.has(
        *(
            engine(name, f"glm.glm-{name}") | {"description": f"Engine {name} " * 50}
            for name in "abcd"
        )
    )

    shown, size = await schema(searcher)

    assert shown["required"] == ["query", "engine"]
    assert shown["properties"]["engine"]["enum"] == ["a", "b", "c", "d"]
    assert "c: Engine c" in shown["properties"]["engine"]["description"]
    assert "default" not in shown["properties"]["engine"]
    assert size < 12_000


@pytest.mark.parametrize("count", [1, 2])
async def test_an_engine_need_not_be_named_if_there_is_a_default(
    searcher: Searcher, count: int
) -> None:
    searcher.has(*[engine("a", "glm.glm-4", default=True), engine("b", "glm.glm-5")][:count])

    shown, _ = await schema(searcher)

    assert shown["required"] == ["query"]
    assert shown["properties"]["engine"]["default"] == "a"


# Google


async def test_recency_and_count_go_through_the_prompt_of_a_cli(searcher: Searcher) -> None:
    result = await searcher.search(QUESTION, None, "oneWeek", 1)

    prompt = searcher.stub.runs[0]["prompt"]
    assert "(at least 1 sources) (only pages of the last week)" in prompt
    assert result["metadata"]["applied"] == {"recency": "prompt", "count": "prompt"}
    assert len(result["hits"]) == 1


async def test_the_api_filters_by_time(searcher: Searcher) -> None:
    searcher.has(engine("a", "gemini-api.gemini-2.5-flash"))
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


@pytest.mark.skipif(not REAL_CLI.exists(), reason="scripts/test installs it where Node is")
async def test_the_hits_of_the_real_cli_are_its_ledgers_sources(searcher: Searcher) -> None:
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


async def test_an_account_has_its_own_key_and_others_stay_hidden(searcher: Searcher) -> None:
    accounts = {"work": {"apiKeyEnv": "WORK"}, "home": {"apiKeyEnv": "HOME_SECRET_NAME"}}
    searcher.has(engine("a", "gemini-cli.work.flash"), accounts=accounts)
    searcher.stub.environ |= {"WORK": "work-key", "HOME_SECRET_NAME": "home-key"}

    await searcher.search()

    environment = searcher.stub.runs[0]["environment"]
    assert environment["GEMINI_API_KEY"] == "work-key"
    assert "WORK" not in environment and "HOME_SECRET_NAME" not in environment


def test_an_alias_without_an_account_is_told_at_the_start_and_has_no_effect(
    searcher: Searcher,
) -> None:
    searcher.has(engine("a", "gemini-cli.work.flash"))

    done = run_command(searcher.stub, "web-search", QUESTION)

    assert done.returncode == 0
    assert "[WARNING] GEMINI_MCP_WEB_SEARCH: the account alias 'work' has no entry" in done.stderr


async def test_an_account_without_its_key_is_not_answered_by_another_sign_in(
    searcher: Searcher,
) -> None:
    searcher.has(engine("a", "gemini-cli.work.flash"), accounts={"work": {"apiKeyEnv": "WORK"}})
    searcher.stub.environ |= {"GOOGLE_API_KEY": "other", "GEMINI_API_KEY": "another"}

    with pytest.raises(NotSignedIn) as caught:
        await searcher.search()

    assert "WORK" in caught.value.next_step
    assert searcher.stub.runs == []


async def test_a_model_that_the_engine_cannot_use_is_the_files_fault(searcher: Searcher) -> None:
    searcher.has(engine("a", "gemini-cli.pro"))

    with pytest.raises(ConfigError, match="Engine 'a'"):
        await searcher.search()


async def test_accounts_of_one_model_stand_in_for_each_other_by_priority(
    searcher: Searcher, fake: FakeGlm, caplog: pytest.LogCaptureFixture
) -> None:
    routes = [
        {"id": "low", "priority": 1, "targets": ["glm.a.glm-4"]},
        {"id": "high", "priority": 9, "targets": ["glm.b.glm-4", "glm.glm-5"]},
    ]
    searcher.has(
        engine("mine", "glm.a.glm-4", glm={"baseUrl": fake.url}),
        accounts={"a": {"apiKeyEnv": "A_KEY"}, "b": {"apiKeyEnv": "B_KEY"}},
        virtualrouter={"routing": {"web_search": routes}},
    )
    searcher.stub.environ |= {"A_KEY": "key-of-a"}

    result = await searcher.search()

    assert [sent for _, _, sent in fake.requests] == ["Bearer key-of-a"]
    assert result["metadata"]["account"] == "a"
    assert "account b failed (AUTH_ERROR)" in caplog.text


# GLM


def with_glm(searcher: Searcher, fake: FakeGlm, **settings: object) -> None:
    searcher.has(engine("glm", "glm.glm-4.6", glm={"baseUrl": fake.url, **settings}))
    searcher.stub.environ["ZAI_API_KEY"] = "secret-key-of-glm"


async def test_the_chat_form_of_glm(searcher: Searcher, fake: FakeGlm) -> None:
    with_glm(searcher, fake, searchEngine="search_pro")

    result = await searcher.search("天空为什么是蓝色的？", None, "oneMonth", 3)

    [(path, body, key)] = fake.requests
    assert (path, key) == ("/api/paas/v4/chat/completions", "Bearer secret-key-of-glm")
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


async def test_the_plain_form_of_glm(searcher: Searcher, fake: FakeGlm) -> None:
    with_glm(searcher, fake, form="api")
    fake.answers = [API]

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
    "answer",
    [
        {**CHAT, "web_search": []},
        {"choices": CHAT["choices"], "error": None},
        {**CHAT, "web_search": None},
        {**CHAT, "web_search": [{"icon": "x"}]},
        {**CHAT, "web_search": [{"title": "x", "link": "javascript:alert(1)"}]},
        {**CHAT, "web_search": [{"title": "x", "link": "data:text/html,x"}, "text", None]},
        {**CHAT, "web_search": [{"title": "x", "link": "https://"}]},
        {**CHAT, "web_search": [{"title": "x", "link": "https://a.org/x\n\n# heading"}]},
        {**CHAT, "web_search": [{"title": "x", "link": "https://h .org/x"}]},
        {**CHAT, "web_search": [{"title": "x", "link": "https://a\u200b.org/x"}]},
        {**CHAT, "web_search": [{"title": "x", "link": 'https://a.org/"><script>'}]},
    ],
)
async def test_an_answer_without_hits_is_no_result(
    searcher: Searcher, fake: FakeGlm, answer: Result
) -> None:
    with_glm(searcher, fake)
    fake.answers = [answer]

    with pytest.raises(NoResults, match="Engine 'glm'"):
        await searcher.search()


async def test_half_empty_hits_are_completed_and_doubles_dropped(
    searcher: Searcher, fake: FakeGlm
) -> None:
    with_glm(searcher, fake)
    again = {"link": "http://www.example.cn/sky"}
    bare = {"link": "https://bare.example/x", "title": 7}
    fake.answers = [{**CHAT, "choices": [], "web_search": [HIT, again, bare]}]

    result = await searcher.search()

    assert result["summary"] == ""
    assert [hit["url"] for hit in result["hits"]] == [HIT["link"], bare["link"]]
    assert result["hits"][1] == {
        "title": "bare.example",
        "url": bare["link"],
        "source": "bare.example",
    }


@pytest.mark.parametrize(
    ("status", "answer", "error"),
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
async def test_a_failure_of_glm_is_named_and_passed_on(
    searcher: Searcher, fake: FakeGlm, status: int, answer: Any, error: type[GeminiMcpError]
) -> None:
    with_glm(searcher, fake)
    fake.status, fake.answers = status, [answer]

    with pytest.raises(error) as caught:
        await searcher.search()

    said = caught.value.message + caught.value.next_step
    assert "Engine 'glm': GLM" in said
    assert "secret-key-of-glm" not in said
    error_told = object_or_empty(object_or_empty(answer).get("error"))
    if error_told.get("code"):
        assert f"code {error_told['code']}: {error_told['message']}" in said


async def test_what_passes_is_tried_again(searcher: Searcher, fake: FakeGlm) -> None:
    with_glm(searcher, fake)
    fake.answers = ["no json", "no json", CHAT]

    assert (await searcher.search())["hits"]
    assert searcher.stub.waits == [1, 2]


async def test_glm_that_does_not_answer_is_a_timeout(searcher: Searcher, fake: FakeGlm) -> None:
    searcher.stub.limits = Limits(glm_timeout=0.2)
    with_glm(searcher, fake)
    fake.hangs = threading.Event()

    with pytest.raises(TimedOut, match="Engine 'glm'"):
        await searcher.search()


async def test_the_time_of_a_call_bounds_an_engine(searcher: Searcher, fake: FakeGlm) -> None:
    with_glm(searcher, fake)
    searcher.stub.environ["GEMINI_MCP_TIMEOUT"] = "0.3"
    fake.hangs = threading.Event()

    with pytest.raises(TimedOut, match="Engine 'glm'"):
        await searcher.search()


async def test_glm_without_a_key_says_what_to_set(searcher: Searcher, fake: FakeGlm) -> None:
    with_glm(searcher, fake)
    del searcher.stub.environ["ZAI_API_KEY"]

    with pytest.raises(NotSignedIn) as caught:
        await searcher.search()

    assert "ZAI_API_KEY" in caught.value.next_step
    assert fake.requests == []


# The edges


async def test_a_client_gets_hits(searcher: Searcher) -> None:
    async with in_process_client(searcher.stub) as client:
        result = await client.call_tool("web_search", {"query": QUESTION})
        bad = await client.call_tool("web_search", {"query": QUESTION, "count": 99})

    assert result.structured_content and bad.structured_content
    assert len(result.structured_content["hits"]) == 2
    assert bad.structured_content["error"]["code"] == "INVALID_INPUT"


def test_hits_in_a_terminal(searcher: Searcher) -> None:
    shown = run_command(
        searcher.stub, "web-search", QUESTION, "--recency", "oneYear", "--count", "5"
    )
    as_json = run_command(searcher.stub, "web-search", QUESTION, "--json")

    assert f"1. [nasa.org]({REDIRECT}nasa) (nasa.org)" in shown.stdout
    assert "engine google · 2 hits · " in shown.stderr
    assert "result" not in json.loads(as_json.stdout)


def test_an_engine_without_a_file_follows_the_providers() -> None:
    assert default_engines("api", "flash").engines[0].targets == (
        EngineTarget("gemini-api", None, "flash"),
    )


def test_hostile_hits_stay_text_in_a_terminal(searcher: Searcher, fake: FakeGlm) -> None:
    with_glm(searcher, fake)
    title = "T](http://evil) **b** \u202e"
    hit = {
        "title": title,
        "link": "https://e.org/a)[click](javascript:x",
        "content": "# no\n\n# no",
    }
    fake.answers = [{**CHAT, "web_search": [hit]}]

    done = run_command(searcher.stub, "web-search", QUESTION)

    assert "](http://evil" not in done.stdout.replace("\\](http://evil", "")
    assert "](javascript" not in done.stdout and "\n#" not in done.stdout
    assert "\u202e" not in done.stdout


async def test_many_long_hits_come_without_snippets_from_some_point_on(
    searcher: Searcher, fake: FakeGlm
) -> None:
    with_glm(searcher, fake)
    hits = [{**HIT, "link": f"https://a.org/{'x' * 1500}{number}"} for number in range(200)]
    fake.answers = [{**CHAT, "web_search": hits}]

    found = (await searcher.search(QUESTION, None, None, 50))["hits"]

    assert len(found) == 50
    assert "snippet" in found[0] and "snippet" not in found[-1]


@pytest.mark.timeout(5)  # milliseconds; what backtracks would take hours
def test_unclosed_comments_take_no_time(searcher: Searcher) -> None:
    searcher.reads("/* " * 50_000 + '"' * 1001)

    with pytest.raises(ConfigError):
        _ = searcher.settings


def test_a_run_that_does_not_search_has_no_hits(stub: Stub) -> None:
    stub.plays({"text": model_answer()})

    done = run_command(stub, "web-search", QUESTION)

    assert done.returncode == 1
    assert "NO_RESULTS: Engine 'google'" in done.stderr


def test_the_example_of_the_documentation_is_taken(searcher: Searcher) -> None:
    page = (ROOT / "docs/web-search.md").read_text(encoding="utf-8")
    searcher.reads(page.partition("```jsonc\n")[2].partition("```")[0])

    loaded = searcher.settings.engines

    assert [engine.id for engine in loaded.engines] == ["google", "google-api", "glm"]
    assert loaded.default == "google"
    assert [target.alias for target in loaded.engines[1].targets] == ["work", "home"]
    assert loaded.warnings == ()
