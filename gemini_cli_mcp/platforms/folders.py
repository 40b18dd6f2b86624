"""Folders of the user and of programs, which differ between platforms."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

POSIX_DESKTOP_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""PATH of a desktop app, without the folders that shell startup files add in a terminal."""

_WINDOWS_PATH_ENTRY = re.compile(r'(?:"[^"]*"|[^;"])+')


def home_folder(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the user's home folder as Node sees it: on Windows it ignores HOME."""
    return Path(environ.get("USERPROFILE" if platform == "win32" else "HOME") or Path.home())


def desktop_app_environ(environ: Mapping[str, str], platform: str = sys.platform) -> dict[str, str]:
    """Reduce an environment to what a desktop app, not started from a shell, would have.

    On Windows that is the same: PATH is a setting of the user, not of a shell.
    """
    if platform == "win32":
        return dict(environ)
    return {
        "PATH": POSIX_DESKTOP_PATH,
        **{name: environ[name] for name in ("HOME",) if name in environ},
    }


def path_folders(path: str, platform: str = sys.platform) -> list[str]:
    """Return the folders of a PATH, except empty and relative ones.

    A program that lies in the current folder, whichever that is, must never be run.
    """
    if platform == "win32":
        entries = [match[0].replace('"', "") for match in _WINDOWS_PATH_ENTRY.finditer(path)]
        return [entry for entry in entries if PureWindowsPath(entry).is_absolute()]
    return [entry for entry in path.split(":") if entry.startswith("/")]


def search_folders(environ: Mapping[str, str]) -> list[str]:
    """Return the folders of PATH, then the install folders that desktop apps lack on theirs."""
    return [*path_folders(environ.get("PATH", os.defpath)), *install_folders(environ)]


def join_path(folders: Iterable[str], platform: str = sys.platform) -> str:
    """Return a PATH of these folders."""
    if platform == "win32":
        return ";".join(f'"{folder}"' if ";" in folder else folder for folder in folders)
    return ":".join(folders)


def install_folders(environ: Mapping[str, str], platform: str = sys.platform) -> Iterator[str]:
    """Yield where npm, version managers and package managers install programs, likeliest first."""
    folders = _windows_folders(environ) if platform == "win32" else _posix_folders(environ)
    for folder in folders:
        if folder.is_absolute():  # a variable may hold anything
            yield str(folder)


def _windows_folders(environ: Mapping[str, str]) -> Iterator[PurePath]:
    home = PureWindowsPath(home_folder(environ, "win32"))

    def folder_from(variable: str, default: str) -> PureWindowsPath:
        return PureWindowsPath(environ.get(variable) or home / default)

    roaming = folder_from("APPDATA", "AppData/Roaming")
    local = folder_from("LOCALAPPDATA", "AppData/Local")
    programs = PureWindowsPath(environ.get("PROGRAMFILES") or "C:/Program Files")
    yield folder_from("NPM_CONFIG_PREFIX", str(roaming / "npm"))
    yield roaming / "npm"
    yield programs / "nodejs"
    yield home / ".local/bin"
    yield PureWindowsPath(environ.get("NVM_SYMLINK") or programs / "nodejs")
    yield PureWindowsPath(environ.get("VOLTA_HOME") or local / "Volta") / "bin"
    yield programs / "Volta"
    yield PureWindowsPath(environ.get("PNPM_HOME") or local / "pnpm")
    yield folder_from("BUN_INSTALL", ".bun") / "bin"
    yield folder_from("SCOOP", "scoop") / "shims"
    yield local / "Microsoft/WinGet/Links"
    yield PureWindowsPath(environ.get("PROGRAMDATA") or "C:/ProgramData") / "chocolatey/bin"
    yield from _version_folders(PureWindowsPath(environ.get("NVM_HOME") or roaming / "nvm"), ".")
    fnm = PureWindowsPath(environ.get("FNM_DIR") or roaming / "fnm")
    yield from _version_folders(fnm / "node-versions", "installation")


def _posix_folders(environ: Mapping[str, str]) -> Iterator[PurePath]:
    home = PurePosixPath(home_folder(environ, "linux"))

    def folder_from(variable: str, default: str) -> PurePosixPath:
        return PurePosixPath(environ.get(variable) or home / default)

    yield folder_from("NPM_CONFIG_PREFIX", ".npm-global") / "bin"
    yield home / ".local/bin"
    yield PurePosixPath("/usr/local/bin")
    yield PurePosixPath("/opt/homebrew/bin")
    yield PurePosixPath("/home/linuxbrew/.linuxbrew/bin")
    yield folder_from("VOLTA_HOME", ".volta") / "bin"
    yield folder_from("PNPM_HOME", ".local/share/pnpm")
    yield home / "Library/pnpm"
    yield folder_from("BUN_INSTALL", ".bun") / "bin"
    yield from _version_folders(folder_from("NVM_DIR", ".nvm") / "versions/node", "bin")
    for fnm in (
        folder_from("FNM_DIR", ".local/share/fnm"),
        home / "Library/Application Support/fnm",
        home / ".fnm",
    ):
        yield from _version_folders(fnm / "node-versions", "installation/bin")


def _version_folders(versions: PurePath, subfolder: str) -> list[PurePath]:
    try:
        names = sorted(os.listdir(versions), key=version_tuple, reverse=True)  # noqa: PTH208
    except OSError:
        return []
    return [versions / name / subfolder for name in names]


def version_tuple(version: str) -> tuple[int, ...]:
    """Return the release numbers of `v1.22.3` or `0.61.0-preview.1` for comparison."""
    release = version.removeprefix("v").partition("-")[0]
    return tuple(int(part) if part.isdecimal() else 0 for part in release.split("."))
