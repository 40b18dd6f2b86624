"""Fixtures that every test may use."""

from collections.abc import Generator
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.process import child
from tests.support import REDIRECT, Clock, Stub, model_answer, use_real_cli
from tests.support.fake_api import FakeApi, fake_api
from tests.support.matrix import representatives
from tests.support.openai_clients import (
    EVERY_CLIENT,
    NODE_SDK,
    ONE_CLIENT,
    QUICK_LIMITS,
    SOME_CLIENTS,
    NodeClient,
    gateway_environment,
    running_gateway,
)
from tests.support.scripted_upstream import ScriptedUpstream, scripted_upstream


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_process_left_running() -> Generator[None]:
    """What a test leaves running surfaces in it, not as a warning in a later one."""
    yield
    left = child.running_count()
    child._running.clear()
    assert not left


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


@pytest.fixture
def clock(mocker: MockerFixture) -> Clock:
    return Clock(mocker)


@pytest.fixture
def api() -> Generator[FakeApi]:
    with fake_api() as running:
        running.texts = [model_answer(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        yield running


@pytest.fixture
def real(stub: Stub, api: FakeApi) -> Stub:
    """The same program on the real CLI, a process per run."""
    stub.environ["GEMINI_MCP_WARM"] = "0"
    return use_real_cli(stub, api)


@pytest.fixture(scope="module")
def upstream() -> Generator[ScriptedUpstream]:
    with scripted_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def base(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(gateway_environment(folder, upstream)) as address:
        yield address


@pytest.fixture(scope="module")
def quick_base(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """A gateway that is sooner at the end of its patience."""
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(gateway_environment(folder, upstream), limits=QUICK_LIMITS) as address:
        yield address


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a gateway's clients: some of them in every run, the whole product in the long one.

    `@pytest.mark.clients("every")` is for what depends on the wire, "one" for what does not.
    """
    if {"client", "way"} <= set(metafunc.fixturenames):
        marker = metafunc.definition.get_closest_marker("clients")
        which = marker.args[0] if marker else "some"
        quick = {"every": EVERY_CLIENT, "some": SOME_CLIENTS, "one": ONE_CLIENT}[which]
        metafunc.parametrize(("client", "way"), representatives(EVERY_CLIENT, quick))


@pytest.fixture(scope="module")
def node_client() -> Generator[NodeClient | None]:
    client = NodeClient() if NODE_SDK.exists() else None
    yield client
    if client:
        client.close()
