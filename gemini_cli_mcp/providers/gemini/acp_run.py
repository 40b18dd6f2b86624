"""One run in a session of a shared process, from the prompt to its result."""

import asyncio
import contextlib
import time

import anyio

from gemini_cli_mcp.call_context import CallContext, FindingsReporter
from gemini_cli_mcp.process.run import Completed, EndReason
from gemini_cli_mcp.providers.gemini.acp_client import AcpClient, AgentUnavailable
from gemini_cli_mcp.providers.gemini.acp_events import AcpTurn
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.failing_calls import FailingCalls
from gemini_cli_mcp.providers.gemini.launcher import Launch
from gemini_cli_mcp.providers.gemini.run_result import RunResult, build_run_result
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord, read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry_evidence import Telemetry, found_so_far, summarize
from gemini_cli_mcp.settings.env import Settings

TELEMETRY_POLL_INTERVAL = 0.1
"""Seconds between reads of the telemetry file while waiting for a run's events."""
IDLE_CHECK_INTERVAL = 0.5
"""Maximum seconds between checks of a run's idle time."""


class AcpRun:
    """A run; creating it sends the prompt."""

    def __init__(
        self,
        client: AcpClient,
        session_id: str,
        prompt: str,
        context: CallContext,
        launch: Launch,
        settings: Settings,
    ) -> None:
        self._client = client
        self._session_id = session_id
        self._launch = launch
        self._telemetry = launch.telemetry
        self._limits = settings.limits
        self._secrets = settings.secrets
        self._context = context
        self._failing_calls = FailingCalls(self._limits, self._secrets)
        self._findings = FindingsReporter(context)
        self._evidence_when_stopped: Telemetry | None = None
        events = EventLog(context.progress, self._limits, self._secrets)
        self._turn = AcpTurn(session_id, events)
        self._telemetry.track(session_id)
        text = prompt.encode("utf-8", "replace").decode()
        self._response = client.prompt(session_id, text, self._turn.handle_update)

    @property
    def is_pending(self) -> bool:
        """Whether the agent has not ended the turn yet."""
        return not self._response.done()

    async def wait_for_end(self, timeout: float) -> EndReason:
        """Wait until the turn has ended, or is idle or running for too long."""
        deadline = time.monotonic() + timeout
        while self.is_pending:
            now = time.monotonic()
            idle_deadline = self._turn.last_update_at + self._turn.events.idle_limit
            if now >= deadline:
                return "timeout"
            if now >= idle_deadline:
                return "idle"
            if self._should_stop():
                return "stopped"
            # Not `await response`: it must survive our cancellation, since it confirms the cancel.
            remaining = min(deadline, idle_deadline) - now
            # Wake up regularly: the idle limit changes when a search starts.
            await asyncio.wait({self._response}, timeout=min(remaining, IDLE_CHECK_INTERVAL))
        return "exited"

    async def result(self, end_reason: EndReason, record: SessionRecord | None) -> RunResult:
        """Return the result. Raise AgentUnavailable if the run must be repeated elsewhere."""
        if end_reason == "exited":
            is_complete = record is None or record.is_finished
            exit_code = self._turn.finish(self._response, is_complete=is_complete)
            telemetry = await self._wait_for_telemetry(record, exit_code)
            return self._build_result(Completed("exited", exit_code, ""), record, telemetry)
        if end_reason == "stopped":
            return self._build_result(
                Completed("stopped", None, ""), telemetry=self._evidence_when_stopped
            )
        await asyncio.wait({self._response}, timeout=self._limits.acp_cancel_timeout)
        if self.is_pending and not self._turn.events.is_searching:
            raise AgentUnavailable  # the process hangs; during a search it may be the API instead
        return self._build_result(Completed(end_reason, None, ""))

    def _should_stop(self) -> bool:
        """Report API calls that keep failing; return whether they end the run."""
        events = self._telemetry.read_session(self._session_id)
        self._failing_calls.update(events)
        self._findings.report(found_so_far(events))
        if not self._failing_calls.check(self._context):
            return False
        self._evidence_when_stopped = summarize(events, is_cut_off=True)
        return True

    def abandon(self) -> None:
        """Ignore what the turn still sends."""
        self._client.unsubscribe(self._session_id)
        self._telemetry.untrack(self._session_id)

    async def cancel(self) -> bool:
        """Cancel an abandoned turn; return whether the agent confirmed it."""
        self._client.cancel(self._session_id)
        await asyncio.wait({self._response}, timeout=self._limits.acp_cancel_timeout)
        return not self.is_pending

    def read_and_delete_record(self) -> SessionRecord | None:
        """Read what the session has written, and delete it."""
        self._client.unsubscribe(self._session_id)
        with contextlib.suppress(OSError):
            for error_report in self._launch.temp_folder.glob("gemini-client-error-*"):
                error_report.unlink(missing_ok=True)  # it contains the whole conversation
        return read_and_delete_record(self._launch.home.path, self._session_id, official=True)

    async def _wait_for_telemetry(
        self, record: SessionRecord | None, exit_code: int
    ) -> Telemetry | None:
        """Return the telemetry of the run; None if it is late. Wait only if it is needed."""
        tool_calls = self._turn.tool_calls
        telemetry = None
        # It may say why there is no answer, unless the error says it.
        must_wait = tool_calls or (exit_code == 0 and not self._turn.events.text)
        with anyio.move_on_after(self._limits.telemetry_timeout if must_wait else 0):
            while True:
                telemetry = self._telemetry.summarize_session(
                    self._session_id, record.searches if record else ()
                )
                if telemetry and telemetry.tool_calls >= tool_calls:
                    break
                telemetry = None
                await anyio.sleep(TELEMETRY_POLL_INTERVAL)
        self._failing_calls.update(self._telemetry.read_session(self._session_id))
        self._telemetry.untrack(self._session_id)
        return telemetry

    def _build_result(
        self,
        completed: Completed,
        record: SessionRecord | None = None,
        telemetry: Telemetry | None = None,
    ) -> RunResult:
        result = build_run_result(
            completed,
            self._turn.events,
            record,
            telemetry,
            self._failing_calls,
            self._launch.route,
            self._secrets,
            is_official_cli=True,
        )
        self._findings.report_rest(result.reply.searches, result.reply.fetches, result.reply.usage)
        return result
