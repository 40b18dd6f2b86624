"""Print results in a terminal: the report on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.markdown import Markdown

from gemini_cli_mcp.cli.live_progress import StderrConsole, pluralize
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.redaction import sanitize_json
from gemini_cli_mcp.sanitize import escape_markdown, markdown_link

INTERRUPTED_EXIT_CODE = 130
"""The conventional exit code of a program interrupted with Ctrl-C."""


def print_result(
    payload: JsonObject, secrets: Sequence[str], *, as_json: bool, output: Path | None = None
) -> int:
    result = object_or_empty(sanitize_json(payload, secrets))
    code = 0 if result["success"] else 1
    stderr = StderrConsole()
    if output and result["success"]:
        # First, so that the report is saved even if printing fails.
        try:
            output.write_text(result["result"] + "\n", encoding="utf-8")
        except OSError as error:
            stderr.print(f"{output} cannot be written: {error.strerror}.", style="bold red")
            code = 1
    try:
        if as_json:
            _print(json.dumps(result, ensure_ascii=False, indent=2))
        elif result["success"]:
            _print_report(result["result"])
    except BrokenPipeError:
        raise
    except OSError as error:
        stderr.print(f"stdout cannot be written: {error.strerror}.", style="bold red")
        code = 1
    if result["success"]:
        stderr.print("\n" + _summary(result), style="dim")
    elif not as_json:
        error = result["error"]
        stderr.print(f"{error['code']}: {error['message']}", style="bold red")
        stderr.print(error.get("hint", ""))
    return (
        INTERRUPTED_EXIT_CODE
        if object_or_empty(result.get("error")).get("code") == "CANCELLED"
        else code
    )


def hits_markdown(response: JsonObject) -> str:
    """Format the hits of a web search as a Markdown list."""
    lines = [response["summary"], ""]
    for number, hit in enumerate(response["hits"], 1):
        details = " · ".join(
            escape_markdown(hit[name]) for name in ("source", "date") if name in hit
        )
        lines.append(f"{number}. {markdown_link(hit['title'], hit['url'])} ({details})")
        if "snippet" in hit:
            lines.append(f"   {escape_markdown(hit['snippet'])}")
    return "\n".join(lines)


def _print_report(report: str) -> None:
    if sys.stdout and sys.stdout.isatty():
        Console().print(Markdown(report))
    else:
        _print(report)


def _print(text: str) -> None:
    if sys.stdout:
        # Characters that the terminal cannot encode must not lose the report.
        cast("TextIOWrapper", sys.stdout).reconfigure(errors="replace")
        print(text, flush=True)


def _summary(result: JsonObject) -> str:
    metadata = result["metadata"]
    queries = list_or_empty(metadata.get("search_queries_used") or result.get("search_queries"))
    sources = list_or_empty(metadata.get("sources_visited") or result.get("sources"))
    counts = [pluralize(len(queries), "search", "es"), pluralize(len(sources), "source", "s")]
    if "hits" in result:
        counts = [f"engine {result['engine']}", pluralize(len(result["hits"]), "hit", "s")]
    model = metadata.get("model") or result["model"]
    parts = [*counts, f"{metadata['duration_ms'] / 1000:.1f} s", model]
    if "verified" in result:
        verified = "verified" if result["verified"] else "not verified"
        parts = [verified, pluralize(metadata["iterations"], "round", "s"), *parts]
    for failure in metadata.get("fallback", ()):
        parts.append(f"after {failure['provider']} failed ({failure['code']})")
    note = metadata.get("note")
    return " · ".join(parts) + (f"\n{note}" if note else "")
