"""The result of a CLI run, in a dedicated process or a shared ACP process."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.failures import classify_failure
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord
from gemini_cli_mcp.providers.gemini.telemetry_reader import Telemetry


@dataclass(frozen=True)
class RunResult:
    """How a run ended, its events, and the evidence in its telemetry or session record."""

    completed: Completed
    events: EventLog
    record: SessionRecord | None
    telemetry: Telemetry | None = None
    is_official_cli: bool = False
    """Whether telemetry was expected."""

    def failure(self, secrets: Sequence[str]) -> GeminiMcpError | None:
        """Return the error of a failed run; None if it succeeded."""
        return classify_failure(self.completed, self.events, secrets)

    @property
    def has_sources(self) -> bool:
        """Whether a search returned sources."""
        reply = self.reply
        return not reply.record_only and any(search.sources for search in reply.searches)

    @property
    def reply(self) -> Reply:
        events, record, telemetry = self.events, self.record, self.telemetry
        # With fewer searches than the events, the telemetry is cut off.
        if telemetry and len(telemetry.searches) >= len(events.searches):
            return Reply(
                events.text,
                telemetry.model or events.busiest_model,
                "ledger",
                telemetry.searches,
                telemetry.fetches,
                telemetry.usage,
            )
        if record:
            return Reply(
                events.text,
                record.model or events.busiest_model,
                "ledger",
                record.searches,
                record.fetches,
                events.usage,
                record_only=self.is_official_cli,
            )
        if events.is_stream:
            return Reply(
                events.text,
                events.busiest_model,
                "events",
                events.searches,
                usage=events.usage,
            )
        return Reply(events.text, None, "none")
