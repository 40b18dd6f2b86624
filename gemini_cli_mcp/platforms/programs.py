"""Find programs, and start them without a shell.

Only absolute folders are searched: Windows, and an empty entry in PATH, would otherwise find a
program in the current folder. Batch files are never run: cmd.exe would parse their arguments, in
which a prompt could contain a command. What npm and pnpm write as a batch file only starts Node
with a script, so that command is used instead.
"""

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

WINDOWS_SUFFIXES = (".exe", ".com", ".cmd", ".bat")
"""Suffixes of programs on Windows, in the order of preference. Not all of PATHEXT can be run."""
BATCH_SUFFIXES = (".cmd", ".bat")
SCRIPT_SUFFIXES = (".js", ".cjs", ".mjs")

_SHIM_LINE = re.compile(
    r"""@? (?: echo\ off | goto\ start | :\w+ | exit\ /b | setlocal | call\ :find_dp0
    | set\ "?(?:dp0|_prog|pathext|node_path)=[^&|]* | if\ (?:not\ )?(?:exist|defined)\ [^&|]*\(
    | \)\ ?else\ \( | \) )?""",
    re.IGNORECASE | re.VERBOSE,
)
_SHIM_COMMAND = re.compile(
    r"""@? (?: endlocal\ &\ goto\ \#_undefined_\#\ 2>NUL\ \|\|\ title\ %COMSPEC%\ &\ )?
    (?: (?: "%_prog%" | "%(?:dp0%|~dp0)\\node\.exe" | node(?:\.exe)? ) \s+ )?
    "(%(?:dp0%|~dp0)\\?)?([^"%]+)" \s+ %\*""",
    re.IGNORECASE | re.VERBOSE,
)
"""Starts a script or program, which may be named from the batch file's own folder."""


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


def shim_target(path: Path) -> Path | None:
    """Return what a batch file of npm or pnpm starts; None if it is another file."""
    if path.suffix.lower() not in BATCH_SUFFIXES:
        return None
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    rest = [line.strip() for line in lines if not _SHIM_LINE.fullmatch(line.strip())]
    matches = [_SHIM_COMMAND.fullmatch(line) for line in rest]
    targets = {(match[1] is not None, match[2]) if match else None for match in matches}
    if len(targets) != 1 or (found := targets.pop()) is None:
        return None  # it does something else, which we would leave out
    is_relative, name = found
    parts = name.replace("\\", "/")
    return path.parent / parts if is_relative else Path(parts)


def command_line(
    path: Path, folders: Iterable[str], platform: str = sys.platform
) -> tuple[str, ...]:
    """Return the command that starts this program; NotRunnable if it would need a shell."""
    target = shim_target(path)
    if target is None:
        if path.suffix.lower() in BATCH_SUFFIXES:
            raise NotRunnable(
                "it is a batch file that does more than start a Node script. Batch files are not "
                "run, because cmd.exe would interpret text in their arguments"
            )
        if platform == "win32" and path.suffix.lower() not in WINDOWS_SUFFIXES:
            raise NotRunnable("Windows cannot start a file of this type")
        return (str(path),)
    if target.suffix.lower() == ".exe":
        return (str(target),)
    if target.suffix.lower() not in SCRIPT_SUFFIXES:
        raise NotRunnable(f"it starts {target}, which is not a Node script")
    sibling = path.with_name("node.exe")
    node = sibling if sibling.exists() else find_program("node", folders, platform)
    if node is None:
        raise NotRunnable(
            "it needs Node, which is neither on PATH nor in a common install location"
        )
    return (str(node), str(target))


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
