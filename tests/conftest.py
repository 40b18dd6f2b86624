"""Fixtures that every test may use."""

from pathlib import Path

import pytest

from tests.support import Stub


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)
