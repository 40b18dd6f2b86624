"""Find the `gemini` binary, even where desktop apps do not look, and identify it.

No process is started: an official CLI is recognized by its real path inside an
`@google/gemini-cli` package, whose package.json holds the version.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.json_values import JsonValue

DESKTOP_APP_PATH = os.pathsep.join(("/usr/bin", "/bin", "/usr/sbin", "/sbin"))
"""PATH of a desktop app, without the folders that shell startup files add in a terminal."""
MIN_VERSION = (0, 39, 1)
"""Older versions trust the settings of any folder they run in (GHSA-wpqr-6v78-jr5g)."""

_SHIM_COMMAND = re.compile(r'"%(?:dp0%|~dp0)\\?([^"]+)"\s+%\*')
"""The last line of a `.cmd` file written by npm's cmd-shim."""


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
    script = _shim_script(path)
    version = _official_version((script or path).resolve())
    if version is not None and _version_tuple(version) < MIN_VERSION:
        min_version = ".".join(map(str, MIN_VERSION))
        raise CliNotFound(
            f"gemini {version} at {path} is too old: {min_version} or newer is required, because "
            "older versions load settings from untrusted folders.",
            hint="Upgrade it with `npm install -g @google/gemini-cli@latest`.",
        )
    if not script:
        return GeminiBinary(path, version, (str(path),))
    sibling_node = path.with_name("node.exe")
    return GeminiBinary(
        path, version, (str(sibling_node) if sibling_node.exists() else "node", str(script))
    )


def _shim_script(path: Path) -> Path | None:
    """Return the script that npm's `.cmd` file on Windows runs.

    The `.cmd` file itself needs a shell, which would parse our arguments a second time.
    """
    if path.suffix.lower() not in (".cmd", ".bat"):
        return None
    try:
        match = _SHIM_COMMAND.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return path.parent.joinpath(*match[1].split("\\")) if match else None


def _locate(name: str, environ: Mapping[str, str]) -> Path:
    if Path(name).name != name:
        path = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 - Path.expanduser raises
        if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises
            raise CliNotFound(
                f"{path} (GEMINI_MCP_CLI_PATH) does not exist or is not a regular file."
            )
        if not os.access(path, os.X_OK):
            raise CliNotFound(f"{path} (GEMINI_MCP_CLI_PATH) is not executable.")
        return path
    executable = shutil.which(name, path=search_path(environ))
    if executable is None:
        raise CliNotFound(f"The `{name}` CLI is neither on PATH nor in a common install location.")
    return Path(executable).absolute()


def search_path(environ: Mapping[str, str]) -> str:
    """Return PATH followed by the install folders that desktop apps lack on theirs."""
    folders = (environ.get("PATH", os.defpath), *map(str, _install_folders(environ)))
    return os.pathsep.join(folders)


def child_path(binary: GeminiBinary, environ: Mapping[str, str]) -> str:
    """Return the PATH to run the binary with.

    Its shebang is `#!/usr/bin/env node`, and node is usually in the same folder as gemini but
    not on a desktop app's PATH.
    """
    return f"{binary.path.parent}{os.pathsep}{search_path(environ)}"


def find_node(binary: GeminiBinary, environ: Mapping[str, str]) -> str | None:
    """Return the `node` that the binary would run on."""
    return shutil.which("node", path=child_path(binary, environ))


def desktop_app_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Reduce an environment to what a desktop app, not started from a shell, would have."""
    inherited = ("HOME", "APPDATA", "LOCALAPPDATA", "USERPROFILE")
    return {
        "PATH": DESKTOP_APP_PATH,
        **{name: environ[name] for name in inherited if name in environ},
    }


def _install_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where npm, version managers and package managers install binaries, likeliest first."""
    home = Path(environ.get("HOME") or Path.home())

    def folder_from(variable: str, default: str) -> Path:
        return Path(environ.get(variable) or home / default)

    yield folder_from("NPM_CONFIG_PREFIX", ".npm-global") / "bin"
    yield home / ".local/bin"
    yield Path("/usr/local/bin")
    yield Path("/opt/homebrew/bin")
    yield Path("/home/linuxbrew/.linuxbrew/bin")
    yield folder_from("VOLTA_HOME", ".volta") / "bin"
    yield folder_from("PNPM_HOME", ".local/share/pnpm")
    yield home / "Library/pnpm"
    yield folder_from("BUN_INSTALL", ".bun") / "bin"
    yield folder_from("APPDATA", "AppData/Roaming") / "npm"
    yield from _version_folders(folder_from("NVM_DIR", ".nvm") / "versions/node", "bin")
    for fnm in (
        folder_from("FNM_DIR", ".local/share/fnm"),
        home / "Library/Application Support/fnm",
        home / ".fnm",
    ):
        yield from _version_folders(fnm / "node-versions", "installation/bin")


def _version_folders(versions: Path, subfolder: str) -> list[Path]:
    try:
        names = sorted((path.name for path in versions.iterdir()), key=_version_tuple, reverse=True)
    except OSError:
        return []
    return [versions / name / subfolder for name in names]


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


def _version_tuple(version: str) -> tuple[int, ...]:
    """Return the release numbers of `v1.22.3` or `0.61.0-preview.1` for comparison."""
    release = version.removeprefix("v").partition("-")[0]
    return tuple(int(part) if part.isdecimal() else 0 for part in release.split("."))
