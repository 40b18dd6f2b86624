"""Find programs, and start them without a shell.

Only absolute folders are searched: Windows, and an empty entry in PATH, would otherwise find a
program in the current folder. Batch files are never run: cmd.exe would parse their arguments, in
which a prompt could contain a command. What npm and pnpm write as a batch file only starts Node
with a script, so that command is used instead (batch_files.py).
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

from gemini_cli_mcp.platforms.batch_files import BATCH_SUFFIXES, Shim, read_shim

WINDOWS_SUFFIXES = (".exe", ".com", ".cmd", ".bat")
"""Suffixes of programs on Windows, in the order of preference. Not all of PATHEXT can be run."""
SCRIPT_SUFFIXES = (".js", ".cjs", ".mjs")


class NotRunnable(Exception):
    """The file cannot be started without a shell; the message says why."""


def find_program(name: str, folders: Iterable[str], platform: str = sys.platform) -> Path | None:
    """Return the program of this name in the first folder that has it."""
    for folder in folders:
        for path in _candidates(Path(folder, name), platform):
            if _is_program(path, platform):
                return path
    return None


def add_suffix(path: Path, platform: str = sys.platform) -> Path:
    """Return the program that a path without its suffix stands for, as in a Windows shell."""
    return next((file for file in _candidates(path, platform) if os.path.isfile(file)), path)  # noqa: PTH113


def find_node(folders: Iterable[str], platform: str = sys.platform) -> Path | None:
    """Return the first Node in these folders: on Windows a program, never a batch file."""
    return find_program("node.exe" if platform == "win32" else "node", folders, platform)


def shim_target(path: Path) -> Path | None:
    """Return what a batch file of npm or pnpm starts; None if it is another file."""
    shim = read_shim(path)
    return shim.target if shim else None


def command_line(
    path: Path, folders: Iterable[str], platform: str = sys.platform
) -> tuple[str, ...]:
    """Return the command that starts this program; NotRunnable if it would need a shell."""
    shim = read_shim(path)
    if shim:
        return _shim_command(shim, [str(path.parent), *folders], platform)
    if path.suffix.lower() in BATCH_SUFFIXES:
        raise NotRunnable(
            "it is a batch file other than those that npm and pnpm write. Batch files are not run, "
            "because cmd.exe would interpret text in their arguments"
        )
    if platform == "win32" and path.suffix.lower() not in WINDOWS_SUFFIXES:
        raise NotRunnable("Windows cannot start a file of this type")
    return (str(path),)


def _shim_command(shim: Shim, folders: Iterable[str], platform: str) -> tuple[str, ...]:
    suffix = shim.target.suffix.lower()
    if not shim.runs_on_node and suffix == ".exe":
        return (str(shim.target),)
    if not shim.runs_on_node or suffix not in SCRIPT_SUFFIXES:
        raise NotRunnable(f"it starts {shim.target}, which is neither a program nor a Node script")
    node = shim.node or find_node(folders, platform)
    if node is None:
        raise NotRunnable(
            "it needs Node, which is neither on PATH nor in a common install location"
        )
    return (str(node), str(shim.target))


def max_argument_bytes(platform: str = sys.platform) -> int:
    """Return the maximum size of a text that can be passed as an argument, whatever it contains.

    A command line on Windows has 32,767 characters, and a quotation mark in it takes two of them.
    """
    return 15_000 if platform == "win32" else 100_000


def _candidates(path: Path, platform: str) -> list[Path]:
    if platform != "win32" or PureWindowsPath(path).suffix.lower() in WINDOWS_SUFFIXES:
        return [path]
    return [path.with_name(path.name + suffix) for suffix in WINDOWS_SUFFIXES]


def _is_program(path: Path, platform: str) -> bool:
    # Not Path.is_file(): it raises if the folder is not accessible.
    return os.path.isfile(path) and (platform == "win32" or os.access(path, os.X_OK))  # noqa: PTH113
