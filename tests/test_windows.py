"""What only a Windows can show: run by scripts/windows-test (Wine) and on windows-latest in CI."""

# The stubs of pywin32 have no types for handles.
# pyright: basic, reportArgumentType=false, reportMissingModuleSource=false

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import pywintypes
import win32api
import win32process
import win32security
from mcp import Client, StdioServerParameters
from pytest_mock import MockerFixture

from gemini_cli_mcp.cli.install.clients import CLIENTS
from gemini_cli_mcp.errors import CliNotFound, GeminiMcpError
from gemini_cli_mcp.platforms import files, parent_process
from gemini_cli_mcp.process.line_process import LineProcess
from gemini_cli_mcp.process.run import read_output
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace
from tests.support import (
    QUESTION,
    STUB,
    TOOLS,
    Stub,
    command,
    eventually,
    is_alive,
    model_answer,
    search_with_sources,
    use_real_cli,
    wait_until,
)
from tests.support.cli import run_command
from tests.support.fake_api import SEARCH, FakeApi
from tests.support.matrix import needs_real_cli
from tests.support.mcp_server import (
    INITIALIZE_REQUEST,
    SEARCH_FRAMES,
    start_server,
    stdio_client,
    structured_result,
)
from tests.support.scripted_upstream import ScriptedReply, ScriptedUpstream
from tests.support.scripted_upstream import search as scripted_search

CREATE_SUSPENDED, CREATE_NO_WINDOW = 0x4, 0x08000000
CHINESE = "为什么天空是蓝色的？"
CHINESE_ANSWER = "因为短波散射更强 → naïve 😀"
FAULTS = {
    "hangs": {"hang": "start"},
    "hangs in a search": {"searches": [search_with_sources("q", "nasa")], "hang": "middle"},
    "has a child": {"children": 1, "hang": "start"},
    "has a detached child": {"children": 1, "escape": "session", "hang": "start"},
    "closes its stdout": {"mute": True, "hang": "start"},
}


@pytest.fixture
def real(stub: Stub, api: FakeApi) -> Stub:
    """The real CLI behind npm's gemini.cmd, on a fake API that answers in Chinese."""
    api.calls = [SEARCH]
    api.texts = [model_answer(CHINESE_ANSWER)]
    stub.environ |= {"PATH": os.environ["PATH"], "GEMINI_MCP_TIMEOUT": "120"}
    return use_real_cli(stub, api)


async def call_every_tool(stub: Stub, query: str) -> dict[str, Any]:
    """Call every tool over stdio; return the result of `search`."""
    async with stdio_client(stub) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
        results = {
            name: await client.call_tool(name, {"query": query})
            for name in ("search", "grounded_search", "web_search")
        }
        job = await client.call_tool("deep_search", {"query": query, "wait_seconds": 0})
        job_content: dict[str, Any] = job.structured_content or {}
        job_id = {"job_id": job_content["job_id"]}
        results["deep_search_result"] = await client.call_tool("deep_search_result", job_id)
        results["deep_search_cancel"] = await client.call_tool("deep_search_cancel", job_id)
    assert not [name for name, result in results.items() if result.is_error]
    return structured_result(results["search"])


async def test_every_tool_answers_on_the_stub(stub: Stub) -> None:
    stub.plays({"text": model_answer(CHINESE_ANSWER), "searches": [search_with_sources("q", "n")]})

    answer = await call_every_tool(stub, CHINESE)

    assert answer["result"] == CHINESE_ANSWER
    assert CHINESE in stub.runs[0]["prompt"]
    assert stub.leftover_files() == []


@needs_real_cli
async def test_every_tool_answers_on_the_real_cli(real: Stub, api: FakeApi) -> None:
    answer = await call_every_tool(real, CHINESE)

    assert answer["result"].startswith("因为短波散射更强")
    assert (answer["metadata"]["evidence"], answer["metadata"]["grounded"]) == ("ledger", True)
    assert any(CHINESE in request.text for request in api.requests)
    assert real.leftover_files() == []


@needs_real_cli
@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        ("cold", {"GEMINI_MCP_READY": "0"}),
        ("ready", {"GEMINI_MCP_READY": "1"}),
    ],
)
async def test_a_run_gets_this_kind_of_process(
    real: Stub, kind: str, variables: dict[str, str]
) -> None:
    real.environ |= variables

    async with stdio_client(real) as client:
        with anyio.fail_after(90):  # a process that is started ahead takes a few seconds
            while True:
                result = await client.call_tool("search", {"query": QUESTION})
                if structured_result(result)["metadata"]["process"] == kind:
                    break


@needs_real_cli
async def test_overlapping_runs_share_a_process(real: Stub) -> None:
    """The calls are repeated until the shared process has started."""
    real.environ |= {"GEMINI_MCP_READY": "0", "GEMINI_MCP_CONCURRENCY": "1"}
    kinds: set[str] = set()
    async with stdio_client(real) as client:

        async def search() -> None:
            result = await client.call_tool("search", {"query": CHINESE})
            kinds.add(structured_result(result)["metadata"]["process"])

        with anyio.fail_after(90):
            while "shared" not in kinds:
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(search)


@contextmanager
def running(stub: Stub, *arguments: str) -> Generator[str]:
    """Run an HTTP server; yield its address. Windows has no signal for one process but the end."""
    with subprocess.Popen(
        command(*arguments, "--port", "0"), env=stub.environ, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        try:
            line = next(line for line in process.stderr if " at http:" in line)
            yield line.rpartition(" ")[2].strip()
        finally:
            process.kill()


def test_http_answers_and_its_port_cannot_be_taken(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_READY"] = "0"
    with running(stub, "serve", "--http") as address:
        root = address.removesuffix("/mcp")
        health = httpx2.get(f"{root}/healthz")
        port = root.rpartition(":")[2]
        second = run_command(stub, "serve", "--http", "--port", port)

    assert health.status_code == 200
    assert second.returncode == 1 and "CONFIG_ERROR" in second.stderr


def test_the_gateway_searches(stub: Stub, upstream: ScriptedUpstream) -> None:
    stub.plays({"text": "Blue.", "searches": [search_with_sources("why blue", "nasa")]})
    url = f"{upstream.address}/v1"
    stub.environ |= {"GEMINI_MCP_UPSTREAM_URL": url, "GEMINI_MCP_READY": "0"}
    upstream.plays(
        "m", ScriptedReply(calls=[scripted_search(CHINESE)]), ScriptedReply(CHINESE_ANSWER)
    )
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Search the web for: " + CHINESE}],
    }
    with running(stub, "gateway") as address:
        response = httpx2.post(f"{address}/chat/completions", json=body, timeout=60)

    assert response.json()["choices"][0]["message"]["content"].startswith(CHINESE_ANSWER)


def test_doctor_passes_on_the_stub(stub: Stub) -> None:
    completed = run_command(stub, "doctor", "--json", "--offline")

    assert completed.returncode == 0, completed.stdout
    assert "chmod" not in completed.stdout and "export " not in completed.stdout


@needs_real_cli
def test_doctor_finds_the_real_cli_isolated(real: Stub) -> None:
    completed = run_command(real, "doctor", "--json", "--offline")

    findings = {item["topic"]: item for item in json.loads(completed.stdout)["findings"]}
    assert completed.returncode == 0, completed.stdout
    for topic in ("isolation", "ready process", "shared process"):
        assert findings[topic]["status"] == "ok", findings[topic]


@pytest.mark.parametrize("client", CLIENTS)
def test_install_prints_an_entry_without_a_path(stub: Stub, client: str) -> None:
    printed = run_command(stub, "install", client, "--print")

    assert printed.returncode == 0, printed.stderr
    [servers] = json.loads(printed.stdout).values()
    [entry] = servers.values()
    assert Path(entry["command"]).is_absolute()
    assert entry["env"] == {"GEMINI_MCP_CLI_PATH": str(STUB)}


async def test_both_forms_of_claude_desktop_get_an_entry_that_works(stub: Stub) -> None:
    roaming, local = stub.home / "AppData/Roaming", stub.home / "AppData/Local"
    stub.environ |= {"APPDATA": str(roaming), "LOCALAPPDATA": str(local)}
    store = local / "Packages/Claude_pzs8sxrjxfjjc"
    store.mkdir(parents=True)

    completed = run_command(stub, "install", "claude-desktop")

    assert completed.returncode == 0, completed.stderr
    name = "Claude/claude_desktop_config.json"
    for file in (roaming / name, store / "LocalCache/Roaming" / name):
        entry = json.loads(file.read_text("utf-8"))["mcpServers"]["gemini-cli-mcp"]
        server = StdioServerParameters(
            command=entry["command"], args=entry["args"], env={**stub.environ, **entry["env"]}
        )
        async with Client(server) as mcp_client:
            result = await mcp_client.call_tool("search", {"query": CHINESE})
        assert structured_result(result)["success"]


def remaining_after_next_start(stub: Stub) -> list[Path]:
    Workspace(stub.config_dir).remove_stale()
    return [path for path in stub.leftover_files() if path.name != "gemini-cli-mcp"]


def fault_reached(stub: Stub, fault: dict[str, Any]) -> Callable[[], bool]:
    return lambda: bool(stub.hanging_pids) and len(stub.live_pids()) == 1 + fault.get("children", 0)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_timeout_leaves_nothing_behind(stub: Stub, fault: str) -> None:
    stub.plays(FAULTS[fault])
    stub.environ["GEMINI_MCP_TIMEOUT"] = "6"

    with pytest.raises(GeminiMcpError):
        await stub.search()

    assert len(stub.runs) >= 1
    assert stub.live_pids() == [] and stub.leftover_files() == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_cancellation_leaves_nothing_behind(stub: Stub, fault: str) -> None:
    stub.plays(FAULTS[fault])
    call = asyncio.ensure_future(stub.search())
    await eventually(fault_reached(stub, FAULTS[fault]))

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert stub.live_pids() == [] and stub.leftover_files() == []


@pytest.mark.parametrize("end", ["TerminateProcess", "stdin closed"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_end_of_the_server_or_its_client_leaves_nothing_behind(
    stub: Stub, fault: str, end: str
) -> None:
    stub.plays(FAULTS[fault])

    with start_server(stub, *SEARCH_FRAMES) as server:
        await eventually(fault_reached(stub, FAULTS[fault]))
        if end == "TerminateProcess":
            server.kill()
        else:
            assert server.stdin
            server.stdin.close()
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: stub.live_pids() == [])
    if end != "TerminateProcess":
        assert stub.leftover_files() == []
    await eventually(lambda: not remaining_after_next_start(stub))
    assert not any((stub.config_dir / "servers").iterdir())


@needs_real_cli
async def test_killing_a_server_ends_its_node_processes(
    real: Stub, api: FakeApi, tmp_path: Path
) -> None:
    """One process waits for its prompt, and one for the API."""
    node = Path(shutil.copy(str(shutil.which("node")), tmp_path))
    real.environ["PATH"] = str(tmp_path)
    api.hangs = True
    with start_server(real, *SEARCH_FRAMES) as server:
        await eventually(lambda: api.waiting and process_count(node) > 1, 60)
        server.kill()
        await eventually(lambda: server.poll() is not None)

    await eventually(lambda: not process_count(node))
    await eventually(lambda: not remaining_after_next_start(real))


async def test_a_process_that_is_not_in_its_job_yet_ends_with_the_server(tmp_path: Path) -> None:
    """As if the server was killed between the creation of a process and its assignment."""
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from gemini_cli_mcp.process.windows_job import WindowsJob\n"
        "job = WindowsJob()\n"
        "child = subprocess.Popen([sys.executable], creationflags=int(sys.argv[2]))\n"
        "Path(sys.argv[1]).write_text(f'{os.getpid()} {child.pid} end')\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(pids), str(CREATE_SUSPENDED)]):
        await eventually(lambda: pids.exists() and pids.read_text().endswith("end"), 60)
        server, child = map(int, pids.read_text().split()[:2])
        assert is_alive(child)
        os.kill(server, 9)

    await eventually(lambda: not is_alive(child))


def process_count(program: Path) -> int:
    """Return how many processes run this program."""
    count = 0
    access = parent_process.PROCESS_QUERY_LIMITED_INFORMATION
    for pid in win32process.EnumProcesses():
        with suppress(pywintypes.error):  # it has ended, or belongs to the system
            count += parent_process._program(win32api.OpenProcess(access, False, pid)) == program
    return count


async def test_the_server_exits_with_its_parent_even_if_stdin_stays_open(
    stub: Stub, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    output = tmp_path / "output"
    code = (
        "import subprocess, sys, time\n"
        "with open(sys.argv[1], 'wb') as stdout:\n"
        "    server = subprocess.Popen(sys.argv[2:], stdin=0, stdout=stdout, close_fds=False)\n"
        "print(server.pid, file=sys.stderr, flush=True)\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(output), *command()],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=stub.environ,
    ) as parent:
        assert parent.stderr
        pid = int(parent.stderr.readline())
        os.write(writer, json.dumps(INITIALIZE_REQUEST).encode() + b"\n")
        await eventually(lambda: b"serverInfo" in output.read_bytes(), 60)
        assert is_alive(pid)
        parent.kill()
        await eventually(lambda: not is_alive(pid))

    for descriptor in (reader, writer):
        os.close(descriptor)


def test_programs_in_the_current_folder_are_never_run(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every form of program there, and a PATH with quotes, empty and relative entries."""
    trap, installed = tmp_path / "trap", tmp_path / "a;b & c"
    marker = tmp_path / "trapped"
    trap.mkdir()
    installed.mkdir()
    for name in ("gemini.cmd", "gemini.bat", "gemini.ps1"):
        (trap / name).write_text(f'@echo x > "{marker}"\r\n')
    for name in ("gemini.exe", "node.exe"):
        shutil.copy(STUB, trap / name)
    monkeypatch.chdir(trap)
    stub.environ["GEMINI_MCP_CLI_PATH"] = "gemini"
    stub.environ["PATH"] = ';.;"' + str(installed) + '";;trap'

    missing = run_command(stub, "search", QUESTION)
    script = installed / "node_modules/@google/gemini-cli/gemini.js"
    script.parent.mkdir(parents=True)
    script.write_text("")
    (script.parent / "package.json").write_text('{"version": "0.61.0"}')
    arguments = '"%~dp0\\node_modules\\@google\\gemini-cli\\gemini.js" %*'
    (installed / "gemini.cmd").write_text(
        f'@SETLOCAL\n@IF EXIST "%~dp0\\node.exe" (\n  "%~dp0\\node.exe" {arguments}\n'
        f") ELSE (\n  @SET PATHEXT=%PATHEXT:;.JS;=;%\n  node {arguments}\n)\n"
    )
    without_node = run_command(stub, "search", QUESTION)
    shutil.copy(STUB, installed / "node.exe")
    binary = find_gemini("gemini", stub.environ)

    assert "CLI_NOT_FOUND" in missing.stderr and "neither on PATH" in missing.stderr
    assert "CLI_NOT_FOUND" in without_node.stderr and "needs Node" in without_node.stderr
    assert binary.argv == (str(installed / "node.exe"), str(script))
    assert not marker.exists() and stub.runs == []


def test_a_batch_file_that_cannot_be_seen_through_is_refused(stub: Stub, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    wrapper = tmp_path / "gemini.cmd"
    wrapper.write_text(f'@echo %* > "{marker}"\r\n@"{STUB}" %*\r\n')
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(wrapper)

    completed = run_command(stub, "search", 'a" & calc.exe & "')

    assert completed.returncode == 1
    assert "CLI_NOT_FOUND" in completed.stderr and "batch file" in completed.stderr
    assert not marker.exists()


@pytest.mark.parametrize("name", ["Ann Müller", "R&D (100%)", "山田 太郎", "O'Neil ^x"])
async def test_any_user_name_works(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    stub = Stub(folder)
    stub.plays({"text": model_answer(CHINESE_ANSWER), "searches": [search_with_sources("q", "n")]})

    assert (await stub.search())["result"] == CHINESE_ANSWER
    async with stdio_client(stub) as client:
        result = await client.call_tool("search", {"query": CHINESE})
    assert structured_result(result)["result"] == CHINESE_ANSWER


@needs_real_cli
async def test_the_real_cli_works_for_any_user_name(tmp_path: Path, api: FakeApi) -> None:
    folder = tmp_path / "Ann & 山田"
    folder.mkdir()
    api.calls, api.texts = [SEARCH], [model_answer(CHINESE_ANSWER)]
    stub = use_real_cli(Stub(folder), api)
    stub.environ |= {"PATH": os.environ["PATH"], "GEMINI_MCP_READY": "0"}

    answer = await stub.search(CHINESE)

    assert answer["metadata"]["evidence"] == "ledger"


@needs_real_cli
@pytest.mark.parametrize("place", ["same disk", "another disk"])
async def test_a_key_in_the_users_env_file_is_used(
    real: Stub, api: FakeApi, place: str, tmp_path: Path
) -> None:
    """By a hard link, or on another disk by a copy that does not outlive the run."""
    del real.environ["GEMINI_API_KEY"]
    (real.home / ".gemini").mkdir()
    (real.home / ".gemini/.env").write_text("GEMINI_API_KEY=key-of-the-file\n")
    if place == "another disk":
        disk = another_disk(real.home)
        real.config_dir = disk / tmp_path.name
        real.environ["GEMINI_MCP_CONFIG_DIR"] = str(real.config_dir)
    real.environ["GEMINI_MCP_READY"] = "0"

    async with stdio_client(real) as client:
        result = await client.call_tool("search", {"query": QUESTION})
        assert structured_result(result)["success"], result
        copies = [path for path in real.leftover_files() if path.name == ".env"]
        if place == "another disk":
            assert copies == []

    assert {request.key for request in api.requests} == {"key-of-the-file"}
    assert real.leftover_files() == []
    assert (real.home / ".gemini/.env").read_text() == "GEMINI_API_KEY=key-of-the-file\n"


def another_disk(path: Path) -> Path:
    for letter in "DEFGHIJKLMNOPQRSTUVWXY":
        root = Path(f"{letter}:/")
        with suppress(OSError):
            if root.exists() and root.stat().st_dev != path.stat().st_dev:
                probe = root / "probe"
                probe.mkdir(exist_ok=True)
                return probe
    pytest.skip("there is no other disk")


def test_files_in_use_are_replaced_and_deleted_soon(tmp_path: Path) -> None:
    """As when a virus scanner reads a new file for a moment."""
    folder = tmp_path / "folder"
    new, path = tmp_path / "new", folder / "file"
    for operation in (
        lambda: files.replace(new, path),
        lambda: files.delete(path),
        lambda: files.delete_folder(folder),
    ):
        folder.mkdir(exist_ok=True)
        new.write_text("new")
        path.write_text("old")
        file = path.open("rb")
        with pytest.raises(PermissionError):
            new.replace(path)
        timer = threading.Timer(0.2, file.close)
        timer.start()

        operation()

        timer.join()
        assert not path.exists() or path.read_text() == "new"


@pytest.mark.parametrize("redirect", ["pipe", "file"])
def test_redirected_output_is_utf_8(stub: Stub, tmp_path: Path, redirect: str) -> None:
    stub.plays({"text": model_answer(CHINESE_ANSWER), "searches": [search_with_sources("q", "n")]})
    output = tmp_path / "output"
    with output.open("wb") as file:
        completed = subprocess.run(
            command("search", CHINESE),
            env=stub.environ,
            stdout=file if redirect == "file" else subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    data = output.read_bytes() if redirect == "file" else completed.stdout

    assert CHINESE_ANSWER in data.decode("utf-8")


def test_a_closed_output_is_not_an_error(stub: Stub) -> None:
    stub.plays(
        {"text": model_answer("word " * 60_000), "searches": [search_with_sources("q", "n")]}
    )
    with subprocess.Popen(
        command("search", "--quiet", QUESTION),
        env=stub.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        log = process.stderr.read()

    assert (process.returncode, log) == (0, b"")


def test_login_waits_for_the_cli(stub: Stub) -> None:
    stub.plays({"hang": "start"})
    with subprocess.Popen(
        command("login", "gemini"), env=stub.environ, stdin=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: stub.hanging_pids)
        time.sleep(1)
        assert process.poll() is None
        for pid in stub.hanging_pids:
            os.kill(pid, 9)

    assert process.returncode != 0


async def test_a_process_has_no_console_window(mocker: MockerFixture) -> None:
    """It is created suspended, so that it starts as a member of its job."""
    popen = mocker.spy(asyncio.windows_utils, "Popen")  # type: ignore[attr-defined]

    await read_output([sys.executable, "-c", "pass"], env=os.environ, cwd=Path.cwd())

    flags = popen.call_args.kwargs["creationflags"]
    assert flags == CREATE_NO_WINDOW | CREATE_SUSPENDED


async def test_the_memory_of_a_process_is_known(tmp_path: Path) -> None:
    # The python.exe of a virtual environment only starts this one.
    argv = [
        str(Path(sys.base_prefix, "python.exe")),
        "-c",
        "import time; text = b'x' * 50_000_000; time.sleep(60)",
    ]
    async with LineProcess.open(argv, env=os.environ, cwd=tmp_path) as process:
        await eventually(lambda: process.memory_bytes > 50_000_000)


def test_the_configuration_folder_has_the_name_once() -> None:
    folder = Settings.from_env({}).config_dir

    assert folder.parts[-2:] == ("Local", "gemini-cli-mcp")


async def test_output_of_a_megabyte_arrives_whole() -> None:
    code = "import sys; sys.stdout.write('x' * 1_000_000 + '\\nend')"
    output = await read_output([sys.executable, "-c", code], env=os.environ, cwd=Path.cwd())

    assert [len(line) for line in output.stdout.splitlines()] == [1_000_000, 3]


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemini.txt"
    path.touch()

    with pytest.raises(CliNotFound, match="cannot start a file of this type"):
        find_gemini(str(path), os.environ)


def test_the_folder_of_a_server_is_private(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "config")
    folder = workspace.folder("home").parent

    access = win32security.GetNamedSecurityInfo(
        str(folder), win32security.SE_FILE_OBJECT, win32security.DACL_SECURITY_INFORMATION
    ).GetSecurityDescriptorDacl()
    sids = [access.GetAce(index)[2] for index in range(access.GetAceCount())]
    everyone = win32security.CreateWellKnownSid(win32security.WinWorldSid, None)
    members = win32security.CreateWellKnownSid(win32security.WinBuiltinUsersSid, None)
    assert sids and everyone not in sids and members not in sids
    workspace.close()


@needs_real_cli
async def test_a_read_only_sign_in_file_can_be_used_and_leaves_nothing(real: Stub) -> None:
    del real.environ["GEMINI_API_KEY"]
    (real.home / ".gemini").mkdir()
    file = real.home / ".gemini/.env"
    file.write_text("GEMINI_API_KEY=key-of-the-file\n")
    file.chmod(stat.S_IREAD)
    real.environ["GEMINI_MCP_READY"] = "0"

    async with stdio_client(real) as client:
        for _ in range(2):
            result = await client.call_tool("search", {"query": QUESTION})
            assert structured_result(result)["success"], result

    assert real.leftover_files() == []
    file.chmod(stat.S_IWRITE)
