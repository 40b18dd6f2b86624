"""Types that several layers share: what a run searched, found, read and used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ProgressCallback = Callable[[str], None]
"""Told what is going on right now, in words for a person. Never blocks."""

Evidence = Literal["ledger", "events", "none"]
"""What proves a run's searches: the provider's own records, its event stream, or nothing."""


GOOGLE_REDIRECT_HOST = "vertexaisearch.cloud.google.com"
"""The host of the links that Google's search gives: redirects that name no more than the site."""

MAX_QUERY_CHARS = 10_000
"""Characters of a question."""


@dataclass(frozen=True)
class Source:
    """A page that was found or read, exactly as the provider's record names it."""

    url: str
    title: str


@dataclass(frozen=True)
class Hit:
    """One result of a web search, as its engine gives it."""

    title: str
    url: str
    source: str
    date: str | None = None
    snippet: str | None = None


@dataclass(frozen=True)
class GroundingSupport:
    """A passage of a search's text, and the addresses of the sources that it rests on."""

    text: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class RecordedSearch:
    """One web search of a run and how it ended."""

    query: str
    error: str | None = None
    """Why it failed; None if it succeeded."""
    sources: tuple[Source, ...] = ()
    text: str = ""
    """What the search itself answered, with marks like [1] for its sources; if it is known."""
    google_queries: tuple[str, ...] = ()
    """What Google really searched for it, if that is known."""
    supports: tuple[GroundingSupport, ...] = ()
    """Which passage of the text rests on which sources, if that is known."""


@dataclass(frozen=True)
class RecordedFetch:
    """One look at pages of the web, and how it ended."""

    error: str | None = None
    pages: tuple[Source, ...] = ()
    """Those that were really read."""


@dataclass(frozen=True)
class Usage:
    """Tokens as the provider counted them, and tool calls."""

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
"""For models that count what they think instead of knowing levels: Gemini 2.5."""


def thinking_setting(thinking: Thinking, model: str | None) -> int | str:
    """So many tokens, or a level: in the words of the model's generation."""
    if model and model.startswith("gemini-2.5"):
        return THINKING_TOKENS[thinking]
    return "minimal" if thinking == "off" else thinking
