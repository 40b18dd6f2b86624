"""How long a client lets a call take before it gives up on it."""

import math
from typing import Any

from mcp.server.mcpserver import Context

UNKNOWN = 50.0
"""Seconds. Most clients wait 60; Claude Desktop between 60 and 240, depending on its version."""

PATIENCE = {"claude-code": math.inf}
"""By the name that a client gives itself. Claude Code waits for hours as long as there is
progress, and shows it."""


def patience(context: Context[Any, Any]) -> float:
    """Seconds that a call of this client may surely take."""
    told = context.session.client_params
    return PATIENCE.get(told.client_info.name, UNKNOWN) if told else UNKNOWN
