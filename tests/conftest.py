"""Fixtures that every test may use."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.fake_api import FakeApi, fake_api
from tests.openai_clients import NODE_SDK, NodeClient, environment, running_gateway
from tests.scripted_upstream import ScriptedUpstream, scripted_upstream
from tests.support import REDIRECT, Stub, real_on, report


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


@pytest.fixture
def api() -> Generator[FakeApi]:
    with fake_api() as running:
        running.texts = [report(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        yield running


@pytest.fixture
def real(stub: Stub, api: FakeApi) -> Stub:
    """The same program on the real CLI, a process per run."""
    stub.environ["GEMINI_MCP_WARM"] = "0"
    return real_on(stub, api)


@pytest.fixture(scope="module")
def upstream() -> Generator[ScriptedUpstream]:
    with scripted_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def base(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(environment(folder, upstream)) as address:
        yield address


@pytest.fixture(scope="module")
def node_client() -> Generator[NodeClient | None]:
    client = NodeClient() if NODE_SDK.exists() else None
    yield client
    if client:
        client.close()
