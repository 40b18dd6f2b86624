"""`grounded_search`: only results of a real search, and fallback from provider to provider."""

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
from mcp.types import TextContent
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
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.execution_errors import PermissionDenied
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.platforms.programs import max_argument_bytes
from gemini_cli_mcp.providers.antigravity import provider as antigravity
from gemini_cli_mcp.providers.antigravity.events import AgyEventLog
from gemini_cli_mcp.research.grounded_search import error_markdown
from tests.support import (
    IS_WINDOWS,
    QUESTION,
    REAL_CLI,
    REDIRECT,
    ROOT,
    Clock,
    Result,
    Stub,
    eventually,
    is_alive,
    model_answer,
    search_with_sources,
)
from tests.support.fake_api import FakeApi, fake_api
from tests.support.matrix import needs_real_cli, representatives
from tests.support.mcp_server import in_process_client

AGY_STUB = ROOT / "scripts" / "stub-agy"
RESULT_PATTERN = re.compile(
    r"## Search Results\n\n(?P<text>.+)\n\n"
    r"### Sources\n(?P<sources>(?:- \[.+\]\(http.+\) \(.+\)\n)+)\n"
    r"### Search Queries Used\n(?P<queries>(?:- \".*\"\n?)+)",
    re.DOTALL,
)


@pytest.fixture
def api() -> Generator[FakeApi]:
    with fake_api() as fake:
        fake.texts = ["done"]
        yield fake


class Providers:
    """All three providers on test doubles: stubs for the CLIs, a loopback fake for the API."""

    def __init__(self, stub: Stub, api: FakeApi, folder: Path) -> None:
        self.stub = stub
        self.api = api
        self.agy_runs_dir = folder / "agy"
        self.agy_runs_dir.mkdir()
        stub.environ |= {
            "GEMINI_API_KEY": "test-key",
            "GOOGLE_GEMINI_BASE_URL": api.url,
            "GEMINI_MCP_AGY_PATH": str(AGY_STUB),
            "STUB_AGY_DIR": str(self.agy_runs_dir),
            "GEMINI_MCP_MAX_CYCLES": "1",
        }
        stub.plays(
            {
                "text": model_answer(),
                "searches": [{**search_with_sources("sky", "nasa"), "text": "Blue.[1]"}],
            }
        )
        api.direct_text = "Blue, says NASA."

    def use(self, providers: str) -> None:
        if IS_WINDOWS and "antigravity" in providers:
            pytest.skip("scripts/stub-agy needs a shebang")
        self.stub.environ["GEMINI_MCP_PROVIDERS"] = providers

    @property
    def agy_runs(self) -> list[Result]:
        return [
            json.loads(path.read_text()) for path in sorted(self.agy_runs_dir.glob("run-*.json"))
        ]

    async def grounded_search(self, query: object = QUESTION, *options: object) -> Result:
        return await self.stub.grounded_search(query, *options)


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
async def test_every_provider_returns_the_same_markdown_format(
    providers: Providers, name: str, text: str, domain: str, query: str
) -> None:
    providers.use(name)

    result = await providers.grounded_search()

    match = RESULT_PATTERN.fullmatch(result["result"])
    assert match
    assert text in match["text"]
    assert match["sources"].splitlines()[0] == f"- [{domain}]({REDIRECT}nasa) ({domain})"
    assert match["queries"] == f'- "{query}"'
    assert result["sources"][0] == {"title": domain, "url": REDIRECT + "nasa", "domain": domain}
    assert result["search_queries"] == [query]
    assert result["metadata"]["provider"] == name
    assert result["metadata"]["duration_ms"] > 0
    assert result["metadata"]["usage"]["total_tokens"] > 0
    assert "fallback" not in result["metadata"]


async def test_api_requests_have_one_tool_and_the_requested_thinking(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")

    result = await providers.grounded_search(QUESTION, "gemini-2.5-pro", "high", True)

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
async def test_the_api_defaults_to_the_latest_flash_model(
    providers: Providers, api: FakeApi, thinking: str | None, level: str
) -> None:
    providers.use("api")

    await providers.grounded_search(QUESTION, None, thinking)

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
async def test_the_real_cli_searches_with_the_requested_model_and_thinking(
    providers: Providers, api: FakeApi, model: str | None, thinking: str | None, expected: Any
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct_text = None
    api.calls = [("google_web_search", {"query": QUESTION})]

    result = await providers.grounded_search(QUESTION, model, thinking)

    [search] = [request for request in api.requests if request.kind == "search"]
    match = RESULT_PATTERN.fullmatch(result["result"])
    assert match
    assert match["text"] == "Blue[1][2], says NASA."
    assert [source["domain"] for source in result["sources"]] == ["nasa.gov", "noaa.gov"]
    assert result["metadata"]["model"] == search.model
    assert search.body["tools"] == [{"googleSearch": {}}]
    assert model is None or search.model == model
    thinking_config = search.body["generationConfig"]["thinkingConfig"]
    assert {name: thinking_config[name] for name in expected} == expected
    assert QUESTION in api.requests[0].text
    assert providers.stub.leftover_files() == []


@needs_real_cli
async def test_sources_from_the_real_cli_survive_an_empty_final_answer(
    providers: Providers, api: FakeApi
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct_text = None
    api.calls = [("google_web_search", {"query": QUESTION})]
    api.texts = [""]

    assert (await providers.grounded_search())["sources"]


async def test_agy_runs_with_its_flags_and_a_clean_environment(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ |= {"OTHER_TOKEN": "hidden", "HTTPS_PROXY": "http://proxy"}

    await providers.grounded_search(QUESTION, "gemini-3.8-flash-high", "high")

    [run] = providers.agy_runs
    assert run["argv"][:3] == ["--output-format", "stream-json", "--disable-slash-commands"]
    assert run["argv"][3:7] == ["--effort", "high", "--model", "gemini-3.8-flash-high"]
    assert run["argv"][-1].startswith("--print=") and QUESTION in run["argv"][-1]
    assert not any("dangerously" in argument for argument in run["argv"])
    assert run["environment"]["AGY_CLI_DISABLE_AUTO_UPDATE"] == "1"
    assert run["environment"]["HTTPS_PROXY"] == "http://proxy"
    assert not {"GEMINI_API_KEY", "OTHER_TOKEN"} & run["environment"].keys()


async def test_agy_gets_the_api_key_if_its_settings_select_the_gemini_provider(
    providers: Providers,
) -> None:
    providers.use("antigravity")
    settings = providers.stub.home / ".gemini/antigravity-cli/settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"modelProvider": "gemini"}')

    await providers.grounded_search()

    assert providers.agy_runs[0]["environment"]["GEMINI_API_KEY"] == "test-key"


@pytest.mark.parametrize(("platform", "word_count"), [("linux", 40_000), ("win32", 4_000)])
async def test_a_long_prompt_is_passed_to_agy_on_stdin(
    providers: Providers, mocker: MockerFixture, platform: str, word_count: int
) -> None:
    max_bytes = max_argument_bytes(platform)
    mocker.patch.object(antigravity, "max_argument_bytes", return_value=max_bytes)
    providers.use("antigravity")
    turn = {
        "response": model_answer("word " * word_count),
        "searches": [{"query": "sky", "output": "x"}],
    }
    file = providers.agy_runs_dir.parent / "turn.json"
    file.write_text(json.dumps(turn))
    providers.stub.environ["STUB_AGY_TURN"] = str(file)

    await providers.stub.deep_search(max_iterations=2)

    first, second = providers.agy_runs
    assert first["argv"][-1].startswith("--print=") and first["stdin"] == ""
    assert second["argv"][-2:] == ["--input-format", "stream-json"]
    assert "word word" in json.loads(second["stdin"])["message"]["content"]


async def test_an_agy_process_that_hangs_after_its_result_is_killed(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_SCENARIO"] = "hang"

    with anyio.fail_after(20):
        await providers.grounded_search()

    pid = providers.agy_runs[0]["pid"]
    await eventually(lambda: not is_alive(pid))


@pytest.mark.parametrize("version", ["1.1.14", "0.9", "what"])
async def test_outdated_or_unknown_agy_versions_are_rejected(
    providers: Providers, version: str
) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_VERSION"] = version

    with pytest.raises(CliNotFound, match=r"1\.1\.15|does not report its version"):
        await providers.grounded_search()


async def test_the_antigravity_editor_launcher_is_rejected(
    providers: Providers, tmp_path: Path
) -> None:
    folder = tmp_path / ".antigravity" / "antigravity" / "bin"
    folder.mkdir(parents=True)
    (folder / "agy").symlink_to(AGY_STUB)
    providers.use("antigravity")
    providers.stub.environ["GEMINI_MCP_AGY_PATH"] = str(folder / "agy")

    with pytest.raises(CliNotFound, match="editor"):
        await providers.grounded_search()


async def test_the_notice_about_antigravity_terms_is_logged_once(
    providers: Providers, caplog: pytest.LogCaptureFixture
) -> None:
    providers.use("antigravity")

    with providers.stub.researcher(providers.stub.settings) as researcher:
        for _ in range(2):
            await providers.stub.grounded_search(researcher=researcher)

    assert caplog.text.count("Google's terms are ambiguous") == 1


@pytest.mark.parametrize(
    ("arguments", "parameter"),
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
async def test_invalid_arguments_are_rejected(
    providers: Providers, arguments: tuple[object, ...], parameter: str
) -> None:
    with pytest.raises(InvalidInput, match=f"`{parameter}`"):
        await providers.grounded_search(*arguments)

    assert providers.stub.runs == []


@pytest.mark.parametrize(
    ("name", "arguments", "alternatives"),
    [
        ("gemini", (QUESTION, None, None, True), "`api`"),
        ("gemini", (QUESTION, "pro"), "`api`"),
        ("antigravity", (QUESTION, None, None, True), "`api`"),
        ("antigravity", (QUESTION, None, "off"), "`gemini` or `api`"),
    ],
)
async def test_unsupported_options_are_rejected_with_providers_that_support_them(
    providers: Providers, name: str, arguments: tuple[object, ...], alternatives: str
) -> None:
    providers.use(f"{name},api")

    with pytest.raises(InvalidInput, match=re.escape(alternatives)):
        await providers.grounded_search(*arguments)


# Answers that are not grounded


async def test_a_model_that_does_not_search_is_prompted_once_more(providers: Providers) -> None:
    providers.stub.plays(
        {"text": "I know it."}, {"text": "done", "searches": [search_with_sources("sky", "nasa")]}
    )

    result = await providers.grounded_search()

    assert len(providers.stub.runs) == 2
    assert result["search_queries"] == ["sky"]


UNGROUNDED: dict[str, dict[str, Any]] = {
    "answers without searching": {"text": model_answer("From memory."), "searches": []},
    "finds no sources": {"text": model_answer(), "searches": [{"query": "sky"}]},
    "has no session record": {
        "text": model_answer(),
        "searches": [search_with_sources("sky", "nasa")],
        "record": False,
    },
    "prints plain text": {"text": model_answer(), "format": "text"},
}


@pytest.mark.parametrize("case", UNGROUNDED)
async def test_gemini_runs_without_search_evidence_are_not_grounded(
    providers: Providers, case: str
) -> None:
    providers.stub.plays(UNGROUNDED[case])

    with pytest.raises(NotGrounded):
        await providers.grounded_search()

    assert len(providers.stub.runs) == 2


async def test_api_answers_without_grounding_metadata_are_not_grounded(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.sites = {"sky": ""}

    with pytest.raises(NotGrounded):
        await providers.grounded_search()

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
async def test_api_answers_without_a_web_source_are_not_grounded(
    providers: Providers, api: FakeApi, grounding: Any
) -> None:
    providers.use("api")
    api.grounding = grounding

    with pytest.raises(NotGrounded):
        await providers.grounded_search()


@needs_real_cli
@pytest.mark.parametrize("model", [None, "gemini-2.5-flash"])
async def test_a_source_list_written_by_the_model_is_not_evidence(
    providers: Providers, api: FakeApi, model: str | None
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct_text = "From memory.\n\nSources:\n[1] nasa.gov (https://nasa.gov/made-up)"
    api.grounding = {"webSearchQueries": []}
    api.calls = [("google_web_search", {"query": QUESTION})]

    with pytest.raises(NotGrounded):
        await providers.grounded_search(QUESTION, model)


@needs_real_cli
@pytest.mark.parametrize("model", ["gemini-3-flash", "gemini-3.1-flash-lite", "gemini-3.5-flash"])
async def test_models_that_the_real_cli_would_replace_are_rejected(
    providers: Providers, model: str
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)

    with pytest.raises(InvalidInput, match="`model`"):
        await providers.grounded_search(QUESTION, model)


@needs_real_cli
async def test_a_query_with_several_paragraphs_does_not_alter_the_text(
    providers: Providers, api: FakeApi
) -> None:
    providers.stub.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    api.direct_text = None
    query = 'why is\n\nthe "sky" blue?'
    api.calls = [("google_web_search", {"query": query})]

    result = await providers.grounded_search(query)

    assert result["result"].startswith("## Search Results\n\nBlue[1][2], says NASA.\n\n###")


@pytest.mark.parametrize(
    "search",
    [
        {"query": "sky", "output": "No results."},
        {"query": "sky", "output": "![picture](https://a.org/x.png)"},
    ],
)
async def test_agy_searches_without_links_are_not_grounded(
    providers: Providers, tmp_path: Path, search: Any
) -> None:
    providers.use("antigravity")
    turn = tmp_path / "turn.json"
    turn.write_text(json.dumps({"response": "done", "searches": [search]}))
    providers.stub.environ["STUB_AGY_TURN"] = str(turn)

    with pytest.raises(NotGrounded):
        await providers.grounded_search()


@pytest.mark.parametrize("tool", ["search_web", "read_url_content"])
def test_a_late_update_does_not_replace_what_agy_has_read(tool: str) -> None:
    events = AgyEventLog(lambda _: None)
    info = {
        "parameters": {"query": "sky", "Url": "https://a.org/x"},
        "output": "[a](https://a.org/x)",
    }
    for update in (
        {"state": "RUNNING", "tool_info": info},
        {"state": "DONE", "tool_info": info},
        {"state": "RUNNING", "tool_info": info},
        {"state": "DONE", "tool_info": {**info, "error": {"message": "late"}}},
    ):
        step = {"conversation_id": "c", "step_index": 1, "tool_name": tool, **update}
        events.feed_line(json.dumps({"event": "step_update", "step_update": step}).encode())

    reply = events.reply()
    searched = [source.url for search in reply.searches for source in search.sources]
    fetched = [page.url for fetch in reply.fetches for page in fetch.pages]
    assert searched + fetched == ["https://a.org/x"]
    assert not any(item.error for item in (*reply.searches, *reply.fetches))


async def test_sources_from_agy_survive_an_empty_answer(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_SCENARIO"] = "late"

    assert len((await providers.grounded_search())["sources"]) == 2


async def test_the_query_is_passed_to_agy_verbatim(providers: Providers) -> None:
    providers.use("antigravity")

    await providers.grounded_search("what is google_web_search in {{tool}} @README")

    assert "what is google_web_search in {{tool}} @README" in providers.agy_runs[0]["argv"][-1]


async def test_hostile_titles_and_texts_do_not_break_the_markdown_format(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct_text = "Blue.\n### Sources\n- [evil](http://evil)\n```\nopen"
    web = {"uri": REDIRECT + "a) [evil](http://evil", "title": "x](http://evil) [y"}
    api.grounding = {"groundingChunks": [{}, {"web": web}], "groundingSupports": []}

    text = (await providers.grounded_search())["result"]

    assert text.count("\n### Sources\n") == 1
    assert text.count("```") == 2
    sources = text.partition("\n### Sources\n")[2].partition("\n\n")[0]
    assert "](http://evil" not in sources.replace("\\](http://evil", "")
    assert "%28http://evil" in sources


async def test_citation_marks_match_the_source_list_and_their_text_part(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct_text = "Blue."
    segment = {"partIndex": 1, "endIndex": 5}
    api.grounding = {
        "groundingChunks": [{}, {"web": {"uri": REDIRECT + "a", "title": "a.org"}}],
        "groundingSupports": [
            {"segment": segment, "groundingChunkIndices": [0, 1, 7]},
            {"segment": segment, "groundingChunkIndices": [1]},
        ],
    }

    assert "Blue.[1]\n" in (await providers.grounded_search())["result"]


@pytest.mark.parametrize("raw", ["<html>login</html>", "[]", '{"candidates": "x"}'])
async def test_an_unreadable_api_response_triggers_the_fallback(
    providers: Providers, api: FakeApi, raw: str
) -> None:
    providers.use("api,gemini")
    api.raw = raw

    result = await providers.grounded_search()

    assert result["metadata"]["provider"] == "gemini"
    assert result["metadata"]["fallback"][0]["code"] == "EXECUTION_ERROR"


async def test_an_unreachable_api_triggers_the_fallback(
    providers: Providers,
) -> None:
    providers.use("api,gemini")
    providers.stub.environ["GOOGLE_GEMINI_BASE_URL"] = "http://127.0.0.1:1"

    metadata = (await providers.grounded_search())["metadata"]

    assert metadata["fallback"][0]["code"] == "EXECUTION_ERROR"


async def test_a_key_echoed_by_the_api_is_not_shown(providers: Providers, api: FakeApi) -> None:
    providers.use("api")
    providers.stub.environ["GEMINI_API_KEY"] = "my-gateway-key-123456"
    api.failure = api_error(401, "UNAUTHENTICATED", "Bad key my-gateway-key-123456.")

    with pytest.raises(NotSignedIn) as caught:
        await providers.grounded_search()

    assert "my-gateway-key" not in caught.value.message


async def test_agy_answers_without_a_search_are_not_grounded(providers: Providers) -> None:
    providers.use("antigravity")
    providers.stub.environ["STUB_AGY_SCENARIO"] = "no-search"

    with pytest.raises(NotGrounded):
        await providers.grounded_search()


@pytest.mark.parametrize(
    ("name", "variable"), [("gemini", None), ("antigravity", "STUB_AGY_SCENARIO")]
)
async def test_a_failing_search_is_attempted_four_times(
    providers: Providers, name: str, variable: str | None
) -> None:
    providers.use(name)
    providers.stub.plays({"text": model_answer(), "searches": [{"query": "sky", "error": "500"}]})
    if variable:
        providers.stub.environ[variable] = "failed-search"

    with pytest.raises(ExecutionFailed, match="500"):
        await providers.grounded_search()

    assert providers.stub.waits == [1, 2, 4]


async def test_byte_offsets_are_converted_to_character_positions(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct_text = "天空是蓝色的。🌍 And more."
    api.support = len("天空是蓝色的。".encode()), len("天空是蓝色的。🌍 And more.".encode())

    result = await providers.grounded_search()

    assert "天空是蓝色的。[1][2]🌍 And more.[1][2]" in result["result"]


async def test_an_offset_inside_a_character_moves_to_its_end(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct_text = "天空"
    api.support = (4, 400)

    assert "天空[1][2]\n" in (await providers.grounded_search())["result"]


async def test_api_reports_get_links_at_their_grounding_supports(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct_text = model_answer('The sky "is" blue.')
    api.support = (api.direct_text.encode().index(b"blue.") + 5,)

    result = await providers.stub.search()

    link = f"([nasa.gov]({REDIRECT}nasa)) ([noaa.gov]({REDIRECT}noaa))"
    assert result["result"] == f'The sky "is" blue. {link}'
    assert result["metadata"]["citations"] == {"total": 2, "seen": 2, "domain": 0, "unseen": 0}
    assert (result["metadata"]["provider"], result["metadata"]["evidence"]) == ("api", "ledger")
    assert result["metadata"]["search_suggestions"] == "<b>suggested</b>"
    assert {"googleSearch": {}} in api.requests[0].body["tools"]
    assert {"urlContext": {}} in api.requests[0].body["tools"]


async def test_the_correction_request_to_the_api_has_no_tools(
    providers: Providers, api: FakeApi
) -> None:
    providers.use("api")
    api.direct_text = "Blue, but no JSON."
    api.texts = [model_answer("Blue, but no JSON.")]

    result = await providers.stub.search()

    main, correction = api.requests
    assert result["metadata"]["correction"] == "corrected"
    assert "tools" not in correction.body
    assert "but no JSON." in correction.text
    assert main.kind == "search"


# Fallback


def make_provider_fail(providers: Providers, name: str, failure: str) -> None:
    """Make a provider fail in the given way."""
    environ = providers.stub.environ
    if name == "api":
        providers.api.failing_kind = ""
        providers.api.failure = API_FAILURES[failure]
    elif name == "antigravity":
        environ["STUB_AGY_SCENARIO"] = failure
        if failure == "missing":
            environ["GEMINI_MCP_AGY_PATH"] = "/nowhere/agy"
    else:
        providers.stub.plays_scenario(failure)
        del environ["STUB_GEMINI_TURNS"]


async def complete_call(
    call: Coroutine[Any, Any, Result], providers: Providers, clock: Clock, failure: str
) -> Result:
    """Await a call; for a stall, first advance the clock past the startup timeout."""
    task = asyncio.ensure_future(call)
    if failure == "stall":
        await eventually(lambda: providers.agy_runs)
        clock.skip(providers.stub.limits.agy_startup_timeout)
    return await task


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
"""The expected error of each failure, and whether the next provider is tried after it."""
TYPICAL_FAILURES = [
    ("antigravity", "missing"),
    ("antigravity", "denied"),
    ("antigravity", "stall"),
    ("api", "rate"),
    ("api", "quota"),
    ("gemini", "no-sign-in"),
    ("gemini", "server-error"),
    ("gemini", "unknown-model"),
]
"""One case per error type; which provider fails makes no difference."""
FALLBACK = {"antigravity": "gemini", "api": "gemini", "gemini": "antigravity"}


@pytest.mark.parametrize(
    ("name", "failure", "tool"),
    representatives(
        [(*case, tool) for case in FAILURES for tool in ("search", "grounded")],
        [
            *((*case, "search") for case in TYPICAL_FAILURES),
            ("antigravity", "stall", "grounded"),
            ("api", "rate", "grounded"),
            ("gemini", "no-sign-in", "grounded"),
        ],
    ),
)
async def test_the_next_provider_is_tried_unless_the_error_is_final(
    providers: Providers, clock: Clock, name: str, failure: str, tool: str
) -> None:
    error, falls_back = FAILURES[name, failure]
    providers.use(f"{name},{FALLBACK[name]}")
    make_provider_fail(providers, name, failure)
    call = providers.stub.search if tool == "search" else providers.grounded_search

    if not falls_back:
        with pytest.raises(error):
            await call()
        return
    metadata = (await complete_call(call(), providers, clock, failure))["metadata"]

    assert metadata["provider"] == FALLBACK[name]
    [reason] = metadata["fallback"]
    assert (reason["provider"], reason["code"]) == (name, error.code)
    assert reason["message"]


async def test_a_hanging_provider_uses_at_most_half_of_the_timeout(
    providers: Providers, clock: Clock
) -> None:
    providers.use("antigravity,gemini")
    make_provider_fail(providers, "antigravity", "stall")
    providers.stub.limits = Limits(agy_startup_timeout=1000)
    call = asyncio.ensure_future(providers.stub.search())
    await eventually(lambda: providers.agy_runs)

    clock.skip(providers.stub.settings.timeout / 2)
    metadata = (await call)["metadata"]

    assert metadata["provider"] == "gemini"
    assert metadata["fallback"][0]["message"] == "There was no answer within 150 s."


@pytest.mark.parametrize(("name", "failure"), representatives(FAILURES, TYPICAL_FAILURES))
async def test_the_error_of_the_last_provider_is_raised(
    providers: Providers, clock: Clock, name: str, failure: str
) -> None:
    error, _ = FAILURES[name, failure]
    first = FALLBACK[name]
    providers.use(f"{first},{name}")
    make_provider_fail(providers, first, "no-sign-in")
    make_provider_fail(providers, name, failure)

    with pytest.raises(GeminiMcpError) as caught:
        await complete_call(providers.stub.search(), providers, clock, failure)

    unusable = error in (CliNotFound, NotSignedIn)
    assert caught.value.code == ("NO_PROVIDER" if unusable else error.code)


@pytest.mark.parametrize(("name", "failure"), FAILURES)
async def test_a_single_provider_raises_its_own_error(
    providers: Providers, clock: Clock, name: str, failure: str
) -> None:
    error, _ = FAILURES[name, failure]
    providers.use(name)
    make_provider_fail(providers, name, failure)

    with pytest.raises(error):
        await complete_call(providers.stub.search(), providers, clock, failure)


@pytest.mark.parametrize(
    ("tool", "agy_failure", "api_failure"),
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
async def test_the_third_provider_answers_and_reports_two_failures(
    providers: Providers, tool: str, agy_failure: str, api_failure: str
) -> None:
    providers.use("antigravity,api,gemini")
    make_provider_fail(providers, "antigravity", agy_failure)
    make_provider_fail(providers, "api", api_failure)

    match tool:
        case "search":
            result = await providers.stub.search()
        case "deep_search":
            result = await providers.stub.deep_search(max_iterations=2)
        case _:
            result = await providers.grounded_search()

    metadata = result["metadata"]
    assert metadata["provider"] == "gemini"
    assert [reason["provider"] for reason in metadata["fallback"]][:2] == ["antigravity", "api"]


async def test_without_a_usable_provider_the_error_explains_each_one(providers: Providers) -> None:
    providers.use("antigravity,api,gemini")
    for name in ("antigravity", "gemini"):
        make_provider_fail(providers, name, "no-sign-in")
    providers.stub.environ["GEMINI_API_KEY"] = ""

    with pytest.raises(NoProvider) as caught:
        await providers.grounded_search()

    for name in ("antigravity:", "api:", "gemini:"):
        assert name in caught.value.message and name in caught.value.next_step


async def test_deep_search_returns_its_draft_when_no_provider_is_usable(
    providers: Providers,
) -> None:
    providers.use("gemini,antigravity")
    make_provider_fail(providers, "antigravity", "no-sign-in")
    draft = {"text": model_answer("Draft."), "searches": [search_with_sources("sky", "nasa")]}
    providers.stub.plays(draft, {"exit_code": 41, "stderr": "no"})

    result = await providers.stub.deep_search()

    assert (result["result"], result["metadata"]["stop_reason"]) == ("Draft.", "NO_PROVIDER")
    assert result["metadata"]["iterations"] == 2


async def test_a_missing_extra_is_reported_with_its_install_command(
    providers: Providers, mocker: MockerFixture
) -> None:
    mocker.patch.dict(sys.modules, {"google": None})
    providers.use("api")

    with pytest.raises(NoProvider) as caught:
        await providers.grounded_search()

    assert "pip install 'gemini-cli-research-mcp[api]'" in caught.value.next_step


# Error messages


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
def test_error_markdown_says_how_to_fix_the_problem(error: GeminiMcpError, heading: str) -> None:
    text = error_markdown(error)

    assert text.startswith(f"{heading}\n\nNo.\n\n**To fix:**\n- ")
    assert "your own web search" in text
    assert error.next_step in text


async def test_clients_get_results_and_errors(providers: Providers) -> None:
    async with in_process_client(providers.stub) as client:
        grounded = await client.call_tool("grounded_search", {"query": QUESTION})
        invalid = await client.call_tool("grounded_search", {"query": QUESTION, "thinking": "loud"})
        providers.stub.plays({"text": "From memory."})
        ungrounded = await client.call_tool("grounded_search", {"query": QUESTION})

    assert (
        grounded.structured_content and invalid.structured_content and ungrounded.structured_content
    )
    assert RESULT_PATTERN.fullmatch(grounded.structured_content["result"])
    for result in (grounded, invalid, ungrounded):  # the text is the Markdown, errors too
        [block] = result.content
        assert isinstance(block, TextContent)
        assert result.structured_content and block.text == result.structured_content["result"]
    assert invalid.structured_content["result"].startswith("## Search Error\n\n`thinking`")
    assert (invalid.is_error, invalid.structured_content["error"]["code"]) == (
        True,
        "INVALID_INPUT",
    )
    assert ungrounded.structured_content["result"].startswith("## No Results")
    assert ungrounded.structured_content["error"]["code"] == "NOT_GROUNDED"
