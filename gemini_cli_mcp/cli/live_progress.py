"""Progress of running research on stderr: a live view in a terminal, otherwise plain lines."""

import logging
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.padding import Padding
from rich.segment import ControlType
from rich.text import Text

from gemini_cli_mcp import logs
from gemini_cli_mcp.cli.wording import format_duration, format_tokens, pluralize
from gemini_cli_mcp.research import deep_search
from gemini_cli_mcp.research.deep_search import (
    DeepSearchEvent,
    DeepSearchFinished,
    RoundFindings,
    RoundFinished,
    RoundStarted,
    RoundStep,
)
from gemini_cli_mcp.research.deep_search_state import ISSUE_TEXT
from gemini_cli_mcp.research.results import RoundSummary
from gemini_cli_mcp.sanitize import redact_known, truncate_line
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Findings

MAX_STEPS = 5
"""Maximum steps shown of a running call or round."""
MAX_QUERIES = 8
"""Maximum queries listed for a finished round."""
MAX_SITES = 10
"""Maximum sites listed for a finished round."""
MAX_TEXT_CHARS = 200
"""Maximum characters shown of a query or message."""
REFRESHES_PER_SECOND = 8
SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SEPARATOR = " · "


class StderrConsole(Console):
    """Console for progress and summaries; a closed stderr is not an error."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, emoji=False, markup=False)

    def on_broken_pipe(self) -> None:
        """Ignore it; rich would exit the program."""

    def print(self, *objects: object, **options: object) -> None:
        # Keep lines whole in a pipe. Not `is_terminal`: colours can be forced there.
        options = {"soft_wrap": not _is_terminal(), **options}
        with suppress(OSError):
            super().print(*objects, **options)  # pyright: ignore[reportArgumentType] - as for rich


class ProgressDisplay(Protocol):
    """Shows what a call does; a deep search tells it by events."""

    def show_step(self, message: str) -> None: ...

    def show_findings(self, findings: Findings) -> None: ...

    def show_event(self, event: DeepSearchEvent) -> None: ...

    def close(self) -> None:
        """Leave nothing behind on the screen."""
        ...


class LiveView:
    """What runs now, redrawn in place; finished rounds stay on screen above it."""

    def __init__(self, console: Console, secrets: Sequence[str], max_rounds: int) -> None:
        """`max_rounds` is 0 for calls without rounds."""
        self._console = console
        self._secrets = secrets
        self._max_rounds = max_rounds
        self._started = time.monotonic()
        self._round: int | None = None
        self._steps: list[str] = []
        self._urls: set[str] = set()
        self._tokens = 0
        self._drawn_widths: list[int] = []
        """Columns of each line that is on the screen."""
        self.live = Live(
            self, console=console, refresh_per_second=REFRESHES_PER_SECOND, transient=True
        )

    def close(self) -> None:
        self.live.stop()

    def show_step(self, message: str) -> None:
        self._steps.append(redact_known(message, self._secrets))

    def show_findings(self, findings: Findings) -> None:
        self._urls.update(findings.urls)
        self._tokens += findings.tokens

    def show_event(self, event: DeepSearchEvent) -> None:
        match event:
            case RoundStarted(number):
                self._round, self._steps = number, []
            case RoundStep(number, message):
                if number == self._round:  # the line of a finished round says how it ended
                    self.show_step(message)
            case RoundFindings(_, findings):
                self.show_findings(findings)
            case RoundFinished(state):
                self._round, self._steps = None, []
                finished = state.rounds[-1].summarize()
                self._console.print(self._finished_round(finished))
            case DeepSearchFinished():
                pass

    def __rich__(self) -> RenderableType:
        seconds = time.monotonic() - self._started
        frame = SPINNER_FRAMES[int(seconds * REFRESHES_PER_SECOND) % len(SPINNER_FRAMES)]
        facts = [
            self._round_name(self._round) if self._round else "",
            format_duration(seconds),
            pluralize(len(self._urls), "source", "s"),
            format_tokens(self._tokens) if self._tokens else "",
        ]
        # One line each, cut at the edge: lines that wrap would make the view jump.
        lines = [Text(f"{frame} {SEPARATOR.join(filter(None, facts))}", "bold")]
        lines += [Text(f"    {step}", "dim") for step in self._steps[-MAX_STEPS:]]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._erase_wrapped_rows()
        self._drawn_widths = [min(line.cell_len, self._console.width) for line in lines]
        return Group(*lines)

    def _erase_wrapped_rows(self) -> None:
        """Erase the rows that were added by wrapping, if the window has become narrower.

        Most terminals wrap what they show; rich erases only as many rows as it has drawn.
        """
        width = max(1, self._console.width)
        added_rows = sum((columns - 1) // width for columns in self._drawn_widths if columns)
        if added_rows:
            erase = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
            self._console.control(Control(*erase * added_rows))

    def _round_name(self, number: int) -> str:
        return f"round {number}/{self._max_rounds}"

    def _finished_round(self, finished: RoundSummary) -> RenderableType:
        name, seconds = self._round_name(finished.number), f"{finished.duration:.1f} s"
        if error := finished.error:
            message = redact_known(error.message, self._secrets)
            return Text(
                f"✗ {name} · {seconds} · {error.code}: {truncate_line(message, MAX_TEXT_CHARS)}",
                "red",
            )
        searches = pluralize(len(finished.queries), "search", "es")
        sources = pluralize(len(finished.sources), "source", "s")
        text = Text(f"✓ {name} · {searches} · {sources} · {seconds}", "bold")
        if finished.verified:
            text.append(" · verified", "green")
        elif finished.issues:
            reasons = "; ".join(ISSUE_TEXT[issue] for issue in finished.issues)
            text.append(f" · claims to be verified, but {reasons}", "yellow")
        if finished.unchanged:
            text.append(" · unchanged", "dim")
        details = [
            Text(f"“{truncate_line(redact_known(query, self._secrets), MAX_TEXT_CHARS)}”", "dim")
            for query in finished.queries[:MAX_QUERIES]
        ]
        if len(finished.queries) > MAX_QUERIES:
            details.append(Text(f"and {len(finished.queries) - MAX_QUERIES} more", "dim"))
        if sites := finished.sites:
            suffix = f" and {len(sites) - MAX_SITES} more" if len(sites) > MAX_SITES else ""
            details.append(Text(f"{', '.join(sites[:MAX_SITES])}{suffix}", "cyan"))
        return Group(text, Padding(Group(*details), (0, 0, 0, 4)))


class PlainLines:
    """One line per step; log lines tell where the rounds of a deep search start and end."""

    def __init__(self, console: Console, secrets: Sequence[str], max_rounds: int) -> None:
        self._console = console
        self._secrets = secrets
        self._max_rounds = max_rounds
        self._started = time.monotonic()
        self._round: int | None = None

    def show_step(self, message: str) -> None:
        seconds = format_duration(time.monotonic() - self._started)
        self._console.print(f"{redact_known(message, self._secrets)} ({seconds})")

    def show_findings(self, findings: Findings) -> None:
        """Not shown: the summary has the totals."""

    def show_event(self, event: DeepSearchEvent) -> None:
        match event:
            case RoundStarted(number):
                self._round = number
            case RoundStep(number, message):
                if number == self._round:
                    self.show_step(f"round {number}/{self._max_rounds}: {message}")
            case RoundFinished():
                self._round = None
            case RoundFindings() | DeepSearchFinished():
                pass

    def close(self) -> None:
        """Lines stay."""


@contextmanager
def live_progress(settings: Settings, max_rounds: int = 0) -> Generator[ProgressDisplay]:
    """Show progress until the context ends; nothing if log lines of level INFO are hidden."""
    console = StderrConsole()
    console.quiet = not shows_progress(settings)
    if console.quiet or not _is_terminal() or console.is_dumb_terminal:
        yield PlainLines(console, settings.secrets, max_rounds)
        return
    view = LiveView(console, settings.secrets, max_rounds)
    round_logger = logging.getLogger(deep_search.__name__)
    try:
        with view.live:
            # Log through the stderr that the view captures, without what the view already shows.
            level = "WARNING" if settings.log_level == "INFO" else settings.log_level
            logs.configure(level, settings.secrets)
            round_logger.disabled = True
            yield view
    finally:
        round_logger.disabled = False
        logs.configure(settings.log_level, settings.secrets)
    if max_rounds:
        console.print()


def _is_terminal() -> bool:
    return bool(sys.stderr and sys.stderr.isatty())


def shows_progress(settings: Settings) -> bool:
    """Whether progress and summaries are shown: like log lines of level INFO."""
    return settings.log_level in ("DEBUG", "INFO")
