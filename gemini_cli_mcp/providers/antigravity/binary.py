"""Locate the `agy` binary, and reject the editor's launcher of the same name."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.platforms.folders import search_folders
from gemini_cli_mcp.platforms.programs import NotRunnable, add_suffix, command_line, find_program

INSTALL_HINT = (
    "Install it from antigravity.google, set GEMINI_MCP_AGY_PATH to the path of the `agy` "
    "binary, or remove `antigravity` from GEMINI_MCP_PROVIDERS."
)

_EDITOR_PATH = re.compile(r"Antigravity\.app/|/\.antigravity/|/resources/app/bin/", re.IGNORECASE)


@dataclass(frozen=True)
class AgyBinary:
    """An executable that is run as `agy`."""

    path: Path
    argv: tuple[str, ...]
    """Command that starts it."""


def find_agy(name: str, environ: Mapping[str, str]) -> AgyBinary:
    """Return the binary that GEMINI_MCP_AGY_PATH names."""
    folders = search_folders(environ)
    if Path(name).name == name:
        path = find_program(name, folders)
    else:
        path = add_suffix(Path(os.path.expanduser(name)).absolute())  # noqa: PTH111 - Path.expanduser() raises for unknown users
    if path is None or not os.access(path, os.X_OK) or not os.path.isfile(path):  # noqa: PTH113
        raise CliNotFound(f"`{name}` was not found (GEMINI_MCP_AGY_PATH).", hint=INSTALL_HINT)
    if is_editor_launcher(path) or is_editor_launcher(path.resolve()):
        raise CliNotFound(
            f"{path} is the launcher of the Antigravity editor, not the CLI.", hint=INSTALL_HINT
        )
    try:
        return AgyBinary(path, command_line(path, folders))
    except NotRunnable as error:
        raise CliNotFound(f"{path} cannot be started: {error}.", hint=INSTALL_HINT) from None


def is_editor_launcher(path: PurePath) -> bool:
    """Whether this is where the Antigravity editor installs its own `agy`."""
    return _EDITOR_PATH.search(path.as_posix()) is not None
