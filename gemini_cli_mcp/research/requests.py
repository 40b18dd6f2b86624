"""The requests of the tools, and how each is parsed from the arguments of any caller.

MCP clients, the terminal and the gateway pass untyped arguments; InvalidInput names the first one
that is not valid.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.providers.base import GroundingOptions
from gemini_cli_mcp.sanitize import replace_unsafe_chars, truncate_line
from gemini_cli_mcp.settings.engines import DEFAULT_HITS, MAX_HITS, RECENCY_DAYS, Engine, Engines
from gemini_cli_mcp.settings.env import MIN_ROUNDS, Settings
from gemini_cli_mcp.suggestions import closest_name
from gemini_cli_mcp.types import MAX_QUERY_CHARS, THINKING_TOKENS

MAX_WAIT_SECONDS = 1e6
"""Longer than any job runs."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.:-]{0,99}", re.ASCII)

Arguments = Mapping[str, object]
"""The arguments of a call as the caller sent them."""


@dataclass(frozen=True)
class SearchRequest:
    """One search."""

    question: str


@dataclass(frozen=True)
class DeepSearchRequest:
    """One deep search; equal requests do the same work."""

    question: str
    max_rounds: int
    asked_rounds: int | None = None
    """The number of rounds that was asked for, if it is out of range."""

    @property
    def clamped_rounds(self) -> tuple[int, int] | None:
        """The maximum of rounds that was asked for and the one used, if they differ."""
        return None if self.asked_rounds is None else (self.asked_rounds, self.max_rounds)


@dataclass(frozen=True)
class GroundedSearchRequest:
    """One dedicated search."""

    question: str
    options: GroundingOptions


@dataclass(frozen=True)
class WebSearchRequest:
    """One search for links."""

    question: str
    engine: Engine
    recency: str = "noLimit"
    count: int = DEFAULT_HITS


@dataclass(frozen=True)
class JobResultRequest:
    """One poll of a deep search."""

    job_id: str
    wait_seconds: float | None
    """None: as long as the client is known to wait."""
    offset: int


def parse_search(arguments: Arguments) -> SearchRequest:
    _reject_unknown(arguments, "query")
    return SearchRequest(_parse_query(arguments))


def parse_deep_search(arguments: Arguments, settings: Settings) -> DeepSearchRequest:
    """Parse the arguments; an out-of-range `max_iterations` is clamped."""
    _reject_unknown(arguments, "query", "max_iterations", "wait_seconds", "fresh")
    question = _parse_query(arguments)
    value = arguments.get("max_iterations")
    if value is None:
        return DeepSearchRequest(question, settings.max_rounds)
    rounds = _whole_number(value)
    if rounds is None:
        description = value if isinstance(value, float) else _json_type_name(value)
        raise InvalidInput(f"`max_iterations` must be a whole number, not {description}.")
    used = int(min(max(rounds, MIN_ROUNDS), settings.max_rounds))
    return DeepSearchRequest(question, used, None if rounds == used else int(rounds))


def parse_fresh(arguments: Arguments) -> bool:
    """Return whether a deep search should start even if the same one is running."""
    fresh = _value_or(arguments, "fresh", False)
    if not isinstance(fresh, bool):
        raise InvalidInput(f"`fresh` must be true or false, not {_json_type_name(fresh)}.")
    return fresh


def parse_grounded_search(arguments: Arguments, settings: Settings) -> GroundedSearchRequest:
    _reject_unknown(arguments, "query", "model", "thinking", "include_thoughts")
    question = _parse_query(arguments)
    model = _value_or(arguments, "model", settings.grounded_model)
    thinking = _value_or(arguments, "thinking", settings.grounded_thinking)
    include_thoughts = _value_or(arguments, "include_thoughts", False)
    if not isinstance(model, str) or not _MODEL_NAME.fullmatch(model):
        raise InvalidInput("`model` must be a valid model name.")
    if not isinstance(thinking, str) or thinking not in THINKING_TOKENS:
        raise InvalidInput(f"`thinking` must be one of {', '.join(THINKING_TOKENS)}.")
    if not isinstance(include_thoughts, bool):
        raise InvalidInput(
            f"`include_thoughts` must be true or false, not {_json_type_name(include_thoughts)}."
        )
    options = GroundingOptions(model, thinking, include_thoughts)
    return GroundedSearchRequest(question, options)


def parse_web_search(arguments: Arguments, engines: Engines) -> WebSearchRequest:
    _reject_unknown(arguments, "query", "engine", "recency", "count")
    question = _parse_query(arguments)
    engine = _parse_engine(arguments, engines)
    recency = _value_or(arguments, "recency", "noLimit")
    if not isinstance(recency, str) or recency not in RECENCY_DAYS:
        raise InvalidInput(f"`recency` must be one of {', '.join(RECENCY_DAYS)}.")
    count = _whole_number(_value_or(arguments, "count", DEFAULT_HITS))
    if count is None or not 1 <= count <= MAX_HITS:
        raise InvalidInput(f"`count` must be a whole number from 1 to {MAX_HITS}.")
    return WebSearchRequest(question, engine, recency, int(count))


def parse_job_result(arguments: Arguments) -> JobResultRequest:
    _reject_unknown(arguments, "job_id", "wait_seconds", "offset")
    wait_seconds = parse_wait_seconds(arguments)
    offset = _whole_number(_value_or(arguments, "offset", 0))
    if offset is None or offset < 0:
        raise InvalidInput("`offset` must be a non-negative integer.")
    return JobResultRequest(_parse_job_id(arguments), wait_seconds, int(offset))


def parse_job_cancel(arguments: Arguments) -> str:
    """Return the id of the job to cancel."""
    _reject_unknown(arguments, "job_id")
    return _parse_job_id(arguments)


def _parse_job_id(arguments: Arguments) -> str:
    job_id = arguments.get("job_id")
    if not isinstance(job_id, str):
        raise InvalidInput("`job_id` must be the string that `deep_search` returned.")
    return job_id


def parse_wait_seconds(arguments: Arguments) -> float | None:
    value = arguments.get("wait_seconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidInput("`wait_seconds` must be a non-negative number.")
    return min(value, MAX_WAIT_SECONDS)


def _reject_unknown(arguments: Arguments, *known: str) -> None:
    for name in arguments:
        if name not in known:
            suggestion = closest_name(name, known)
            advice = f"did you mean `{suggestion}`?" if suggestion else f"known: {', '.join(known)}"
            raise InvalidInput(f"`{truncate_line(name, 100)}`: unknown; {advice}")


def _parse_query(arguments: Arguments) -> str:
    """Return the sanitized question."""
    query = arguments.get("query")
    if not isinstance(query, str):
        raise InvalidInput(f"`query` must be a string, not {_json_type_name(query)}.")
    if not query.strip():
        raise InvalidInput("`query` must not be blank.", hint="Pass the question in `query`.")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidInput(
            f"`query` has {len(query)} characters; the maximum is {MAX_QUERY_CHARS}.",
            hint="Send only the question, without background material.",
        )
    if "\0" in query:
        raise InvalidInput("`query` contains a NUL character.")
    return replace_unsafe_chars(query)


def _parse_engine(arguments: Arguments, engines: Engines) -> Engine:
    names = ", ".join(engine.id for engine in engines.engines)
    engine_id = _value_or(arguments, "engine", engines.default)
    if engine_id is None:
        raise InvalidInput(f"`engine` is required and must be one of: {names}.")
    engine = engines.get(engine_id) if isinstance(engine_id, str) else None
    if engine is None:
        raise InvalidInput(f"`engine` must be one of: {names}.")
    return engine


def _value_or(arguments: Arguments, name: str, default: object) -> object:
    """Return an argument; null counts as missing."""
    value = arguments.get(name)
    return default if value is None else value


def _whole_number(value: object) -> float | None:
    """Return a number without a fractional part; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return value


def _json_type_name(value: object) -> str:
    """Return what JSON calls a value of this type."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
