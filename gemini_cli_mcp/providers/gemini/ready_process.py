"""A process of the CLI that was started ahead and waits for its prompt.

Measured on 0.61: a process whose stdin has got one newline initializes itself completely and waits
for the rest of its prompt without a time limit. It then answers as a cold one does, about a second
earlier. A process that is still initializing can be used as well: it is never later than a cold
one.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from anyio import to_thread

from gemini_cli_mcp.process.run import StartedCommand
from gemini_cli_mcp.providers.gemini.dedicated_run import finish_in_thread, prepare_launch
from gemini_cli_mcp.providers.gemini.launcher import LaunchSpec, ProcessKind, RunLaunch
from gemini_cli_mcp.providers.gemini.session_record import delete_unused_records

FIRST_INPUT = b"\n"
"""Without any input, the CLI exits after half a second."""
RECORD_MARGIN = 300.0
"""Seconds after the maximum age of processes until an unused record is deleted."""


@dataclass(frozen=True, eq=False)
class ReadyProcess:
    """A process for one run. Whoever starts or takes it must run or discard it."""

    kind: ProcessKind
    spec: LaunchSpec
    launch: RunLaunch
    command: StartedCommand
    started_at: float
    """On the system's clock, which also runs while the machine sleeps."""
    max_age: float

    @classmethod
    async def start(cls, kind: ProcessKind, spec: LaunchSpec, max_age: float) -> "ReadyProcess":
        """Start a process with this spec; raise OSError or GeminiMcpError if that fails."""
        started_at = time.time()
        launch = await prepare_launch(
            lambda: kind.launcher.prepare_run(spec.binary, kind.profile, None)
        )
        try:
            command = await StartedCommand.start(
                launch.argv, env=launch.env, cwd=launch.cwd, scratch=launch.scratch
            )
        except BaseException:
            await finish_in_thread(lambda: launch.delete_files(None))
            raise
        command.send(FIRST_INPUT)
        return cls(kind, spec, launch, command, started_at, max_age)

    @property
    def expires_at(self) -> float:
        """When it must not be used any more."""
        return expiry_time(self.started_at, self.max_age)

    @property
    def is_alive(self) -> bool:
        """Whether it still waits and has not expired, nor started in the future."""
        return not self.command.has_exited and self.started_at <= time.time() < self.expires_at

    async def is_outdated(self) -> bool:
        """Whether a process that is started now would have another binary or sign-in."""
        return await to_thread.run_sync(self.kind.launcher.launch_spec) != self.spec

    async def discard(self) -> None:
        """Stop the process and delete its files."""
        try:
            with suppress(OSError):
                await self.command.stop()
        finally:
            await finish_in_thread(self._delete_files)

    def _delete_files(self) -> None:
        self.launch.delete_files(None)
        # The record of this process has an unknown name, and will be deleted when it is old.
        delete_unused_records(self.launch.home.path, self.max_age + RECORD_MARGIN)


def expiry_time(started_at: float, max_age: float) -> float:
    """Return when a process expires: it read its settings, and the date, when it started."""
    tomorrow = date.fromtimestamp(started_at) + timedelta(days=1)
    midnight = datetime.combine(tomorrow, datetime.min.time()).timestamp()
    return min(started_at + max_age, midnight)
