"""What differs between platforms, as far as it can be shown on any of them."""

import io
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

import anyio
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.cli.install.clients import CLIENTS
from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.platforms import files, folders, programs, streams
from gemini_cli_mcp.platforms.programs import NotRunnable, command_line, find_program
from gemini_cli_mcp.platforms.stop_signals import receive_stop_signals
from gemini_cli_mcp.process.foreground import run_in_foreground
from gemini_cli_mcp.providers.antigravity.binary import find_agy, is_editor_launcher
from gemini_cli_mcp.providers.child_environment import allowed_variables, system_variables
from gemini_cli_mcp.providers.gemini.session_record import read_and_delete_record
from gemini_cli_mcp.providers.gemini.sign_in_files import SignInFiles
from tests.support.binaries import make_executable
from tests.support.matrix import needs_posix

PROFILE = r"C:\Users\Ann & 山田"
WINDOWS_ENVIRON = {
    "HOME": r"C:\msys64\home\ann",
    "USERPROFILE": PROFILE,
    "APPDATA": PROFILE + r"\AppData\Roaming",
    "LOCALAPPDATA": PROFILE + r"\AppData\Local",
}


# Folders


def test_windows_has_the_home_that_node_sees() -> None:
    assert str(folders.home_folder(WINDOWS_ENVIRON, "win32")) == PROFILE
    environ = {"HOME": "/home/me", "USERPROFILE": "x"}
    assert folders.home_folder(environ, "darwin") == Path("/home/me")


@pytest.mark.parametrize(
    ("platform", "path", "expected"),
    [
        (
            "win32",
            r'C:\a;"D:\b;c";;.;bin;\rooted;C:relative;%X%;"E:\d"\e',
            [r"C:\a", r"D:\b;c", r"E:\d\e"],
        ),
        ("win32", r'"C:\unclosed;C:\a', [r"C:\unclosed", r"C:\a"]),
        ("win32", "", []),
        ("linux", "/usr/bin::.:bin:/b;c", ["/usr/bin", "/b;c"]),
    ],
)
def test_only_absolute_folders_of_path_are_searched(
    platform: str, path: str, expected: list[str]
) -> None:
    assert folders.path_folders(path, platform) == expected


def test_a_path_can_have_folders_with_semicolons() -> None:
    path = folders.join_path([r"D:\b;c", r"C:\a"], "win32")

    assert path == r'"D:\b;c";C:\a'
    assert folders.path_folders(path, "win32") == [r"D:\b;c", r"C:\a"]


def test_programs_are_searched_where_windows_installers_put_them() -> None:
    found = list(folders.install_folders(WINDOWS_ENVIRON, "win32"))

    assert {
        PROFILE + r"\AppData\Roaming\npm",
        r"C:\Program Files\nodejs",
        PROFILE + r"\AppData\Local\Volta\bin",
        PROFILE + r"\AppData\Local\pnpm",
        PROFILE + r"\scoop\shims",
        PROFILE + r"\AppData\Local\Microsoft\WinGet\Links",
        r"C:\ProgramData\chocolatey\bin",
    } <= set(found)
    assert all(PureWindowsPath(folder).is_absolute() for folder in found)


@needs_posix
def test_the_versions_of_fnm_and_nvm_are_found_newest_first(tmp_path: Path) -> None:
    for version in ("v9.1.0", "v22.3.0", "v20.0.0"):
        (tmp_path / "node-versions" / version).mkdir(parents=True)
    environ = {"HOME": "/home/me", "FNM_DIR": str(tmp_path)}

    found = [folder for folder in folders.install_folders(environ, "linux") if "node-v" in folder]

    assert [PurePosixPath(folder).parts[-3] for folder in found] == ["v22.3.0", "v20.0.0", "v9.1.0"]


def test_a_desktop_app_has_the_path_of_the_user_on_windows() -> None:
    environ = WINDOWS_ENVIRON | {"PATH": r"C:\Windows\System32"}

    assert folders.desktop_app_environ(environ, "win32") == environ
    assert folders.desktop_app_environ({"PATH": "/mine", "HOME": "/h"}, "darwin") == {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/h",
    }


def test_the_store_version_of_claude_desktop_gets_an_entry_too(tmp_path: Path) -> None:
    package = tmp_path / "Packages/Claude_pzs8sxrjxfjjc"
    package.mkdir(parents=True)
    environ = {"APPDATA": str(tmp_path / "Roaming"), "LOCALAPPDATA": str(tmp_path)}
    name = "Claude/claude_desktop_config.json"

    assert CLIENTS["claude-desktop"].user_files(environ, "win32") == [
        tmp_path / "Roaming" / name,
        package / "LocalCache/Roaming" / name,
    ]
    assert len(CLIENTS["claude-desktop"].user_files(environ, "darwin")) == 1
    assert len(CLIENTS["cursor"].user_files(environ, "win32")) == 1


# Programs


def test_windows_prefers_programs_to_batch_files_and_ignores_scripts(tmp_path: Path) -> None:
    for name in ("gemini", "gemini.ps1", "gemini.js", "gemini.cmd"):
        make_executable(tmp_path / name)

    assert find_program("gemini", [str(tmp_path)], "win32") == tmp_path / "gemini.cmd"
    make_executable(tmp_path / "gemini.exe")
    assert find_program("gemini", [str(tmp_path)], "win32") == tmp_path / "gemini.exe"
    assert find_program("gemini.cmd", [str(tmp_path)], "win32") == tmp_path / "gemini.cmd"
    assert find_program("gemini", [str(tmp_path)], "linux") == tmp_path / "gemini"
    assert find_program("other", [str(tmp_path)], "win32") is None


def test_a_program_in_the_current_folder_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("agy", "gemini", "node"):
        make_executable(tmp_path / name)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(CliNotFound):
        find_agy("agy", {"PATH": ":.", "HOME": str(tmp_path / "home")})


NPM_SHIM = r"""@ECHO off
GOTO start
:find_dp0
SET dp0=%~dp0
EXIT /b
:start
SETLOCAL
CALL :find_dp0

IF EXIST "%dp0%\node.exe" (
  SET "_prog=%dp0%\node.exe"
) ELSE (
  SET "_prog=node"
  SET PATHEXT=%PATHEXT:;.JS;=;%
)

endLocal & goto #_undefined_# 2>NUL || title %COMSPEC% & "%_prog%"  "%dp0%\lib\cli.js" %*
"""
SCRIPT_SHIMS = {
    "npm": NPM_SHIM,
    "npm 6": r"""@ECHO off
SETLOCAL
CALL :find_dp0

IF EXIST "%dp0%\node.exe" (
  SET "_prog=%dp0%\node.exe"
) ELSE (
  SET "_prog=node"
  SET PATHEXT=%PATHEXT:;.JS;=;%
)

"%_prog%"  "%dp0%\lib\cli.js" %*
ENDLOCAL
EXIT /b %errorlevel%
:find_dp0
SET dp0=%~dp0
EXIT /b
""",
    "older npm": r"""@IF EXIST "%~dp0\node.exe" (
  "%~dp0\node.exe"  "%~dp0\lib\cli.js" %*
) ELSE (
  @SETLOCAL
  @SET PATHEXT=%PATHEXT:;.JS;=;%
  node  "%~dp0\lib\cli.js" %*
)""",
    "pnpm": r"""@SETLOCAL
@IF NOT DEFINED NODE_PATH (
  @SET "NODE_PATH=C:\R&D\pnpm\node_modules"
) ELSE (
  @SET "NODE_PATH=C:\R&D\pnpm\node_modules;%NODE_PATH%"
)
@IF EXIST "%~dp0\node.exe" (
  "%~dp0\node.exe"  "%~dp0\lib\cli.js" %*
) ELSE (
  @SET PATHEXT=%PATHEXT:;.JS;=;%
  node  "%~dp0\lib\cli.js" %*
)
""",
}
PNPM_OWN_NODE_SHIM = r"""@SETLOCAL
@"C:\Program Files\pnpm\node.exe"  "%~dp0\lib\cli.js" %*
"""


@pytest.mark.parametrize("writer", SCRIPT_SHIMS)
def test_the_batch_files_of_package_managers_are_replaced_by_node(
    tmp_path: Path, writer: str
) -> None:
    path, node = tmp_path / "cli.cmd", make_executable(tmp_path / "node/node.exe")
    path.write_bytes(SCRIPT_SHIMS[writer].replace("\n", "\r\n").encode())
    make_executable(node.with_suffix(".cmd"))

    command = command_line(path, [str(node.parent)], "win32")

    assert command == (str(node), str(tmp_path / "lib/cli.js"))


def test_a_batch_file_may_name_its_node(tmp_path: Path) -> None:
    path = tmp_path / "cli.cmd"
    path.write_text(PNPM_OWN_NODE_SHIM)

    command = command_line(path, [], "win32")

    assert PureWindowsPath(command[0]) == PureWindowsPath("C:/Program Files/pnpm/node.exe")


@pytest.mark.parametrize("name", ["node.cmd", "node.bat", "node.com", "node"])
def test_node_is_never_a_batch_file(tmp_path: Path, name: str) -> None:
    """Version managers write such files. cmd.exe would get the prompt as an argument."""
    path = tmp_path / "cli.cmd"
    path.write_text(NPM_SHIM)
    make_executable(tmp_path / "node" / name)

    with pytest.raises(NotRunnable, match="needs Node"):
        command_line(path, [str(tmp_path / "node")], "win32")


@pytest.mark.parametrize(
    "text",
    [
        NPM_SHIM + "calc.exe\n",
        "calc.exe\n" + NPM_SHIM,
        NPM_SHIM.replace("%*", "%* --yolo"),
        NPM_SHIM.replace("%*", "& calc.exe %*"),
        NPM_SHIM.replace("SETLOCAL", "SETLOCAL & calc.exe"),
        NPM_SHIM.replace("SET dp0=%~dp0", "SET dp0=C:\\other"),
        NPM_SHIM.replace('dp0%\\node.exe"\n', 'dp0%\\sandbox.exe"\n'),
        NPM_SHIM.replace('"%_prog%"', '"%_prog%" --require ./other.js'),
        NPM_SHIM.replace("title %COMSPEC%", "calc.exe"),
        NPM_SHIM.replace("GOTO start\n", ""),
        NPM_SHIM.replace("GOTO start", "EXIT /b"),
        NPM_SHIM.replace("lib\\cli.js", "C:\\other\\cli.js"),
        NPM_SHIM.replace("SETLOCAL", "SETLOCAL\x0c"),
        NPM_SHIM.replace("cli.js", "cli\0.js"),
        SCRIPT_SHIMS["pnpm"].replace("node  ", "calc  "),
        SCRIPT_SHIMS["pnpm"].replace('lib\\cli.js" %*\n)', 'lib\\other.js" %*\n)', 1),
        SCRIPT_SHIMS["pnpm"].replace("NOT DEFINED NODE_PATH (", "DEFINED X call x.bat ("),
        '@"%~dp0\\wrapper.cmd" %*',
        *(f'@"{name}" %*' for name in ("agy.exe", ".\\agy.exe", "C:agy.exe", "\\agy.exe")),
        '@node "cli.js" %*',
        '@SETLOCAL\n@"node.exe" "%~dp0\\lib\\cli.js" %*',
        "",
    ],
)
def test_a_batch_file_that_does_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    """Not run through cmd.exe, which would interpret the prompt, and not replaced in part."""
    path, node = tmp_path / "cli.cmd", make_executable(tmp_path / "node.exe")
    path.write_bytes(text.encode())
    assert text not in SCRIPT_SHIMS.values()

    with pytest.raises(NotRunnable):
        command_line(path, [str(node.parent)], "win32")


def test_a_batch_file_may_start_a_program_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "agy.cmd"
    path.write_text('@SETLOCAL\n@"%~dp0\\bin\\agy.exe"   %*\n')

    assert command_line(path, [], "win32") == (str(tmp_path / "bin/agy.exe"),)


def test_a_batch_file_is_refused_for_agy_too(tmp_path: Path) -> None:
    """It would get the prompt as an argument."""
    path = make_executable(tmp_path / "agy.cmd")

    with pytest.raises(CliNotFound, match="batch file"):
        find_agy(str(path), {"PATH": ""})


def test_node_has_an_absolute_path_or_the_cli_is_refused(tmp_path: Path) -> None:
    """Windows would look for a bare `node` in the current folder first."""
    path = tmp_path / "cli.cmd"
    path.write_text(NPM_SHIM)

    with pytest.raises(NotRunnable, match="needs Node"):
        command_line(path, [], "win32")


@pytest.mark.parametrize("name", ["gemini.ps1", "gemini.js", "gemini"])
def test_what_windows_cannot_start_is_refused(tmp_path: Path, name: str) -> None:
    path = make_executable(tmp_path / name)

    with pytest.raises(NotRunnable, match="cannot start a file of this type"):
        command_line(path, [], "win32")


def test_an_argument_fits_into_a_command_line_of_windows() -> None:
    worst_argument = '"' * programs.max_argument_bytes("win32")

    assert len(subprocess.list2cmdline([worst_argument])) < 32_000
    assert programs.max_argument_bytes("linux") > programs.max_argument_bytes("win32")


@pytest.mark.parametrize(
    "path",
    [
        PureWindowsPath(
            r"C:\Users\me\AppData\Local\Programs\Antigravity\resources\app\bin\agy.cmd"
        ),
        PureWindowsPath(r"C:\Users\me\.antigravity\antigravity\bin\agy.exe"),
        PurePosixPath("/Applications/Antigravity.app/Contents/MacOS/agy"),
    ],
)
def test_the_launcher_of_the_editor_is_recognized(path: PurePosixPath | PureWindowsPath) -> None:
    assert is_editor_launcher(path)


def test_every_program_gets_what_windows_needs_to_start_it() -> None:
    environ = {"SystemRoot": r"C:\Windows", "PATHEXT": ".EXE", "SECRET": "x"}

    assert system_variables(environ) == {"SystemRoot": r"C:\Windows", "PATHEXT": ".EXE"}
    assert set(allowed_variables(environ, ())) == {"SystemRoot", "PATHEXT"}


# Files


def sharing_violation(code: int) -> OSError:
    error = PermissionError(13, "The process cannot access the file")
    error.winerror = code  # type: ignore[attr-defined]
    return error


def replace_by_itself(path: Path) -> None:
    files.replace(path, path)


@pytest.mark.parametrize("code", [5, 32, 33])
@pytest.mark.parametrize(
    ("method", "operation"),
    [
        ("pathlib.Path.replace", replace_by_itself),
        ("pathlib.Path.unlink", files.delete),
        ("shutil.rmtree", files.delete_folder),
    ],
)
def test_a_file_that_is_in_use_for_a_moment_is_tried_again(
    tmp_path: Path, mocker: MockerFixture, code: int, method: str, operation: Callable[[Path], None]
) -> None:
    error = sharing_violation(code)
    sleep = mocker.patch("time.sleep")
    call = mocker.patch(method, side_effect=[error, error, None])

    operation(tmp_path / "file")

    assert call.call_count == 3 and sleep.call_count == 2


def test_a_file_that_stays_in_use_is_an_error_after_half_a_second(
    tmp_path: Path, mocker: MockerFixture
) -> None:
    sleep = mocker.patch("time.sleep")
    mocker.patch("pathlib.Path.unlink", side_effect=sharing_violation(32))

    with pytest.raises(PermissionError):
        files.delete(tmp_path / "file")

    assert 0.4 < sum(call.args[0] for call in sleep.call_args_list) < 1


def test_other_errors_are_not_tried_again(tmp_path: Path, mocker: MockerFixture) -> None:
    unlink = mocker.patch("pathlib.Path.unlink", side_effect=PermissionError(13, "denied"))

    with pytest.raises(PermissionError):
        files.delete(tmp_path / "file")

    assert unlink.call_count == 1


def test_a_record_that_cannot_be_deleted_is_still_read(
    tmp_path: Path, mocker: MockerFixture
) -> None:
    chats = tmp_path / ".gemini/tmp/x/chats"
    chats.mkdir(parents=True)
    (chats / "session-2026-abcdefgh.jsonl").write_text('{"type":"user","content":"x"}\n')
    mocker.patch("pathlib.Path.unlink", side_effect=PermissionError(13, "in use"))

    assert read_and_delete_record(tmp_path, "abcdefgh-1") is not None


def test_sign_in_files_are_hard_links_on_windows(tmp_path: Path) -> None:
    """Symbolic links need a privilege there, or Developer Mode."""
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=k")

    assert files.link_or_copy(original, path, "win32") is False

    assert path.samefile(original) and not path.is_symlink()


@pytest.fixture
def no_links(mocker: MockerFixture) -> None:
    """A configuration folder on another disk of a Windows."""
    mocker.patch("pathlib.Path.hardlink_to", side_effect=OSError(18, "another disk"))
    mocker.patch.object(files, "link_or_copy", partial(files.link_or_copy, platform="win32"))


@pytest.mark.usefixtures("no_links")
def test_a_copy_of_a_sign_in_file_is_deleted_after_its_last_use(tmp_path: Path) -> None:
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=k")

    first, second = SignInFiles({path: original}), SignInFiles({path: original})
    assert path.read_text() == "GEMINI_API_KEY=k" and not path.samefile(original)
    first.release()
    first.release()
    assert path.exists()
    second.release()

    assert not path.exists() and original.exists()


@pytest.mark.usefixtures("no_links")
def test_a_process_that_cannot_get_all_files_keeps_no_copy(tmp_path: Path) -> None:
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=k")

    with pytest.raises(FileNotFoundError):
        SignInFiles({path: original, tmp_path / "login": tmp_path / "missing"})

    assert list(tmp_path.iterdir()) == [original]


@pytest.mark.usefixtures("no_links")
def test_a_copy_that_the_cli_deleted_is_made_again(tmp_path: Path) -> None:
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=k")
    first = SignInFiles({path: original})
    path.unlink()

    second = SignInFiles({path: original})

    assert path.exists()
    first.release()
    second.release()


@pytest.mark.usefixtures("no_links")
def test_the_end_of_a_copy_leaves_a_later_empty_file(tmp_path: Path) -> None:
    """It keeps the CLI from the user's own file."""
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=k")
    first = SignInFiles({path: original})

    SignInFiles({path: None})
    first.release()

    assert path.read_bytes() == b""


def test_a_read_only_sign_in_file_is_copied_on_windows(tmp_path: Path) -> None:
    """A link to it could not be deleted there."""
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=k")
    original.chmod(0o400)

    assert files.link_or_copy(original, path, "win32")

    assert path.stat().st_mode & 0o200 and path.stat().st_mtime_ns == original.stat().st_mtime_ns


@pytest.mark.usefixtures("no_links")
def test_a_changed_sign_in_file_is_copied_again(tmp_path: Path) -> None:
    original, path = tmp_path / "user.env", tmp_path / "ours.env"
    original.write_text("GEMINI_API_KEY=old")
    first = SignInFiles({path: original})
    original.write_text("GEMINI_API_KEY=newer")

    second = SignInFiles({path: original})

    assert path.read_text() == "GEMINI_API_KEY=newer"
    first.release()
    second.release()
    assert not path.exists()


# Streams, sockets and the terminal


def test_pipes_get_utf_8_on_windows(mocker: MockerFixture) -> None:
    buffer = io.BytesIO()
    mocker.patch.object(sys, "stdout", io.TextIOWrapper(buffer, "cp1252", write_through=True))
    mocker.patch.object(sys, "stderr", None)

    streams.use_utf8_in_pipes({}, "win32")
    sys.stdout.write("你好 → naïve")

    assert buffer.getvalue().decode() == "你好 → naïve"


@pytest.mark.parametrize(
    ("environ", "platform"), [({"PYTHONIOENCODING": "x"}, "win32"), ({}, "linux")]
)
def test_a_chosen_encoding_is_kept(
    mocker: MockerFixture, environ: dict[str, str], platform: str
) -> None:
    stdout = mocker.patch.object(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "cp932"))

    streams.use_utf8_in_pipes(environ, platform)

    assert stdout.encoding == "cp932"


@needs_posix
def test_a_closed_pipe_is_noticed_although_macos_says_only_what_is_asked_for(
    mocker: MockerFixture,
) -> None:
    poll = mocker.patch("select.poll").return_value

    def events(timeout: int) -> list[tuple[int, int]]:
        return [(7, select.POLLHUP & poll.register.call_args.args[1])]

    poll.poll.side_effect = events

    assert streams.is_closed(7)


def test_a_closed_pipe_is_recognized_on_windows() -> None:
    assert streams.is_broken_pipe(OSError(22, "Invalid argument"), "win32")
    assert streams.is_broken_pipe(BrokenPipeError(), "linux")
    assert not streams.is_broken_pipe(OSError(22, "Invalid argument"), "linux")
    invalid_name = sharing_violation(123)
    invalid_name.errno = 22
    assert not streams.is_broken_pipe(invalid_name, "win32")
    assert not streams.is_broken_pipe(OSError(28, "No space left"), "win32")


@needs_posix
async def test_a_stop_signal_that_another_thread_handles_is_noticed() -> None:
    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with receive_stop_signals() as signals, anyio.move_on_after(10) as scope:
        threading.Timer(0.1, send).start()
        assert await anext(signals) == signal.SIGTERM

    assert not scope.cancel_called  # it did not have to wait until the event loop woke up anyway


def test_windows_waits_for_a_program_in_the_foreground(mocker: MockerFixture) -> None:
    """Nothing can take the place of a process there."""
    mocker.patch.object(sys, "platform", "win32")

    code = run_in_foreground([sys.executable, "-c", "import sys; sys.exit(3)"], os.environ)

    assert code == 3
