"""Batch files in which npm and pnpm wrap a program: read, so that they need not be run.

A file is recognized only as a whole. One line more or less could change what it does.
"""

import re
from dataclasses import dataclass
from pathlib import Path

BATCH_SUFFIXES = (".cmd", ".bat")

_NPM_START = r"""
echo off
goto start
:find_dp0
set dp0=%~dp0
exit /b
:start
setlocal
call :find_dp0
"""
_NPM_NODE = r"""
if exist "%dp0%\node.exe" (
set "_prog=%dp0%\node.exe"
) else (
set "_prog=node"
set pathext=%pathext:;.js;=;%
)
"""
_NPM_3_START = r"""
echo off
setlocal
call :find_dp0
"""
_NPM_3_END = r"""
endlocal
exit /b %errorlevel%
:find_dp0
set dp0=%~dp0
exit /b
"""
_NODE_FORMS = (
    _NPM_START
    + _NPM_NODE
    + r'endlocal & goto #_undefined_# 2>nul || title %comspec% & "%_prog%" "%dp0%\TARGET" %*',
    _NPM_3_START + _NPM_NODE + r'"%_prog%" "%dp0%\TARGET" %*' + _NPM_3_END,
    r"""
    if exist "%~dp0\node.exe" (
    "%~dp0\node.exe" "%~dp0\TARGET" %*
    ) else (
    setlocal
    set pathext=%pathext:;.js;=;%
    node "%~dp0\TARGET" %*
    )""",
    r"""
    setlocal
    if exist "%~dp0\node.exe" (
    "%~dp0\node.exe" "%~dp0\TARGET" %*
    ) else (
    set pathext=%pathext:;.js;=;%
    node "%~dp0\TARGET" %*
    )""",
    r"""
    setlocal
    "NODE" "%~dp0\TARGET" %*""",
)
"""Of npm since 7, of npm 6, of npm before that, of pnpm, and of pnpm with a Node of its own."""
_PROGRAM_FORMS = (
    _NPM_START + r'"%dp0%\TARGET" %*',
    _NPM_3_START + r'"%dp0%\TARGET" %*' + _NPM_3_END,
    r'"%~dp0\TARGET" %*',
    r"""
    setlocal
    "%~dp0\TARGET" %*""",
)
"""The same for programs that do not need Node."""
_NODE_PATH = re.compile(
    r'(?<=^setlocal\n)if not defined node_path \(\nset "node_path=[^"\n]*"\n'
    r'\) else \(\nset "node_path=[^"\n]*"\n\)\n',
    re.IGNORECASE,
)
"""Written by pnpm: where scripts find packages that they did not install."""
_CONTROL_CHARACTERS = re.compile(r"[^\n\x20-\x7e\x80-\U0010ffff]")


@dataclass(frozen=True)
class Shim:
    """What a batch file starts."""

    target: Path
    runs_on_node: bool
    node: Path | None
    """The Node that it names; None if it uses any."""


def read_shim(path: Path) -> Shim | None:
    """Return what a batch file of npm or pnpm starts; None if it is another file."""
    if path.suffix.lower() not in BATCH_SUFFIXES:
        return None
    try:
        text = path.read_bytes().decode(errors="replace").replace("\r\n", "\n")
    except OSError:
        return None
    if _CONTROL_CHARACTERS.search(text):
        return None
    text = _NODE_PATH.sub("", _normalize(text))
    for pattern, runs_on_node in _PATTERNS:
        if match := pattern.fullmatch(text):
            groups: dict[str, str | None] = match.groupdict()
            target = path.parent / str(groups["target"]).replace("\\", "/")
            node = groups.get("node")
            return Shim(target, runs_on_node, Path(node) if node else None)
    return None


def _normalize(text: str) -> str:
    """Return the lines without indentation, `@`, blank lines and repeated blanks."""
    blanks = " \t"
    lines = (line.strip(blanks).removeprefix("@").strip(blanks) for line in text.split("\n"))
    return "\n".join(re.sub(" +", " ", line) for line in lines if line)


def _compile(form: str) -> re.Pattern[str]:
    pattern = re.escape(_normalize(form))
    pattern = pattern.replace("TARGET", r'(?P<target>[^"%:\n]+)', 1)
    pattern = pattern.replace("TARGET", "(?P=target)")
    pattern = pattern.replace("NODE", r'(?P<node>[a-z]:\\[^"%:\n]+\\node\.exe)')
    return re.compile(pattern, re.IGNORECASE)


_PATTERNS = [
    *((_compile(form), True) for form in _NODE_FORMS),
    *((_compile(form), False) for form in _PROGRAM_FORMS),
]
