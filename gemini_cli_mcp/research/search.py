"""`search`: one grounded research run, from the question to the result."""

import time

import anyio

from gemini_cli_mcp.errors import TimedOut
from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.research.citation_gate import gate
from gemini_cli_mcp.research.question import checked_query, prompt
from gemini_cli_mcp.research.researcher import Desk
from gemini_cli_mcp.research.results import common
from gemini_cli_mcp.types import Progress


async def search(desk: Desk, query: object, *, timeout: float, progress: Progress) -> Object:
    """Research the question and return the success result; failures are raised."""
    question = checked_query(query)
    started = time.monotonic()
    try:
        with anyio.fail_after(timeout):
            answer = await desk.ask(prompt("search-prompt", question), progress)
            checked = await gate(answer.object["report"], [answer.reply])
    except TimeoutError:
        raise TimedOut(f"There was no answer within {timeout:g} s.") from None
    metadata: Object = {
        **common(question, started, [answer]),
        "citations": checked.citations,
        "cycles": answer.cycles,
        "correction": answer.correction,
    }
    if answer.truncated:
        metadata["truncated"] = True
    if answer.correction_overlap is not None:
        metadata["correction_overlap"] = answer.correction_overlap
    return {"success": True, "result": checked.text, "metadata": metadata}
