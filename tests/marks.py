"""What a test needs that not every machine has."""

import pytest

from tests.support import REAL_CLI

needs_real_cli = pytest.mark.skipif(
    not REAL_CLI.exists(), reason="scripts/test installs it where Node is"
)
