"""Skip conditions for tests, and selection of the cases that only scripts/test-long runs."""

import sys
from collections.abc import Collection, Iterable
from typing import Any, cast

import pytest

from tests.support import REAL_CLI

needs_real_cli = pytest.mark.skipif(
    not REAL_CLI.exists(), reason="scripts/test installs the real CLI if Node is available"
)
needs_posix = pytest.mark.skipif(
    sys.platform == "win32", reason="uses signals, file modes, symlinks or shell scripts"
)


def representatives(matrix: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return all cases as pytest parameters; those not in `quick` are marked `long`."""
    cases = list(matrix)
    missing = [case for case in quick if case not in cases]
    assert not missing, f"cases not in the matrix: {missing}"

    def to_parameter(case: Any) -> Any:
        values = cast("tuple[Any, ...]", case if isinstance(case, tuple) else (case,))
        return pytest.param(*values, marks=() if case in quick else pytest.mark.long)

    return [to_parameter(case) for case in cases]
