"""Shared (ACP) processes: started when runs overlap too much, replaced, stopped when idle."""

import logging
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import cast

import anyio
import anyio.abc
import anyio.to_thread

from gemini_cli_mcp.providers.gemini.acp_client import (
    NOT_SIGNED_IN_CODE,
    AcpError,
    AgentUnavailable,
)
from gemini_cli_mcp.providers.gemini.acp_lifecycle import ProcessState
from gemini_cli_mcp.providers.gemini.acp_process import AcpProcess, AcpSlot
from gemini_cli_mcp.providers.gemini.launcher import LaunchSpec, ProcessKind
from gemini_cli_mcp.providers.gemini.restart_backoff import RestartBackoff
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings

logger = logging.getLogger(__name__)


class AcpPool:
    """The shared processes of one program, each for runs of one kind."""

    def __init__(self, settings: Settings, limiter: RunLimiter) -> None:
        self._settings = settings
        self._limiter = limiter
        self._count = settings.warm
        self._backoff = RestartBackoff(settings.limits.restart_delays)
        self._processes: dict[AcpProcess, tuple[ProcessKind, LaunchSpec]] = {}
        """The processes that accept runs or finish their last ones."""
        self._rejected: dict[tuple[ProcessKind, LaunchSpec], int] = {}
        """Specs whose sign-in the CLI rejected, and how often dedicated runs had succeeded with
        that sign-in; a later success makes the spec usable again."""
        self._requested: ProcessKind | None = None
        """The kind of a run that found no free slot."""
        self._starting: set[ProcessKind] = set()
        self._request_changed = anyio.Event()
        """Set, and replaced, on every request."""

    def find_slot(self, kind: ProcessKind) -> AcpSlot | None:
        """Acquire a slot in the process with the most free slots; None if there is none."""
        spec = self._launch_spec(kind)
        best = None
        for process, (other_kind, other_spec) in list(self._processes.items()):
            if other_kind != kind:
                continue
            if spec and other_spec != spec:
                process.lifecycle.retire("sign-in or binary changed")
            if best is None or process.free_slots > best.free_slots:
                best = process
        if best and best.free_slots > 0:
            return best.acquire()
        if spec:
            self._request_process(kind, spec)
        return None

    def _request_process(self, kind: ProcessKind, spec: LaunchSpec) -> None:
        """Have a process started, in place of an idle one of another kind if necessary."""
        if kind in self._starting or self._backoff.must_wait(kind, spec):
            return
        live = [process for process in self._processes if not process.lifecycle.is_retired]
        if len(live) + len(self._starting) >= self._count:
            unused = (p for p in live if p.is_unused and self._processes[p][0] != kind)
            if not (displaced := next(unused, None)):
                return
            displaced.lifecycle.retire("a process of another kind is needed")
        self._requested = kind
        self._request_changed.set()
        self._request_changed = anyio.Event()

    async def run(self) -> None:
        """Serve requests for processes until cancelled."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._count):
                tasks.start_soon(self._serve_requests, tasks)

    async def _serve_requests(self, tasks: anyio.abc.TaskGroup) -> None:
        """Run one process, of the kind requested last, then the next."""
        while True:
            kind = await self._next_request()
            self._starting.add(kind)
            try:
                await self._keep_running(kind, tasks)
            finally:
                self._starting.discard(kind)

    async def _next_request(self) -> ProcessKind:
        while not (kind := self._requested):
            await self._request_changed.wait()
        self._requested = None
        return kind

    async def _keep_running(self, kind: ProcessKind, tasks: anyio.abc.TaskGroup) -> None:
        """Run a process and its successors; only a process and its predecessor may overlap."""
        previous: AcpProcess | None = None
        while spec := self._launch_spec(kind):
            process = cast(
                "AcpProcess | None", await tasks.start(self._run_process, kind, spec, previous)
            )
            self._starting.discard(kind)
            if process is None:
                self._backoff.record_failure(kind, spec)
                return
            if previous:  # only now, so that one process is always available
                previous.lifecycle.retire("replaced")
            await process.lifecycle.wait_for(ProcessState.WORN)
            if previous and not process.lifecycle.is_retired:
                await previous.lifecycle.wait_for(ProcessState.GONE)
            if process.run_count or not process.lifecycle.has_failed:
                self._backoff.record_success(kind)
            else:
                self._backoff.record_failure(kind, spec)
            if process.lifecycle.is_retired:
                return  # the next request starts another one
            previous = process

    async def _run_process(
        self,
        kind: ProcessKind,
        spec: LaunchSpec,
        previous: AcpProcess | None,
        *,
        task_status: anyio.abc.TaskStatus[AcpProcess | None],
    ) -> None:
        """Run one process until it is drained; report it once ready, or None on failure."""
        process = launch = None
        try:
            profile = replace(kind.profile, name=f"shared-{token_hex(4)}")
            launch = await anyio.to_thread.run_sync(
                kind.launcher.prepare_acp, spec.binary, profile, spec.sign_in
            )
            async with AcpProcess.open(launch, self._settings, self._limiter.dispatch) as process:
                session_count = previous.peak_runs if previous else 0
                if await self._start(process, kind, spec, session_count):
                    self._processes[process] = kind, spec
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

    async def _start(
        self, process: AcpProcess, kind: ProcessKind, spec: LaunchSpec, session_count: int
    ) -> bool:
        try:
            await process.start(session_count)
        except AcpError as error:
            if error.code == NOT_SIGNED_IN_CODE:
                self._rejected[kind, spec] = kind.launcher.sign_ins.success_count(spec.sign_in)
            logger.info("ACP process not started: session refused (error %d)", error.code)
        except (AgentUnavailable, TimeoutError):
            logger.info("ACP process not started: exited or timed out")
        else:
            return True
        return False

    def _launch_spec(self, kind: ProcessKind) -> LaunchSpec | None:
        """Return the spec for a process started now; None if ACP cannot be used.

        It reads files on the event loop, because slots are granted there.
        """
        spec = kind.launcher.launch_spec()
        if spec is None:
            return None
        successes = kind.launcher.sign_ins.success_count(spec.sign_in)
        return None if self._rejected.get((kind, spec)) == successes else spec
