"""The interface that all providers share: the `Provider` protocol, its options and replies."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.types import (
    Evidence,
    ProcessUse,
    RecordedFetch,
    RecordedSearch,
    Thinking,
    Usage,
)


@dataclass(frozen=True)
class Reply:
    """A provider's answer to one prompt, with the evidence from its own records."""

    text: str
    model: str | None
    evidence: Evidence
    searches: tuple[RecordedSearch, ...] = ()
    fetches: tuple[RecordedFetch, ...] = ()
    usage: Usage | None = None
    thoughts: str | None = None
    record_only: bool = False
    """Whether the run was cut off and the official CLI left only its session record, in which
    plain text can pass for sources."""
    search_suggestions_html: str | None = None
    """Google's search suggestions as HTML; Google's terms require displaying them."""
    process: ProcessUse | None = None
    """How the run got its process, if that is known."""


@dataclass(frozen=True)
class GroundingOptions:
    """Options for one dedicated search."""

    model: str
    thinking: Thinking = "low"
    include_thoughts: bool = False
    since: datetime | None = None
    """Only return pages from this time on, if the provider supports such a filter."""


class Provider(Protocol):
    """A backend that answers prompts. Failures are raised as `errors.GeminiMcpError`."""

    name: str
    configured_model: str | None
    """The model configured for main runs; None lets the provider choose."""
    supports_thoughts: bool
    """Whether it can return the model's thoughts."""

    async def ask(self, prompt: str, context: CallContext, file: Path | None = None) -> Reply:
        """Answer with web search available; with `file`, from that file only and without tools."""
        ...

    async def grounded_search(
        self, query: str, options: GroundingOptions, context: CallContext
    ) -> Reply:
        """Run one dedicated search for the query.

        The results are in `Reply.searches`; if that is empty, the model did not search.
        """
        ...
