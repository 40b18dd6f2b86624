"""How many files a reader has to open to follow one call."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
from starlette.types import ASGIApp, Message

from gemini_cli_mcp.gateway.app import GatewayApp
from gemini_cli_mcp.gateway.engine_search import SearchScope
from gemini_cli_mcp.gateway.search_runner import SearchArguments, SearchOutcome
from gemini_cli_mcp.research.results import WebSearchResult
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.upstreams import load_upstreams
from gemini_cli_mcp.types import Hit
from tests.support import QUESTION, Stub, model_answer, search_with_sources
from tests.support.call_trace import entered_files
from tests.support.matrix import needs_posix
from tests.support.mcp_server import in_process_client
from tests.support.openai_clients import gateway_environment
from tests.support.scripted_upstream import (
    SEARCH_QUESTION,
    ScriptedReply,
    ScriptedUpstream,
    search,
)

MAX_FILES = 18


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncGenerator[httpx2.AsyncClient]:
    """Start an application in this process; yield a client for it."""
    requests_send, requests = anyio.create_memory_object_stream[Message](2)
    replies_send, replies = anyio.create_memory_object_stream[Message](2)

    async def run_lifespan() -> None:
        await app({"type": "lifespan"}, requests.receive, replies_send.send)

    with requests_send, requests, replies_send, replies:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_lifespan)
            await requests_send.send({"type": "lifespan.startup"})
            assert (await replies.receive())["type"] == "lifespan.startup.complete"
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                yield client
            await requests_send.send({"type": "lifespan.shutdown"})


@needs_posix
async def test_a_search_enters_few_files(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "searches": [search_with_sources("blue sky", "nasa")]})
    stub.environ["GEMINI_MCP_WARM"] = "0"  # no background work beside the call

    async with in_process_client(stub) as client:
        await client.call_tool("search", {"query": QUESTION})  # creates what calls share
        with entered_files() as files:
            result = await client.call_tool("search", {"query": QUESTION})

    assert not result.is_error
    assert {"server/handlers.py", "research/search.py", "process/run.py"} <= files
    assert len(files) <= MAX_FILES, "\n".join(sorted(files))


async def test_a_streamed_chat_with_a_search_enters_few_files(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    environ = gateway_environment(tmp_path, upstream)
    settings = Settings.from_env(environ)

    async def sky_search(arguments: SearchArguments, scope: SearchScope) -> SearchOutcome:
        hit = Hit("About the sky", "https://sky.example/", "sky.example")
        return WebSearchResult(
            summary="Blue.",
            summary_from="model",
            hits=(hit,),
            engine="pages",
            target=scope.engines.engines[0].targets[0],
            question=str(arguments.query),
            recency="noLimit",
            count=10,
            applied={},
            duration=1.0,
        )

    upstreams = load_upstreams(settings.engines.gateway, settings.upstream_url, environ)
    app = GatewayApp(settings, upstreams, sky_search)
    upstream.plays(
        "traced",
        ScriptedReply(calls=[search("blue sky")]),
        ScriptedReply("Blue (https://sky.example/)."),
    )
    body = {
        "model": "traced",
        "stream": True,
        "messages": [{"role": "user", "content": SEARCH_QUESTION}],
    }
    async with running(app.asgi) as client:
        with entered_files() as files:
            response = await client.post("/v1/chat/completions", json=body)

    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    assert "".join(delta.get("content", "") for delta in deltas) == "Blue (https://sky.example/)."
    assert any("annotations" in delta for delta in deltas)
    assert len(files) <= MAX_FILES, "\n".join(sorted(files))
