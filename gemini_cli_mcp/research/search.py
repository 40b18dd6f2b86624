"""`search`: one grounded research run, from question to result."""

import time

import anyio

from gemini_cli_mcp.errors import TimedOut
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.citation_gate import check_report
from gemini_cli_mcp.research.question import parse_query, render_prompt
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.results import research_metadata
from gemini_cli_mcp.types import ProgressCallback


async def search(
    researcher: Researcher, query: object, *, timeout: float, progress: ProgressCallback
) -> JsonObject:
    """Research the question and return the success result; raise on failure."""
    question = parse_query(query)
    started = time.monotonic()
    try:
        with anyio.fail_after(timeout):
            answer = await researcher.ask(render_prompt("search-prompt", question), progress)
            report = await check_report(answer.object["report"], [answer.reply])
    except TimeoutError:
        raise TimedOut(f"There was no answer within {timeout:g} s.") from None
    metadata: JsonObject = {
        **research_metadata(question, started, [answer]),
        "citations": report.citations,
        "cycles": answer.cycles,
        "correction": answer.correction,
    }
    if answer.truncated:
        metadata["truncated"] = True
    if answer.correction_overlap is not None:
        metadata["correction_overlap"] = answer.correction_overlap
    return {"success": True, "result": report.text, "metadata": metadata}
