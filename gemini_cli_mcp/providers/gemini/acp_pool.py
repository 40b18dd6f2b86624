"""A fixed number of ACP processes, replaced when they reach a limit, stopped when idle."""

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import cast

import anyio
import anyio.abc
import anyio.to_thread

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.providers.gemini.acp_client import (
    NOT_SIGNED_IN_CODE,
    AcpError,
    AgentUnavailable,
)
from gemini_cli_mcp.providers.gemini.acp_lifecycle import ProcessState
from gemini_cli_mcp.providers.gemini.acp_process import AcpProcess, AcpSlot
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary
from gemini_cli_mcp.providers.gemini.home import Profile
from gemini_cli_mcp.providers.gemini.launcher import Launcher
from gemini_cli_mcp.providers.gemini.sign_ins import SignIn, SignIns
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchSpec:
    """What a process is started with; a process with an outdated spec is retired."""

    binary: GeminiBinary
    sign_in: SignIn
    mtimes: tuple[int, ...]
    """Modification times of the sign-in files."""


class AcpPool:
    """The ACP processes of one profile."""

    def __init__(
        self,
        settings: Settings,
        profile: Profile,
        launcher: Launcher,
        sign_ins: SignIns,
        limiter: RunLimiter,
    ) -> None:
        self._settings = settings
        self.profile = profile
        self._launcher = launcher
        self._sign_ins = sign_ins
        self._limiter = limiter
        self._processes: dict[AcpProcess, LaunchSpec] = {}
        """The processes that accept runs or finish their last ones."""
        self._rejected_specs: dict[LaunchSpec, int] = {}
        """Specs whose sign-in the CLI rejected, and how often dedicated runs had succeeded with
        that sign-in; a later success makes the spec usable again."""
        self._slot_requested = anyio.Event()
        """Set, and replaced, when a run finds no free slot."""

    def find_slot(self) -> AcpSlot | None:
        """Acquire a slot in the process with the most free slots; None if all are busy."""
        spec = self._launch_spec()
        if spec:
            for process in [process for process, other in self._processes.items() if other != spec]:
                process.lifecycle.retire("sign-in or binary changed")
        best = max(self._processes, key=lambda process: process.free_slots, default=None)
        if best and best.free_slots > 0:
            return best.acquire()
        self._slot_requested.set()
        self._slot_requested = anyio.Event()
        return None

    @property
    def is_ready(self) -> bool:
        """Whether a process has a free slot."""
        return any(process.free_slots > 0 for process in self._processes)

    async def run(self) -> None:
        """Maintain the processes until cancelled."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._settings.warm):
                tasks.start_soon(self._maintain_process, tasks)

    async def _maintain_process(self, tasks: anyio.abc.TaskGroup) -> None:
        """Keep one process running; only a process and its predecessor may overlap."""
        previous: AcpProcess | None = None
        needed, failures = True, 0
        while True:
            while not (needed and (spec := self._launch_spec())):
                await self._slot_requested.wait()
                needed = True
            process = cast(
                "AcpProcess | None", await tasks.start(self._run_process, spec, previous)
            )
            if process is None:
                failures += 1
                await self._wait_before_restart(failures, spec)
                continue
            if previous:  # only now, so that one process is always available
                previous.lifecycle.retire("replaced")
            await process.lifecycle.wait_for(ProcessState.WORN)
            if previous and not process.lifecycle.is_retired:
                await previous.lifecycle.wait_for(ProcessState.GONE)
            previous = None if process.lifecycle.is_retired else process
            needed = not process.lifecycle.retired_idle
            failures = 0 if process.run_count or process.lifecycle.retired_idle else failures + 1
            if failures:
                await self._wait_before_restart(failures, spec)

    async def _wait_before_restart(self, failures: int, spec: LaunchSpec) -> None:
        """Wait before restarting, or until the launch spec changes."""
        delays = self._settings.limits.acp_restart_delays
        with anyio.move_on_after(delays[min(failures, len(delays)) - 1]):
            while self._launch_spec() == spec:
                await self._slot_requested.wait()

    async def _run_process(
        self,
        spec: LaunchSpec,
        previous: AcpProcess | None,
        *,
        task_status: anyio.abc.TaskStatus[AcpProcess | None],
    ) -> None:
        """Run one process until it is drained; report it once ready, or None on failure."""
        process = launch = None
        try:
            profile = replace(self.profile, name=f"warm-{token_hex(4)}")
            launch = await anyio.to_thread.run_sync(
                self._launcher.prepare_acp, spec.binary, profile, spec.sign_in
            )
            async with AcpProcess.open(launch, self._settings, self._limiter.dispatch) as process:
                if await self._start(process, spec, previous.peak_runs if previous else 0):
                    self._processes[process] = spec
                    logger.info("ACP process ready")
                    task_status.started(process)
                    self._limiter.dispatch()
                    await process.wait_drained()
        except Exception as error:  # noqa: BLE001 - an optimization: searches work without it
            logger.warning("ACP process failed (%s)", type(error).__name__)
        finally:
            if process:
                self._processes.pop(process, None)
            if launch:
                launch.delete_home()
        with suppress(RuntimeError):  # already reported as ready
            task_status.started(None)

    async def _start(self, process: AcpProcess, spec: LaunchSpec, session_count: int) -> bool:
        try:
            await process.start(session_count)
        except AcpError as error:
            if error.code == NOT_SIGNED_IN_CODE:
                self._rejected_specs[spec] = self._sign_ins.success_count(spec.sign_in)
            logger.info("ACP process not started: session refused (error %d)", error.code)
        except (AgentUnavailable, TimeoutError):
            logger.info("ACP process not started: exited or timed out")
        else:
            return True
        return False

    def _launch_spec(self) -> LaunchSpec | None:
        """Return the spec for a process started now; None if ACP cannot be used."""
        try:
            binary = self._launcher.find_binary()
            sign_ins, working = self._sign_ins.available(), self._sign_ins.working
            # Prefer the sign-in that dedicated runs use. Until one has succeeded, accept only
            # keys: an unverified login might open a browser to sign in again.
            sign_in = working if working in sign_ins else sign_ins[0]
            is_usable = sign_in.auth_type in ("gemini-api-key", "vertex-ai") or sign_in == working
            if not binary.is_official or not sign_in.auth_type or not is_usable:
                return None
            files = (path for path in (sign_in.env_file, sign_in.login_file) if path)
            spec = LaunchSpec(binary, sign_in, tuple(path.stat().st_mtime_ns for path in files))
        except (CliNotFound, OSError, RuntimeError):
            return None
        is_rejected = self._rejected_specs.get(spec) == self._sign_ins.success_count(sign_in)
        return None if is_rejected else spec
