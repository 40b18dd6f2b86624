"""Print results in a terminal: the report on stdout, everything else on stderr."""

import json
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from rich.console import Console

from gemini_cli_mcp.cli.command_parser import BAD_USAGE_EXIT_CODE
from gemini_cli_mcp.cli.interrupt import INTERRUPTED_EXIT_CODE
from gemini_cli_mcp.cli.live_progress import SEPARATOR, StderrConsole, shows_progress
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.cli.report_view import print_report, report_markdown
from gemini_cli_mcp.cli.wording import (
    PROGRAM,
    format_duration,
    format_tokens,
    name_arguments,
    pluralize,
)
from gemini_cli_mcp.errors import Cancelled, GeminiMcpError, InvalidInput
from gemini_cli_mcp.platforms.streams import is_broken_pipe
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.research.results import (
    DeepSearchResult,
    FallbackReason,
    GroundedResult,
    Result,
    SearchResult,
    WebSearchResult,
)
from gemini_cli_mcp.sanitize import sanitize_json
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Usage


def print_result(outcome: Result | GeminiMcpError, settings: Settings, options: Options) -> int:
    """Print a result or an error, and return the exit code."""
    if isinstance(outcome, GeminiMcpError):
        return _print_error(outcome.for_terminal(), settings, options)
    stderr = StderrConsole()
    secrets = settings.secrets
    code = 0
    if options.output:
        # First, so that the report is saved even if printing fails.
        code = _save(outcome, options.output, secrets)
    try:
        if options.json:
            print_json(outcome, secrets)
        elif sys.stdout and sys.stdout.isatty():
            _replace_unknown_characters()
            print_report(outcome, Console(), secrets)
        else:
            _print(str(sanitize_json(report_markdown(outcome), secrets)))
    except OSError as error:
        if is_broken_pipe(error):
            raise
        stderr.print(f"stdout cannot be written: {error.strerror}.", style="bold red")
        code = 1
    _print_summary(outcome, stderr, settings)
    return code


def _save(result: Result, path: Path, secrets: Sequence[str]) -> int:
    try:
        report = str(sanitize_json(report_markdown(result), secrets))
        path.write_text(report + "\n", encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
        StderrConsole().print(message, style="bold red")
        return 1
    return 0


def _print_error(error: GeminiMcpError, settings: Settings, options: Options) -> int:
    """Print what happened, what to do next, and when; return the exit code."""
    if options.json:
        print_json(error, settings.secrets)
    else:
        stderr = StderrConsole()
        message, next_step = f"{error.code}: {error.message}", error.next_step
        if isinstance(error, InvalidInput):
            command = options.command.replace("_", "-")
            message = f"{PROGRAM} {command}: {name_arguments(error.message)}"
            next_step = f"Run `{PROGRAM} {command} --help` for its arguments and examples."
        lines = [(message, "bold red"), (name_arguments(next_step), "")]
        if error.retry_after_s:
            lines.append((f"Try again {_in_future(error.retry_after_s)}.", ""))
        if error.details:
            indented = "\n".join(f"  {line}" for line in error.details.splitlines())
            lines.append((f"Details:\n{indented}", "dim"))
        for text, style in lines:
            stderr.print(str(sanitize_json(text, settings.secrets)), style=style)
    if isinstance(error, Cancelled):
        return INTERRUPTED_EXIT_CODE
    return BAD_USAGE_EXIT_CODE if isinstance(error, InvalidInput) else 1


def _in_future(seconds: float) -> str:
    """Return "in 2 min 5 s, at 14:32:10"."""
    clock = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
    return f"in {format_duration(seconds)}, at {clock}"


def print_json(outcome: Result | GeminiMcpError, secrets: Sequence[str]) -> None:
    """Print the structured result on stdout."""
    _print(json.dumps(sanitize_json(to_json(outcome), secrets), ensure_ascii=False, indent=2))


def _print(text: str) -> None:
    if sys.stdout:
        _replace_unknown_characters()
        print(text, flush=True)


def _replace_unknown_characters() -> None:
    """Characters that stdout cannot encode must not lose the report."""
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="replace")


def _print_summary(result: Result, stderr: Console, settings: Settings) -> None:
    """Print what the reader must know, and what was done, how long and with which model."""
    if isinstance(result, SearchResult | DeepSearchResult) and (note := result.metadata.note):
        is_unverified = isinstance(result, DeepSearchResult) and not result.verified
        is_warning = is_unverified or not result.metadata.grounded
        if is_warning and settings.log_level != "ERROR":
            _print_line(stderr, f"\nWarning: {note}", "bold yellow", settings)
        elif shows_progress(settings):
            _print_line(stderr, f"\n{note}", "yellow", settings)
    if shows_progress(settings):
        _print_line(stderr, f"\n{SEPARATOR.join(_facts(result))}", "dim", settings)


def _print_line(stderr: Console, text: str, style: str, settings: Settings) -> None:
    stderr.print(str(sanitize_json(text, settings.secrets)), style=style)


def _facts(result: Result) -> list[str]:
    match result:
        case SearchResult() | DeepSearchResult():
            metadata = result.metadata
            facts = [
                *_counts(metadata.queries, metadata.sources, metadata.usage),
                *_run_facts(metadata.duration, metadata.model, metadata.fallbacks),
            ]
            if isinstance(result, DeepSearchResult):
                verified = "verified" if result.verified else "not verified"
                facts = [verified, pluralize(len(result.rounds), "round", "s"), *facts]
            return facts
        case GroundedResult():
            return [
                *_counts(result.queries, result.sources, result.usage),
                *_run_facts(result.duration, result.model, result.fallbacks),
            ]
        case WebSearchResult():
            return [
                f"engine {result.engine}",
                pluralize(len(result.hits), "hit", "s"),
                *_run_facts(result.duration, result.target.model, ()),
            ]


def _counts(queries: Sequence[str], sources: Sequence[object], usage: Usage | None) -> list[str]:
    counts = [pluralize(len(queries), "search", "es"), pluralize(len(sources), "source", "s")]
    return [*counts, format_tokens(usage.total_tokens)] if usage and usage.total_tokens else counts


def _run_facts(duration: float, model: str, fallbacks: Sequence[FallbackReason]) -> list[str]:
    failures = [f"after {reason.provider} failed ({reason.code})" for reason in fallbacks]
    return [f"{duration:.1f} s", model, *failures]
