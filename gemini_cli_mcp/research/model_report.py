"""The answer object that prompts ask a model for, parsed from its output."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty

ANSWER_KEYS = frozenset({"success", "report", "result", "verified", "metadata", "error"})
ANSWER_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["success"],
    "properties": {
        "success": {"type": "boolean"},
        "verified": {"type": "boolean"},
        "metadata": {"type": "object"},
    },
    "if": {"properties": {"success": {"const": True}}},
    "then": {
        "required": ["report"],
        "properties": {"report": {"type": "string", "pattern": r"\S"}},
    },
}


@dataclass(frozen=True)
class ModelReport:
    """What a model answered; none of it is proved."""

    success: bool
    text: str
    failure: str = ""
    """Why there is no report, if `success` is false."""
    verified: bool = False
    sources: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()


def parse_model_report(candidate: JsonObject) -> ModelReport | None:
    """Return the report in a JSON object; None if the object does not match the schema."""
    # Some models write `result`, which older prompts asked for.
    report = candidate.get("report", candidate.get("result"))
    # Cheap checks first: hostile text can contain a million candidates.
    if not isinstance(report, str) and candidate.get("success") is not False:
        return None
    normalized = {name: value for name, value in candidate.items() if name != "result"}
    if report is not None:
        normalized["report"] = report
    if not _validator().is_valid(normalized):
        return None
    text = report if isinstance(report, str) else ""
    metadata = object_or_empty(candidate.get("metadata"))
    return ModelReport(
        success=candidate["success"] is True,
        text=text,
        failure=str(candidate.get("error") or report or "no reason given").strip(),
        verified=candidate.get("verified") is True,
        sources=_unique_strings(list_or_empty(metadata.get("sources_visited"))),
        queries=_unique_strings(list_or_empty(metadata.get("search_queries_used"))),
    )


def _unique_strings(items: Iterable[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in items if isinstance(item, str)))


class _Validator(Protocol):
    def is_valid(self, instance: object) -> bool: ...


@cache
def _validator() -> _Validator:
    import jsonschema  # deferred: the import alone would exceed the startup budget

    return jsonschema.Draft202012Validator(ANSWER_SCHEMA)  # pyright: ignore[reportReturnType]
