"""Run the searches of one request: concurrently, bounded, and never the same one twice."""

import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from gemini_cli_mcp.errors import TimedOut, failure_result
from gemini_cli_mcp.gateway.search_options import HostedSearchOptions
from gemini_cli_mcp.gateway.tool_calls import ToolCall, search_arguments
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.redaction import sanitize_json
from gemini_cli_mcp.research.web_search import WebSearch
from gemini_cli_mcp.settings.engines_file import MAX_HITS, RECENCY_DAYS, Engines

MAX_RESULT_CHARS = 24_000
"""Maximum characters of a result that is fed back to the model."""
MAX_PARALLEL_SEARCHES = 8
"""Maximum searches per turn."""
NO_SEARCHES_LEFT = "No more searches are allowed. Answer with what you have."
ALREADY_SEARCHED = "This search was already made. Answer with what you have."

SearchFunction = Callable[[JsonObject], Awaitable[JsonObject]]
"""Runs one search with a model's arguments; returns the result or an error object."""


@dataclass
class SearchRunner:
    """Runs the searches of one request; tracks its hits and remaining budget."""

    search: SearchFunction
    max_turns: int
    timeout: float
    """Seconds for the searches of all turns; then the model answers with what it has."""
    max_searches: int | None = None
    """Maximum searches in total, if the client sets one."""
    hits: list[JsonObject] = field(default_factory=list[JsonObject])
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

    async def run(self, calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Run a turn's calls and return their results in order."""
        self._turns += 1
        self._deadline = min(self._deadline, time.monotonic() + self.timeout)
        arguments = [search_arguments(call) for call in calls]
        keys = [
            _search_key(call, call_arguments)
            for call, call_arguments in zip(calls, arguments, strict=True)
        ]
        self._is_repeating = set(keys) <= self._searched_keys
        results: dict[str, JsonObject] = {
            key: {"error": ALREADY_SEARCHED} for key in keys if key in self._searched_keys
        }
        new_keys = [key for key in dict.fromkeys(keys) if key not in results]
        available = (
            MAX_PARALLEL_SEARCHES
            if self.max_searches is None
            else min(self.max_searches - self.search_count, MAX_PARALLEL_SEARCHES)
        )
        results |= {key: {"error": NO_SEARCHES_LEFT} for key in new_keys[max(available, 0) :]}

        async def run_one(key: str, search_args: JsonObject | None) -> None:
            results[key] = await self._run_search(search_args)

        async with anyio.create_task_group() as tasks:
            for key, search_args in dict(zip(keys, arguments, strict=True)).items():
                if key not in results:
                    tasks.start_soon(run_one, key, search_args)
        self._searched_keys |= {key for key in keys if "error" not in results[key]}
        return [results[key] for key in keys]

    def fallback_answer(self) -> str:
        """Return an answer for a model that kept requesting searches instead of writing one."""
        links = [f"- {hit.get('title')}: {hit.get('url')}" for hit in self.hits[:10]]
        return "\n".join(["The model gave no answer before its searches were exhausted.", *links])

    async def _run_search(self, arguments: JsonObject | None) -> JsonObject:
        if arguments is None:
            return {"error": "The arguments must be a JSON object with `query`."}
        self.search_count += 1
        result = failure_result(TimedOut("No time is left for this search."))
        with anyio.move_on_after(self._deadline - time.monotonic()):
            result = await self.search(arguments)
        if error := object_or_empty(result.get("error")):
            return {"error": {name: error[name] for name in ("code", "message") if name in error}}
        self.hits += [object_or_empty(hit) for hit in list_or_empty(result.get("hits"))]
        return {name: result.get(name) for name in ("note", "summary", "hits", "engine")}


def search_function(
    web_search: WebSearch, engines: Engines, options: HostedSearchOptions, secrets: Sequence[str]
) -> SearchFunction:
    """Return a function that searches with these engines and a model's arguments."""

    async def search(arguments: JsonObject) -> JsonObject:
        parsed = lenient_arguments(arguments)
        if isinstance(parsed["query"], str):
            parsed["query"] = options.apply_to_query(parsed["query"])
        parsed.setdefault("count", options.count)
        parsed.setdefault("engine", engines.default)
        engine_ids = ", ".join(engine.id for engine in engines.engines)
        if not engines.get(str(parsed["engine"])):
            return _failure("INVALID_INPUT", f"`engine` must be one of: {engine_ids}.")
        try:
            result = await web_search.search(**parsed, progress=lambda _: None)
        except Exception as error:  # noqa: BLE001 - every failure is reported to the model
            return object_or_empty(sanitize_json(failure_result(error), secrets))
        result = object_or_empty(sanitize_json(result, secrets))
        hits = options.filter_hits([object_or_empty(hit) for hit in list_or_empty(result["hits"])])
        if not hits:
            domains = ", ".join(options.domains)
            return _failure("NO_RESULTS", f"Nothing was found on {domains}.")
        return {**result, "hits": hits}

    return search


def lenient_arguments(arguments: JsonObject) -> JsonObject:
    """Keep the valid arguments: smaller models send numbers as text and invent values."""
    parsed: JsonObject = {"query": arguments.get("query")}
    if engine := arguments.get("engine"):
        parsed["engine"] = engine
    if str(arguments.get("recency")) in RECENCY_DAYS:
        parsed["recency"] = arguments["recency"]
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        parsed["count"] = min(max(int(float(arguments["count"])), 1), MAX_HITS)
    return parsed


def _failure(code: str, message: str) -> JsonObject:
    return {"error": {"code": code, "message": message}}


def tool_result_json(result: JsonObject) -> str:
    """Serialize a result in at most MAX_RESULT_CHARS: drop hits first, then cut the summary."""
    hits, summary = list_or_empty(result.get("hits")), str(result.get("summary") or "")
    while len(text := json.dumps(result, ensure_ascii=False)) > MAX_RESULT_CHARS and (
        hits or summary
    ):
        if hits:
            hits = hits[: len(hits) // 2]
        else:
            summary = summary[: len(summary) // 2]
        result = {**result, "hits": hits, "summary": summary}
    return text


def _search_key(call: ToolCall, arguments: JsonObject | None) -> str:
    return call.arguments if arguments is None else json.dumps(arguments, sort_keys=True)
