"""Fixtures shared by all test modules."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.process import child
from tests.support import IS_WINDOWS, REDIRECT, Clock, Stub, model_answer, use_real_cli
from tests.support.fake_api import FakeApi, fake_api
from tests.support.faults import FAULTS
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

NEEDS_POSIX = [
    *("test_faults.py", "test_process.py", "test_acp_pool.py", "test_ready_pool.py"),  # signals
    *("test_server.py", "test_soak.py"),
    *("test_cli.py", "test_doctor.py", "test_terminal.py"),  # pseudo-terminals
    *("test_install.py", "test_packaging.py", "test_docs.py"),  # file modes, bash
    "test_source_rules.py",  # the source, where Windows tests the wheel
]
"""Modules that cannot run on Windows; test_windows.py has what takes their place."""
collect_ignore = NEEDS_POSIX if IS_WINDOWS else ["test_windows.py"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_leaked_processes() -> Generator[None]:
    """Fail the test that leaks a process, instead of warning in a later one."""
    yield
    running_count = child.running_count()
    child._running.clear()
    assert not running_count


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


@pytest.fixture
def clock(mocker: MockerFixture) -> Clock:
    return Clock(mocker)


@pytest.fixture
def api() -> Generator[FakeApi]:
    with fake_api() as server:
        server.texts = [model_answer(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        yield server


@pytest.fixture
def real(stub: Stub, api: FakeApi) -> Stub:
    """A `Stub` that runs the real CLI instead, with one process per run."""
    stub.environ["GEMINI_MCP_WARM"] = "0"
    return use_real_cli(stub, api)


@pytest.fixture(scope="module")
def upstream() -> Generator[ScriptedUpstream]:
    with scripted_upstream() as server:
        yield server


@pytest.fixture(scope="module")
def base(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(gateway_environment(folder, upstream)) as address:
        yield address


@pytest.fixture(scope="module")
def quick_base(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """A gateway with short timeouts."""
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(gateway_environment(folder, upstream), limits=QUICK_LIMITS) as address:
        yield address


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On macOS, skip the children that left their group and lost their parents (a known limit)."""
    skip = pytest.mark.skip(reason="the guardian of macOS does not find these processes")
    for item in items if sys.platform == "darwin" else ():
        callspec = getattr(item, "callspec", None)
        if callspec and FAULTS.get(callspec.params.get("fault"), {}).get("escape"):
            item.add_marker(skip)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize gateway tests: some clients in every run, all combinations in the long run.

    Use `@pytest.mark.clients("every")` for behaviour that depends on the wire format, and "one"
    for behaviour that does not.
    """
    if {"client", "way"} <= set(metafunc.fixturenames):
        marker = metafunc.definition.get_closest_marker("clients")
        selection = marker.args[0] if marker else "some"
        quick = {"every": EVERY_CLIENT, "some": SOME_CLIENTS, "one": ONE_CLIENT}[selection]
        metafunc.parametrize(("client", "way"), representatives(EVERY_CLIENT, quick))


@pytest.fixture(scope="module")
def node_client() -> Generator[NodeClient | None]:
    client = NodeClient() if NODE_SDK.exists() else None
    yield client
    if client:
        client.close()
