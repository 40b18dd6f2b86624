"""How long a client lets a call take before it gives up on it."""

import math
from typing import Any

from mcp.server.mcpserver import Context

PATIENCE = {"claude-code": math.inf}
"""By the name that a client gives itself. Claude Code waits for hours as long as there is
progress, and shows it."""


def patience(context: Context[Any, Any], unknown: float) -> float:
    """Seconds that a call of this client may surely take; `unknown` if it is not known."""
    told = context.session.client_params
    return PATIENCE.get(told.client_info.name, unknown) if told else unknown
