"""One run in a process of its own: it reads the prompt from stdin and writes events to stdout."""

import asyncio
import errno
from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
from anyio import to_thread

from gemini_cli_mcp.call_context import CallContext, FindingsReporter
from gemini_cli_mcp.errors import CliNotFound, ExecutionFailed
from gemini_cli_mcp.process.run import Completed, StartedCommand
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.launcher import RunLaunch
from gemini_cli_mcp.providers.gemini.run_result import RunResult, read_run_result
from gemini_cli_mcp.settings.env import Settings


class DedicatedRun:
    """A run of one prompt with a prepared launch. It leaves no files behind, even if cancelled."""

    def __init__(
        self,
        launch: RunLaunch,
        prompt: str,
        context: CallContext,
        settings: Settings,
        on_output: Callable[[], None],
    ) -> None:
        """`on_output` is called for every line that the process writes."""
        self._launch = launch
        self._on_output = on_output
        self._prompt = prompt
        self._settings = settings
        self._context = context
        self._secrets: Sequence[str] = settings.secrets
        self._events = EventLog(context.progress, settings.limits, settings.secrets)
        self._findings = FindingsReporter(context)

    async def run_cold(self) -> RunResult:
        """Start a process and run the prompt in it."""
        launch = self._launch
        try:
            try:
                command = await StartedCommand.start(
                    launch.argv, env=launch.env, cwd=launch.cwd, scratch=launch.scratch
                )
                completed = await self._run_command(command, self._settings.limits.idle_timeout)
            except OSError as error:
                is_unusable = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
                error_type = CliNotFound if is_unusable else ExecutionFailed
                raise error_type(f"{launch.argv[0]} cannot be run: {error.strerror}.") from None
            return await self._read_result(completed)
        except BaseException:
            await self._delete_files()
            raise

    async def run_ready(self, command: StartedCommand) -> RunResult | None:
        """Run the prompt in a process that waits for it; None if it exited or hangs instead."""
        try:
            try:
                completed = await self._run_command(
                    command, self._settings.limits.ready_prompt_timeout
                )
            except OSError:  # it could not be started
                completed = None
            if completed is None or self._was_lost(completed):
                await self._delete_files()
                return None
            return await self._read_result(completed)
        except BaseException:
            await self._delete_files()
            raise

    def _was_lost(self, completed: Completed) -> bool:
        """Whether the process exited or hung at the prompt, before its first event.

        Later it may have used the API, so the run is not simply repeated.
        """
        return completed.end_reason in ("exited", "idle") and not self._events.is_stream

    async def _run_command(self, command: StartedCommand, first_output_limit: float) -> Completed:
        events = self._events

        def on_line(line: bytes) -> None:
            self._on_output()
            events.feed_line(line)

        return await command.run(
            self._prompt.encode("utf-8", "replace"),
            on_line=on_line,
            idle_timeout=lambda: events.idle_limit if events.is_stream else first_output_limit,
            should_stop=self._should_stop,
            # An upper bound only: the caller's own deadline expires first.
            timeout=max(self._settings.timeout, self._settings.round_timeout),
        )

    async def _should_stop(self) -> bool:
        """Report what the run has found; return whether an API call that keeps failing ends it."""
        if not (session_id := self._events.session_id):
            return False
        self._findings.report(await to_thread.run_sync(self._launch.read_api_calls, session_id))
        return self._launch.failing_calls.check(self._context)

    async def _read_result(self, completed: Completed) -> RunResult:
        result = await to_thread.run_sync(
            read_run_result, self._launch, completed, self._events, self._secrets
        )
        reply = result.reply
        self._findings.report_rest(reply.searches, reply.fetches, reply.usage)
        return result

    async def _delete_files(self) -> None:
        session_id = self._events.session_id
        await finish_in_thread(lambda: self._launch.delete_files(session_id))


async def prepare_launch(prepare: Callable[[], RunLaunch]) -> RunLaunch:
    """Prepare a run; if this task is cancelled meanwhile, delete what was prepared."""
    prepared: list[RunLaunch] = []
    try:
        await finish_in_thread(lambda: prepared.append(prepare()))
        await anyio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        if prepared:
            await finish_in_thread(lambda: prepared[0].delete_files(None))
        raise
    return prepared[0]


async def finish_in_thread(work: Callable[[], object]) -> None:
    """Do blocking file work to its end, then raise CancelledError if the task was cancelled.

    What it creates must not outlive the workspace. A shield blocks cancel scopes, but not
    `Task.cancel()` from Ctrl-C or from an HTTP server that aborts a request.
    """
    was_cancelled = False
    working = asyncio.ensure_future(to_thread.run_sync(work))
    with anyio.CancelScope(shield=True):
        while not working.done():
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError:
                was_cancelled = True
    working.result()
    if was_cancelled:
        raise asyncio.CancelledError
