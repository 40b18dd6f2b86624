"""A run of the CLI that is over, in a process of its own or in a warm one."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.failures import classify_failure
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord
from gemini_cli_mcp.providers.gemini.telemetry import Telemetry


@dataclass(frozen=True)
class RunResult:
    """How it ended, what it said, and what its telemetry or its record proves."""

    completed: Completed
    events: EventLog
    record: SessionRecord | None
    telemetry: Telemetry | None = None
    is_official_cli: bool = False
    """Whether there should have been telemetry."""

    def failure(self, secrets: Sequence[str]) -> GeminiMcpError | None:
        """Why it failed; None if it did not."""
        return classify_failure(self.completed, self.events, secrets)

    @property
    def has_sources(self) -> bool:
        """Whether a search of it came back with sources."""
        reply = self.reply
        return not reply.record_only and any(search.sources for search in reply.searches)

    @property
    def reply(self) -> Reply:
        transcript, record, telemetry = self.events, self.record, self.telemetry
        if telemetry and len(telemetry.searches) >= len(transcript.searches):  # else it is cut off
            return Reply(
                transcript.text,
                telemetry.model or transcript.busiest_model,
                "ledger",
                telemetry.searches,
                telemetry.fetches,
                telemetry.usage,
            )
        if record:
            return Reply(
                transcript.text,
                record.model or transcript.busiest_model,
                "ledger",
                record.searches,
                record.fetches,
                transcript.usage,
                record_only=self.is_official_cli,
            )
        if transcript.is_stream:
            return Reply(
                transcript.text,
                transcript.busiest_model,
                "events",
                transcript.searches,
                usage=transcript.usage,
            )
        return Reply(transcript.text, None, "none")
