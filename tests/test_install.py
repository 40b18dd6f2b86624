"""`install` writes our entry to a client's configuration and preserves everything else."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters
from pytest_mock import MockerFixture

from gemini_cli_mcp import installation, jsonc
from gemini_cli_mcp.cli.install import config_file
from gemini_cli_mcp.cli.install.clients import CLIENTS
from gemini_cli_mcp.cli.install.config_file import MAX_BYTES
from gemini_cli_mcp.cli.install.server_entry import SERVER_NAME, starts_this_program
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.platforms import files, folders
from tests.support import ROOT, STUB, Stub, command
from tests.support.binaries import make_executable
from tests.support.cli import run_command
from tests.support.matrix import representatives
from tests.support.mcp_server import structured_result

APP_FILES = "Library/Application Support" if sys.platform == "darwin" else ".config"
CONFIG_FILES = {
    "claude-desktop": f"{APP_FILES}/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": f"{APP_FILES}/Code/User/mcp.json",
    "vscode-insiders": f"{APP_FILES}/Code - Insiders/User/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "zed": ".config/zed/settings.json",
}
SERVERS_KEYS = {"vscode": "servers", "vscode-insiders": "servers", "zed": "context_servers"}
every_client = pytest.mark.parametrize("client", CONFIG_FILES)


def install(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(stub, "install", *arguments)


def read_entry(stub: Stub, client: str) -> dict[str, Any]:
    content: Any = jsonc.loads((stub.home / CONFIG_FILES[client]).read_text())
    return content[SERVERS_KEYS.get(client, "mcpServers")][SERVER_NAME]


def write_config(stub: Stub, content: str | bytes, client: str = "cursor") -> Path:
    path = stub.home / CONFIG_FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*.bak"))


@every_client
def test_the_written_entry_starts_the_server(stub: Stub, client: str) -> None:
    completed = install(stub, client, "--env", "GEMINI_API_KEY=k-123456", "--env", "GEMINI_MODEL=m")

    entry = read_entry(stub, client)
    path = stub.home / CONFIG_FILES[client]
    assert completed.returncode == 0
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-1] == "serve"
    assert entry["env"] == {
        "GEMINI_MCP_CLI_PATH": str(STUB),
        "GEMINI_API_KEY": "k-123456",
        "GEMINI_MODEL": "m",
    }
    assert entry.get("type") == CLIENTS[client].extra_fields.get("type")
    assert "k-123456" not in completed.stdout + completed.stderr
    assert path.stat().st_mode & 0o077 == 0
    lines = completed.stderr.splitlines()
    assert lines[0] == f"Added {SERVER_NAME} in {CLIENTS[client].title}: {path}"
    assert lines[1] == "  It contains GEMINI_API_KEY, so only you can read it (mode 0600)."
    assert lines[-1].startswith("Next: ")
    version_command = [entry["command"], *entry["args"][:-1], "--version"]
    subprocess.run(version_command, env={}, check=True, capture_output=True)  # without any PATH


async def test_the_written_entry_answers_a_search(stub: Stub) -> None:
    install(stub, "claude-code", "--env", "GEMINI_API_KEY=k-123456")
    entry = read_entry(stub, "claude-code")
    environ = {"HOME": str(stub.home), "PATH": os.environ["PATH"], **entry["env"]}
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env=environ)

    async with Client(server) as client:
        result = await client.call_tool("search", {"query": "What is MCP?"})

    assert structured_result(result)["success"]


@every_client
def test_only_our_entry_changes(stub: Stub, client: str) -> None:
    key = SERVERS_KEYS.get(client, "mcpServers")
    before = (
        "\ufeff// my settings\r\n{\r\n\t\"theme\": \"café ☾\", // a comment\r\n"
        f"\t\"{key}\": {{\r\n\t\t\"other\": {{\"command\": \"x\"}}, /* keep */\r\n\t}},\r\n"
        "\t\"last\": [1, {\"a\": null},], // 1e999\r\n}\r\n"
    )  # fmt: skip
    path = write_config(stub, before, client)
    path.chmod(0o640)

    assert install(stub, client).returncode == 0
    text = path.read_bytes().decode()
    assert install(stub, client, "--uninstall").returncode == 0

    start = text.index(f'\r\n\t\t"{SERVER_NAME}"')
    end = text.index("\r\n\t},\r\n")
    assert text[:start] + text[end:] == before
    assert "\n" not in text.replace("\r\n", "")
    assert path.read_bytes().decode() == before
    assert path.stat().st_mode & 0o777 == 0o640  # it contains no secret


def test_a_copy_is_made_at_every_change_and_named(stub: Stub) -> None:
    path = write_config(stub, '{"a": 1}')

    first = install(stub, "cursor")
    same = install(stub, "cursor")
    second = install(stub, "cursor", "--env", "GEMINI_MODEL=m")

    assert "already configured" in same.stderr
    assert [copy.stat().st_mode & 0o777 for copy in copies(path)] == [0o600, 0o600]
    assert all(str(copy) in first.stderr + second.stderr for copy in copies(path))
    assert '{"a": 1}' in [copy.read_text() for copy in copies(path)]
    assert [file.name for file in path.parent.glob(f".{path.name}.*")] == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda value: st.lists(value) | st.dictionaries(st.text(), value),
        max_leaves=20,
    ),
    st.dictionaries(st.text(), st.text()),
    st.sampled_from([None, 2, "\t"]),
    st.booleans(),
)
def test_any_document_survives_adding_and_removing_a_member(
    other: Any, servers: dict[str, str], indent: Any, with_comments: bool
) -> None:
    document = {"other": other, "servers": servers}
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    if with_comments and indent:
        text = f"// first\n{text}".replace(": {\n", ": { // why, {\n").replace("]\n", "] /* } */\n")
    path = ("servers", "new")

    added = jsonc.set_member(text, path, {"command": "c"})
    changed = jsonc.set_member(added, path, {"command": "d"})
    removed = jsonc.remove_member(changed, path)

    assert jsonc.loads(added) == {**document, "servers": {**servers, "new": {"command": "c"}}}
    assert jsonc.loads(changed) == {**document, "servers": {**servers, "new": {"command": "d"}}}
    servers.pop("new", None)
    assert jsonc.loads(removed) == {**document, "servers": servers}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"s": {"a": 1, // note\n "new": {}}}', '{"s": {"a": 1 // note\n}}'),
        ('{"s": {"new": 1, "b": 2}}', '{"s": { "b": 2}}'),
        ('{"s": {"a": 1, /* c */ "new": 1}}', '{"s": {"a": 1 /* c */}}'),
        ('{"s": {"a": 1, "new": 1,}}', '{"s": {"a": 1,}}'),
        ('{"s": {\n  "new": 1\n}}', '{"s": {}}'),
        ('{"s": [1], "new": 1}', '{"s": [1], "new": 1}'),
        ('{"s": {"new": 1 /* keep */, "b": 2}}', '{"s": { /* keep */ "b": 2}}'),
    ],
)
def test_a_member_is_removed_with_its_comma_and_without_its_comments(
    text: str, expected: str
) -> None:
    assert jsonc.remove_member(text, ("s", "new")) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "s": {\n    "a": {} // note  \n  }\n}',  # spaces at the end of a comment
        '{\n  "s": {\n    "a": {} // note\N{IDEOGRAPHIC SPACE}\n  }\n}',
        '{\n  "s": {\n    // only a comment\n  }\n}',
        '{\r  "s": { // a comment\r    "a": 1\r  }\r}',
        '{"s": {"a": 1 /* c */,}}',
        '{"s": {"a": 1}}',
    ],
)
def test_adding_and_removing_a_member_restores_the_text(text: str) -> None:
    added = jsonc.set_member(text, ("s", "new"), {"command": "c"})

    assert object_or_empty(jsonc.loads(added)) == {
        "s": {**object_or_empty(object_or_empty(jsonc.loads(text))["s"]), "new": {"command": "c"}}
    }
    assert jsonc.remove_member(added, ("s", "new")) == text


@pytest.mark.parametrize("text", ["{,}", "[,]", "[1,,]", '{"a": 1,,}', '{"a":,}'])
def test_a_comma_without_a_value_is_invalid(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Illegal"):
        jsonc.loads(text)


def test_a_one_line_file_stays_one_line(stub: Stub) -> None:
    path = write_config(stub, '{"mcpServers": {"other": {"command": "x"}}}')

    install(stub, "cursor")

    assert path.read_text().startswith('{"mcpServers": {"other": {"command": "x"}, "gemini-cli-mcp')
    assert "\n" not in path.read_text()


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    path.write_text('{"a": "')
    os.truncate(path, 50_000_000)


SERVERS_MEMBERS = ("mcpServers", "servers", "context_servers")
UNENCODABLE_ENTRY = {"command": SERVER_NAME, "note": "\ud83d"}
INVALID_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "blank": (lambda path: path.write_bytes(b"\xef\xbb\xbf \n"), "is empty"),
    "array": (lambda path: path.write_bytes(b"[1]"), "does not contain a client configuration"),
    "text": (lambda path: path.write_bytes(b'"text"'), "does not contain a client configuration"),
    "servers are an array": (
        lambda path: path.write_bytes(b'{"mcpServers": [1], "servers": [1], "context_servers": 1}'),
        "does not contain a client configuration",
    ),
    "not closed": (
        lambda path: path.write_bytes(b'{\n"mcpServers": {'),
        "is not valid JSON (line 2)",
    ),
    "only a comma": (
        lambda path: path.write_bytes(
            b'{"mcpServers": {,}, "servers": {,}, "context_servers": {,}}'
        ),
        "is not valid JSON (line 1)",
    ),
    "empty array of servers": (
        lambda path: path.write_bytes(b'{"mcpServers": [], "servers": "", "context_servers": 0}'),
        "does not contain a client configuration",
    ),
    "lone surrogate in our entry": (
        lambda path: path.write_text(
            json.dumps({key: {SERVER_NAME: UNENCODABLE_ENTRY} for key in SERVERS_MEMBERS})
        ),
        "cannot be edited safely",
    ),
    "not a number": (lambda path: path.write_bytes(b'{"a": NaN}'), "is not valid JSON"),
    "binary": (lambda path: path.write_bytes(bytes(range(256))), "is not UTF-8 text"),
    "UTF-16": (lambda path: path.write_bytes('{"a": 1}'.encode("utf-16")), "is not UTF-8 text"),
    "50 MB": (make_huge, f"is larger than {MAX_BYTES >> 20} MB"),
    "deep nesting": (lambda path: path.write_bytes(b'{"a":' * 200_000), "is nested too deeply"),
    "duplicate key": (
        lambda path: path.write_bytes(
            b'{"mcpServers": {}, "mcpServers": {}, "servers": {}, "servers": {}, '
            b'"context_servers": {}, "context_servers": {}}'
        ),
        "is ambiguous",
    ),
    "symlink loop": (make_loop, "cannot be read"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "does not exist"),
    "directory": (lambda path: path.mkdir(), "is not a regular file"),
    "named pipe": (make_fifo, "is not a regular file"),
}


@pytest.mark.parametrize(
    "client", representatives(CONFIG_FILES, ["claude-desktop", "vscode", "zed"])
)
@pytest.mark.parametrize("name", INVALID_FILES)
def test_an_invalid_file_is_reported_and_not_changed(stub: Stub, client: str, name: str) -> None:
    make, reason = INVALID_FILES[name]
    path = stub.home / CONFIG_FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    before = os.lstat(path)

    completed = install(stub, client)

    assert completed.returncode == 1
    assert f"CONFIG_ERROR: {path} " in completed.stderr and reason in completed.stderr
    assert "it was not changed" in completed.stderr
    assert "Traceback" not in completed.stderr
    after = os.lstat(path)
    assert (after.st_mode, after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_mode,
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_without_permission_is_reported(stub: Stub, mocker: MockerFixture) -> None:
    """Root can read everything, so the error is simulated."""
    path = write_config(stub, "{}")
    mocker.patch.object(Path, "read_bytes", side_effect=PermissionError(13, "Permission denied"))

    completed = install(stub, "cursor")

    assert completed.returncode == 1
    assert f"{path} cannot be read (Permission denied); it was not changed." in completed.stderr


def test_a_read_only_file_is_not_replaced(stub: Stub) -> None:
    path = write_config(stub, "{}")
    path.chmod(0o444)

    completed = install(stub, "cursor")

    assert completed.returncode == 1
    assert f"{path} is read-only; it was not changed." in completed.stderr
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("{}", 0o444)
    assert copies(path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_a_file_of_another_user_keeps_its_owner(stub: Stub) -> None:
    path = write_config(stub, "{}")
    os.chown(path, 1234, 1234)

    install(stub, "cursor", "--env", "GEMINI_API_KEY=k-123456")

    files = [path, *copies(path)]
    assert [(file.stat().st_uid, file.stat().st_gid) for file in files] == [(1234, 1234)] * 2


def test_a_foreign_group_does_not_prevent_a_change(stub: Stub, mocker: MockerFixture) -> None:
    """Root is in every group, so the refusal is simulated."""
    path = write_config(stub, "{}")
    chown = mocker.patch("os.chown", side_effect=PermissionError(1, "Operation not permitted"))
    status = path.stat()
    other_group = os.stat_result((*status[:5], status.st_gid + 1, *status[6:]))
    files.keep_owner(path, other_group)

    chown.assert_called_once_with(path, -1, status.st_gid + 1)


def test_a_file_that_this_user_cannot_write_is_not_replaced(
    stub: Stub, mocker: MockerFixture
) -> None:
    """Root can write everything, so the refusal is simulated."""
    path = write_config(stub, "{}")
    mocker.patch("os.access", return_value=False)

    assert f"{path} is read-only; it was not changed." in install(stub, "cursor").stderr
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("os.fdopen", OSError(errno.ENOSPC, "No space left on device")),
        ("pathlib.Path.chmod", PermissionError(errno.EPERM, "Operation not permitted")),
        ("pathlib.Path.replace", OSError(errno.EIO, "Input/output error")),
    ],
)
def test_a_failed_change_leaves_no_other_files(
    stub: Stub, mocker: MockerFixture, function: str, error: OSError
) -> None:
    path = write_config(stub, "{}")
    failing = mocker.patch(function, side_effect=error)

    completed = install(stub, "cursor")
    mocker.stop(failing)

    assert failing.called
    assert completed.returncode == 1
    assert f"{path} cannot be written ({error.strerror}); it was not changed." in completed.stderr
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_copy_that_cannot_be_written_is_removed(stub: Stub, mocker: MockerFixture) -> None:
    path = write_config(stub, "{}")
    open_descriptor = os.fdopen

    def fail_for_the_copy(descriptor: int, mode: str) -> Any:
        if copies(path):
            os.close(descriptor)
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_descriptor(descriptor, mode)

    failing = mocker.patch("os.fdopen", side_effect=fail_for_the_copy)
    completed = install(stub, "cursor")

    assert failing.call_count == 2
    assert f"{path} cannot be written (No space left on device)" in completed.stderr
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_changes_in_the_meantime_is_not_replaced(
    stub: Stub, mocker: MockerFixture
) -> None:
    path = write_config(stub, '{"a": 1}')
    write_copy = config_file._write_copy

    def change_and_copy(*arguments: Any) -> Path:
        path.write_text('{"a": 2}')
        return write_copy(*arguments)

    mocker.patch.object(config_file, "_write_copy", change_and_copy)
    completed = install(stub, "cursor")

    assert "was changed by another program in the meantime" in completed.stderr
    assert path.read_text() == '{"a": 2}'
    assert copies(path) == []


@pytest.mark.parametrize(
    "variable", ["GEMINI_API_KEY=k-123456", "HTTPS_PROXY=http://u:pw@p", "GLM_WORK=k-123456"]
)
def test_a_file_with_a_secret_becomes_private(stub: Stub, variable: str) -> None:
    engines = stub.home / "engines.json"
    engines.write_text(json.dumps(ENGINES))
    path = write_config(stub, "{}")
    path.chmod(0o640)
    arguments = ("--env", f"GEMINI_MCP_WEB_SEARCH={engines}", "--env", variable)

    written = install(stub, "cursor", *arguments)
    mode = path.stat().st_mode & 0o777
    path.chmod(0o640)
    repeated = install(stub, "cursor", *arguments)

    name = variable.partition("=")[0]
    assert (mode, path.stat().st_mode & 0o777) == (0o600, 0o600)
    assert f"It contains {name}, so only you can read it" in written.stderr
    assert "already configured" in repeated.stderr and "now only you can" in repeated.stderr


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbf{}\r\n", b'{"mcpServers": null}', b'{"servers": [1]}', b'{"a": "\\ud800"}'],
)
def test_an_unusual_but_valid_file_is_accepted(stub: Stub, content: bytes) -> None:
    path = write_config(stub, content)

    assert install(stub, "cursor").returncode == 0
    entry = json.loads(path.read_text("utf-8-sig"))["mcpServers"][SERVER_NAME]
    assert entry["args"][-1] == "serve"


ENGINES = {
    "webSearch": {
        "engines": [{"id": "glm", "providerKey": "glm.work.glm-4.6", "description": "G"}]
    },
    "accounts": {"work": {"apiKeyEnv": "GLM_WORK"}},
}
FOREIGN_ENTRIES = [
    {"url": "https://example.com/mcp", "type": "http"},
    {"command": "uvx", "args": ["gemini-cli-mcp"]},
    {"command": "npx", "args": ["-y", "gemini-mcp-tool"], "env": {"GEMINI_API_KEY": "k"}},
    "text",
]


@pytest.mark.parametrize("foreign", FOREIGN_ENTRIES, ids=lambda entry: str(entry)[:30])
def test_a_foreign_entry_is_only_replaced_or_removed_by_force(stub: Stub, foreign: Any) -> None:
    before = json.dumps({"mcpServers": {SERVER_NAME: foreign}})
    path = write_config(stub, before)

    refused = [install(stub, "cursor"), install(stub, "cursor", "--uninstall")]
    unchanged = path.read_text()
    replaced = install(stub, "cursor", "--force")
    entry = read_entry(stub, "cursor")
    path.write_text(before)
    removed = install(stub, "cursor", "--uninstall", "--force")

    assert [completed.returncode for completed in refused] == [1, 1]
    assert all("--force" in completed.stderr for completed in refused)
    kind = "points to a server by its URL" if "url" in foreign else "starts another program"
    assert all(kind in completed.stderr for completed in refused)
    assert replaced.stderr.startswith("Replaced")
    assert unchanged == before
    assert (replaced.returncode, sorted(entry)) == (0, ["args", "command", "env"])
    assert (removed.returncode, json.loads(path.read_text())) == (0, {"mcpServers": {}})


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "gemini-cli-mcp"},
        {"command": "C:\\tools\\gemini-cli-research-mcp.exe", "args": ["serve"]},
        {"command": "/usr/bin/python3", "args": ["-m", "gemini_cli_mcp", "serve"]},
        {"command": "uvx", "args": ["gemini-cli-research-mcp@1.2", "serve"]},
        {"command": "uvx", "args": ["--from", "gemini-cli-research-mcp[api]", "gemini-cli-mcp"]},
        {"command": "uvx", "args": ["gemini-cli-research-mcp>=1.0"]},
        {"command": "uv", "args": ["run", "--directory", "/x", "gemini-cli-mcp", "serve"]},
        {"command": "uv", "args": ["--directory", "/x", "run", "gemini-cli-mcp"]},
        {"command": "uvx", "args": ["--from=gemini-cli-research-mcp", "gemini-cli-mcp"]},
        {"command": "C:\\tools\\GEMINI-CLI-MCP.EXE"},
        {"command": {"path": "/x/gemini-cli-mcp", "args": ["serve"]}},
    ],
)
def test_entries_of_this_program_are_recognized(entry: dict[str, Any]) -> None:
    assert starts_this_program(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "cat", "args": ["gemini_cli_mcp"]},
        {"command": "uvx", "args": ["--with", "gemini-cli-research-mcp", "other-server"]},
        {"command": "uvx", "args": ["gemini-cli-mcp"]},
        {"command": "uv", "args": ["run", "--with", "gemini-cli-mcp", "gemini-cli-mcp"]},
        {"command": "uv", "args": ["tool", "run", "gemini-cli-mcp"]},
        {"command": "docker", "args": ["run", "--name", "gemini-cli-research-mcp", "image"]},
        {"url": "https://example.com/gemini-cli-mcp"},
    ],
)
def test_entries_of_other_programs_are_not_taken_for_ours(entry: dict[str, Any]) -> None:
    assert not starts_this_program(entry)


def test_a_mixture_with_a_remote_server_is_repaired(stub: Stub) -> None:
    mixture: dict[str, Any] = {
        "type": "http",
        "url": "https://x.example",
        "headers": {},
        "command": SERVER_NAME,
    }
    write_config(stub, json.dumps({"mcpServers": {SERVER_NAME: mixture}}))

    completed = install(stub, "cursor")

    assert completed.stderr.startswith("Updated")
    assert sorted(read_entry(stub, "cursor")) == ["args", "command", "env"]


def test_zeds_old_format_keeps_its_variables(stub: Stub) -> None:
    entry = {"command": {"path": "/x/gemini-cli-mcp", "env": {"GEMINI_API_KEY": "k-123456"}}}
    write_config(stub, json.dumps({"context_servers": {SERVER_NAME: entry}}), "zed")

    completed = install(stub, "zed")

    assert read_entry(stub, "zed")["env"]["GEMINI_API_KEY"] == "k-123456"
    assert "Missing: a key" not in completed.stderr


@pytest.mark.parametrize(
    ("client", "flag"), [("cursor", {"disabled": True}), ("zed", {"enabled": False})]
)
def test_a_disabled_entry_stays_disabled_and_is_mentioned(
    stub: Stub, client: str, flag: dict[str, bool]
) -> None:
    key = SERVERS_KEYS.get(client, "mcpServers")
    write_config(
        stub, json.dumps({key: {SERVER_NAME: {"command": "gemini-cli-mcp", **flag}}}), client
    )

    completed = install(stub, client)

    path = stub.home / CONFIG_FILES[client]
    assert f"the entry in {path} is disabled; enable it" in completed.stderr
    assert flag.items() <= read_entry(stub, client).items()


def test_reinstalling_keeps_earlier_choices(stub: Stub) -> None:
    install(stub, "cursor", "--env", "GEMINI_API_KEY=k", "--env", "GEMINI_MODEL=m")
    path = stub.home / CONFIG_FILES["cursor"]
    content = json.loads(path.read_text())
    content["mcpServers"][SERVER_NAME]["timeout"] = 600
    path.write_text(json.dumps(content))

    again = install(stub, "cursor", "--env", "GEMINI_MODEL=other")

    assert "a key" not in again.stderr  # already configured
    entry = read_entry(stub, "cursor")
    assert entry["timeout"] == 600
    assert (entry["env"]["GEMINI_API_KEY"], entry["env"]["GEMINI_MODEL"]) == ("k", "other")


def test_a_configured_gemini_is_kept_while_it_exists(stub: Stub) -> None:
    wrapper = make_executable(stub.home / "wrapper")
    install(stub, "cursor", "--env", f"GEMINI_MCP_CLI_PATH={wrapper}")

    install(stub, "cursor", "--env", "GEMINI_MODEL=m")
    kept = read_entry(stub, "cursor")["env"]["GEMINI_MCP_CLI_PATH"]
    wrapper.unlink()
    replaced = install(stub, "cursor")
    found = read_entry(stub, "cursor")["env"]["GEMINI_MCP_CLI_PATH"]
    stub.environ["GEMINI_MCP_CLI_PATH"] = "no-such-gemini"
    write_config(stub, path_entry(wrapper))
    vanished = install(stub, "cursor")

    assert (kept, found) == (str(wrapper), str(STUB))
    assert "Missing: gemini" not in replaced.stderr
    assert f"Missing: gemini. {wrapper} (GEMINI_MCP_CLI_PATH) does not exist" in vanished.stderr


def path_entry(gemini: Path) -> str:
    entry = {"command": SERVER_NAME, "env": {"GEMINI_MCP_CLI_PATH": str(gemini)}}
    return json.dumps({"mcpServers": {SERVER_NAME: entry}})


def test_an_outdated_path_in_the_entry_does_not_hide_a_new_gemini(stub: Stub) -> None:
    gemini = make_executable(stub.home / "bin/gemini")
    del stub.environ["GEMINI_MCP_CLI_PATH"]
    stub.environ["PATH"] = str(gemini.parent)
    env = {"GEMINI_MCP_CLI_PATH": "/nowhere/gemini", "PATH": "/nowhere"}
    entry = {"command": SERVER_NAME, "env": env}
    write_config(stub, json.dumps({"mcpServers": {SERVER_NAME: entry}}))

    completed = install(stub, "cursor")

    assert "Missing: gemini" not in completed.stderr
    assert read_entry(stub, "cursor")["env"]["GEMINI_MCP_CLI_PATH"] == str(gemini)


def test_values_that_the_client_fills_in_are_kept(stub: Stub) -> None:
    env = {"GEMINI_MCP_TIMEOUT": "${input:timeout}", "HTTPS_PROXY": None, "GEMINI_MCP_QUEUE": 5}
    entry = {"command": SERVER_NAME, "env": env}
    write_config(stub, json.dumps({"servers": {SERVER_NAME: entry}}), "vscode")

    first, second = install(stub, "vscode"), install(stub, "vscode")

    assert (first.returncode, env.items() <= read_entry(stub, "vscode")["env"].items()) == (0, True)
    assert "already configured" in second.stderr


def test_an_invalid_old_value_is_reported_with_its_file(stub: Stub) -> None:
    entry = {"command": SERVER_NAME, "env": {"GEMINI_MCP_TIMEOUT": "soon"}}
    path = write_config(stub, json.dumps({"mcpServers": {SERVER_NAME: entry}}))

    refused = install(stub, "cursor")
    corrected = install(stub, "cursor", "--env", "GEMINI_MCP_TIMEOUT=60")

    assert "GEMINI_MCP_TIMEOUT='soon'" in refused.stderr
    assert f"Correct it in {path}, or pass --env NAME=VALUE." in refused.stderr
    assert corrected.returncode == 0


def test_a_bare_name_is_looked_up_and_written_as_a_path(stub: Stub) -> None:
    folder = make_executable(stub.home / "bin/my-gemini").parent
    make_executable(folder / "my-agy")
    stub.environ["PATH"] = f"{folder}{os.pathsep}{stub.environ['PATH']}"

    install(
        stub,
        "cursor",
        *("--env", "GEMINI_MCP_CLI_PATH=my-gemini", "--env", "GEMINI_MCP_AGY_PATH=my-agy"),
    )
    env = read_entry(stub, "cursor")["env"]
    missing = install(stub, "cursor", "--env", "GEMINI_MCP_CLI_PATH=nowhere")

    assert env["GEMINI_MCP_CLI_PATH"] == str(folder / "my-gemini")
    assert env["GEMINI_MCP_AGY_PATH"] == str(folder / "my-agy")
    assert "Missing: gemini. The `nowhere` CLI is neither on PATH" in missing.stderr
    assert read_entry(stub, "cursor")["env"]["GEMINI_MCP_CLI_PATH"] == "nowhere"


def test_without_the_provider_gemini_neither_cli_nor_key_is_missing(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = "no-such-gemini"
    del stub.environ["GEMINI_MCP_CONFIG_DIR"]

    completed = install(stub, "cursor", "--env", "GEMINI_MCP_PROVIDERS=antigravity")

    assert "Missing" not in completed.stderr


def test_the_variables_of_vertex_ai_and_of_engines_are_offered(stub: Stub) -> None:
    engines = stub.home / "engines.json"
    engines.write_text(json.dumps(ENGINES))
    del stub.environ["GEMINI_MCP_CONFIG_DIR"]
    stub.environ |= {
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
        "GOOGLE_CLOUD_PROJECT": "p",
        "GLM_WORK": "k",
        "GEMINI_MCP_HTTP_TOKENS": "t",
    }

    completed = install(stub, "cursor", "--env", f"GEMINI_MCP_WEB_SEARCH={engines}")

    flags = "--env GOOGLE_GENAI_USE_VERTEXAI --env GLM_WORK --env GOOGLE_CLOUD_PROJECT`"
    assert f"install cursor {flags}" in completed.stderr


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
    mocker.patch.object(folders, "POSIX_DESKTOP_PATH", str(system_folder))
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


@every_client
def test_print_names_the_file_and_shows_what_would_be_written(stub: Stub, client: str) -> None:
    printed = install(stub, client, "--print", "--env", "GEMINI_MODEL=café")
    path = stub.home / CONFIG_FILES[client]
    assert not path.exists()
    install(stub, client, "--env", "GEMINI_MODEL=café")

    assert printed.stderr == f"Add this to {path} ({CLIENTS[client].title}):\n"
    assert printed.stdout == path.read_text()
    assert "café" in printed.stdout


def test_a_project_has_its_own_file(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project_files = {
        "claude-code": ".mcp.json",
        "cursor": ".cursor/mcp.json",
        "vscode": ".vscode/mcp.json",
        "vscode-insiders": ".vscode/mcp.json",
        "zed": ".zed/settings.json",
    }
    for client, file in project_files.items():
        completed = install(stub, client, "--project")

        assert completed.returncode == 0
        assert SERVER_NAME in (tmp_path / file).read_text()
        assert "It contains paths of this machine; do not share it" in completed.stderr
        assert CLIENTS[client].project_step in completed.stderr
        assert not (stub.home / CONFIG_FILES[client]).exists()
    for client in CONFIG_FILES.keys() - project_files.keys():
        completed = install(stub, client, "--project")

        assert completed.returncode == 2
        assert f"{client} has no configuration files in projects" in completed.stderr


def test_env_copies_a_set_variable_and_rejects_unset_or_invalid_ones(stub: Stub) -> None:
    stub.environ["GEMINI_API_KEY"] = "from-here"

    copied = install(stub, "cursor", "--env", "GEMINI_API_KEY")
    rejected = {
        assignment: install(stub, "cursor", "--env", assignment)
        for assignment in (
            "GEMINI_MODEL",
            "GEMINI_MCP_TIMEOUT=soon",
            "GEMINI_MCP_TIMEOT=10",
            "A B=1",
            "X=\x1b[0m",
            "GEMINI_API_KEY=  ",
        )
    }

    assert copied.returncode == 0
    assert read_entry(stub, "cursor")["env"]["GEMINI_API_KEY"] == "from-here"
    assert {completed.returncode for completed in rejected.values()} == {1}
    assert "GEMINI_MODEL=VALUE" in rejected["GEMINI_MODEL"].stderr
    assert "GEMINI_MCP_TIMEOUT='soon'" in rejected["GEMINI_MCP_TIMEOUT=soon"].stderr
    assert "did you mean GEMINI_MCP_TIMEOUT?" in rejected["GEMINI_MCP_TIMEOT=10"].stderr


@pytest.mark.parametrize("client", ["claude-desktop", "claude-code"])
def test_a_key_in_the_environment_is_offered_and_not_written(stub: Stub, client: str) -> None:
    stub.environ["GEMINI_API_KEY"] = "from-here"
    del stub.environ["GEMINI_MCP_CONFIG_DIR"]

    completed = install(stub, client)

    assert "GEMINI_API_KEY" not in read_entry(stub, client)["env"]
    assert "from-here" not in completed.stderr
    command = f"gemini-cli-mcp install {client} --env GEMINI_API_KEY"
    assert f"run `{command}`" in completed.stderr
    assert ("in a terminal where it is set" in completed.stderr) is (client == "claude-code")


def test_a_missing_key_and_cli_are_reported_before_the_next_step(stub: Stub) -> None:
    stub.environ |= {"GEMINI_MCP_CLI_PATH": "no-such-gemini"}
    del stub.environ["GEMINI_MCP_CONFIG_DIR"]

    completed = install(stub, "claude-desktop")

    lines = completed.stderr.splitlines()
    assert completed.returncode == 0
    assert [line.partition(" ")[0] for line in lines] == ["Added", "Missing:", "Missing:", "Next:"]
    assert "npm install -g @google/gemini-cli" in lines[1]
    assert "--env GEMINI_API_KEY" in lines[2]
    assert "quit Claude Desktop completely" in lines[3]


def test_an_installation_in_uvs_cache_is_not_permanent(stub: Stub, mocker: MockerFixture) -> None:
    mocker.patch("sys.prefix", "/home/me/.cache/uv/archive-v0/abc")

    # This checkout is where the program was installed from.
    assert f"`uv tool install {ROOT}`, then" in install(stub, "cursor").stderr


def test_commands_to_install_match_the_installation(mocker: MockerFixture) -> None:
    from_index = mocker.patch.object(installation, "distribution", side_effect=PackageNotFoundError)
    with_pip = installation.extra_install_command("api")
    mocker.patch.object(installation, "find_spec", return_value=None)
    with_uv = installation.extra_install_command("api")
    mocker.stop(from_index)

    assert with_pip.endswith(" -m pip install 'gemini-cli-research-mcp[api]'")
    assert with_uv == "uv tool install --force 'gemini-cli-research-mcp[api]'"
    assert installation.extra_install_command("api") == f"uv tool install --force '{ROOT}[api]'"


def test_a_broken_pipe_and_a_narrow_encoding_do_not_fail_print(stub: Stub) -> None:
    environ = {**stub.environ, "PYTHONIOENCODING": "cp1252"}
    argv = command("install", "cursor", "--print", "--env", "GEMINI_MODEL=模型")
    completed = subprocess.run(argv, env=environ, capture_output=True, check=True)
    piped = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert piped.stdout and piped.stderr
    piped.stdout.close()

    assert "模型" in completed.stdout.decode()
    assert b"Traceback" not in piped.stderr.read()
    assert piped.wait() == 0
    piped.stderr.close()


def test_a_deleted_folder_has_no_project(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()

    assert "The current folder no longer exists." in install(stub, "cursor", "--project").stderr


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
    environ = {
        "HOME": "/home/me",
        "USERPROFILE": "/home/me",
        "APPDATA": "/home/me/AppData/Roaming",
    }
    paths = {
        platform: [str(client.user_file(environ, platform)) for client in CLIENTS.values()]
        for platform in ("darwin", "win32", "linux")
    }

    assert paths["darwin"] == [
        "/home/me/Library/Application Support/Claude/claude_desktop_config.json",
        "/home/me/.claude.json",
        "/home/me/.cursor/mcp.json",
        "/home/me/Library/Application Support/Code/User/mcp.json",
        "/home/me/Library/Application Support/Code - Insiders/User/mcp.json",
        "/home/me/.codeium/windsurf/mcp_config.json",
        "/home/me/.config/zed/settings.json",
    ]
    assert paths["win32"] == [
        "/home/me/AppData/Roaming/Claude/claude_desktop_config.json",
        "/home/me/.claude.json",
        "/home/me/.cursor/mcp.json",
        "/home/me/AppData/Roaming/Code/User/mcp.json",
        "/home/me/AppData/Roaming/Code - Insiders/User/mcp.json",
        "/home/me/.codeium/windsurf/mcp_config.json",
        "/home/me/AppData/Roaming/Zed/settings.json",
    ]
    assert paths["linux"] == [f"/home/me/{file}" for file in CONFIG_FILES.values()]


def test_variables_move_config_files() -> None:
    environ = {"HOME": "/home/me", "CLAUDE_CONFIG_DIR": "/c", "XDG_CONFIG_HOME": "/x"}
    relative = {**environ, "CLAUDE_CONFIG_DIR": "c", "XDG_CONFIG_HOME": "~/x"}
    windows = {"HOME": "/c/msys", "USERPROFILE": "/home/me"}

    def paths(environ: dict[str, str], platform: str = "linux") -> list[str]:
        clients = (CLIENTS["claude-code"], CLIENTS["zed"])
        return [str(client.user_file(environ, platform)) for client in clients]

    assert paths(environ) == ["/c/.claude.json", "/x/zed/settings.json"]
    assert paths(relative) == ["/home/me/.claude.json", "/home/me/.config/zed/settings.json"]
    assert paths(windows, "win32")[0] == "/home/me/.claude.json"
