"""What all layers below a tool know about the call they work for."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext

import anyio

from gemini_cli_mcp.errors import GeminiMcpError, TimedOut
from gemini_cli_mcp.types import (
    Findings,
    FindingsCallback,
    ProgressCallback,
    RecordedFetch,
    RecordedSearch,
    Usage,
)

LOCAL_OWNER = "stdio"
"""The owner of everything that a stdio client or terminal user starts."""


def ignore_progress(message: str) -> None:
    """Discard a progress message."""


def ignore_findings(findings: Findings) -> None:
    """Discard findings."""


class CallContext:
    """The owner, progress, deadline and cancellation of one call."""

    def __init__(
        self,
        owner: str = LOCAL_OWNER,
        progress: ProgressCallback = ignore_progress,
        timeout: float = math.inf,
        *,
        report_findings: FindingsCallback = ignore_findings,
        timeout_message: str = "There was no answer",
        timeout_hint: str | None = None,
        parent: "CallContext | None" = None,
    ) -> None:
        """The deadline is `timeout` seconds from now; `parent` is the call this is a part of."""
        self.owner = owner
        self.progress = progress
        self.report_findings = report_findings
        self.timeout = timeout
        self._parent = parent
        self._deadline = anyio.current_time() + timeout
        self._timeout_message = timeout_message
        self._timeout_hint = timeout_hint
        self._cancel_error: GeminiMcpError | None = None
        self._scopes: set[anyio.CancelScope] = set()

    def part(
        self,
        timeout: float = math.inf,
        *,
        progress: ProgressCallback | None = None,
        report_findings: FindingsCallback | None = None,
        timeout_message: str = "There was no answer",
        timeout_hint: str | None = None,
    ) -> "CallContext":
        """Return the context for a part of this call, which may end earlier."""
        return CallContext(
            self.owner,
            progress or self.progress,
            timeout,
            report_findings=report_findings or self.report_findings,
            timeout_message=timeout_message,
            timeout_hint=timeout_hint,
            parent=self,
        )

    @property
    def root(self) -> "CallContext":
        """The context of the whole call."""
        return self._parent.root if self._parent else self

    @property
    def seconds_left(self) -> float:
        own = self._deadline - anyio.current_time()
        return min(own, self._parent.seconds_left) if self._parent else own

    @property
    def has_expired(self) -> bool:
        return self.seconds_left <= 0

    @property
    def cancel_error(self) -> GeminiMcpError | None:
        """The error given to `cancel`; None if the call was not cancelled."""
        return self._cancel_error

    def timeout_error(self) -> TimedOut:
        """Return the error for a passed deadline."""
        message = f"{self._timeout_message} within {self.timeout:g} s."
        return TimedOut(message, hint=self._timeout_hint)

    def cancel(self, error: GeminiMcpError) -> None:
        """End the call: whatever runs inside `enforce` stops, and `error` is raised there."""
        self._cancel_error = self._cancel_error or error
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def enforce(self) -> Generator[None]:
        """Run a block until the deadline or a cancellation, and raise the error for it.

        The deadline and the cancellation of the whole call apply as well.
        """
        with self._parent.enforce() if self._parent else nullcontext():
            if self._cancel_error:
                raise self._cancel_error
            with anyio.CancelScope(deadline=self._deadline) as scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
            if scope.cancelled_caught:
                raise self._cancel_error or self.timeout_error()


class FindingsReporter:
    """Reports the findings of one run to its call, each only once."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._urls: set[str] = set()
        self._tokens = 0

    def report(self, total: Findings) -> None:
        """Report what is new in everything that the run has found and used so far."""
        urls = tuple(url for url in dict.fromkeys(total.urls) if url not in self._urls)
        tokens = max(0, total.tokens - self._tokens)
        if urls or tokens:
            self._urls.update(urls)
            self._tokens += tokens
            self._context.report_findings(Findings(urls, tokens))

    def report_rest(
        self,
        searches: Sequence[RecordedSearch],
        fetches: Sequence[RecordedFetch],
        usage: Usage | None,
    ) -> None:
        """Report what is new in the records of the run, which has ended."""
        found = [source.url for search in searches for source in search.sources]
        read = [page.url for fetch in fetches for page in fetch.pages]
        self.report(Findings((*found, *read), usage.total_tokens if usage else 0))
