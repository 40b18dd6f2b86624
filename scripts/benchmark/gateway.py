"""What the gateway costs, against the upstream asked directly in the same run."""

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

from scripts.benchmark.subjects import ROOT

TIMES, AT_ONCE = 300, 200
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}
SEARCHING = {"model": "m", "messages": [{"role": "user", "content": "search the web"}]}


@dataclass(frozen=True)
class Gateway:
    """Seconds, if not said otherwise."""

    direct: float
    through: float
    """One request without intent, medians."""
    streams_direct: float
    streams_through: float
    streams_searching: float
    """Until the last of 200 streams at once has ended; those that search have two rounds."""
    errors: int
    """Of all those streams."""


async def gateway() -> Gateway:
    with (
        TemporaryDirectory(prefix="bench-") as folder,
        _upstream() as upstream,
        _gateway(Path(folder), upstream) as through,
    ):
        async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits()) as client:
            direct: list[float] = []
            ours: list[float] = []
            for _ in range(TIMES + 10):
                direct.append(await _ask(client, upstream))
                ours.append(await _ask(client, through))
            streams = [
                await _streams(client, base, body)
                for base, body in (
                    (upstream, HELLO),
                    (through, HELLO),
                    (through, SEARCHING),
                )
            ]
    return Gateway(
        statistics.median(direct[10:]),
        statistics.median(ours[10:]),
        *(seconds for seconds, _ in streams),
        errors=sum(errors for _, errors in streams),
    )


async def _ask(client: httpx2.AsyncClient, base: str) -> float:
    begin = time.perf_counter()
    answer = await client.post(f"{base}/v1/chat/completions", json=HELLO)
    assert answer.json()["choices"]
    return time.perf_counter() - begin


async def _streams(client: httpx2.AsyncClient, base: str, body: object) -> tuple[float, int]:
    ended = 0

    async def one() -> None:
        nonlocal ended
        asked = {**HELLO, **dict(body), "stream": True}  # type: ignore[call-overload]
        async with client.stream("POST", f"{base}/v1/chat/completions", json=asked) as answer:
            text = "".join([part async for part in answer.aiter_text()])
        ended += text.count("blue ") == 50 and text.rstrip().endswith("[DONE]")

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(one)
    return time.perf_counter() - begin, AT_ONCE - ended


@contextmanager
def _upstream() -> Generator[str]:
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
def _gateway(folder: Path, upstream: str) -> Generator[str]:
    engine = {
        "id": "pages",
        "providerKey": "glm.glm-4",
        "description": "Pages",
        "glm": {"form": "api", "baseUrl": f"{upstream}/glm"},
    }
    file = {
        "webSearch": {"engines": [engine]},
        "gateway": {"upstreams": [{"id": "bench", "baseUrl": f"{upstream}/v1"}]},
    }
    path = folder / "engines.json"
    path.write_text(json.dumps(file))
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
                if found := re.search(r"listens at (\S+)/v1", line):
                    yield found[1]
                    break
        finally:
            server.terminate()
