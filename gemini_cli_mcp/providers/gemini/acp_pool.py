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
from gemini_cli_mcp.providers.gemini.acp_client import NOT_SIGNED_IN_CODE, AcpError, AgentGone
from gemini_cli_mcp.providers.gemini.acp_process import AcpProcess, AcpSlot
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary, child_path, find_gemini
from gemini_cli_mcp.providers.gemini.home import Profile, SignIn, available_sign_ins, prepare_home
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchSpec:
    """What a process was started with; a run that needs something else cannot use it."""

    binary: GeminiBinary
    sign_in: SignIn
    mtimes: tuple[int, ...]
    """When the files of the sign-in were last changed."""


class AcpPool:
    """The warm processes of one profile."""

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        profile: Profile,
        limiter: RunLimiter,
    ) -> None:
        self._settings = settings
        self._workspace = workspace
        self._environ = environ
        self.profile = profile
        self._limiter = limiter
        self._processes: dict[AcpProcess, LaunchSpec] = {}
        self._rejected: set[LaunchSpec] = set()
        self._working_sign_in: SignIn | None = None
        self._slot_wanted = anyio.Event()
        """Set, and replaced, when a run finds no seat."""

    def find_slot(self) -> AcpSlot | None:
        """A seat in the process with the most room; None if none is ready."""
        spec = self._launch_spec()
        if spec:
            for process in [process for process, other in self._processes.items() if other != spec]:
                process.retire("the sign-in or the binary has changed")
        best = max(self._processes, key=lambda process: process.free_slots, default=None)
        if best and best.free_slots > 0:
            return best.acquire()
        self._slot_wanted.set()
        self._slot_wanted = anyio.Event()
        return None

    @property
    def is_ready(self) -> bool:
        """Whether there is a process with room."""
        return any(process.free_slots > 0 for process in self._processes)

    def mark_working(self, way: SignIn) -> None:
        """A single run was signed in this way."""
        self._working_sign_in = way
        self._rejected = {key for key in self._rejected if key.sign_in != way}

    async def run(self) -> None:
        """Keep the processes until cancelled."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._settings.warm):
                tasks.start_soon(self._keep_one, tasks)

    async def _keep_one(self, tasks: anyio.abc.TaskGroup) -> None:
        """One process after another in the same place, and never more than two."""
        old: AcpProcess | None = None
        needed, failures = True, 0
        while True:
            while not (needed and (key := self._launch_spec())):
                await self._slot_wanted.wait()
                needed = True
            process: AcpProcess | None = await tasks.start(self._run_process, key, old)
            if process is None:
                failures += 1
                await self._pause(failures, key)
                continue
            if old:  # only now, so that there is always one
                old.retire("another one has taken its place")
            await process.needs_replacement.wait()
            if old and not process.is_retired:
                await old.gone.wait()
            old = None if process.is_retired else process
            needed = not process.retired_idle
            failures = 0 if process.run_count or process.retired_idle else failures + 1
            if failures:
                await self._pause(failures, key)

    async def _pause(self, failures: int, spec: LaunchSpec) -> None:
        """Wait before another try, unless it would be another one."""
        delays = self._settings.limits.acp_restart_delays
        with anyio.move_on_after(delays[min(failures, len(delays)) - 1]):
            while self._launch_spec() == spec:
                await self._slot_wanted.wait()

    async def _run_process(
        self,
        spec: LaunchSpec,
        old: AcpProcess | None,
        *,
        task_status: anyio.abc.TaskStatus[AcpProcess | None],
    ) -> None:
        """The life of one process; tells it when it is ready, or None if it never will be."""
        process = home = None
        try:
            profile = replace(self.profile, name=f"warm-{token_hex(4)}")
            with self._workspace.os_errors_as_config_error():
                home = prepare_home(self._workspace, profile, spec.sign_in, self._settings.limits)
            argv = [*spec.binary.argv, "--acp"]
            argv += ["--model", profile.model] if profile.model else []
            environ = {
                **self._environ,
                "PATH": child_path(spec.binary, self._environ),
                "NO_BROWSER": "true",  # nobody asked for a sign-in
            }
            async with AcpProcess.open(
                argv, home, environ, self._workspace.root(), self._settings
            ) as process:
                if await self._start(process, spec, old.peak_runs if old else 0):
                    process.on_slot_free = self._limiter.dispatch
                    self._processes[process] = spec
                    logger.info("A warm gemini is ready")
                    task_status.started(process)
                    self._limiter.dispatch()
                    await process.drained()
        except Exception as error:  # noqa: BLE001 - it is an optimisation: a search goes without
            logger.warning("A warm gemini failed (%s)", type(error).__name__)
        finally:
            if process:
                self._processes.pop(process, None)
                process.gone.set()
                process.needs_replacement.set()
            if home:
                shutil.rmtree(home.path.parent, ignore_errors=True)
        with suppress(RuntimeError):  # it was ready once
            task_status.started(None)

    async def _start(self, process: AcpProcess, spec: LaunchSpec, sessions: int) -> bool:
        try:
            await process.start(sessions)
        except AcpError as error:
            if error.code == NOT_SIGNED_IN_CODE:
                self._rejected.add(spec)
            logger.info("No warm gemini: its sessions are refused (%d)", error.code)
        except (AgentGone, TimeoutError):
            logger.info("No warm gemini: it did not start")
        else:
            return True
        return False

    def _launch_spec(self) -> LaunchSpec | None:
        """What a process of now would be started with; None if there can be none."""
        try:
            binary = find_gemini(self._settings.cli_path, self._environ)
            sign_ins = available_sign_ins(self._environ)
            # What single runs use. Unproven, a key: a login may ask for another in a browser.
            sign_in = self._working_sign_in if self._working_sign_in in sign_ins else sign_ins[0]
            is_usable = (
                sign_in.auth_type in ("gemini-api-key", "vertex-ai")
                or sign_in == self._working_sign_in
            )
            if not binary.is_official or not sign_in.auth_type or not is_usable:
                return None
            files = (path for path in (sign_in.env_file, sign_in.login_file) if path)
            spec = LaunchSpec(binary, sign_in, tuple(path.stat().st_mtime_ns for path in files))
        except (CliNotFound, OSError, RuntimeError):
            return None
        return None if spec in self._rejected else spec
