"""Find the `agy` binary, and tell it from the editor's launcher of the same name."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.providers.gemini.binary import search_path

INSTALL_HINT = (
    "Install it from antigravity.google, or set GEMINI_MCP_AGY_PATH to the path of the `agy` "
    "binary, or remove `antigravity` from GEMINI_MCP_PROVIDERS."
)

_EDITOR = re.compile(r"Antigravity\.app/|/\.antigravity/|/resources/app/bin/", re.IGNORECASE)


def find_agy(name: str, environ: Mapping[str, str]) -> Path:
    """The binary that GEMINI_MCP_AGY_PATH asks for."""
    expanded = os.path.expanduser(name)  # noqa: PTH111 - Path's raises
    found = shutil.which(expanded, path=search_path(environ))
    if found is None:
        raise CliNotFound(f"There is no `{name}` (GEMINI_MCP_AGY_PATH).", hint=INSTALL_HINT)
    path = Path(found).absolute()
    if _EDITOR.search(str(path)) or _EDITOR.search(str(path.resolve())):
        raise CliNotFound(f"{path} is the launcher of the Antigravity editor.", hint=INSTALL_HINT)
    return path
