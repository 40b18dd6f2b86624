"""`search`: one grounded research run, from question to result."""

import time

from anyio import to_thread

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.prompts import render_question
from gemini_cli_mcp.research.citation_gate import check_report
from gemini_cli_mcp.research.model_answer import ModelAnswer, run_metadata
from gemini_cli_mcp.research.requests import SearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import SearchResult


async def search(
    request: SearchRequest, context: CallContext, researcher: Researcher
) -> SearchResult:
    """Research the question; raise GeminiMcpError on failure."""
    started = time.monotonic()
    with context.enforce():
        prompt = render_question("search-prompt", request.question)
        answer = await researcher.ask(prompt, context)
        # In a worker thread: a hostile report must not block the event loop.
        return await to_thread.run_sync(
            _build_result, request, answer, started, abandon_on_cancel=True
        )


def _build_result(request: SearchRequest, answer: ModelAnswer, started: float) -> SearchResult:
    """Check the citations of the answer and describe how it was obtained."""
    report = check_report(answer.report.text, [answer.reply])
    metadata = run_metadata(request.question, time.monotonic() - started, [answer])
    return SearchResult(report.text, metadata, report.citations, answer.repair, answer.cycles)
