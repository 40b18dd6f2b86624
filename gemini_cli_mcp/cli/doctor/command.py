"""The command `doctor`: run all checks in turn and print their findings."""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from typing import cast

import anyio
from rich.console import Console
from rich.text import Text

from gemini_cli_mcp import __version__
from gemini_cli_mcp.cli.doctor.checks import run_checks
from gemini_cli_mcp.cli.doctor.findings import (
    LIVE_SEARCH,
    CheckStarted,
    Finding,
    Status,
    can_search,
)
from gemini_cli_mcp.cli.options import Options
from gemini_cli_mcp.cli.output import INTERRUPTED_EXIT_CODE
from gemini_cli_mcp.limits import Limits

STATUS_STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "problem": "red"}
INDENT = " " * 8
"""Width of the status column."""
MIN_WIDTH, MAX_WIDTH = 20, 100
CAN_SEARCH = "A search can work."
CANNOT_SEARCH = "A search cannot work yet: fix the problems above."


def doctor(environ: Mapping[str, str], options: Options, limits: Limits | None = None) -> int:
    """Run the checks and print the findings; return 0 only if a search can work."""
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    console = Console(highlight=False, soft_wrap=True)
    try:
        findings = anyio.run(_collect, environ, options, limits, console)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    search_works = can_search(findings)
    summary = summarize(findings)
    if options.json:
        report = {
            "ok": search_works,
            "summary": summary,
            "version": __version__,
            "findings": [finding.to_json() for finding in findings],
        }
        json.dump(report, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console.print("\n" + "\n".join(_wrap(summary, _width(console))), markup=False)
    return 0 if search_works else 1


async def _collect(
    environ: Mapping[str, str], options: Options, limits: Limits | None, console: Console
) -> list[Finding]:
    """Run the checks; print what is being checked, and each finding as soon as it is known."""
    findings: list[Finding] = []
    with ExitStack() as stack:
        # Only a terminal can show a line for a while.
        shows_status = console.is_terminal and not options.json
        status = stack.enter_context(console.status("checking ...")) if shows_status else None
        async for event in run_checks(environ, limits, live=options.live, offline=options.offline):
            match event:
                case CheckStarted(topic):
                    if status:
                        status.update(f"checking {topic} ...")
                case Finding():
                    findings.append(event)
                    if not options.json:
                        console.print(_format(event, _width(console)))
    return findings


def summarize(findings: Sequence[Finding]) -> str:
    """Return the last line: whether a search can work, and what was not proven."""
    if not can_search(findings):
        return CANNOT_SEARCH
    not_proven = [finding.topic for finding in findings if not finding.proven]
    if not not_proven or any(finding.topic == LIVE_SEARCH for finding in findings):
        return CAN_SEARCH
    return (
        f"A search can probably work. Not proven: {', '.join(not_proven)}. To try everything, run: "
        "gemini-cli-mcp doctor --live"
    )


def _format(finding: Finding, width: int) -> Text:
    """Wrap a finding at the width of the terminal; a command to copy stays on one line."""
    text = Text(f"{finding.status:<{len(INDENT)}}", STATUS_STYLES[finding.status])
    message = f"{finding.topic}: {finding.message}"
    text.append("\n".join(_wrap(message, width, INDENT)).removeprefix(INDENT), "default")
    if finding.fix and finding.fix_is_command:
        command, _, comment = finding.fix.partition("  # ")
        text.append(f"\n{INDENT}fix: ", "default").append(command, "bold default")
        if comment:
            continuation = f"{INDENT}     "
            text.append("\n" + "\n".join(_wrap(f"({comment})", width, continuation)), "default")
    elif finding.fix:
        text.append("\n" + "\n".join(_wrap(f"fix: {finding.fix}", width, INDENT)), "default")
    return text


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width(console: Console) -> int:
    return max(MIN_WIDTH, min(console.width, MAX_WIDTH))
