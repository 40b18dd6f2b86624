"""The private folder of a server: alone, swept after the dead, gone at the end."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gemini_cli_mcp.workspace import Workspace

HOLDER = """
import sys, time
from pathlib import Path
from gemini_cli_mcp.workspace import Workspace
workspace = Workspace(Path(sys.argv[1]))
with workspace.invalid_output("text") as path:
    print(path, flush=True)
    time.sleep(60)
"""


def test_nothing_is_created_before_it_is_needed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "config")
    workspace.close()

    assert list(tmp_path.iterdir()) == []


def test_folders_are_private_and_gone_at_the_end(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "config")
    folder = workspace.folder("a", "b")

    private = [folder, folder.parent, workspace.root(), tmp_path / "config/servers"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700}

    workspace.close()
    assert list((tmp_path / "config/servers").iterdir()) == []


def test_two_files_at_once_get_two_timestamps(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with workspace.invalid_output("one") as one, workspace.invalid_output("two") as two:
        assert one.name != two.name
        assert [path.read_text() for path in (one, two)] == ["one", "two"]
        assert list(one.parent.iterdir()) == [one]
    assert not one.parent.exists() and not two.parent.exists()
    workspace.close()


def test_the_file_is_deleted_whatever_happens(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(KeyError), workspace.invalid_output("text") as path:
        raise KeyError
    assert not path.exists()
    workspace.close()


def test_a_failed_deletion_is_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = Workspace(tmp_path)
    with workspace.invalid_output("text") as path:
        path.parent.rename(path.parent.with_name("elsewhere"))
        path.parent.write_text("not a folder any more")

    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert str(path) in record.getMessage()
    workspace.close()


def test_a_live_server_is_left_alone_and_a_dead_one_swept(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        path = Path(holder.stdout.readline().strip())
        assert Workspace(tmp_path).sweep() == 0
        assert path.read_text() == "text"
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()

    assert Workspace(tmp_path).sweep() == 1
    assert list((tmp_path / "servers").iterdir()) == []
