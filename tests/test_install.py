"""`install`: our entry in a client's file, and everything else in it as it was."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.cli import install as install_module
from gemini_cli_mcp.cli.install import BACKUP_SUFFIX, CLIENTS, SERVER_NAME, config_file
from gemini_cli_mcp.providers.gemini import binary
from tests.support import STUB, Stub
from tests.support.binaries import make_executable
from tests.support.cli import run_command

FILES = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
}
KEYS = {"vscode": "servers"}
clients = pytest.mark.parametrize("client", FILES)


def install(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(stub, "install", *arguments)


def entry(stub: Stub, client: str) -> dict[str, Any]:
    content = json.loads((stub.home / FILES[client]).read_text())
    return content[KEYS.get(client, "mcpServers")][SERVER_NAME]


@clients
def test_a_client_starts_us_by_what_was_written(stub: Stub, client: str) -> None:
    done = install(stub, client, "--env", "GEMINI_API_KEY=k-123456", "--env", "GEMINI_MODEL=m")

    written = entry(stub, client)
    assert done.returncode == 0
    assert Path(written["command"]).is_absolute()
    assert written["args"][-1] == "serve"
    assert written["env"] == {
        "GEMINI_MCP_CLI_PATH": str(STUB),
        "GEMINI_API_KEY": "k-123456",
        "GEMINI_MODEL": "m",
    }
    assert "k-123456" not in done.stdout + done.stderr
    assert (stub.home / FILES[client]).stat().st_mode & 0o077 == 0  # there is a key in it
    version = [written["command"], *written["args"][:-1], "--version"]
    subprocess.run(version, env={}, check=True, capture_output=True)  # no PATH at all


@clients
def test_everything_else_in_the_file_stays(stub: Stub, client: str) -> None:
    path = stub.home / FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    key = KEYS.get(client, "mcpServers")
    before = {"theme": "dunkel ☾", key: {"other": {"command": "x"}}, "last": [1, {"a": None}]}
    path.write_text(json.dumps(before))
    path.chmod(0o640)

    assert install(stub, client).returncode == 0
    after = json.loads(path.read_text())
    assert install(stub, client, "--uninstall").returncode == 0

    assert list(after) == list(before)
    assert {**after, key: {"other": {"command": "x"}}} == before
    assert json.loads(path.read_text()) == before
    assert path.stat().st_mode & 0o777 == 0o600  # a key may stand in it
    backup = Path(f"{path}{BACKUP_SUFFIX}")
    assert json.loads(backup.read_text()) == before  # of before the first of all
    assert backup.stat().st_mode & 0o777 == 0o600
    assert [left.name for left in path.parent.glob(f".{path.name}.*")] == []


@pytest.mark.parametrize(
    "content",
    [
        b'{"mcpServers": {',
        b'{"a": 1} // mine',
        b"[1]",
        b'{"mcpServers": [1]}',
        b'"text"',
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": 1e999}',
    ],
)
def test_a_file_that_is_no_json_is_left_as_it_is(stub: Stub, content: bytes) -> None:
    path = stub.home / FILES["cursor"]
    path.parent.mkdir()
    path.write_bytes(content)

    done = install(stub, "cursor")

    assert done.returncode == 1
    assert "CONFIG_ERROR" in done.stderr and str(path) in done.stderr and "--print" in done.stderr
    assert path.read_bytes() == content
    assert [left.name for left in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [b"", b"\xef\xbb\xbf{}\r\n", b'{"mcpServers": null}', b'{"servers": [1]}', b'{"a": "\\ud800"}'],
)
def test_a_file_that_is_odd_but_fine_is_taken(stub: Stub, content: bytes) -> None:
    path = stub.home / FILES["cursor"]
    path.parent.mkdir()
    path.write_bytes(content)

    assert install(stub, "cursor").returncode == 0
    assert entry(stub, "cursor")["args"][-1] == "serve"


def test_installing_again_keeps_what_was_chosen(stub: Stub) -> None:
    install(stub, "cursor", "--env", "GEMINI_API_KEY=k", "--env", "GEMINI_MODEL=m")
    path = stub.home / FILES["cursor"]
    content = json.loads(path.read_text())
    content["mcpServers"][SERVER_NAME]["timeout"] = 600
    path.write_text(json.dumps(content))

    again = install(stub, "cursor", "--env", "GEMINI_MODEL=other")

    assert "GEMINI_API_KEY" not in again.stderr  # it is there
    written = entry(stub, "cursor")
    assert written["timeout"] == 600
    assert (written["env"]["GEMINI_API_KEY"], written["env"]["GEMINI_MODEL"]) == ("k", "other")


def test_paths_do_not_depend_on_where_the_client_starts_us(stub: Stub) -> None:
    install(stub, "cursor", "--env", "GEMINI_MCP_CONFIG_DIR=here")

    assert entry(stub, "cursor")["env"]["GEMINI_MCP_CONFIG_DIR"] == str(Path("here").absolute())


@pytest.mark.parametrize("seen", [False, True])
def test_a_node_that_desktop_apps_do_not_see_comes_along(
    stub: Stub, mocker: MockerFixture, seen: bool
) -> None:
    """What they see differs from machine to machine, so theirs stands for it."""
    node, system = make_executable(stub.home / "somewhere/node"), stub.home / "system"
    gemini = make_executable(stub.home / "elsewhere/gemini")
    stub.environ |= {"PATH": str(node.parent), "GEMINI_MCP_CLI_PATH": str(gemini)}
    for module in (binary, install_module):
        mocker.patch.object(module, "DESKTOP_APP_PATH", str(system))
    if seen:
        make_executable(system / "node")

    install(stub, "cursor")

    path = entry(stub, "cursor")["env"].get("PATH")
    assert path == (None if seen else f"{node.parent}{os.pathsep}{system}")


def test_a_bad_variable_does_not_keep_us_in_the_file(stub: Stub) -> None:
    install(stub, "cursor")
    stub.environ["GEMINI_MCP_TIMEOUT"] = "soon"

    assert install(stub, "cursor", "--uninstall").returncode == 0
    assert install(stub, "cursor", "--uninstall", "--print").returncode == 2


def test_what_is_printed_is_what_would_be_written(stub: Stub) -> None:
    printed = install(stub, "vscode", "--print", "--env", "GEMINI_MODEL=m")
    assert not (stub.home / FILES["vscode"]).exists()
    install(stub, "vscode", "--env", "GEMINI_MODEL=m")

    assert json.loads(printed.stdout) == json.loads((stub.home / FILES["vscode"]).read_text())


def test_a_variable_is_taken_from_here_or_missed_aloud(stub: Stub) -> None:
    stub.environ["GEMINI_API_KEY"] = "from-here"

    taken = install(stub, "cursor", "--env", "GEMINI_API_KEY")
    missed = install(stub, "cursor", "--env", "GEMINI_MODEL")
    wrong = install(stub, "cursor", "--env", "GEMINI_MCP_TIMEOUT=soon")

    assert taken.returncode == 0
    assert entry(stub, "cursor")["env"]["GEMINI_API_KEY"] == "from-here"
    assert (missed.returncode, wrong.returncode) == (1, 1)
    assert "GEMINI_MODEL=VALUE" in missed.stderr
    assert "GEMINI_MCP_TIMEOUT='soon'" in wrong.stderr


def test_a_missing_key_and_cli_are_told(stub: Stub) -> None:
    stub.environ |= {"GEMINI_MCP_CLI_PATH": "no-such-gemini"}

    done = install(stub, "claude-desktop")

    assert done.returncode == 0
    assert "npm install -g @google/gemini-cli" in done.stderr
    assert "--env GEMINI_API_KEY" in done.stderr


def test_nothing_to_remove_changes_nothing(stub: Stub) -> None:
    done = install(stub, "cursor", "--uninstall")

    assert done.returncode == 0
    assert "nothing was changed" in done.stderr
    assert not (stub.home / FILES["cursor"]).exists()


def test_a_link_to_a_file_elsewhere_stays_one(stub: Stub) -> None:
    real = stub.home / "dotfiles.json"
    real.write_text("{}")
    path = stub.home / FILES["claude-code"]
    path.symlink_to(real)

    install(stub, "claude-code")

    assert path.is_symlink()
    assert SERVER_NAME in real.read_text()


def test_each_system_has_its_place() -> None:
    environ = {"HOME": "/home/me", "APPDATA": "/home/me/AppData/Roaming"}
    places = {
        platform: [str(config_file(client, environ, platform)) for client in CLIENTS.values()]
        for platform in ("darwin", "win32", "linux")
    }

    assert places["darwin"][0].endswith(
        "Library/Application Support/Claude/claude_desktop_config.json"
    )
    assert places["win32"] == [
        "/home/me/AppData/Roaming/Claude/claude_desktop_config.json",
        "/home/me/.claude.json",
        "/home/me/.cursor/mcp.json",
        "/home/me/AppData/Roaming/Code/User/mcp.json",
    ]
    assert places["linux"] == [f"/home/me/{file}" for file in FILES.values()]
