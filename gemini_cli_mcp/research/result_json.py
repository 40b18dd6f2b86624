"""The JSON of results and errors, the same for MCP clients, `--json` and resources."""

from dataclasses import asdict

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.evidence import source_domain
from gemini_cli_mcp.research.results import (
    UNTRUSTED_NOTE,
    DeepSearchResult,
    FallbackReason,
    GroundedResult,
    Repair,
    Result,
    RoundSummary,
    SearchResult,
    WebSearchResult,
)


def to_json(result: Result | GeminiMcpError) -> JsonObject:
    """Return the JSON object that a caller gets for a result or an error."""
    match result:
        case GeminiMcpError():
            return {"success": False, "error": error_json(result)}
        case SearchResult():
            return {"success": True, "result": result.report, "metadata": metadata_json(result)}
        case DeepSearchResult():
            return {
                "success": True,
                "result": result.report,
                "verified": result.verified,
                "metadata": metadata_json(result),
            }
        case GroundedResult():
            return _grounded_json(result)
        case WebSearchResult():
            return _web_search_json(result)


def error_json(error: GeminiMcpError) -> JsonObject:
    """Return the `error` object of a failure."""
    return _without_none(
        code=error.code,
        message=error.message or None,
        details=error.details or None,
        hint=error.next_step or None,
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
    )


def metadata_json(result: SearchResult | DeepSearchResult) -> JsonObject:
    """Return the `metadata` object of a report."""
    metadata = result.metadata
    common = {
        "duration_ms": _milliseconds(metadata.duration),
        "query": metadata.question,
        "model": metadata.model,
        "timestamp": metadata.finished_at.isoformat(timespec="seconds"),
        "sources_visited": [source.url for source in metadata.sources],
        "search_queries_used": list(metadata.queries),
        "evidence": metadata.evidence,
        "grounded": metadata.grounded,
        "provider": metadata.provider,
        "usage": asdict(metadata.usage) if metadata.usage else None,
        "citations": asdict(result.citations) if result.citations else None,
    }
    optional = _without_none(
        search_suggestions=metadata.suggestions_html,
        fallback=_fallback_json(metadata.fallbacks),
        process=metadata.process,
        note=metadata.note or None,
        shortened=metadata.shortened or None,
    )
    match result:
        case SearchResult(repair=repair):
            details = {"cycles": result.cycles, "correction": repair.correction}
            truncation = _without_none(
                truncated=repair.truncated or None, correction_overlap=repair.overlap
            )
        case DeepSearchResult():
            details = {
                "iterations": len(result.rounds),
                "rounds": [_round_json(round_summary) for round_summary in result.rounds],
                "stop_reason": result.stop_reason,
                "verification": list(result.issues),
            }
            truncation = _without_none(
                truncated=result.truncated or None, clamped=_clamped_json(result.clamped_rounds)
            )
    return {**common, **details, **optional, **truncation}


def _round_json(round_summary: RoundSummary) -> JsonObject:
    repair = round_summary.repair or Repair("none")
    return {
        "round_number": round_summary.number,
        "sources_visited": list(round_summary.sources),
        "search_queries": list(round_summary.queries),
        "intermediate_result_summary": round_summary.summary,
        "verified": round_summary.verified,
        "verification": list(round_summary.issues),
        "duration_ms": _milliseconds(round_summary.duration),
        **_without_none(
            unchanged=round_summary.unchanged or None,
            correction=None if repair.correction == "none" else repair.correction,
            correction_overlap=repair.overlap,
            error=error_json(round_summary.error) if round_summary.error else None,
        ),
    }


def _grounded_json(result: GroundedResult) -> JsonObject:
    sources = [
        {"title": source.title or domain, "url": source.url, "domain": domain}
        for source in result.sources
        for domain in [source_domain(source)]
    ]
    metadata = {
        "provider": result.provider,
        "model": result.model,
        "thinking": result.thinking,
        "duration_ms": _milliseconds(result.duration),
        "query": result.question,
        "usage": asdict(result.usage) if result.usage else None,
        **_without_none(fallback=_fallback_json(result.fallbacks), process=result.process),
    }
    return {
        "success": True,
        "result": result.text,
        "sources": sources,
        "search_queries": list(result.queries),
        "metadata": metadata,
        **_without_none(thoughts=result.thoughts, search_suggestions=result.suggestions_html),
    }


def _web_search_json(result: WebSearchResult) -> JsonObject:
    metadata = {
        "duration_ms": _milliseconds(result.duration),
        "query": result.question,
        "recency": result.recency,
        "count": result.count,
        "applied": dict(result.applied),
        "summary_from": result.summary_from,
        **_without_none(account=result.target.alias, process=result.process),
    }
    return {
        "success": True,
        "summary": result.summary,
        "hits": [
            _without_none(
                title=hit.title, url=hit.url, source=hit.source, date=hit.date, snippet=hit.snippet
            )
            for hit in result.hits
        ],
        "engine": result.engine,
        "provider": result.target.family,
        "model": result.target.model,
        "note": UNTRUSTED_NOTE,
        "metadata": metadata,
    }


def _clamped_json(clamped_rounds: tuple[int, int] | None) -> dict[str, dict[str, int]] | None:
    if clamped_rounds is None:
        return None
    asked, used = clamped_rounds
    return {"max_iterations": {"asked": asked, "used": used}}


def _fallback_json(fallbacks: tuple[FallbackReason, ...]) -> list[dict[str, str]] | None:
    return [asdict(reason) for reason in fallbacks] or None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _without_none(**fields: object) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
