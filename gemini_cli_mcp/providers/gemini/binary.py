"""Find the `gemini` binary, also where desktop apps miss it, and know what it is.

No process is started for that: an official CLI is recognised by its real path lying in
an `@google/gemini-cli` package, whose package.json tells the version.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemini_cli_mcp.errors import CliNotFound

DESKTOP_APP_PATH = os.pathsep.join(("/usr/bin", "/bin", "/usr/sbin", "/sbin"))
"""What a desktop app has, where a terminal has all that the shell's files add."""
MIN_VERSION = (0, 39, 1)
"""Older ones trust the settings of whatever folder they run in (GHSA-wpqr-6v78-jr5g)."""


_SHIM = re.compile(r'"%(?:dp0%|~dp0)\\?([^"]+)"\s+%\*')
"""The line with which npm's tool for such files ends them."""


@dataclass(frozen=True)
class GeminiBinary:
    """A program that takes the part of `gemini`."""

    path: Path
    version: str | None
    """Of the official CLI; None for a wrapper, a stub or whatever else it may be."""
    argv: tuple[str, ...]
    """How it is started."""

    @property
    def is_official(self) -> bool:
        return self.version is not None


def find_gemini(name: str, environ: Mapping[str, str]) -> GeminiBinary:
    """The binary that GEMINI_MCP_CLI_PATH asks for."""
    path = _locate(name, environ)
    script = _script_of_shim(path)
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


def _script_of_shim(path: Path) -> Path | None:
    """The script that npm's `.cmd` file on Windows runs.

    Not the file itself: it needs a shell, which would read our arguments once more.
    """
    if path.suffix.lower() not in (".cmd", ".bat"):
        return None
    try:
        match = _SHIM.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return path.parent.joinpath(*match[1].split("\\")) if match else None


def _locate(name: str, environ: Mapping[str, str]) -> Path:
    if Path(name).name != name:
        path = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 - Path's raises
        if not os.path.isfile(path):  # noqa: PTH113 - Path's raises
            raise CliNotFound(f"There is no file {path} (GEMINI_MCP_CLI_PATH).")
        if not os.access(path, os.X_OK):
            raise CliNotFound(f"{path} (GEMINI_MCP_CLI_PATH) is not executable.")
        return path
    program = shutil.which(name, path=search_path(environ))
    if program is None:
        raise CliNotFound(f"The `{name}` CLI is neither on PATH nor in a usual place.")
    return Path(program).absolute()


def search_path(environ: Mapping[str, str]) -> str:
    """PATH, and behind it the places that desktop apps do not have on theirs."""
    folders = (environ.get("PATH", os.defpath), *map(str, _install_folders(environ)))
    return os.pathsep.join(folders)


def child_path(binary: GeminiBinary, environ: Mapping[str, str]) -> str:
    """The PATH to run it with.

    `#!/usr/bin/env node`: that mostly lies beside gemini, but not on a desktop app's PATH.
    """
    return f"{binary.path.parent}{os.pathsep}{search_path(environ)}"


def find_node(binary: GeminiBinary, environ: Mapping[str, str]) -> str | None:
    """The `node` that it would run on."""
    return shutil.which("node", path=child_path(binary, environ))


def desktop_app_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What is left of an environment in an app that no shell has started."""
    kept = ("HOME", "APPDATA", "LOCALAPPDATA", "USERPROFILE")
    return {"PATH": DESKTOP_APP_PATH, **{name: environ[name] for name in kept if name in environ}}


def _install_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where npm, version managers and package managers put binaries, best guess first."""
    home = Path(environ.get("HOME") or Path.home())

    def folder(variable: str, default: str) -> Path:
        return Path(environ.get(variable) or home / default)

    yield folder("NPM_CONFIG_PREFIX", ".npm-global") / "bin"
    yield home / ".local/bin"
    yield Path("/usr/local/bin")
    yield Path("/opt/homebrew/bin")
    yield Path("/home/linuxbrew/.linuxbrew/bin")
    yield folder("VOLTA_HOME", ".volta") / "bin"
    yield folder("PNPM_HOME", ".local/share/pnpm")
    yield home / "Library/pnpm"
    yield folder("BUN_INSTALL", ".bun") / "bin"
    yield folder("APPDATA", "AppData/Roaming") / "npm"
    yield from _newest_first(folder("NVM_DIR", ".nvm") / "versions/node", "bin")
    for fnm in (
        folder("FNM_DIR", ".local/share/fnm"),
        home / "Library/Application Support/fnm",
        home / ".fnm",
    ):
        yield from _newest_first(fnm / "node-versions", "installation/bin")


def _newest_first(versions: Path, below: str) -> list[Path]:
    try:
        names = sorted((path.name for path in versions.iterdir()), key=_version_tuple, reverse=True)
    except OSError:
        return []
    return [versions / name / below for name in names]


def _official_version(real_path: Path) -> str | None:
    for folder in real_path.parents:
        if (folder.parent.name, folder.name) == ("@google", "gemini-cli"):
            try:
                package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
                return str(package["version"])
            except (OSError, ValueError, KeyError, TypeError):
                return None
    return None


def _version_tuple(version: str) -> tuple[int, ...]:
    """The leading numbers of `v1.22.3` or `0.61.0-preview.1`, to compare versions by."""
    release = version.removeprefix("v").partition("-")[0]
    return tuple(int(part) if part.isdecimal() else 0 for part in release.split("."))
