"""Progress of running research: a live view in a terminal, otherwise plain lines."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from gemini_cli_mcp import logs
from gemini_cli_mcp.redaction import redact_known
from gemini_cli_mcp.research.deep_search import DeepSearch
from gemini_cli_mcp.research.deep_search_round import ISSUE_TEXT, Round
from gemini_cli_mcp.sanitize import truncate_line
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

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)


class SpinnerView:
    """A single line with the current step."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots")
        self._started = time.monotonic()
        self._message = ""

    def update(self, message: str, console: Console) -> None:
        self._message = message

    def finish(self, console: Console) -> None:
        """Leave nothing on the screen."""

    def __rich__(self) -> RenderableType:
        seconds = time.monotonic() - self._started
        self._spinner.update(text=Text(f"{self._message} ({seconds:.0f} s)"))
        return self._spinner


class RoundsView:
    """The rounds of a deep search: finished rounds stay on screen, the running one updates."""

    def __init__(self, deep: DeepSearch) -> None:
        self._deep = deep
        self._spinner = Spinner("dots")
        self._printed = 0

    def update(self, message: str, console: Console) -> None:
        """Print the rounds finished since the last call; `__rich__` draws the running one."""
        for round_ in self._deep.rounds[self._printed :]:
            if round_.ended_at is None:
                break
            console.print(self._finished_round(round_), soft_wrap=True)
            self._printed += 1

    def finish(self, console: Console) -> None:
        self.update("", console)
        console.print()

    def __rich__(self) -> RenderableType:
        running = [round_ for round_ in self._deep.rounds if round_.ended_at is None]
        if not running:
            return ""
        round_ = running[-1]
        self._spinner.update(text=Text(f"{self._name(round_)} ({round_.seconds:.0f} s)", "bold"))
        steps = [Text(f"    {step}", "dim", no_wrap=True) for step in round_.steps[-MAX_STEPS:]]
        return Group(self._spinner, *steps)

    def _name(self, round_: Round) -> str:
        return f"round {round_.number}/{self._deep.max_rounds}"

    def _finished_round(self, round_: Round) -> Text:
        name, seconds = self._name(round_), f"{round_.seconds:.1f} s"
        if error := round_.error:
            return Text(
                f"✗ {name} · {seconds} · {error.code}: "
                f"{truncate_line(error.message, MAX_TEXT_CHARS)}",
                "red",
            )
        searches = pluralize(len(round_.queries), "search", "es")
        sources = pluralize(len(round_.sources), "source", "s")
        text = Text(f"✓ {name} · {searches} · {sources} · {seconds}", "bold")
        if round_.verified:
            text.append(" · verified", "green")
        elif round_.issues:
            reasons = "; ".join(ISSUE_TEXT[issue] for issue in round_.issues)
            text.append(f" · claims to be verified, but {reasons}", "yellow")
        if round_.unchanged:
            text.append(" · unchanged", "dim")
        for query in round_.queries:
            text.append(f"\n    “{truncate_line(query, MAX_TEXT_CHARS)}”", "not bold dim")
        if sites := round_.sites:
            suffix = f" and {len(sites) - MAX_SITES} more" if len(sites) > MAX_SITES else ""
            text.append(f"\n    {', '.join(sites[:MAX_SITES])}{suffix}", "not bold cyan")
        return text


@contextmanager
def live_progress(
    settings: Settings, view: SpinnerView | RoundsView
) -> Generator[ProgressCallback]:
    """Show progress: a live view in a terminal, otherwise one line per step."""
    console = StderrConsole()
    if not sys.stderr or not sys.stderr.isatty():
        started = time.monotonic()

        def print_line(message: str) -> None:
            seconds = time.monotonic() - started
            redacted = redact_known(message, settings.secrets)
            console.print(f"{redacted} ({seconds:.0f} s)", soft_wrap=True)

        yield print_line
        return
    try:
        with Live(view, console=console, refresh_per_second=10, transient=True):
            # Log through the stderr that the view captures, without what the view already shows.
            level = "WARNING" if settings.log_level == "INFO" else settings.log_level
            logs.configure(level, settings.secrets)
            yield lambda message: view.update(redact_known(message, settings.secrets), console)
            view.finish(console)
    finally:
        logs.configure(settings.log_level, settings.secrets)


def pluralize(count: int, noun: str, plural: str) -> str:
    """Return "1 search", "2 searches"."""
    return f"{count} {noun}{'' if count == 1 else plural}"
