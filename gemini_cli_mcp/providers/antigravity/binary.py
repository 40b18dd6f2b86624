"""Locate the `agy` binary, and reject the editor's launcher of the same name."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.providers.gemini.binary import search_path

INSTALL_HINT = (
    "Install it from antigravity.google, set GEMINI_MCP_AGY_PATH to the path of the `agy` "
    "binary, or remove `antigravity` from GEMINI_MCP_PROVIDERS."
)

_EDITOR_PATH = re.compile(r"Antigravity\.app/|/\.antigravity/|/resources/app/bin/", re.IGNORECASE)


def find_agy(name: str, environ: Mapping[str, str]) -> Path:
    """Return the path of the binary that GEMINI_MCP_AGY_PATH names."""
    expanded = os.path.expanduser(name)  # noqa: PTH111 - Path.expanduser() raises for unknown users
    executable = shutil.which(expanded, path=search_path(environ))
    if executable is None:
        raise CliNotFound(f"`{name}` was not found (GEMINI_MCP_AGY_PATH).", hint=INSTALL_HINT)
    path = Path(executable).absolute()
    if _EDITOR_PATH.search(str(path)) or _EDITOR_PATH.search(str(path.resolve())):
        raise CliNotFound(
            f"{path} is the launcher of the Antigravity editor, not the CLI.", hint=INSTALL_HINT
        )
    return path
