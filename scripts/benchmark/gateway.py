"""The overhead of the gateway, compared with direct calls of the upstream in the same run."""

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx2

from scripts.benchmark.contenders import ROOT

REQUESTS, WARM_UP_REQUESTS, STREAMS = 300, 10, 200
PLAIN_REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}
SEARCH_REQUEST = {"model": "m", "messages": [{"role": "user", "content": "search the web"}]}


@dataclass(frozen=True)
class GatewayResults:
    """Times are in seconds."""

    direct: float
    through: float
    """One request without search intent; both are medians."""
    streams_direct: float
    streams_through: float
    streams_searching: float
    """Until the last of 200 concurrent streams ends; a search takes two upstream requests."""
    errors: int
    """Failed streams, of all three kinds."""


async def measure_gateway() -> GatewayResults:
    with (
        TemporaryDirectory(prefix="bench-") as folder,
        _run_upstream() as upstream_url,
        _run_gateway(Path(folder), upstream_url) as gateway_url,
    ):
        async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits()) as client:
            direct: list[float] = []
            through: list[float] = []
            for _ in range(WARM_UP_REQUESTS + REQUESTS):
                direct.append(await _request_seconds(client, upstream_url))
                through.append(await _request_seconds(client, gateway_url))
            streams = [
                await _run_streams(client, base_url, body)
                for base_url, body in (
                    (upstream_url, PLAIN_REQUEST),
                    (gateway_url, PLAIN_REQUEST),
                    (gateway_url, SEARCH_REQUEST),
                )
            ]
    return GatewayResults(
        statistics.median(direct[WARM_UP_REQUESTS:]),
        statistics.median(through[WARM_UP_REQUESTS:]),
        *(seconds for seconds, _ in streams),
        errors=sum(errors for _, errors in streams),
    )


async def _request_seconds(client: httpx2.AsyncClient, base_url: str) -> float:
    started = time.perf_counter()
    response = await client.post(f"{base_url}/v1/chat/completions", json=PLAIN_REQUEST)
    assert response.json()["choices"]
    return time.perf_counter() - started


async def _run_streams(
    client: httpx2.AsyncClient, base_url: str, body: object
) -> tuple[float, int]:
    """Return the seconds until the last stream ends, and the number of failed streams."""
    completed = 0

    async def stream() -> None:
        nonlocal completed
        request = {**PLAIN_REQUEST, **dict(body), "stream": True}  # type: ignore[call-overload]
        url = f"{base_url}/v1/chat/completions"
        async with client.stream("POST", url, json=request) as response:
            text = "".join([part async for part in response.aiter_text()])
        completed += text.count("blue ") == 50 and text.rstrip().endswith("[DONE]")

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(STREAMS):
            tasks.start_soon(stream)
    return time.perf_counter() - started, STREAMS - completed


@contextmanager
def _run_upstream() -> Generator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.benchmark.upstream"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


@contextmanager
def _run_gateway(folder: Path, upstream_url: str) -> Generator[str]:
    engine = {
        "id": "pages",
        "providerKey": "glm.glm-4",
        "description": "Pages",
        "glm": {"form": "api", "baseUrl": f"{upstream_url}/glm"},
    }
    config = {
        "webSearch": {"engines": [engine]},
        "gateway": {"upstreams": [{"id": "bench", "baseUrl": f"{upstream_url}/v1"}]},
    }
    path = folder / "engines.json"
    path.write_text(json.dumps(config))
    environ = {
        "HOME": str(folder),
        "GEMINI_MCP_CONFIG_DIR": str(folder / "config"),
        "GEMINI_MCP_WEB_SEARCH": str(path),
        "ZAI_API_KEY": "bench-key",
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "gemini_cli_mcp", "gateway", "--port", "0"],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr
        try:
            for line in server.stderr:
                if match := re.search(r"listens at (\S+)/v1", line):
                    yield match[1]
                    break
        finally:
            server.terminate()
