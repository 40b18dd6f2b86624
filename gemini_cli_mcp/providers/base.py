"""What every provider has in common: the `Provider` protocol, its options and its replies."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from gemini_cli_mcp.types import (
    Evidence,
    ProgressCallback,
    RecordedFetch,
    RecordedSearch,
    Thinking,
    Usage,
)


@dataclass(frozen=True)
class Reply:
    """What a provider answered to one prompt, and what its own records prove."""

    text: str
    model: str | None
    evidence: Evidence
    searches: tuple[RecordedSearch, ...] = ()
    fetches: tuple[RecordedFetch, ...] = ()
    usage: Usage | None = None
    thoughts: str | None = None
    record_only: bool = False
    """Whether an official CLI left no more than its session record, in which text can pass for
    sources: the run was cut off."""
    suggestions: str | None = None
    """Google's own block of search suggestions, in HTML: its terms ask to show it."""


@dataclass(frozen=True)
class GroundingOptions:
    """How a dedicated search is to be made."""

    model: str
    thinking: Thinking = "low"
    include_thoughts: bool = False
    since: datetime | None = None
    """Only pages from then on, where the provider has such a filter."""


class Provider(Protocol):
    """Who answers. Failures come as `errors.GeminiMcpError`."""

    name: str
    configured_model: str | None
    """The model that main runs are told to use; None lets the provider choose."""
    evidence: Evidence
    """The best that its replies can have."""
    fetches: bool
    """Whether it can read pages, beside searching."""
    supports_thoughts: bool
    """Whether it can tell its thoughts."""

    async def ask(self, prompt: str, progress: ProgressCallback, file: Path | None = None) -> Reply:
        """Answer with web search at hand; with `file`, with nothing but that file."""
        ...

    async def grounded_search(
        self, query: str, options: GroundingOptions, progress: ProgressCallback
    ) -> Reply:
        """Make one dedicated search for the query.

        What it found stands in the `searches` of the reply; if there are none, it did not search.
        """
        ...
