"""The events of a run, parsed from the CLI's stream-json output or built from ACP updates."""

from collections.abc import Mapping
from dataclasses import dataclass

from gemini_cli_mcp.types import Usage


@dataclass(frozen=True)
class ToolArguments:
    """The arguments of a search or fetch call; those that it does not have are empty."""

    query: str = ""
    """What a search searches for."""
    prompt: str = ""
    """What a fetch is told to do, including the URLs; older versions have a `url` instead."""
    url: str = ""

    @property
    def fetch_prompt(self) -> str:
        """The text in which the CLI looks for the URLs of a fetch."""
        return self.prompt or self.url


@dataclass(frozen=True)
class InitEvent:
    """The run started."""

    session_id: str


@dataclass(frozen=True)
class MessageEvent:
    """A piece of the assistant's answer."""

    text: str


@dataclass(frozen=True)
class ToolUseEvent:
    """The model called a tool."""

    tool_id: str
    tool_name: str
    """Empty if it is neither a search nor a fetch and unknown."""
    arguments: ToolArguments


@dataclass(frozen=True)
class ToolResultEvent:
    """A tool call ended."""

    tool_id: str
    error: str | None
    """Why it failed; None if it succeeded."""


@dataclass(frozen=True)
class ErrorEvent:
    """The CLI reported a problem; the run may continue."""

    message: str


@dataclass(frozen=True)
class RunStats:
    """Token counts of a run."""

    usage: Usage
    tokens_by_model: Mapping[str, int]
    """Total tokens of each model, in the order in which the CLI lists the models."""


@dataclass(frozen=True)
class ResultEvent:
    """The run ended."""

    failed: bool = False
    error: str = ""
    """Message of a failed run; may be empty."""
    stats: RunStats | None = None


Event = InitEvent | MessageEvent | ToolUseEvent | ToolResultEvent | ErrorEvent | ResultEvent
