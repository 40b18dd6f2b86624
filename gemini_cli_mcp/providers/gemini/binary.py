"""Find the `gemini` binary, even where desktop apps do not look, and identify it.

No process is started: an official CLI is recognized by its real path inside an
`@google/gemini-cli` package, whose package.json holds the version.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.platforms import programs
from gemini_cli_mcp.platforms.folders import join_path, search_folders, version_tuple
from gemini_cli_mcp.platforms.programs import (
    NotRunnable,
    add_suffix,
    command_line,
    find_program,
    shim_target,
)

MIN_VERSION = (0, 39, 1)
"""Older versions trust the settings of any folder they run in (GHSA-wpqr-6v78-jr5g)."""


@dataclass(frozen=True)
class GeminiBinary:
    """An executable that is run as `gemini`."""

    path: Path
    version: str | None
    """Version of the official CLI; None for anything else, such as a wrapper or a stub."""
    argv: tuple[str, ...]
    """Command that starts it."""

    @property
    def is_official(self) -> bool:
        return self.version is not None


def find_gemini(name: str, environ: Mapping[str, str]) -> GeminiBinary:
    """Return the binary that GEMINI_MCP_CLI_PATH names. Raise CliNotFound if it is not usable."""
    path = _locate(name, environ)
    script = shim_target(path)
    version = _official_version((script or path).resolve())
    if version is not None and version_tuple(version) < MIN_VERSION:
        min_version = ".".join(map(str, MIN_VERSION))
        raise CliNotFound(
            f"gemini {version} at {path} is too old: {min_version} or newer is required, because "
            "older versions load settings from untrusted folders.",
            hint="Upgrade it with `npm install -g @google/gemini-cli@latest`.",
        )
    try:
        return GeminiBinary(path, version, command_line(path, search_folders(environ)))
    except NotRunnable as error:
        raise CliNotFound(f"{path} cannot be started: {error}.") from None


def _locate(name: str, environ: Mapping[str, str]) -> Path:
    if Path(name).name != name:
        path = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 - Path.expanduser raises
        path = add_suffix(path)
        if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises
            raise CliNotFound(
                f"{path} (GEMINI_MCP_CLI_PATH) does not exist or is not a regular file."
            )
        if not os.access(path, os.X_OK):
            raise CliNotFound(f"{path} (GEMINI_MCP_CLI_PATH) is not executable.")
        return path
    program = find_program(name, search_folders(environ))
    if program is None:
        raise CliNotFound(f"The `{name}` CLI is neither on PATH nor in a common install location.")
    return program


def child_path(binary: GeminiBinary, environ: Mapping[str, str]) -> str:
    """Return the PATH to run the binary with.

    Its shebang is `#!/usr/bin/env node`, and node is usually in the same folder as gemini but
    not on a desktop app's PATH.
    """
    return join_path([str(binary.path.parent), *search_folders(environ)])


def find_node(binary: GeminiBinary, environ: Mapping[str, str]) -> str | None:
    """Return the `node` that the binary would run on."""
    node = programs.find_node([str(binary.path.parent), *search_folders(environ)])
    return str(node) if node else None


def _official_version(real_path: Path) -> str | None:
    for folder in real_path.parents:
        if (folder.parent.name, folder.name) == ("@google", "gemini-cli"):
            try:
                text = (folder / "package.json").read_text(encoding="utf-8")
                package = cast("JsonValue", json.loads(text))
            except (OSError, ValueError):
                return None
            if isinstance(package, dict) and "version" in package:
                return str(package["version"])
            return None
    return None
