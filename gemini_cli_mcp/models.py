"""What travels between the rooms. Plain, frozen, nothing foreign."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, cast

Progress = Callable[[str], None]
"""Told what is going on right now, in words for a person. Never blocks."""

Evidence = Literal["ledger", "events", "none"]
"""What proves a run's searches: the provider's own records, its event stream, or nothing."""


REDIRECTS = "vertexaisearch.cloud.google.com"
"""The host of the links that Google's search gives: redirects that name no more than the site."""

MAX_QUERY = 10_000
"""Characters of a question."""

Object = dict[str, Any]
"""A JSON object."""


def as_object(value: object) -> Object:
    """The value if it is a JSON object, else an empty one: foreign data may be anything."""
    return cast("Object", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a JSON array, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_count(value: object) -> int:
    """The value if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0


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
class Support:
    """A passage of a search's text, and the addresses of the sources that it rests on."""

    text: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """One web search of a run and how it ended."""

    query: str
    error: str | None = None
    """Why it failed; None if it succeeded."""
    sources: tuple[Source, ...] = ()
    text: str = ""
    """What the search itself answered, with marks like [1] for its sources; if it is known."""
    google_queries: tuple[str, ...] = ()
    """What Google really searched for it, if that is known."""
    supports: tuple[Support, ...] = ()
    """Which passage of the text rests on which sources, if that is known."""


@dataclass(frozen=True)
class Fetch:
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


@dataclass(frozen=True)
class Reply:
    """What a provider answered to one prompt, and what its own records prove."""

    text: str
    model: str | None
    evidence: Evidence
    searches: tuple[Search, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    usage: Usage | None = None
    thoughts: str | None = None
    record_only: bool = False
    """Whether an official CLI left no more than its session record, in which text can pass for
    sources: the run was cut off."""
    suggestions: str | None = None
    """Google's own block of search suggestions, in HTML: its terms ask to show it."""


Thinking = Literal["off", "low", "medium", "high"]
THINKING_TOKENS: dict[Thinking, int] = {"off": 0, "low": 1024, "medium": 8192, "high": 24576}
"""For models that count what they think instead of knowing levels: Gemini 2.5."""


def amount_of(thinking: Thinking, model: str | None) -> int | str:
    """So many tokens, or a level: in the words of the model's generation."""
    if model and model.startswith("gemini-2.5"):
        return THINKING_TOKENS[thinking]
    return "minimal" if thinking == "off" else thinking


@dataclass(frozen=True)
class Grounding:
    """How a dedicated search is to be made."""

    model: str
    thinking: Thinking = "low"
    include_thoughts: bool = False
    since: datetime | None = None
    """Only pages from then on, where the provider has such a filter."""


class Provider(Protocol):
    """Who answers. Failures come as `errors.GeminiMcpError`."""

    name: str
    asked_model: str | None
    """The model that main runs are told to use; None lets the provider choose."""
    evidence: Evidence
    """The best that its replies can have."""
    fetches: bool
    """Whether it can read pages, beside searching."""
    thoughts: bool
    """Whether it can tell its thoughts."""

    async def ask(self, prompt: str, progress: Progress, file: Path | None = None) -> Reply:
        """Answer with web search at hand; with `file`, with nothing but that file."""
        ...

    async def ground(self, query: str, how: Grounding, progress: Progress) -> Reply:
        """Make one dedicated search for the query.

        What it found stands in the `searches` of the reply; if there are none, it did not search.
        """
        ...
