"""Sources and tokens that are told while a run is going on."""

from gemini_cli_mcp.call_context import CallContext, FindingsReporter
from gemini_cli_mcp.providers.gemini.telemetry_events import parse_event
from gemini_cli_mcp.providers.gemini.telemetry_evidence import found_so_far
from gemini_cli_mcp.types import Findings, RecordedSearch, Source, Usage


async def test_each_source_and_token_is_reported_once() -> None:
    reported: list[Findings] = []
    reporter = FindingsReporter(CallContext(report_findings=reported.append))
    search = RecordedSearch("q", sources=(Source("a", ""), Source("c", "")))

    reporter.report(Findings())
    reporter.report(Findings(("a", "b", "a"), 10))
    reporter.report(Findings(("a", "b"), 10))
    reporter.report_rest((search,), (), Usage(total_tokens=25))

    assert reported == [Findings(("a", "b"), 10), Findings(("c",), 15)]


def test_the_events_of_an_unfinished_run_tell_sources_and_tokens() -> None:
    grounding = '{"groundingChunks": [{"web": {"uri": "https://a.org", "title": "a.org"}}]}'
    text = f'{{"candidates": [{{"groundingMetadata": {grounding}}}]}}'
    attributes = {"session.id": "s", "total_token_count": 7}
    events = [
        parse_event("api_request", {**attributes, "role": "main"}),
        parse_event("api_response", {**attributes, "role": "main"}),
        parse_event("api_response", {**attributes, "role": "utility_tool", "response_text": text}),
    ]

    assert found_so_far([event for event in events if event]) == Findings(("https://a.org",), 14)
