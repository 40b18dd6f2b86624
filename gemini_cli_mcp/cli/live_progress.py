"""Progress of running research: a live view in a terminal, otherwise plain lines."""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from gemini_cli_mcp import logs
from gemini_cli_mcp.research.deep_search import (
    DeepSearchEvent,
    DeepSearchFinished,
    RoundFinished,
    RoundStarted,
    RoundStep,
)
from gemini_cli_mcp.research.deep_search_state import ISSUE_TEXT
from gemini_cli_mcp.research.results import RoundSummary
from gemini_cli_mcp.sanitize import redact_known, truncate_line
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback

MAX_STEPS = 5
"""Maximum steps shown of the running round."""
MAX_SITES = 10
"""Maximum sites listed for a finished round."""
MAX_TEXT_CHARS = 200
"""Maximum characters shown of a query or message."""


class StderrConsole(Console):
    """Console for progress and summaries; a closed stderr is not an error."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, emoji=False, markup=False)

    def on_broken_pipe(self) -> None:
        """Ignore it; rich would exit the program."""

    def print(self, *objects: object, **options: object) -> None:
        with suppress(OSError):
            super().print(*objects, **options)  # pyright: ignore[reportArgumentType] - as for rich


class SpinnerView:
    """A single line with the current step."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots")
        self._started = time.monotonic()
        self._message = ""

    def update(self, message: str) -> None:
        self._message = message

    def __rich__(self) -> RenderableType:
        seconds = time.monotonic() - self._started
        self._spinner.update(text=Text(f"{self._message} ({seconds:.0f} s)"))
        return self._spinner


class RoundsView:
    """The rounds of a deep search: finished rounds stay on screen, the running one updates."""

    def __init__(self, max_rounds: int, secrets: Sequence[str], console: Console) -> None:
        self._max_rounds = max_rounds
        self._secrets = secrets
        self._console = console
        self._spinner = Spinner("dots")
        self._running: int | None = None
        self._started = 0.0
        self._steps: list[str] = []

    def show(self, event: DeepSearchEvent) -> None:
        """Update the running round, or print a round that has ended."""
        match event:
            case RoundStarted(number):
                self._running, self._started, self._steps = number, time.monotonic(), []
            case RoundStep(_, message):
                self._steps.append(redact_known(message, self._secrets))
            case RoundFinished(state):
                self._running = None
                self._console.print(
                    self._finished_round(state.rounds[-1].summarize()), soft_wrap=True
                )
            case DeepSearchFinished():
                pass

    def __rich__(self) -> RenderableType:
        if self._running is None:
            return ""
        seconds = time.monotonic() - self._started
        name = self._name(self._running)
        self._spinner.update(text=Text(f"{name} ({seconds:.0f} s)", "bold"))
        steps = [Text(f"    {step}", "dim", no_wrap=True) for step in self._steps[-MAX_STEPS:]]
        return Group(self._spinner, *steps)

    def _name(self, number: int) -> str:
        return f"round {number}/{self._max_rounds}"

    def _finished_round(self, finished: RoundSummary) -> Text:
        name, seconds = self._name(finished.number), f"{finished.duration:.1f} s"
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
        for query in finished.queries:
            shown = truncate_line(redact_known(query, self._secrets), MAX_TEXT_CHARS)
            text.append(f"\n    “{shown}”", "not bold dim")
        if sites := finished.sites:
            suffix = f" and {len(sites) - MAX_SITES} more" if len(sites) > MAX_SITES else ""
            text.append(f"\n    {', '.join(sites[:MAX_SITES])}{suffix}", "not bold cyan")
        return text


@contextmanager
def live_steps(settings: Settings) -> Generator[ProgressCallback]:
    """Show the steps of one call: a spinner in a terminal, otherwise one line per step."""
    console = StderrConsole()
    if not _is_terminal():
        yield _line_printer(settings, console)
        return
    view = SpinnerView()
    with _live(settings, view, console):
        yield lambda message: view.update(redact_known(message, settings.secrets))


@contextmanager
def live_rounds(
    settings: Settings, max_rounds: int
) -> Generator[Callable[[DeepSearchEvent], None]]:
    """Show the rounds of a deep search: live in a terminal, otherwise one line per step."""
    console = StderrConsole()
    if not _is_terminal():
        print_line = _line_printer(settings, console)

        def show_step(event: DeepSearchEvent) -> None:
            if isinstance(event, RoundStep):
                print_line(f"round {event.number}/{max_rounds}: {event.message}")

        yield show_step
        return
    view = RoundsView(max_rounds, settings.secrets, console)
    with _live(settings, view, console):
        yield view.show
    console.print()


def _is_terminal() -> bool:
    return bool(sys.stderr and sys.stderr.isatty())


def _line_printer(settings: Settings, console: Console) -> ProgressCallback:
    started = time.monotonic()

    def print_line(message: str) -> None:
        seconds = time.monotonic() - started
        redacted = redact_known(message, settings.secrets)
        console.print(f"{redacted} ({seconds:.0f} s)", soft_wrap=True)

    return print_line


@contextmanager
def _live(settings: Settings, view: SpinnerView | RoundsView, console: Console) -> Generator[None]:
    """Draw a view until the context ends."""
    try:
        with Live(view, console=console, refresh_per_second=10, transient=True):
            # Log through the stderr that the view captures, without what the view already shows.
            level = "WARNING" if settings.log_level == "INFO" else settings.log_level
            logs.configure(level, settings.secrets)
            yield
    finally:
        logs.configure(settings.log_level, settings.secrets)


def pluralize(count: int, noun: str, plural: str) -> str:
    """Return "1 search", "2 searches"."""
    return f"{count} {noun}{'' if count == 1 else plural}"
