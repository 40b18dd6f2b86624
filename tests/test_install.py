"""`install` writes our entry to a client's configuration and preserves everything else."""

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

CONFIG_FILES = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
}
SERVERS_KEYS = {"vscode": "servers"}
every_client = pytest.mark.parametrize("client", CONFIG_FILES)


def install(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(stub, "install", *arguments)


def read_entry(stub: Stub, client: str) -> dict[str, Any]:
    content = json.loads((stub.home / CONFIG_FILES[client]).read_text())
    return content[SERVERS_KEYS.get(client, "mcpServers")][SERVER_NAME]


@every_client
def test_the_written_entry_starts_the_server(stub: Stub, client: str) -> None:
    completed = install(stub, client, "--env", "GEMINI_API_KEY=k-123456", "--env", "GEMINI_MODEL=m")

    entry = read_entry(stub, client)
    assert completed.returncode == 0
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-1] == "serve"
    assert entry["env"] == {
        "GEMINI_MCP_CLI_PATH": str(STUB),
        "GEMINI_API_KEY": "k-123456",
        "GEMINI_MODEL": "m",
    }
    assert "k-123456" not in completed.stdout + completed.stderr
    assert (stub.home / CONFIG_FILES[client]).stat().st_mode & 0o077 == 0  # it contains a key
    version_command = [entry["command"], *entry["args"][:-1], "--version"]
    subprocess.run(version_command, env={}, check=True, capture_output=True)  # without any PATH


@every_client
def test_everything_else_in_the_file_is_preserved(stub: Stub, client: str) -> None:
    path = stub.home / CONFIG_FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    servers_key = SERVERS_KEYS.get(client, "mcpServers")
    before = {
        "theme": "dunkel ☾",
        servers_key: {"other": {"command": "x"}},
        "last": [1, {"a": None}],
    }
    path.write_text(json.dumps(before))
    path.chmod(0o640)

    assert install(stub, client).returncode == 0
    after = json.loads(path.read_text())
    assert install(stub, client, "--uninstall").returncode == 0

    assert list(after) == list(before)
    assert {**after, servers_key: {"other": {"command": "x"}}} == before
    assert json.loads(path.read_text()) == before
    assert path.stat().st_mode & 0o777 == 0o600  # it may contain a key
    backup = Path(f"{path}{BACKUP_SUFFIX}")
    assert json.loads(backup.read_text()) == before  # from before the first change
    assert backup.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.glob(f".{path.name}.*")] == []


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
def test_an_invalid_file_is_not_changed(stub: Stub, content: bytes) -> None:
    path = stub.home / CONFIG_FILES["cursor"]
    path.parent.mkdir()
    path.write_bytes(content)

    completed = install(stub, "cursor")

    assert completed.returncode == 1
    assert (
        "CONFIG_ERROR" in completed.stderr
        and str(path) in completed.stderr
        and "--print" in completed.stderr
    )
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [b"", b"\xef\xbb\xbf{}\r\n", b'{"mcpServers": null}', b'{"servers": [1]}', b'{"a": "\\ud800"}'],
)
def test_an_unusual_but_valid_file_is_accepted(stub: Stub, content: bytes) -> None:
    path = stub.home / CONFIG_FILES["cursor"]
    path.parent.mkdir()
    path.write_bytes(content)

    assert install(stub, "cursor").returncode == 0
    assert read_entry(stub, "cursor")["args"][-1] == "serve"


def test_reinstalling_keeps_earlier_choices(stub: Stub) -> None:
    install(stub, "cursor", "--env", "GEMINI_API_KEY=k", "--env", "GEMINI_MODEL=m")
    path = stub.home / CONFIG_FILES["cursor"]
    content = json.loads(path.read_text())
    content["mcpServers"][SERVER_NAME]["timeout"] = 600
    path.write_text(json.dumps(content))

    again = install(stub, "cursor", "--env", "GEMINI_MODEL=other")

    assert "GEMINI_API_KEY" not in again.stderr  # already configured
    entry = read_entry(stub, "cursor")
    assert entry["timeout"] == 600
    assert (entry["env"]["GEMINI_API_KEY"], entry["env"]["GEMINI_MODEL"]) == ("k", "other")


def test_relative_paths_are_written_as_absolute_paths(stub: Stub) -> None:
    install(stub, "cursor", "--env", "GEMINI_MCP_CONFIG_DIR=here")

    assert read_entry(stub, "cursor")["env"]["GEMINI_MCP_CONFIG_DIR"] == str(
        Path("here").absolute()
    )


@pytest.mark.parametrize("is_visible", [False, True])
def test_path_includes_a_node_that_desktop_apps_cannot_find(
    stub: Stub, mocker: MockerFixture, is_visible: bool
) -> None:
    """The PATH of desktop apps differs between machines, so it is patched."""
    node, system_folder = make_executable(stub.home / "somewhere/node"), stub.home / "system"
    gemini = make_executable(stub.home / "elsewhere/gemini")
    stub.environ |= {"PATH": str(node.parent), "GEMINI_MCP_CLI_PATH": str(gemini)}
    for module in (binary, install_module):
        mocker.patch.object(module, "DESKTOP_APP_PATH", str(system_folder))
    if is_visible:
        make_executable(system_folder / "node")

    install(stub, "cursor")

    path = read_entry(stub, "cursor")["env"].get("PATH")
    assert path == (None if is_visible else f"{node.parent}{os.pathsep}{system_folder}")


def test_an_invalid_variable_does_not_prevent_uninstalling(stub: Stub) -> None:
    install(stub, "cursor")
    stub.environ["GEMINI_MCP_TIMEOUT"] = "soon"

    assert install(stub, "cursor", "--uninstall").returncode == 0
    assert install(stub, "cursor", "--uninstall", "--print").returncode == 2


def test_print_shows_what_would_be_written(stub: Stub) -> None:
    printed = install(stub, "vscode", "--print", "--env", "GEMINI_MODEL=m")
    assert not (stub.home / CONFIG_FILES["vscode"]).exists()
    install(stub, "vscode", "--env", "GEMINI_MODEL=m")

    assert json.loads(printed.stdout) == json.loads(
        (stub.home / CONFIG_FILES["vscode"]).read_text()
    )


def test_env_copies_a_set_variable_and_rejects_unset_or_invalid_ones(stub: Stub) -> None:
    stub.environ["GEMINI_API_KEY"] = "from-here"

    copied = install(stub, "cursor", "--env", "GEMINI_API_KEY")
    unset = install(stub, "cursor", "--env", "GEMINI_MODEL")
    invalid = install(stub, "cursor", "--env", "GEMINI_MCP_TIMEOUT=soon")

    assert copied.returncode == 0
    assert read_entry(stub, "cursor")["env"]["GEMINI_API_KEY"] == "from-here"
    assert (unset.returncode, invalid.returncode) == (1, 1)
    assert "GEMINI_MODEL=VALUE" in unset.stderr
    assert "GEMINI_MCP_TIMEOUT='soon'" in invalid.stderr


def test_a_missing_key_and_cli_are_reported(stub: Stub) -> None:
    stub.environ |= {"GEMINI_MCP_CLI_PATH": "no-such-gemini"}

    completed = install(stub, "claude-desktop")

    assert completed.returncode == 0
    assert "npm install -g @google/gemini-cli" in completed.stderr
    assert "--env GEMINI_API_KEY" in completed.stderr


def test_uninstalling_without_an_entry_changes_nothing(stub: Stub) -> None:
    completed = install(stub, "cursor", "--uninstall")

    assert completed.returncode == 0
    assert "nothing was changed" in completed.stderr
    assert not (stub.home / CONFIG_FILES["cursor"]).exists()


def test_a_symlinked_file_stays_a_symlink(stub: Stub) -> None:
    target = stub.home / "dotfiles.json"
    target.write_text("{}")
    path = stub.home / CONFIG_FILES["claude-code"]
    path.symlink_to(target)

    install(stub, "claude-code")

    assert path.is_symlink()
    assert SERVER_NAME in target.read_text()


def test_each_platform_has_its_config_files() -> None:
    environ = {"HOME": "/home/me", "APPDATA": "/home/me/AppData/Roaming"}
    paths = {
        platform: [str(config_file(client, environ, platform)) for client in CLIENTS.values()]
        for platform in ("darwin", "win32", "linux")
    }

    assert paths["darwin"][0].endswith(
        "Library/Application Support/Claude/claude_desktop_config.json"
    )
    assert paths["win32"] == [
        "/home/me/AppData/Roaming/Claude/claude_desktop_config.json",
        "/home/me/.claude.json",
        "/home/me/.cursor/mcp.json",
        "/home/me/AppData/Roaming/Code/User/mcp.json",
    ]
    assert paths["linux"] == [f"/home/me/{file}" for file in CONFIG_FILES.values()]
