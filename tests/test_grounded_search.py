"""`grounded_search`: what the search said, or nothing; and providers that stand in for another."""

import asyncio
import json
import re
import sys
from collections.abc import Coroutine, Generator
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotGrounded,
    NotSignedIn,
    PermissionDenied,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.research.grounded_search import error_markdown, grounded_search
from tests.support import (
    QUESTION,
    REAL_CLI,
    REDIRECT,
    ROOT,
    Clock,
    Result,
    Stub,
    eventually,
    model_answer,
    search_with_sources,
)
from tests.support.fake_api import FakeApi, fake_api
from tests.support.matrix import needs_real_cli, representatives
from tests.support.mcp_server import in_process_client

AGY = ROOT / "scripts" / "stub-agy"
SHAPE = re.compile(
    r"## Search Results\n\n(?P<text>.+)\n\n"
    r"### Sources\n(?P<sources>(?:- \[.+\]\(http.+\) \(.+\)\n)+)\n"
    r"### Search Queries Used\n(?P<queries>(?:- \".*\"\n?)+)",
    re.DOTALL,
)


@pytest.fixture
def api() -> Generator[FakeApi]:
    with fake_api() as running:
        running.texts = ["done"]
        yield running


class Providers:
    """All three on their counterparts: stubs for the CLIs, a loopback fake for the API."""

    def __init__(self, stub: Stub, api: FakeApi, folder: Path) -> None:
        self.stub = stub
        self.api = api
        self.agy_runs = folder / "agy"
        self.agy_runs.mkdir()
        stub.environ |= {
            "GEMINI_API_KEY": "test-key",
            "GOOGLE_GEMINI_BASE_URL": api.url,
            "GEMINI_MCP_AGY_PATH": str(AGY),
            "STUB_AGY_DIR": str(self.agy_runs),
            "GEMINI_MCP_MAX_CYCLES": "1",
        }
        stub.plays(
            {
                "text": model_answer(),
                "searches": [{**search_with_sources("sky", "nasa"), "text": "Blue.[1]"}],
            }
        )
        api.direct = "Blue, says NASA."

    def use(self, providers: str) -> None:
        self.stub.environ["GEMINI_MCP_PROVIDERS"] = providers

    @property
    def agy(self) -> list[Result]:
        return [json.loads(path.read_text()) for path in sorted(self.agy_runs.iterdir())]

    async def ground(self, query: object = QUESTION, *how: object) -> Result:
        settings = self.stub.settings
        with self.stub.researcher(settings) as desk:
            return await grounded_search(
                desk, settings, query, *how, progress=self.stub.messages.append
            )


@pytest.fixture
def providers(stub: Stub, api: FakeApi, tmp_path: Path) -> Providers:
    return Providers(stub, api, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "domain", "query"),
    [
        ("gemini", "Blue.[1]", "nasa.org", "sky"),
        ("api", "Blue[1][2], says NASA.", "nasa.gov", QUESTION),
        ("antigravity", "Short waves scatter more", "nasa.gov", "why is the sky blue"),
    ],
)
async def test_every_provider_gives_the_same_shape(
    providers: Providers, name: str, text: str, domain: str, query: str
) -> None:
    providers.use(name)

    result = await providers.ground()

    shape = SHAPE.fullmatch(result["result"])
    assert shape
    assert text in shape["text"]
    assert shape["sources"].splitlines()[0] == f"- [{domain}]({REDIRECT}nasa) ({domain})"
    assert shape["queries"] == f'- "{query}"'
    assert result["sources"][0] == {"title": domain, "url": REDIRECT + "nasa", "domain": domain}
    assert result["search_queries"] == [query]
    assert result["metadata"]["provider"] == name
    assert result["metadata"]["duration_ms"] > 0
    assert result["metadata"]["usage"]["total_tokens"] > 0
    assert "fallback" not in result["metadata"]


async def test_the_requests_of_the_api_have_one_tool_and_the_asked_thinking(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")

    result = await providers.ground(QUESTION, "gemini-2.5-pro", "high", True)

    [request] = api.requests
    assert request.body["tools"] == [{"googleSearch": {}}]
    thinking = request.body["generationConfig"]["thinkingConfig"]
    assert (request.model, thinking["thinking_budget"]) == ("gemini-2.5-pro", 24576)
    assert thinking["include_thoughts"] is True
    assert request.key == "test-key"
    assert result["thoughts"] == "I think."
    assert result["search_suggestions"] == "<b>suggested</b>"


@pytest.mark.parametrize(
    ("thinking", "level"), [("off", "MINIMAL"), (None, "LOW"), ("high", "HIGH")]
)
async def test_the_default_of_the_api_is_the_current_flash(
    providers: Providers, api: FakeApi, thinking: str | None, level: str
) -> None:
    providers.use("api")

    await providers.ground(QUESTION, None, thinking)

    [request] = api.requests
    assert request.model == "gemini-flash-latest"
    assert request.body["generationConfig"]["thinkingConfig"]["thinking_level"] == level


@needs_real_cli
@pytest.mark.parametrize(
    ("model", "thinking", "expected"),
    [
        (None, None, {"thinkingLevel": "LOW"}),
        (None, "off", {"thinkingLevel": "MINIMAL"}),
        ("gemini-2.5-flash", "medium", {"thinkingBudget": 8192}),
    ],
)
async def test_the_real_cli_searches_with_the_asked_model_and_thinking(
    providers: Providers, api: FakeApi, model: str | None, thinking: str | None, expected: Any
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct = None
    api.calls = [("google_web_search", {"query": QUESTION})]

    result = await providers.ground(QUESTION, model, thinking)

    [search] = [request for request in api.requests if request.kind == "search"]
    shape = SHAPE.fullmatch(result["result"])
    assert shape
    assert shape["text"] == "Blue[1][2], says NASA."
    assert [source["domain"] for source in result["sources"]] == ["nasa.gov", "noaa.gov"]
    assert result["metadata"]["model"] == search.model
    assert search.body["tools"] == [{"googleSearch": {}}]
    assert model is None or search.model == model
    sent = search.body["generationConfig"]["thinkingConfig"]
    assert {name: sent[name] for name in expected} == expected
    assert QUESTION in api.requests[0].text
    assert providers.stub.leftover_files() == []


@needs_real_cli
async def test_what_the_real_cli_found_is_not_lost_to_a_late_failure(
    providers: Providers, api: FakeApi
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct = None
    api.calls = [("google_web_search", {"query": QUESTION})]
    api.texts = [""]

    assert (await providers.ground())["sources"]


async def test_an_agy_run_has_its_flags_and_a_clean_environment(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ |= {"OTHER_TOKEN": "hidden", "HTTPS_PROXY": "http://proxy"}

    await providers.ground(QUESTION, "gemini-3.8-flash-high", "high")

    [run] = providers.agy
    assert run["argv"][:3] == ["--output-format", "stream-json", "--disable-slash-commands"]
    assert run["argv"][3:7] == ["--effort", "high", "--model", "gemini-3.8-flash-high"]
    assert run["argv"][-1].startswith("--print=") and QUESTION in run["argv"][-1]
    assert not any("dangerously" in word for word in run["argv"])
    assert run["environment"]["AGY_CLI_DISABLE_AUTO_UPDATE"] == "1"
    assert run["environment"]["HTTPS_PROXY"] == "http://proxy"
    assert not {"GEMINI_API_KEY", "OTHER_TOKEN"} & run["environment"].keys()


async def test_agy_gets_the_key_if_its_own_settings_use_one(providers: Providers) -> None:
    providers.use("antigravity")
    settings = providers.stub.home / ".gemini/antigravity-cli/settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"modelProvider": "gemini"}')

    await providers.ground()

    assert providers.agy[0]["environment"]["GEMINI_API_KEY"] == "test-key"


async def test_a_long_prompt_goes_to_agy_by_stdin(providers: Providers) -> None:
    providers.use("antigravity")
    turn = {
        "response": model_answer("word " * 40_000),
        "searches": [{"query": "sky", "output": "x"}],
    }
    file = providers.agy_runs.parent / "turn.json"
    file.write_text(json.dumps(turn))
    providers.stub.environ["STUB_AGY_TURN"] = str(file)

    await providers.stub.deep_search(max_iterations=2)

    first, second = providers.agy
    assert first["argv"][-1].startswith("--print=") and first["stdin"] == ""
    assert second["argv"][-2:] == ["--input-format", "stream-json"]
    assert "word word" in json.loads(second["stdin"])["message"]["content"]


async def test_what_agy_started_is_ended_after_its_result(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_SCENARIO"] = "hang"

    with anyio.fail_after(20):
        await providers.ground()

    pid = providers.agy[0]["pid"]
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("version", ["1.1.14", "0.9", "what"])
async def test_an_old_agy_is_refused(providers: Providers, version: str) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_VERSION"] = version

    with pytest.raises(CliNotFound, match=r"1\.1\.15|does not report its version"):
        await providers.ground()


async def test_the_editors_launcher_is_no_agy(providers: Providers, tmp_path: Path) -> None:
    folder = tmp_path / ".antigravity" / "antigravity" / "bin"
    folder.mkdir(parents=True)
    (folder / "agy").symlink_to(AGY)
    providers.use("antigravity")
    providers.stub.environ["GEMINI_MCP_AGY_PATH"] = str(folder / "agy")

    with pytest.raises(CliNotFound, match="editor"):
        await providers.ground()


async def test_the_notice_of_agys_terms_comes_once(
    providers: Providers, caplog: pytest.LogCaptureFixture
) -> None:
    providers.use("antigravity")
    settings = providers.stub.settings

    with providers.stub.researcher(settings) as desk:
        for _ in range(2):
            await grounded_search(desk, settings, QUESTION, progress=providers.stub.messages.append)

    assert caplog.text.count("Google's terms are ambiguous") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((7,), "query"),
        (("",), "query"),
        ((QUESTION, 7), "model"),
        ((QUESTION, "--yolo"), "model"),
        ((QUESTION, "a/../b"), "model"),
        ((QUESTION, None, "very"), "thinking"),
        ((QUESTION, None, None, "yes"), "include_thoughts"),
    ],
)
async def test_bad_arguments_are_refused(
    providers: Providers, arguments: tuple[object, ...], named: str
) -> None:
    with pytest.raises(InvalidInput, match=f"`{named}`"):
        await providers.ground(*arguments)

    assert providers.stub.runs == []


@pytest.mark.parametrize(
    ("name", "arguments", "can"),
    [
        ("gemini", (QUESTION, None, None, True), "`api`"),
        ("gemini", (QUESTION, "pro"), "`api`"),
        ("antigravity", (QUESTION, None, None, True), "`api`"),
        ("antigravity", (QUESTION, None, "off"), "`gemini` or `api`"),
    ],
)
async def test_what_a_provider_cannot_do_is_refused_with_who_can(
    providers: Providers, name: str, arguments: tuple[object, ...], can: str
) -> None:
    providers.use(f"{name},api")

    with pytest.raises(InvalidInput, match=re.escape(can)):
        await providers.ground(*arguments)


# Nothing passes for a search result that is none


async def test_a_model_that_does_not_search_is_asked_once_more(providers: Providers) -> None:
    providers.stub.plays(
        {"text": "I know it."}, {"text": "done", "searches": [search_with_sources("sky", "nasa")]}
    )

    result = await providers.ground()

    assert len(providers.stub.runs) == 2
    assert result["search_queries"] == ["sky"]


UNGROUNDED: dict[str, dict[str, Any]] = {
    "answers without searching": {"text": model_answer("From memory."), "searches": []},
    "finds no sources": {"text": model_answer(), "searches": [{"query": "sky"}]},
    "has no record": {
        "text": model_answer(),
        "searches": [search_with_sources("sky", "nasa")],
        "record": False,
    },
    "speaks plain text": {"text": model_answer(), "format": "text"},
}


@pytest.mark.parametrize("way", UNGROUNDED)
async def test_gemini_is_not_grounded_if_it(providers: Providers, way: str) -> None:
    providers.stub.plays(UNGROUNDED[way])

    with pytest.raises(NotGrounded):
        await providers.ground()

    assert len(providers.stub.runs) == 2


async def test_the_api_is_not_grounded_without_metadata(providers: Providers, api: FakeApi) -> None:
    providers.use("api")
    api.sites = {"sky": ""}

    with pytest.raises(NotGrounded):
        await providers.ground()

    assert len(api.requests) == 2


@pytest.mark.parametrize(
    "grounding",
    [
        {"groundingChunks": [{"maps": {"uri": "https://a.org"}}]},
        {"groundingChunks": [{"retrievedContext": {"uri": "https://a.org"}}]},
        {"groundingChunks": [{"web": {"title": "a.org"}}]},
        {"groundingChunks": [{"web": {"uri": "javascript:alert(1)", "title": "a.org"}}]},
        {"webSearchQueries": ["sky"]},
    ],
)
async def test_the_api_is_not_grounded_without_a_page(
    providers: Providers, api: FakeApi, grounding: Any
) -> None:
    providers.use("api")
    api.grounding = grounding

    with pytest.raises(NotGrounded):
        await providers.ground()


@needs_real_cli
@pytest.mark.parametrize("model", [None, "gemini-2.5-flash"])
async def test_a_source_list_that_the_model_wrote_is_no_source(
    providers: Providers, api: FakeApi, model: str | None
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct = "From memory.\n\nSources:\n[1] nasa.gov (https://nasa.gov/made-up)"
    api.grounding = {"webSearchQueries": []}
    api.calls = [("google_web_search", {"query": QUESTION})]

    with pytest.raises(NotGrounded):
        await providers.ground(QUESTION, model)


@needs_real_cli
@pytest.mark.parametrize("model", ["gemini-3-flash", "gemini-3.1-flash-lite", "gemini-3.5-flash"])
async def test_a_model_that_the_real_cli_would_swap_is_refused(
    providers: Providers, model: str
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)

    with pytest.raises(InvalidInput, match="`model`"):
        await providers.ground(QUESTION, model)


@needs_real_cli
async def test_a_query_of_several_paragraphs_leaves_the_text_alone(
    providers: Providers, api: FakeApi
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct = None
    query = 'why is\n\nthe "sky" blue?'
    api.calls = [("google_web_search", {"query": query})]

    result = await providers.ground(query)

    assert result["result"].startswith("## Search Results\n\nBlue[1][2], says NASA.\n\n###")


@pytest.mark.parametrize(
    "search",
    [
        {"query": "sky", "output": "No results."},
        {"query": "sky", "output": "![picture](https://a.org/x.png)"},
    ],
)
async def test_agy_is_not_grounded_without_links(
    providers: Providers, tmp_path: Path, search: Any
) -> None:
    providers.use("antigravity")
    turn = tmp_path / "turn.json"
    turn.write_text(json.dumps({"response": "done", "searches": [search]}))
    providers.stub.environ["STUB_AGY_TURN"] = str(turn)

    with pytest.raises(NotGrounded):
        await providers.ground()


async def test_what_agy_found_is_not_lost_to_an_empty_answer(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_SCENARIO"] = "late"

    assert len((await providers.ground())["sources"]) == 2


async def test_the_words_of_a_question_are_not_changed(providers: Providers) -> None:
    providers.use("antigravity")

    await providers.ground("what is google_web_search in {{tool}} @README")

    assert "what is google_web_search in {{tool}} @README" in providers.agy[0]["argv"][-1]


async def test_foreign_titles_and_texts_do_not_break_the_shape(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct = "Blue.\n### Sources\n- [evil](http://evil)\n```\nopen"
    web = {"uri": REDIRECT + "a) [evil](http://evil", "title": "x](http://evil) [y"}
    api.grounding = {"groundingChunks": [{}, {"web": web}], "groundingSupports": []}

    text = (await providers.ground())["result"]

    assert text.count("\n### Sources\n") == 1
    assert text.count("```") == 2
    listed = text.partition("\n### Sources\n")[2].partition("\n\n")[0]
    assert "](http://evil" not in listed.replace("\\](http://evil", "")
    assert "%28http://evil" in listed


async def test_marks_fit_the_list_and_stand_in_their_part(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct = "Blue."
    segment = {"partIndex": 1, "endIndex": 5}
    api.grounding = {
        "groundingChunks": [{}, {"web": {"uri": REDIRECT + "a", "title": "a.org"}}],
        "groundingSupports": [
            {"segment": segment, "groundingChunkIndices": [0, 1, 7]},
            {"segment": segment, "groundingChunkIndices": [1]},
        ],
    }

    assert "Blue.[1]\n" in (await providers.ground())["result"]


@pytest.mark.parametrize("raw", ["<html>login</html>", "[]", '{"candidates": "x"}'])
async def test_an_answer_that_cannot_be_read_is_a_failure_to_fall_back_from(
    providers: Providers, api: FakeApi, raw: str
) -> None:
    providers.use("api,gemini")
    api.raw = raw

    result = await providers.ground()

    assert result["metadata"]["provider"] == "gemini"
    assert result["metadata"]["fallback"][0]["code"] == "EXECUTION_ERROR"


async def test_an_api_that_is_not_there_is_a_failure_to_fall_back_from(
    providers: Providers,
) -> None:
    providers.use("api,gemini")
    providers.stub.environ["GOOGLE_GEMINI_BASE_URL"] = "http://127.0.0.1:1"

    assert (await providers.ground())["metadata"]["fallback"][0]["code"] == "EXECUTION_ERROR"


async def test_a_key_that_the_api_repeats_is_not_shown(providers: Providers, api: FakeApi) -> None:
    providers.use("api")
    providers.stub.environ["GEMINI_API_KEY"] = "my-gateway-key-123456"
    api.failure = api_error(401, "UNAUTHENTICATED", "Bad key my-gateway-key-123456.")

    with pytest.raises(NotSignedIn) as caught:
        await providers.ground()

    assert "my-gateway-key" not in caught.value.message


async def test_agy_is_not_grounded_without_a_search(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_SCENARIO"] = "no-search"

    with pytest.raises(NotGrounded):
        await providers.ground()


@pytest.mark.parametrize(
    ("name", "variable"), [("gemini", None), ("antigravity", "STUB_AGY_SCENARIO")]
)
async def test_a_search_that_fails_is_tried_four_times(
    providers: Providers, name: str, variable: str | None
) -> None:
    providers.use(name)
    providers.stub.plays({"text": model_answer(), "searches": [{"query": "sky", "error": "500"}]})
    if variable:
        providers.stub.environ[variable] = "failed-search"

    with pytest.raises(ExecutionFailed, match="500"):
        await providers.ground()

    assert providers.stub.waits == [1, 2, 4]


async def test_offsets_are_bytes_and_become_places_in_the_text(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct = "天空是蓝色的。🌍 And more."
    api.support = len("天空是蓝色的。".encode()), len("天空是蓝色的。🌍 And more.".encode())

    result = await providers.ground()

    assert "天空是蓝色的。[1][2]🌍 And more.[1][2]" in result["result"]


async def test_an_offset_inside_a_character_moves_behind_it(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct = "天空"
    api.support = (4, 400)

    assert "天空[1][2]\n" in (await providers.ground())["result"]


async def test_a_report_of_the_api_gets_links_where_its_supports_are(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct = model_answer('The sky "is" blue.')
    api.support = (api.direct.encode().index(b"blue.") + 5,)

    result = await providers.stub.search()

    link = f"([nasa.gov]({REDIRECT}nasa)) ([noaa.gov]({REDIRECT}noaa))"
    assert result["result"] == f'The sky "is" blue. {link}'
    assert result["metadata"]["citations"] == {"total": 2, "seen": 2, "domain": 0, "unseen": 0}
    assert (result["metadata"]["provider"], result["metadata"]["evidence"]) == ("api", "ledger")
    assert result["metadata"]["search_suggestions"] == "<b>suggested</b>"
    assert {"googleSearch": {}} in api.requests[0].body["tools"]
    assert {"urlContext": {}} in api.requests[0].body["tools"]


async def test_the_api_corrects_without_tools(providers: Providers, api: FakeApi) -> None:
    providers.use("api")
    api.direct = "Blue, but no JSON."
    api.texts = [model_answer("Blue, but no JSON.")]

    result = await providers.stub.search()

    main, correction = api.requests
    assert result["metadata"]["correction"] == "corrected"
    assert "tools" not in correction.body
    assert "but no JSON." in correction.text
    assert main.kind == "search"


# Fallback


def failed(providers: Providers, name: str, how: str) -> None:
    """Make this provider fail in this way."""
    environ = providers.stub.environ
    if name == "api":
        providers.api.failing = ""
        providers.api.failure = API_FAILURES[how]
    elif name == "antigravity":
        environ["STUB_AGY_SCENARIO"] = how
        if how == "missing":
            environ["GEMINI_MCP_AGY_PATH"] = "/nowhere/agy"
    else:
        providers.stub.plays_scenario(how)
        del environ["STUB_GEMINI_TURNS"]


async def outcome(
    call: Coroutine[Any, Any, Result], providers: Providers, clock: Clock, how: str
) -> Result:
    """What comes of a call; of one that stalls, when it has come to that and time has passed."""
    begun = asyncio.ensure_future(call)
    if how == "stall":
        await eventually(lambda: providers.agy)
        clock.skip(providers.stub.limits.agy_startup_timeout)
    return await begun


def api_error(code: int, status: str, message: str, *details: object) -> tuple[int, Any]:
    error = {"code": code, "status": status, "message": message, "details": list(details)}
    return code, {"error": error}


API_FAILURES = {
    "no-key": api_error(400, "INVALID_ARGUMENT", "API key not valid."),
    "forbidden": api_error(403, "PERMISSION_DENIED", "No."),
    "rate": api_error(429, "RESOURCE_EXHAUSTED", "Slow.", {"retryDelay": "3s"}),
    "quota": api_error(429, "RESOURCE_EXHAUSTED", "No.", {"quotaId": "PerDay"}),
    "server": api_error(500, "INTERNAL", "Oh."),
    "unknown-model": api_error(404, "NOT_FOUND", "models/x is not found"),
}

FAILURES: dict[tuple[str, str], tuple[type[GeminiMcpError], bool]] = {
    ("antigravity", "missing"): (CliNotFound, True),
    ("antigravity", "no-sign-in"): (NotSignedIn, True),
    ("antigravity", "quota"): (QuotaExhausted, True),
    ("antigravity", "busy"): (RateLimited, True),
    ("antigravity", "failure"): (ExecutionFailed, True),
    ("antigravity", "empty"): (ExecutionFailed, True),
    ("antigravity", "cut"): (ExecutionFailed, True),
    ("antigravity", "stall"): (TimedOut, True),
    ("antigravity", "denied"): (PermissionDenied, False),
    ("antigravity", "bad-model"): (ConfigError, False),
    ("api", "no-key"): (NotSignedIn, True),
    ("api", "forbidden"): (NotSignedIn, True),
    ("api", "rate"): (RateLimited, True),
    ("api", "quota"): (QuotaExhausted, True),
    ("api", "server"): (ExecutionFailed, True),
    ("api", "unknown-model"): (ConfigError, False),
    ("gemini", "no-sign-in"): (NotSignedIn, True),
    ("gemini", "daily-quota"): (QuotaExhausted, True),
    ("gemini", "rate-limit"): (RateLimited, True),
    ("gemini", "server-error"): (ExecutionFailed, True),
    ("gemini", "empty"): (ExecutionFailed, True),
    ("gemini", "cut"): (ExecutionFailed, True),
    ("gemini", "unknown-model"): (ConfigError, False),
}
"""A provider and how it fails: its error, and whether the next one gets its turn."""
TYPICAL = [
    ("antigravity", "missing"),
    ("antigravity", "denied"),
    ("antigravity", "stall"),
    ("api", "rate"),
    ("api", "quota"),
    ("gemini", "no-sign-in"),
    ("gemini", "server-error"),
    ("gemini", "unknown-model"),
]
"""One for each type of error; which provider had it makes no difference."""
NEXT = {"antigravity": "gemini", "api": "gemini", "gemini": "antigravity"}


@pytest.mark.parametrize(
    ("name", "how", "tool"),
    representatives(
        [(*failure, tool) for failure in FAILURES for tool in ("search", "grounded")],
        [
            *((*failure, "search") for failure in TYPICAL),
            ("antigravity", "stall", "grounded"),
            ("api", "rate", "grounded"),
            ("gemini", "no-sign-in", "grounded"),
        ],
    ),
)
async def test_the_next_provider_answers_after_a_failure(
    providers: Providers, clock: Clock, name: str, how: str, tool: str
) -> None:
    error, goes_on = FAILURES[name, how]
    providers.use(f"{name},{NEXT[name]}")
    failed(providers, name, how)
    call = providers.stub.search if tool == "search" else providers.ground

    if not goes_on:
        with pytest.raises(error):
            await call()
        return
    metadata = (await outcome(call(), providers, clock, how))["metadata"]

    assert metadata["provider"] == NEXT[name]
    [reason] = metadata["fallback"]
    assert (reason["provider"], reason["code"]) == (name, error.code)
    assert reason["message"]


async def test_one_that_hangs_leaves_half_of_the_time_to_the_next(
    providers: Providers, clock: Clock
) -> None:
    providers.use("antigravity,gemini")
    failed(providers, "antigravity", "stall")
    providers.stub.limits = Limits(agy_startup_timeout=1000)
    call = asyncio.ensure_future(providers.stub.search())
    await eventually(lambda: providers.agy)

    clock.skip(providers.stub.settings.timeout / 2)
    metadata = (await call)["metadata"]

    assert metadata["provider"] == "gemini"
    assert metadata["fallback"][0]["message"] == "There was no answer within 150 s."


@pytest.mark.parametrize(("name", "how"), representatives(FAILURES, TYPICAL))
async def test_the_last_provider_has_the_last_word(
    providers: Providers, clock: Clock, name: str, how: str
) -> None:
    error, _ = FAILURES[name, how]
    other = NEXT[name]
    providers.use(f"{other},{name}")
    failed(providers, other, "no-sign-in")
    failed(providers, name, how)

    with pytest.raises(GeminiMcpError) as caught:
        await outcome(providers.stub.search(), providers, clock, how)

    unusable = error in (CliNotFound, NotSignedIn)
    assert caught.value.code == ("NO_PROVIDER" if unusable else error.code)


@pytest.mark.parametrize(("name", "how"), FAILURES)
async def test_alone_a_providers_own_error_stands(
    providers: Providers, clock: Clock, name: str, how: str
) -> None:
    error, _ = FAILURES[name, how]
    providers.use(name)
    failed(providers, name, how)

    with pytest.raises(error):
        await outcome(providers.stub.search(), providers, clock, how)


@pytest.mark.parametrize(
    ("tool", "agy", "how"),
    representatives(
        product(
            ("search", "deep_search", "grounded"),
            ("missing", "no-sign-in", "quota", "failure", "no-search"),
            ("no-key", "quota", "server"),
        ),
        [
            ("search", "missing", "no-key"),
            ("search", "no-search", "quota"),
            ("deep_search", "quota", "server"),
            ("deep_search", "missing", "quota"),
            ("grounded", "no-sign-in", "no-key"),
            ("grounded", "failure", "server"),
        ],
    ),
)
async def test_the_third_provider_answers_with_the_reasons_of_two(
    providers: Providers, tool: str, agy: str, how: str
) -> None:
    providers.use("antigravity,api,gemini")
    failed(providers, "antigravity", agy)
    failed(providers, "api", how)

    match tool:
        case "search":
            result = await providers.stub.search()
        case "deep_search":
            result = await providers.stub.deep_search(max_iterations=2)
        case _:
            result = await providers.ground()

    metadata = result["metadata"]
    assert metadata["provider"] == "gemini"
    assert [reason["provider"] for reason in metadata["fallback"]][:2] == ["antigravity", "api"]


async def test_without_any_usable_provider_each_ones_way_is_told(providers: Providers) -> None:
    providers.use("antigravity,api,gemini")
    for name in ("antigravity", "gemini"):
        failed(providers, name, "no-sign-in")
    providers.stub.environ["GEMINI_API_KEY"] = ""

    with pytest.raises(NoProvider) as caught:
        await providers.ground()

    for name in ("antigravity:", "api:", "gemini:"):
        assert name in caught.value.message and name in caught.value.next_step


async def test_a_deep_search_ends_with_its_report_when_no_provider_is_left(
    providers: Providers,
) -> None:
    providers.use("gemini,antigravity")
    failed(providers, "antigravity", "no-sign-in")
    draft = {"text": model_answer("Draft."), "searches": [search_with_sources("sky", "nasa")]}
    providers.stub.plays(draft, {"exit_code": 41, "stderr": "no"})

    result = await providers.stub.deep_search()

    assert (result["result"], result["metadata"]["stop_reason"]) == ("Draft.", "NO_PROVIDER")
    assert result["metadata"]["iterations"] == 2


async def test_a_missing_extra_is_told_with_how_to_get_it(
    providers: Providers, mocker: MockerFixture
) -> None:
    mocker.patch.dict(sys.modules, {"google": None})
    providers.use("api")

    with pytest.raises(NoProvider) as caught:
        await providers.ground()

    assert "pip install 'gemini-cli-mcp[api]'" in caught.value.next_step


# The texts of errors


@pytest.mark.parametrize(
    ("error", "heading"),
    [
        (NotSignedIn("No."), "## Authentication Error"),
        (RateLimited("No.", retry_after_s=7), "## Rate Limited"),
        (QuotaExhausted("No."), "## Rate Limited"),
        (NotGrounded("No."), "## No Results"),
        (NoProvider("No."), "## No Providers Available"),
        (TimedOut("No."), "## Search Error"),
        (ExecutionFailed("No."), "## Search Error"),
    ],
)
def test_an_error_is_a_text_to_act_on(error: GeminiMcpError, heading: str) -> None:
    text = error_markdown(error)

    assert text.startswith(f"{heading}\n\nNo.\n\n**To fix:**\n- ")
    assert "your own web search" in text
    assert error.next_step in text


async def test_a_client_gets_result_and_errors_in_markdown(providers: Providers) -> None:
    async with in_process_client(providers.stub) as client:
        good = await client.call_tool("grounded_search", {"query": QUESTION})
        bad = await client.call_tool("grounded_search", {"query": QUESTION, "thinking": "loud"})
        providers.stub.plays({"text": "From memory."})
        ungrounded = await client.call_tool("grounded_search", {"query": QUESTION})

    assert good.structured_content and bad.structured_content and ungrounded.structured_content
    assert SHAPE.fullmatch(good.structured_content["result"])
    assert (bad.is_error, bad.structured_content["error"]["code"]) == (True, "INVALID_INPUT")
    assert ungrounded.structured_content["result"].startswith("## No Results")
    assert ungrounded.structured_content["error"]["code"] == "NOT_GROUNDED"
