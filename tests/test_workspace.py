"""The private folder of a server: exclusive, removed on close, cleaned up after a crash."""

import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.workspace import LOCK_CONTENT, LOCK_FILE, Workspace
from tests.support import Stub, command, wait_until
from tests.support.matrix import needs_posix

HOLDER = """
import sys, time
from pathlib import Path
from gemini_cli_mcp.workspace import Workspace
workspace = Workspace(Path(sys.argv[1]))
with workspace.invalid_output_file("text") as path:
    print(path, flush=True)
    time.sleep(60)
"""


def test_nothing_is_created_before_first_use(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "config")
    workspace.close()

    assert list(tmp_path.iterdir()) == []


@needs_posix
def test_folders_are_private_and_removed_on_close(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "config")
    folder = workspace.folder("a", "b")

    private = [folder, folder.parent, workspace.root(), tmp_path / "config/servers"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700}

    workspace.close()
    assert list((tmp_path / "config/servers").iterdir()) == []


def test_threads_share_one_folder(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    barrier = threading.Barrier(16)

    def first_use() -> Path:
        barrier.wait()
        return workspace.folder("home")

    with ThreadPoolExecutor(16) as threads:
        folders = {future.result() for future in [threads.submit(first_use) for _ in range(16)]}
    workspace.close()

    assert len(folders) == 1
    assert list((tmp_path / "servers").iterdir()) == []


def test_concurrent_files_get_different_timestamps(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with workspace.invalid_output_file("one") as one, workspace.invalid_output_file("two") as two:
        assert one.name != two.name
        assert [path.read_text() for path in (one, two)] == ["one", "two"]
        assert list(one.parent.iterdir()) == [one]
    assert not one.parent.exists() and not two.parent.exists()
    workspace.close()


def test_the_file_is_deleted_after_an_exception(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(KeyError), workspace.invalid_output_file("text") as path:
        raise KeyError
    assert not path.exists()
    workspace.close()


def test_a_failed_deletion_is_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = Workspace(tmp_path)
    with workspace.invalid_output_file("text") as path:
        path.parent.rename(path.parent.with_name("elsewhere"))
        path.parent.write_text("not a folder any more")

    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert str(path) in record.getMessage()
    workspace.close()


@needs_posix
def test_only_folders_of_exited_servers_are_removed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        path = Path(holder.stdout.readline().strip())
        assert Workspace(tmp_path).remove_stale() == 0
        assert path.read_text() == "text"
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()

    assert Workspace(tmp_path).remove_stale() == 1
    assert list((tmp_path / "servers").iterdir()) == []


COMMANDS = [
    ("search", "why"),
    ("deep-search", "why", "--max-iterations", "2"),
    ("grounded-search", "why"),
    ("web-search", "why"),
    ("doctor",),
    ("serve",),
    ("serve", "--http", "--port", "0"),
    ("gateway", "--port", "0"),
]
ID = "0123456789abcdef"


def create_unrelated_folders(servers: Path) -> None:
    """Create folders that a user may have there, some of which resemble ours."""
    (servers / "prod").mkdir(parents=True)
    (servers / "prod/inventory.yml").write_text("hosts: [a]")
    (servers / "prod" / LOCK_FILE).write_bytes(LOCK_CONTENT)  # the name is not a generated id
    (servers / "documents").mkdir()
    (servers / ID).mkdir()
    (servers / ID / "thesis.txt").write_text("no lock here")
    (servers / ID.replace("0", "1")).mkdir()
    (servers / ID.replace("0", "1") / LOCK_FILE).write_text("somebody else's lock")
    (servers / ID.replace("0", "2")).mkdir()
    (servers / ID.replace("0", "2") / LOCK_FILE).symlink_to(servers / "prod" / LOCK_FILE)
    (servers / ID.replace("0", "3")).symlink_to(servers / "prod")
    (servers / ID.replace("0", "4")).write_text("a file")
    (servers / ID.replace("0", "5")).mkdir()
    (servers / ID.replace("0", "5") / LOCK_FILE).mkdir()


def snapshot(folder: Path) -> dict[str, str]:
    """Return the names, types, modes and contents of everything below a folder."""
    return {
        str(path.relative_to(folder)): f"{oct(path.lstat().st_mode)} "
        + (path.read_text() if path.is_file() else "")
        for path in folder.rglob("*")
    }


def run_until_exit(stub: Stub, *arguments: str) -> str:
    """Run a command until it exits, terminating servers, and return its stderr."""
    stub.environ |= {"GEMINI_MCP_UPSTREAM_URL": "http://127.0.0.1:9/v1", "GEMINI_MCP_WARM": "0"}
    log = stub.home / "stderr"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command(*arguments),
            env=stub.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    if "--port" in arguments:
        wait_until(lambda: "http://" in log.read_text() or process.poll() is not None)
        process.terminate()
    process.wait(60)
    return log.read_text()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("layout", ["folders", "link"])
@needs_posix
def test_unrelated_folders_are_unchanged(
    stub: Stub, tmp_path: Path, arguments: tuple[str, ...], layout: str
) -> None:
    servers = stub.config_dir / "servers"
    if layout == "link":
        target = tmp_path / "somebodys home"
        create_unrelated_folders(target)
        stub.config_dir.mkdir()
        servers.symlink_to(target)
    else:
        create_unrelated_folders(servers)
    before = snapshot(stub.config_dir), snapshot(servers.resolve())

    stderr = run_until_exit(stub, *arguments)

    assert (snapshot(stub.config_dir), snapshot(servers.resolve())) == before
    assert "Traceback" not in stderr


@needs_posix
def test_a_symlinked_servers_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "servers").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="servers is a link or a file"):
        Workspace(tmp_path).root()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@needs_posix
def test_an_existing_folder_keeps_its_mode_and_a_warning_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config_dir = tmp_path / "config"
    config_dir.mkdir(mode=0o755)

    workspace = Workspace(config_dir)
    workspace.root()
    workspace.close()

    assert stat.S_IMODE(config_dir.stat().st_mode) == 0o755
    assert f"Other users can access {config_dir};" in caplog.text


def test_a_stale_folder_is_removed_but_not_one_being_created(
    tmp_path: Path,
) -> None:
    stale, new = tmp_path / "servers" / ID, tmp_path / "servers" / ID.replace("0", "1")
    for folder, content in ((stale, LOCK_CONTENT), (new, b"")):
        folder.mkdir(parents=True)
        (folder / LOCK_FILE).write_bytes(content)

    assert Workspace(tmp_path).stale_folders() == [stale]
    Workspace(tmp_path).remove_stale()

    assert [path.name for path in (tmp_path / "servers").iterdir()] == [new.name]
