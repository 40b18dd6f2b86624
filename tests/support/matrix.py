"""What a test needs that not every machine has, and which tests wait for scripts/test-long."""

from collections.abc import Collection, Iterable
from typing import Any, cast

import pytest

from tests.support import REAL_CLI

needs_real_cli = pytest.mark.skipif(
    not REAL_CLI.exists(), reason="scripts/test installs it where Node is"
)


def representatives(matrix: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """All of a matrix as parameters: those in `quick` for every run, the rest for the long one."""
    cases = list(matrix)
    missing = [case for case in quick if case not in cases]
    assert not missing, f"not in the matrix: {missing}"

    def parameter(case: Any) -> Any:
        values = cast("tuple[Any, ...]", case if isinstance(case, tuple) else (case,))
        return pytest.param(*values, marks=() if case in quick else pytest.mark.long)

    return [parameter(case) for case in cases]
