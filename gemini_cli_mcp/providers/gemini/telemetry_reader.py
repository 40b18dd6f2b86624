"""Read the official CLI's telemetry, which proves what its searches and fetches returned.

The CLI writes the API's responses to a private file of ours, with grounding metadata and retrieved
URLs as structured data. Queries, pages and model text cannot forge these, because they appear only
inside JSON strings. The file is a sequence of JSON objects; it is complete once the process has
exited normally, and up to five seconds late while it runs (measured on 0.61, not configurable).
"""

import codecs
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemini_cli_mcp.providers.gemini.telemetry_events import TelemetryEvent, parse_events
from gemini_cli_mcp.providers.gemini.telemetry_evidence import Telemetry, summarize
from gemini_cli_mcp.types import RecordedSearch

MAX_FILE_BYTES = 256 << 20
"""Maximum bytes read from a file. A run writes a few hundred thousand, one with fifty turns many
millions, because every request contains the whole conversation."""
READ_CHUNK_BYTES = 4 << 20
MAX_EVENT_CHARS = 16 << 20
ENABLED_ENVIRONMENT = {
    "GEMINI_TELEMETRY_ENABLED": "true",
    "GEMINI_TELEMETRY_TARGET": "local",
    "GEMINI_TELEMETRY_LOG_PROMPTS": "true",
    "GEMINI_TELEMETRY_TRACES_ENABLED": "false",
    "GEMINI_TELEMETRY_USE_COLLECTOR": "false",
    "GEMINI_TELEMETRY_USE_CLI_AUTH": "false",
    "GEMINI_TELEMETRY_OTLP_ENDPOINT": "",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "",
}
"""Send telemetry only to our file, regardless of a linked .env."""
DISABLED_ENVIRONMENT = {
    **ENABLED_ENVIRONMENT,
    "GEMINI_TELEMETRY_ENABLED": "false",
    "GEMINI_TELEMETRY_OUTFILE": "",
}


class TelemetryFile:
    """A telemetry file, read incrementally while the CLI writes to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unparsed = ""
        self._events: dict[str, list[TelemetryEvent]] = {}

    def track(self, session_id: str) -> None:
        """Start collecting the events of this session."""
        self._events.setdefault(session_id, [])

    def read_session(self, session_id: str) -> Sequence[TelemetryEvent]:
        """Return the events of a session since it was tracked or first read."""
        self.track(session_id)
        for event in self._new_events():
            if (events := self._events.get(event.session_id)) is not None:
                events.append(event)
        return self._events[session_id]

    def summarize_session(
        self,
        session_id: str,
        recorded: Sequence[RecordedSearch] = (),
        *,
        is_cut_off: bool = False,
    ) -> Telemetry | None:
        """Return the evidence collected so far; None if there is no complete API response yet.

        `recorded` holds the searches of the session record, used to match responses to searches.
        """
        return summarize(self.read_session(session_id), recorded, is_cut_off=is_cut_off)

    def untrack(self, session_id: str) -> None:
        """Discard the events of this session."""
        self._events.pop(session_id, None)

    def clear(self) -> None:
        """Truncate the file, because it contains whole conversations."""
        try:
            os.truncate(self._path, 0)
        except OSError:
            return  # it does not exist, or is deleted with its folder
        self._position, self._unparsed = 0, ""
        self._decoder.reset()

    def _new_events(self) -> Iterator[TelemetryEvent]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while self._position < MAX_FILE_BYTES and (chunk := file.read(READ_CHUNK_BYTES)):
                    self._position += len(chunk)
                    events, self._unparsed = parse_events(
                        self._unparsed + self._decoder.decode(chunk)
                    )
                    yield from events
                    if len(self._unparsed) > MAX_EVENT_CHARS:
                        self._position = MAX_FILE_BYTES  # not a telemetry file
        except OSError:
            return
