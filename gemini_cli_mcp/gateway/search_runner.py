"""Run the searches of one request: concurrently, bounded, and never the same one twice."""

import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

import anyio

from gemini_cli_mcp.errors import TimedOut
from gemini_cli_mcp.gateway.tool_calls import ToolCall
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.research.results import UNTRUSTED_NOTE, WebSearchResult
from gemini_cli_mcp.settings.engines import MAX_HITS, RECENCY_DAYS
from gemini_cli_mcp.types import Hit

MAX_RESULT_CHARS = 24_000
"""Maximum characters of a result that is fed back to the model."""
MAX_PARALLEL_SEARCHES = 8
"""Maximum searches per turn."""


@dataclass(frozen=True)
class SearchFailure:
    """Why there is no result, as the model is told."""

    message: str
    code: str | None = None
    """The code of the error; None if the search was not attempted."""


SearchOutcome = WebSearchResult | SearchFailure


@dataclass(frozen=True)
class SearchArguments:
    """The usable arguments of a `web_search` call; invalid options are left out."""

    query: object
    """As the model sent it: whether it is a valid query is for the search to decide."""
    engine: str | None
    recency: str | None
    count: int | None
    key: str
    """Equal for equal arguments, whatever their order and spacing."""


SearchFunction = Callable[[SearchArguments], Awaitable[SearchOutcome]]
"""Runs one search with a model's arguments. Does not raise."""

NO_SEARCHES_LEFT = SearchFailure("No more searches are allowed. Answer with what you have.")
ALREADY_SEARCHED = SearchFailure("This search was already made. Answer with what you have.")
INVALID_ARGUMENTS = SearchFailure("The arguments must be a JSON object with `query`.")


@dataclass
class SearchRunner:
    """Runs the searches of one request; tracks its hits and remaining budget."""

    search: SearchFunction
    max_turns: int
    timeout: float
    """Seconds for the searches of all turns; then the model answers with what it has."""
    max_searches: int | None = None
    """Maximum searches in total, if the client sets one."""
    hits: list[Hit] = field(default_factory=list[Hit])
    search_count: int = 0
    _turns: int = 0
    _searched_keys: set[str] = field(default_factory=set[str])
    _is_repeating: bool = False
    _deadline: float = math.inf
    """Set by the first search: the time before it does not count."""

    @property
    def has_budget(self) -> bool:
        """Whether the model may request another search."""
        in_time = time.monotonic() < self._deadline
        has_searches_left = self.max_searches is None or self.search_count < self.max_searches
        return (
            self._turns < self.max_turns
            and has_searches_left
            and in_time
            and not self._is_repeating
        )

    async def run(self, calls: Sequence[ToolCall]) -> list[SearchOutcome]:
        """Run a turn's calls and return their outcomes in order."""
        self._turns += 1
        self._deadline = min(self._deadline, time.monotonic() + self.timeout)
        parsed_calls = [search_arguments(call) for call in calls]
        keys = [
            call.arguments if arguments is None else arguments.key
            for call, arguments in zip(calls, parsed_calls, strict=True)
        ]
        self._is_repeating = set(keys) <= self._searched_keys
        outcomes = self._refuse(keys)

        async def run_one(key: str, arguments: SearchArguments | None) -> None:
            outcomes[key] = await self._run_search(arguments)

        async with anyio.create_task_group() as tasks:
            for key, arguments in dict(zip(keys, parsed_calls, strict=True)).items():
                if key not in outcomes:
                    tasks.start_soon(run_one, key, arguments)
        self._searched_keys |= {key for key in keys if not isinstance(outcomes[key], SearchFailure)}
        return [outcomes[key] for key in keys]

    def fallback_answer(self) -> str:
        """Return an answer for a model that kept requesting searches instead of writing one."""
        links = [f"- {hit.title}: {hit.url}" for hit in self.hits[:10]]
        return "\n".join(["The model gave no answer before its searches were exhausted.", *links])

    def _refuse(self, keys: Sequence[str]) -> dict[str, SearchOutcome]:
        """Return the outcomes of the searches that will not be run."""
        outcomes: dict[str, SearchOutcome] = {
            key: ALREADY_SEARCHED for key in keys if key in self._searched_keys
        }
        new_keys = [key for key in dict.fromkeys(keys) if key not in outcomes]
        available = (
            MAX_PARALLEL_SEARCHES
            if self.max_searches is None
            else min(self.max_searches - self.search_count, MAX_PARALLEL_SEARCHES)
        )
        return outcomes | dict.fromkeys(new_keys[max(available, 0) :], NO_SEARCHES_LEFT)

    async def _run_search(self, arguments: SearchArguments | None) -> SearchOutcome:
        if arguments is None:
            return INVALID_ARGUMENTS
        self.search_count += 1
        with anyio.move_on_after(self._deadline - time.monotonic()):
            outcome = await self.search(arguments)
            if isinstance(outcome, WebSearchResult):
                self.hits += outcome.hits
            return outcome
        return SearchFailure("No time is left for this search.", TimedOut.code)


def search_arguments(call: ToolCall) -> SearchArguments | None:
    """Parse the arguments of a `web_search` call; return None if they are not an object."""
    try:
        value = cast("object", json.loads(call.arguments or "{}"))
        if isinstance(value, str):  # encoded twice
            value = cast("object", json.loads(value))
    except (ValueError, RecursionError):
        return None
    arguments = object_or_empty(value)
    if not arguments:
        return None
    engine, recency = arguments.get("engine"), arguments.get("recency")
    return SearchArguments(
        arguments.get("query"),
        str(engine) if engine else None,
        recency if isinstance(recency, str) and recency in RECENCY_DAYS else None,
        _parse_count(arguments.get("count")),
        json.dumps(arguments, sort_keys=True),
    )


def _parse_count(value: object) -> int | None:
    """Return the nearest allowed number of hits; smaller models send numbers as text."""
    if not isinstance(value, str | int | float):
        return None
    try:
        return min(max(int(float(value)), 1), MAX_HITS)
    except (ValueError, OverflowError):
        return None


def search_query(call: ToolCall) -> str:
    """Return the query of a search as text; empty if the arguments cannot be parsed."""
    arguments = search_arguments(call)
    return str(arguments.query or "") if arguments else ""


def tool_result_json(outcome: SearchOutcome) -> str:
    """Return the tool result for the model, in at most MAX_RESULT_CHARS if it is a success.

    Hits are dropped first, then the summary is cut.
    """
    if isinstance(outcome, SearchFailure):
        details = {"code": outcome.code, "message": outcome.message}
        error = outcome.message if outcome.code is None else details
        return json.dumps({"error": error}, ensure_ascii=False)
    hits, summary = outcome.hits, outcome.summary
    while True:
        result = {
            "note": UNTRUSTED_NOTE,
            "summary": summary,
            "hits": [_hit_json(hit) for hit in hits],
            "engine": outcome.engine,
        }
        text = json.dumps(result, ensure_ascii=False)
        if len(text) <= MAX_RESULT_CHARS or not (hits or summary):
            return text
        if hits:
            hits = hits[: len(hits) // 2]
        else:
            summary = summary[: len(summary) // 2]


def _hit_json(hit: Hit) -> dict[str, str]:
    fields: dict[str, str | None] = asdict(hit)
    return {name: value for name, value in fields.items() if value is not None}
