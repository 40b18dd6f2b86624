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
from gemini_cli_mcp.errors import Cancelled, GeminiMcpError
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.research.results import (
    DeepSearchResult,
    FallbackReason,
    GroundedResult,
    Result,
    SearchResult,
    WebSearchResult,
)
from gemini_cli_mcp.sanitize import escape_markdown, markdown_link, sanitize_json

INTERRUPTED_EXIT_CODE = 130
"""The conventional exit code of a program interrupted with Ctrl-C."""


def print_result(
    outcome: Result | GeminiMcpError,
    secrets: Sequence[str],
    *,
    as_json: bool,
    output: Path | None = None,
) -> int:
    """Print a result or an error, and return the exit code."""
    stderr = StderrConsole()
    code = 1 if isinstance(outcome, GeminiMcpError) else 0
    if output and not isinstance(outcome, GeminiMcpError):
        # First, so that the report is saved even if printing fails.
        try:
            report = str(sanitize_json(result_markdown(outcome), secrets))
            output.write_text(report + "\n", encoding="utf-8")
        except OSError as error:
            stderr.print(f"{output} cannot be written: {error.strerror}.", style="bold red")
            code = 1
    try:
        if as_json:
            payload = sanitize_json(to_json(outcome), secrets)
            _print(json.dumps(payload, ensure_ascii=False, indent=2))
        elif not isinstance(outcome, GeminiMcpError):
            _print_report(str(sanitize_json(result_markdown(outcome), secrets)))
    except BrokenPipeError:
        raise
    except OSError as error:
        stderr.print(f"stdout cannot be written: {error.strerror}.", style="bold red")
        code = 1
    if not isinstance(outcome, GeminiMcpError):
        summary = str(sanitize_json(_summary(outcome), secrets))
        stderr.print("\n" + summary, style="dim")
    elif not as_json:
        message = f"{outcome.code}: {outcome.message}"
        stderr.print(str(sanitize_json(message, secrets)), style="bold red")
        stderr.print(str(sanitize_json(outcome.next_step, secrets)))
    return INTERRUPTED_EXIT_CODE if isinstance(outcome, Cancelled) else code


def result_markdown(result: Result) -> str:
    """Return what a person reads of a result."""
    match result:
        case SearchResult() | DeepSearchResult():
            return result.report
        case GroundedResult():
            return result.text
        case WebSearchResult():
            return _hits_markdown(result)


def _hits_markdown(result: WebSearchResult) -> str:
    """Format the hits of a web search as a Markdown list."""
    lines = [result.summary, ""]
    for number, hit in enumerate(result.hits, 1):
        details = " · ".join(escape_markdown(text) for text in (hit.source, hit.date) if text)
        lines.append(f"{number}. {markdown_link(hit.title, hit.url)} ({details})")
        if hit.snippet:
            lines.append(f"   {escape_markdown(hit.snippet)}")
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


def _summary(result: Result) -> str:
    """Return the line below a report: what was done, how long it took, and with which model."""
    match result:
        case SearchResult() | DeepSearchResult():
            metadata = result.metadata
            parts = [
                *_counts(metadata.queries, metadata.sources),
                *_run_facts(metadata.duration, metadata.model, metadata.fallbacks),
            ]
            if isinstance(result, DeepSearchResult):
                verified = "verified" if result.verified else "not verified"
                parts = [verified, pluralize(len(result.rounds), "round", "s"), *parts]
            note = metadata.note
        case GroundedResult():
            parts = [
                *_counts(result.queries, result.sources),
                *_run_facts(result.duration, result.model, result.fallbacks),
            ]
            note = ""
        case WebSearchResult():
            parts = [
                f"engine {result.engine}",
                pluralize(len(result.hits), "hit", "s"),
                *_run_facts(result.duration, result.target.model, ()),
            ]
            note = ""
    return " · ".join(parts) + (f"\n{note}" if note else "")


def _counts(queries: Sequence[str], sources: Sequence[object]) -> list[str]:
    return [pluralize(len(queries), "search", "es"), pluralize(len(sources), "source", "s")]


def _run_facts(duration: float, model: str, fallbacks: Sequence[FallbackReason]) -> list[str]:
    failures = [f"after {reason.provider} failed ({reason.code})" for reason in fallbacks]
    return [f"{duration:.1f} s", model, *failures]
