"""The stub CLI, and helpers that run parts of the program on it."""

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from gemini_cli_mcp.call_context import LOCAL_OWNER, CallContext
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.child_environment import system_variables
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research import requests
from gemini_cli_mcp.research.deep_search import (
    DeepSearchEvent,
    DeepSearchFinished,
    RoundFindings,
    RoundStep,
    deep_search,
    deep_search_context,
)
from gemini_cli_mcp.research.grounded_search import grounded_search
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.research.retry import Sleep
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.research.web_search import EngineProviders, web_search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Findings, ProgressCallback
from gemini_cli_mcp.workspace import Workspace

if TYPE_CHECKING:
    from pytest_mock import MockerFixture

    from tests.support.fake_api import FakeApi

ROOT = Path(__file__).parent.parent.parent
IS_WINDOWS = sys.platform == "win32"
STUB = (
    Path(sysconfig.get_path("scripts"), "gemini-cli-mcp-stub.exe")
    if IS_WINDOWS
    else ROOT / "scripts/stub-gemini"
)
TERMINATED_EXIT_CODE = 1 if IS_WINDOWS else 0
"""Of a server that was asked to stop; Windows has no signal for that and ends it at once."""
PROC = Path("/proc/self")
REAL_CLI = ROOT / "tests/real-cli/node_modules/.bin" / ("gemini.cmd" if IS_WINDOWS else "gemini")
TOOLS = [
    "search",
    "grounded_search",
    "web_search",
    "deep_search",
    "deep_search_result",
    "deep_search_cancel",
]
QUESTION = "Why is the sky blue?"
REDIRECT = "https://vertexaisearch.cloud.google.com/grounding-api-redirect/"

Turn = dict[str, Any]
Result = dict[str, Any]


def model_answer(text: str = "Short waves scatter more.", **fields: object) -> str:
    """Return the answer of a well-behaved model."""
    return json.dumps({"success": True, "report": text, **fields})


def search_with_sources(query: str, *names: str) -> Turn:
    """Return a scripted search with one source per name."""
    return {"query": query, "sources": [[f"{name}.org", REDIRECT + name] for name in names]}


class Stub:
    """The stub CLI in its own folder, and the parts of the program that run on it."""

    def __init__(self, folder: Path) -> None:
        self.config_dir = folder / "config"
        self.home = folder / "home"
        self._runs = folder / "runs"
        self._turns = folder / "turns.json"
        self.home.mkdir()
        self._runs.mkdir()
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            **(
                {**system_variables(os.environ), "USERPROFILE": str(self.home)}
                if IS_WINDOWS
                else {}
            ),
            "GEMINI_MCP_CLI_PATH": str(STUB),
            "GEMINI_MCP_CONFIG_DIR": str(self.config_dir),
            "STUB_GEMINI_DIR": str(self._runs),
            "STUB_GEMINI_PACE": "0",  # the built-in scenarios pause for people who watch
        }
        self.limits = Limits()
        """Limits of the program in this process; tests may change them."""
        self.messages: list[str] = []
        self.findings: list[Findings] = []
        self.waits: list[float] = []

    @property
    def settings(self) -> Settings:
        return Settings.from_env(self.environ, self.limits)

    def plays(self, *turns: Turn) -> None:
        """Play the next turn in each run, and repeat the last one."""
        self._turns.write_text(json.dumps(turns), encoding="utf-8")
        self.environ["STUB_GEMINI_TURNS"] = str(self._turns)
        self.environ["STUB_GEMINI_PACE"] = "1"

    def plays_scenario(self, *names: str) -> None:
        """Play the stub's built-in scenarios in the same way."""
        self.environ["STUB_GEMINI_SCENARIO"] = ",".join(names)

    def clear_runs(self) -> None:
        """Delete the records of earlier runs, for a server that several tests share."""
        for path in self._runs.iterdir():
            path.unlink()

    def open_gate(self) -> None:
        """Release the turns that wait at the gate."""
        (self._runs / "open").touch()

    @property
    def runs(self) -> list[Result]:
        """The record of each run: its arguments, prompt, files and environment."""
        return [json.loads(path.read_text()) for path in sorted(self._runs.glob("run-*.json"))]

    @property
    def hanging_pids(self) -> list[int]:
        """Pids of the runs that have reached the point where they hang."""
        return [int(path.name.removeprefix("hanging-")) for path in self._runs.glob("hanging-*")]

    def live_pids(self) -> list[int]:
        """Return the pids of all runs and their children that are still alive."""
        children = [int(path.name.removeprefix("child-")) for path in self._runs.glob("child-*")]
        return [pid for pid in [run["pid"] for run in self.runs] + children if is_alive(pid)]

    def leftover_files(self) -> list[Path]:
        """Return all files that remain in the configuration folder."""
        # os.walk tolerates files that are deleted while it runs.
        return [
            Path(folder) / name for folder, _, names in os.walk(self.config_dir) for name in names
        ]

    async def search(
        self,
        query: object = QUESTION,
        *,
        sleep: Sleep | None = None,
        progress: ProgressCallback | None = None,
    ) -> Result:
        """Search on the stub; waits are recorded, not slept, unless `sleep` is given."""
        settings = self.settings
        with self.researcher(settings, sleep) as researcher:
            request = requests.parse_search({"query": query})
            context = CallContext(
                progress=progress or self.messages.append,
                timeout=settings.timeout,
                report_findings=self.findings.append,
            )
            return to_json(await search(request, context, researcher))

    async def deep_search(
        self,
        query: object = QUESTION,
        max_iterations: object = None,
        *,
        on_event: Callable[[DeepSearchEvent, CallContext], None] | None = None,
    ) -> Result:
        """Run a deep search on the stub; `on_event` may inspect or cancel it."""
        settings = self.settings
        request = requests.parse_deep_search(
            {"query": query, "max_iterations": max_iterations}, settings
        )
        context = deep_search_context(LOCAL_OWNER, settings)
        results: list[Result] = []
        with self.researcher(settings) as researcher:
            async with aclosing(deep_search(request, context, researcher)) as events:
                async for event in events:
                    if isinstance(event, RoundStep):
                        step = f"round {event.number}/{request.max_rounds}: {event.message}"
                        self.messages.append(step)
                    if isinstance(event, RoundFindings):
                        self.findings.append(event.findings)
                    if isinstance(event, DeepSearchFinished):
                        results.append(to_json(event.result))
                    if on_event:
                        on_event(event, context)
        [result] = results
        return result

    async def grounded_search(
        self,
        query: object = QUESTION,
        model: object = None,
        thinking: object = None,
        include_thoughts: object = None,
        *,
        researcher: Researcher | None = None,
    ) -> Result:
        """Run a grounded search on the stub, with a researcher of its own by default."""
        settings = self.settings
        arguments = {
            "query": query,
            "model": model,
            "thinking": thinking,
            "include_thoughts": include_thoughts,
        }
        request = requests.parse_grounded_search(arguments, settings)
        with self.researcher(settings) as own_researcher:
            context = CallContext(progress=self.messages.append, timeout=settings.timeout)
            return to_json(await grounded_search(request, context, researcher or own_researcher))

    async def web_search(
        self,
        query: object = QUESTION,
        engine: object = None,
        recency: object = None,
        count: object = None,
    ) -> Result:
        """Run a web search on the stub."""
        settings = self.settings
        arguments = {"query": query, "engine": engine, "recency": recency, "count": count}
        request = requests.parse_web_search(arguments, settings.engines)
        workspace = Workspace(settings.config_dir)
        providers = ProviderRegistry(settings, workspace, self.environ)
        engines = EngineProviders(settings, providers, self.environ, self._record_wait)
        context = CallContext(progress=self.messages.append, timeout=settings.timeout)
        try:
            return to_json(await web_search(request, context, engines))
        finally:
            workspace.close()

    @contextmanager
    def researcher(self, settings: Settings, sleep: Sleep | None = None) -> Generator[Researcher]:
        """A researcher on the stub; waits are recorded, not slept, unless `sleep` is given."""
        sleep = sleep or self._record_wait
        workspace = Workspace(settings.config_dir)
        try:
            providers = ProviderRegistry(settings, workspace, self.environ)
            yield Researcher(settings, providers.configured, workspace, sleep)
        finally:
            workspace.close()

    def require_findings(self, metadata: Result) -> None:
        """Check that what was reported while a call ran adds up to what its result says."""
        urls = [url for findings in self.findings for url in findings.urls]
        assert sorted(set(urls)) == sorted(metadata["sources_visited"])
        assert sum(item.tokens for item in self.findings) == metadata["usage"]["total_tokens"] > 0

    async def _record_wait(self, seconds: float) -> None:
        self.waits.append(seconds)


def use_real_cli(stub: Stub, api: "FakeApi") -> Stub:
    """Make the stub's environment use the real CLI, connected to this API."""
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(REAL_CLI),
        "GEMINI_API_KEY": "test-key",
        "GOOGLE_GEMINI_BASE_URL": api.url,
        "GEMINI_MODEL": "gemini-2.5-flash",
        "GEMINI_MCP_MAX_CYCLES": "1",
    }
    return stub


def is_alive(pid: int) -> bool:
    """Return whether this process is running; a zombie is not."""
    if IS_WINDOWS:
        return is_alive_on_windows(pid)
    if not PROC.exists():
        state = subprocess.run(["/bin/ps", "-o", "stat=", "-p", str(pid)], capture_output=True)
        return bool(state.stdout.strip()) and not state.stdout.startswith(b"Z")
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it exits meanwhile
        return False
    return state != "Z"


def is_alive_on_windows(pid: int) -> bool:
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined]
    synchronize, timeout = 0x00100000, 0x102
    handle = kernel.OpenProcess(synchronize, False, pid)
    if not handle:
        return False
    try:
        return kernel.WaitForSingleObject(handle, 0) == timeout
    finally:
        kernel.CloseHandle(handle)


def ps_rows() -> list[tuple[int, int, str]]:
    """Return the pid, the parent and the command of each process."""
    output = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "command="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split(maxsplit=2) for line in output.splitlines()]
    return [(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) > 2]


def require_proc() -> None:
    """Skip a test that looks at other processes, where there is no /proc."""
    if not PROC.exists():
        pytest.skip("needs /proc, so Linux")


class Clock:
    """The time as seen by the program and its event loop; tests can advance it.

    This lets a test reach a deadline of minutes immediately, once the fault has occurred.
    """

    def __init__(self, mocker: "MockerFixture") -> None:
        self._offset = 0.0
        monotonic = time.monotonic

        def now() -> float:
            return monotonic() + self._offset

        mocker.patch("time.monotonic", now)

    def skip(self, seconds: float) -> None:
        self._offset += seconds

    async def skip_and_settle(self, seconds: float) -> None:
        """Advance the time, then run everything that has become due."""
        self.skip(seconds)
        await anyio.sleep(0.01)  # one iteration of the event loop, which checks its timers
        await anyio.wait_all_tasks_blocked()


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of this process."""
    if PROC.exists():
        children_file = Path(f"/proc/{pid}/task/{pid}/children")
        try:
            children = [int(child) for child in children_file.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []
    else:
        children = [child for child, parent, _ in ps_rows() if parent == pid]
    return children + [pid for child in children for pid in descendants(child)]


def parent_pid(pid: int) -> int:
    if not PROC.exists():
        return next(parent for child, parent, _ in ps_rows() if child == pid)
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def eventually(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds. The limit is generous, because machines may be busy."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds, blocking this thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def command(*arguments: str) -> list[str]:
    """Return the command line with which users start the program."""
    return [sys.executable, "-m", "gemini_cli_mcp", *arguments]
