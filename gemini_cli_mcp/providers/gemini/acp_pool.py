"""Warm processes: so many kept ready, replaced when worn, given back when nobody needs them."""

import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex

import anyio
import anyio.abc

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.providers.gemini.acp_client import NOT_SIGNED_IN, Lost, Refused
from gemini_cli_mcp.providers.gemini.acp_process import WarmGemini, WarmSeat
from gemini_cli_mcp.providers.gemini.binary import Binary, find_gemini, path_for
from gemini_cli_mcp.providers.gemini.home import Profile, SignIn, prepare_home, sign_ins
from gemini_cli_mcp.providers.run_limiter import Places
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Key:
    """What a process was started with; a run that needs something else cannot use it."""

    binary: Binary
    way: SignIn
    stamps: tuple[int, ...]
    """When the files of the sign-in were last changed."""


class Warm:
    """The warm processes of one profile."""

    def __init__(
        self,
        config: Config,
        workspace: Workspace,
        environ: Mapping[str, str],
        profile: Profile,
        places: Places,
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._environ = environ
        self.profile = profile
        self._places = places
        self._ready: dict[WarmGemini, _Key] = {}
        self._refused: set[_Key] = set()
        self._proven: SignIn | None = None
        self._asked = anyio.Event()
        """Set, and replaced, when a run finds no seat."""

    def find(self) -> WarmSeat | None:
        """A seat in the process with the most room; None if none is ready."""
        key = self._key()
        if key:
            for process in [process for process, its in self._ready.items() if its != key]:
                process.retire("the sign-in or the binary has changed")
        best = max(self._ready, key=lambda process: process.free, default=None)
        if best and best.free > 0:
            return best.sit()
        self._asked.set()
        self._asked = anyio.Event()
        return None

    @property
    def is_ready(self) -> bool:
        """Whether there is a process with room."""
        return any(process.free > 0 for process in self._ready)

    def prove(self, way: SignIn) -> None:
        """A single run was signed in this way."""
        self._proven = way
        self._refused = {key for key in self._refused if key.way != way}

    async def stay(self) -> None:
        """Keep the processes until cancelled."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._config.warm):
                tasks.start_soon(self._keep_one, tasks)

    async def _keep_one(self, tasks: anyio.abc.TaskGroup) -> None:
        """One process after another in the same place, and never more than two."""
        old: WarmGemini | None = None
        needed, failures = True, 0
        while True:
            while not (needed and (key := self._key())):
                await self._asked.wait()
                needed = True
            process: WarmGemini | None = await tasks.start(self._live, key, old)
            if process is None:
                failures += 1
                await self._pause(failures, key)
                continue
            if old:  # only now, so that there is always one
                old.retire("another one has taken its place")
            await process.worn.wait()
            if old and not process.is_retired:
                await old.gone.wait()
            old = None if process.is_retired else process
            needed = not process.given_back
            failures = 0 if process.served or process.given_back else failures + 1
            if failures:
                await self._pause(failures, key)

    async def _pause(self, failures: int, key: _Key) -> None:
        """Wait before another try, unless it would be another one."""
        waits = self._config.limits.warm_restarts
        with anyio.move_on_after(waits[min(failures, len(waits)) - 1]):
            while self._key() == key:
                await self._asked.wait()

    async def _live(
        self,
        key: _Key,
        old: WarmGemini | None,
        *,
        task_status: anyio.abc.TaskStatus[WarmGemini | None],
    ) -> None:
        """The life of one process; tells it when it is ready, or None if it never will be."""
        process = home = None
        try:
            profile = replace(self.profile, name=f"warm-{token_hex(4)}")
            with self._workspace.usable():
                home = prepare_home(self._workspace, profile, key.way, self._config.limits)
            argv = [*key.binary.argv, "--acp"]
            argv += ["--model", profile.model] if profile.model else []
            environ = {
                **self._environ,
                "PATH": path_for(key.binary, self._environ),
                "NO_BROWSER": "true",  # nobody asked for a sign-in
            }
            async with WarmGemini.open(
                argv, home, environ, self._workspace.root(), self._config
            ) as process:
                if await self._begun(process, key, old.busiest if old else 0):
                    process.freed = self._places.serve
                    self._ready[process] = key
                    logger.info("A warm gemini is ready")
                    task_status.started(process)
                    self._places.serve()
                    await process.over()
        except Exception as error:  # noqa: BLE001 - it is an optimisation: a search goes without
            logger.warning("A warm gemini failed (%s)", type(error).__name__)
        finally:
            if process:
                self._ready.pop(process, None)
                process.gone.set()
                process.worn.set()
            if home:
                shutil.rmtree(home.path.parent, ignore_errors=True)
        with suppress(RuntimeError):  # it was ready once
            task_status.started(None)

    async def _begun(self, process: WarmGemini, key: _Key, sessions: int) -> bool:
        try:
            await process.begin(sessions)
        except Refused as error:
            if error.code == NOT_SIGNED_IN:
                self._refused.add(key)
            logger.info("No warm gemini: its sessions are refused (%d)", error.code)
        except (Lost, TimeoutError):
            logger.info("No warm gemini: it did not start")
        else:
            return True
        return False

    def _key(self) -> _Key | None:
        """What a process of now would be started with; None if there can be none."""
        try:
            binary = find_gemini(self._config.cli_path, self._environ)
            ways = sign_ins(self._environ)
            # What single runs use. Unproven, a key: a login may ask for another in a browser.
            way = self._proven if self._proven in ways else ways[0]
            known = way.auth_type in ("gemini-api-key", "vertex-ai") or way == self._proven
            if not binary.official or not way.auth_type or not known:
                return None
            files = (path for path in (way.env_file, way.login_file) if path)
            key = _Key(binary, way, tuple(path.stat().st_mtime_ns for path in files))
        except (CliNotFound, OSError, RuntimeError):
            return None
        return None if key in self._refused else key
