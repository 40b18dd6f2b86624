"""The searches of one request: side by side, bounded, each repeated for nobody."""

import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from gemini_cli_mcp.errors import TimedOut, failure_result
from gemini_cli_mcp.gateway.tool_calls import Call, search_arguments
from gemini_cli_mcp.json_values import Object, as_list, as_object

LARGEST = 24_000
"""Characters of one result that are fed back."""
MOST_AT_ONCE = 8
"""Searches of one turn."""
ENOUGH = "There may be no more searches. Answer with what you have."
AGAIN = "This was searched already. Answer with what you have."

Search = Callable[[Object], Awaitable[Object]]
"""Makes one search of a model's arguments; returns the result, a failure too."""


@dataclass
class Searches:
    """What was searched and found so far, and whether there may be more."""

    search: Search
    max_rounds: int
    seconds: float
    """For all rounds; whoever is not done by then answers with what there is."""
    most: int | None = None
    """Searches in all, if the client says so."""
    hits: list[Object] = field(default_factory=list[Object])
    made: int = 0
    _rounds: int = 0
    _asked: set[str] = field(default_factory=set[str])
    _stuck: bool = False
    _deadline: float = math.inf
    """Set by the first search: how long a model takes is not our business."""

    @property
    def may_go_on(self) -> bool:
        """Whether the model may ask for another one."""
        in_time = time.monotonic() < self._deadline
        room = self.most is None or self.made < self.most
        return self._rounds < self.max_rounds and room and in_time and not self._stuck

    async def results(self, calls: Sequence[Call]) -> list[Object]:
        """What was found for each of a turn's calls."""
        self._rounds += 1
        self._deadline = min(self._deadline, time.monotonic() + self.seconds)
        arguments = [search_arguments(call) for call in calls]
        keys = [_key(call, given) for call, given in zip(calls, arguments, strict=True)]
        self._stuck = set(keys) <= self._asked
        found: dict[str, Object] = {key: {"error": AGAIN} for key in keys if key in self._asked}
        fresh = [key for key in dict.fromkeys(keys) if key not in found]
        room = MOST_AT_ONCE if self.most is None else min(self.most - self.made, MOST_AT_ONCE)
        found |= {key: {"error": ENOUGH} for key in fresh[max(room, 0) :]}

        async def one(key: str, given: Object | None) -> None:
            found[key] = await self._result(given)

        async with anyio.create_task_group() as tasks:
            for key, given in dict(zip(keys, arguments, strict=True)).items():
                if key not in found:
                    tasks.start_soon(one, key, given)
        self._asked |= {key for key in keys if "error" not in found[key]}
        return [found[key] for key in keys]

    def as_answer(self) -> str:
        """Words for a model that has none, because it went on asking for searches."""
        found = [f"- {hit.get('title')}: {hit.get('url')}" for hit in self.hits[:10]]
        return "\n".join(["The model gave no answer before its searches were used up.", *found])

    async def _result(self, arguments: Object | None) -> Object:
        if arguments is None:
            return {"error": "The arguments must be a JSON object with `query`."}
        self.made += 1
        result = failure_result(TimedOut("There is no time left for this search."))
        with anyio.move_on_after(self._deadline - time.monotonic()):
            result = await self.search(arguments)
        if error := as_object(result.get("error")):
            return {"error": {name: error[name] for name in ("code", "message") if name in error}}
        self.hits += [as_object(hit) for hit in as_list(result.get("hits"))]
        return {name: result.get(name) for name in ("note", "summary", "hits", "engine")}


def bounded(result: Object) -> str:
    """A result as JSON of a size that models can take: first hits go, then the summary's end."""
    hits, summary = as_list(result.get("hits")), str(result.get("summary") or "")
    while len(text := json.dumps(result, ensure_ascii=False)) > LARGEST and (hits or summary):
        if hits:
            hits = hits[: len(hits) // 2]
        else:
            summary = summary[: len(summary) // 2]
        result = {**result, "hits": hits, "summary": summary}
    return text


def _key(call: Call, arguments: Object | None) -> str:
    return call.arguments if arguments is None else json.dumps(arguments, sort_keys=True)
