"""The stub CLI and the parts of our program that run on it, ready to be driven by tests."""

import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.research.deep_search import DeepSearch
from gemini_cli_mcp.research.researcher import Researcher, Sleep
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace

if TYPE_CHECKING:
    from pytest_mock import MockerFixture

    from tests.support.fake_api import FakeApi

ROOT = Path(__file__).parent.parent.parent
STUB = ROOT / "scripts" / "stub-gemini"
REAL_CLI = ROOT / "tests/real-cli/node_modules/.bin/gemini"
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
    """What a well-behaved model answers."""
    return json.dumps({"success": True, "report": text, **fields})


def search_with_sources(query: str, *names: str) -> Turn:
    """A search with one source for each name."""
    return {"query": query, "sources": [[f"{name}.org", REDIRECT + name] for name in names]}


class Stub:
    """The stub CLI in a folder of its own, and the pieces of our program that run on it."""

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
            "GEMINI_MCP_CLI_PATH": str(STUB),
            "GEMINI_MCP_CONFIG_DIR": str(self.config_dir),
            "STUB_GEMINI_DIR": str(self._runs),
        }
        self.limits = Limits()
        """What the program in this process waits for, where a test says otherwise than users."""
        self.messages: list[str] = []
        self.waits: list[float] = []

    @property
    def settings(self) -> Settings:
        return Settings.from_env(self.environ, self.limits)

    def plays(self, *turns: Turn) -> None:
        """Each run plays the next turn; the last one goes on."""
        self._turns.write_text(json.dumps(turns), encoding="utf-8")
        self.environ["STUB_GEMINI_TURNS"] = str(self._turns)

    def plays_scenario(self, *names: str) -> None:
        """Likewise, with the scenarios that the stub has built in."""
        self.environ["STUB_GEMINI_SCENARIO"] = ",".join(names)

    def clear_runs(self) -> None:
        """For a server that several tests share."""
        for path in self._runs.iterdir():
            path.unlink()

    def open_gate(self) -> None:
        """Let go of the turns that wait for it."""
        (self._runs / "open").touch()

    @property
    def runs(self) -> list[Result]:
        """What each run saw."""
        return [json.loads(path.read_text()) for path in sorted(self._runs.glob("run-*.json"))]

    @property
    def hanging_pids(self) -> list[int]:
        """The runs that have come to where they hang."""
        return [int(path.name.removeprefix("hanging-")) for path in self._runs.glob("hanging-*")]

    def live_pids(self) -> list[int]:
        """Every process of every run that is still there."""
        children = [int(path.name.removeprefix("child-")) for path in self._runs.glob("child-*")]
        return [pid for pid in [run["pid"] for run in self.runs] + children if is_alive(pid)]

    def leftover_files(self) -> list[Path]:
        """All that is still in the configuration folder."""
        # os.walk: what is being deleted meanwhile does not stop it.
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
        """Research on the stub; waits are written down and not waited, unless `sleep` says so."""
        settings = self.settings
        with self.researcher(settings, sleep) as desk:
            return await search(
                desk, query, timeout=settings.timeout, progress=progress or self.messages.append
            )

    async def deep_search(
        self,
        query: object = QUESTION,
        max_iterations: object = None,
        *,
        progress: Callable[[DeepSearch, str], None] | None = None,
    ) -> Result:
        """Research in rounds on the stub; `progress` may look into the search, or cancel it."""
        settings = self.settings
        with self.researcher(settings) as desk:
            deep = DeepSearch(desk, settings, query, max_iterations)

            def tell(message: str) -> None:
                self.messages.append(message)
                if progress:
                    progress(deep, message)

            return await deep.run(tell)

    @contextmanager
    def researcher(self, settings: Settings, sleep: Sleep | None = None) -> Generator[Researcher]:
        """Where research goes out; waits are written down and not waited, unless `sleep` does."""
        sleep = sleep or self._note_wait
        workspace = Workspace(settings.config_dir)
        try:
            providers = ProviderRegistry(settings, workspace, self.environ)
            yield Researcher(
                providers.configured, workspace, max_cycles=settings.max_cycles, sleep=sleep
            )
        finally:
            workspace.close()

    async def _note_wait(self, seconds: float) -> None:
        self.waits.append(seconds)


def use_real_cli(stub: Stub, api: "FakeApi") -> Stub:
    """The same program on the real CLI, which talks to this API."""
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(REAL_CLI),
        "GEMINI_API_KEY": "test-key",
        "GOOGLE_GEMINI_BASE_URL": api.url,
        "GEMINI_MODEL": "gemini-2.5-flash",
        "GEMINI_MCP_MAX_CYCLES": "1",
    }
    return stub


def is_alive(pid: int) -> bool:
    """Whether this process runs; one that is dead but not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class Clock:
    """The time that our program and its event loop see: it can be put forward.

    So a test comes to a deadline of minutes at once, and only when the fault is reached.
    """

    def __init__(self, mocker: "MockerFixture") -> None:
        self._ahead = 0.0
        real = time.monotonic

        def now() -> float:
            return real() + self._ahead

        mocker.patch("time.monotonic", now)

    def skip(self, seconds: float) -> None:
        self._ahead += seconds

    async def skip_and_settle(self, seconds: float) -> None:
        """The same, and let everything happen that was due meanwhile."""
        self.skip(seconds)
        await anyio.sleep(0.01)  # a turn of the event loop, in which timers are looked at
        await anyio.wait_all_tasks_blocked()


def descendants(pid: int) -> list[int]:
    """Every process below this one."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        below = [int(child) for child in children.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return below + [pid for child in below for pid in descendants(child)]


def parent_pid(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def eventually(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds. The limit is no measurement: machines may be busy."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """The same where nothing else has to go on meanwhile."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.02)


def command(*arguments: str) -> list[str]:
    """The program as users start it."""
    return [sys.executable, "-m", "gemini_cli_mcp", *arguments]
