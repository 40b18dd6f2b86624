"""Types shared by several layers: the searches, sources, fetches and usage of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ProgressCallback = Callable[[str], None]
"""Reports the current step as human-readable text. Must not block."""


@dataclass(frozen=True)
class Findings:
    """URLs that a run has found, and tokens that it has used."""

    urls: tuple[str, ...] = ()
    tokens: int = 0


FindingsCallback = Callable[[Findings], None]
"""Reports what a run has found and used since its last report. Must not block."""

Evidence = Literal["ledger", "events", "none"]
"""What proves the searches of a run: the provider's own records, its event stream, or nothing."""


ProcessUse = Literal["ready", "cold", "shared"]
"""How a run got its process: started ahead for one run, started for it, or shared with others."""
PROCESS_USES: tuple[ProcessUse, ...] = ("ready", "cold", "shared")

GOOGLE_REDIRECT_HOST = "vertexaisearch.cloud.google.com"
"""Host of the links in Google Search results: redirects that reveal only the target's domain."""

MAX_QUERY_CHARS = 10_000
"""Maximum characters of a query."""


@dataclass(frozen=True)
class Source:
    """A page that was found or read, exactly as in the provider's record."""

    url: str
    title: str


@dataclass(frozen=True)
class Hit:
    """One web search result, as returned by its engine."""

    title: str
    url: str
    source: str
    date: str | None = None
    snippet: str | None = None


@dataclass(frozen=True)
class GroundingSupport:
    """A passage of a search's text and the URLs of the sources that support it."""

    text: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class RecordedSearch:
    """One web search of a run, with its outcome."""

    query: str
    error: str | None = None
    """Why it failed; None if it succeeded."""
    sources: tuple[Source, ...] = ()
    text: str = ""
    """The search tool's own answer, with source marks such as [1]; empty if unknown."""
    google_queries: tuple[str, ...] = ()
    """The queries that Google actually ran, if known."""
    supports: tuple[GroundingSupport, ...] = ()
    """The sources that support each passage of `text`, if known."""


@dataclass(frozen=True)
class RecordedFetch:
    """One fetch of web pages, with its outcome."""

    error: str | None = None
    pages: tuple[Source, ...] = ()
    """The pages that were actually read."""


@dataclass(frozen=True)
class Usage:
    """Token counts as reported by the provider, and the number of tool calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0
    tool_calls: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.total_tokens + other.total_tokens,
            self.tool_calls + other.tool_calls,
        )


Thinking = Literal["off", "low", "medium", "high"]
THINKING_TOKENS: dict[Thinking, int] = {"off": 0, "low": 1024, "medium": 8192, "high": 24576}
"""Thinking budgets for Gemini 2.5, which takes a number of tokens instead of a level."""


def thinking_setting(thinking: Thinking, model: str | None) -> int | str:
    """Return a token budget or a level, whichever this generation of models expects."""
    if model and model.startswith("gemini-2.5"):
        return THINKING_TOKENS[thinking]
    return "minimal" if thinking == "off" else thinking
