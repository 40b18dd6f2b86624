"""Fixtures that every test may use."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.fake_api import FakeApi, fake_api
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
