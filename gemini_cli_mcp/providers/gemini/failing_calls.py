"""Watch the API calls of a running CLI, and name the one that keeps failing.

The CLI repeats failing calls for minutes, some of them endlessly, without a word on stdout. Its
telemetry reports each failure, about five seconds later.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import (
    ExecutionFailed,
    GeminiMcpError,
    ModelNotFound,
    NotSignedIn,
    QuotaExhausted,
    TimedOut,
)
from gemini_cli_mcp.execution_errors import ConnectionFailed, Overloaded, RequestRejected
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.api_failures import (
    MIN_SILENCE,
    STATUS_WORDS,
    classify_api_error,
    connection_lost,
)
from gemini_cli_mcp.providers.gemini.telemetry_events import (
    ApiError,
    ApiRequest,
    ApiResponse,
    TelemetryEvent,
)
from gemini_cli_mcp.providers.gemini.telemetry_evidence import is_fetch_request

DEADLINE_MARGIN = 2.0
"""Seconds before the deadline of a call at which a failing run is stopped: its error says more
than that the time is over."""
AMBIGUOUS_MS = 50.0
"""Requests sent this close together may be mistaken for each other: only time links a failure to
its request."""

CallKind = Literal["search", "page read", "model"]

SUBJECTS: dict[CallKind, str] = {
    "search": "Google's search",
    "page read": "Google's page reader",
    "model": "Gemini",
}
ACCOUNT_ERRORS = (NotSignedIn, QuotaExhausted, ModelNotFound)
"""Errors that every search would have."""
PERMANENT_ERRORS = (*ACCOUNT_ERRORS, RequestRejected)
"""Errors of a search that the CLI would only repeat."""


@dataclass(frozen=True)
class _FailingCall:
    """A call that has failed and not succeeded since."""

    kind: CallKind
    started_at: float
    """When it was first tried, on the monotonic clock."""
    failures: int
    last: ApiError
    error: GeminiMcpError
    is_certain: bool
    """Whether it cannot be only a neighbour, sent at the same moment, that has failed."""

    @property
    def age(self) -> float:
        return time.monotonic() - self.started_at


class FailingCalls:
    """The failing API calls of one run."""

    def __init__(self, limits: Limits, secrets: Sequence[str] = ()) -> None:
        self._limits = limits
        self._secrets = secrets
        self._event_count = 0
        self._unanswered: list[ApiRequest] = []
        self._failing: dict[str, _FailingCall] = {}
        self._succeeded: set[CallKind] = set()
        self._model_failing_since: float | None = None
        """Since when no model has answered, the one that chooses the model included."""
        self._abandoned_search: GeminiMcpError | None = None
        """Why a search failed that the CLI has given up, if the reason is permanent."""
        self._described_ms = 0.0
        self.stop_error: GeminiMcpError | None = None
        """Why the run should be stopped, once `should_stop` has returned true."""

    def update(self, events: Sequence[TelemetryEvent]) -> None:
        """Take notice of all events of the run so far."""
        for event in events[self._event_count :]:
            match event:
                case ApiRequest():
                    if event.role == "main":
                        self._end_tool_calls()
                        self._end_routing()
                    self._unanswered.append(event)
                case ApiResponse():
                    request, _ = self._take_request(event)
                    self._succeeded.add(_kind(request))
                    self._failing.pop(_key(request), None)
                    if not request.is_for_tool:
                        self._model_failing_since = None
                case ApiError():
                    self._add_failure(event)
                case _:
                    pass
        self._event_count = len(events)

    def check(self, context: CallContext) -> bool:
        """Tell the progress of a new failure; return whether a failing call ends the run."""
        if self.should_stop(context.seconds_left):
            return True
        if message := self.describe():
            context.progress(message)
        return False

    def should_stop(self, seconds_left: float) -> bool:
        """Return whether a failing call ends the run, which may take `seconds_left` more."""
        for call in self._failing.values():
            is_due = call.age >= self._limit(call) or seconds_left <= DEADLINE_MARGIN
            if is_due and call.is_certain:
                self.stop_error = call.error.as_final()
                return True
        return False

    def error_after_exit(self) -> GeminiMcpError | None:
        """Return why all searches of a finished run failed, if the reason is permanent."""
        self._end_tool_calls()
        error = self._abandoned_search
        if error is None or "search" in self._succeeded:
            return None
        if isinstance(error, RequestRejected) and "page read" in self._succeeded:
            return None  # the answer may rest on the pages
        return error.as_final()

    @property
    def has_lasted(self) -> bool:
        """Whether the models have failed for so long that another run would not help."""
        since = self._model_failing_since
        return since is not None and time.monotonic() - since >= self._limits.failing_call_timeout

    def describe(self) -> str | None:
        """Return a line about the latest failure; None if there is no new one."""
        call = max(self._failing.values(), key=lambda item: item.last.sent_ms, default=None)
        if call is None or call.last.sent_ms <= self._described_ms:
            return None
        self._described_ms = call.last.sent_ms
        if isinstance(call.error, PERMANENT_ERRORS):
            return None  # it is not repeated, or its run ends
        return (
            f"{call.kind} failing ({_cause(call)}), retrying: "
            f"{_ordinal(call.failures + 1)} try, {call.age:.0f} s"
        )

    def _limit(self, call: _FailingCall) -> float:
        """Return the seconds after which this call ends the run."""
        if isinstance(call.error, ConnectionFailed):
            return self._limits.connection_timeout
        if call.kind == "search" and isinstance(call.error, PERMANENT_ERRORS):
            # The API may reject one query of many as invalid.
            is_rejected = isinstance(call.error, RequestRejected)
            if not (is_rejected and "search" in self._succeeded):
                return 0
        # If only the model that chooses the model fails, the CLI goes on without it.
        if call.kind == "model" and call.last.role != "main":
            return float("inf")
        return self._retry_limit(call)

    def _retry_limit(self, call: _FailingCall) -> float:
        """Return the seconds for which the CLI may repeat this call."""
        # After a minute of silence, another try may be answered.
        silence = call.last.duration_ms / 1000 if isinstance(call.error, TimedOut) else 0
        return silence + self._limits.failing_call_timeout

    def _add_failure(self, failure: ApiError) -> None:
        request, is_certain = self._take_request(failure)
        key, kind = _key(request), _kind(request)
        previous = self._failing.get(key)
        error = self._classify(failure, kind)
        if kind == "page read" and isinstance(error, PERMANENT_ERRORS):
            self._failing.pop(key, None)  # the CLI reads the page itself then
            return
        started_at = previous.started_at if previous else _started_at(failure)
        if kind == "model" and not isinstance(error, TimedOut):
            started_at = self._model_failing_since = self._model_failing_since or started_at
        self._failing[key] = _FailingCall(
            kind,
            started_at,
            previous.failures + 1 if previous else 1,
            failure,
            error,
            # If a neighbour has failed instead, this call does not fail again.
            is_certain or previous is not None or isinstance(error, ACCOUNT_ERRORS),
        )

    def _classify(self, failure: ApiError, kind: CallKind) -> GeminiMcpError:
        subject = SUBJECTS[kind]
        error = classify_api_error(
            failure.status, failure.message, subject=subject, secrets=self._secrets
        ) or ExecutionFailed(f"{subject} failed.")
        if not isinstance(error, ConnectionFailed):
            return error
        seconds = failure.duration_ms / 1000
        if seconds >= MIN_SILENCE:
            message = f"{subject} did not answer within {seconds:.0f} s."
            return TimedOut(message, hint=Overloaded.hint)
        return connection_lost() if self._succeeded else error

    def _end_tool_calls(self) -> None:
        """Forget the tools' calls: the model is asked again only when all tools have returned."""
        for key, call in list(self._failing.items()):
            if call.kind == "search" and isinstance(call.error, PERMANENT_ERRORS):
                self._abandoned_search = call.error
            if call.kind != "model":
                del self._failing[key]
        self._unanswered = [item for item in self._unanswered if not item.is_for_tool]

    def _end_routing(self) -> None:
        """Forget the model that chooses the model: the chosen one is asked now."""
        model = self._failing.get("model")
        if model and model.last.role != "main":
            del self._failing["model"]

    def _take_request(self, completion: ApiResponse | ApiError) -> tuple[ApiRequest, bool]:
        """Return the request that was sent when this call started, and whether it is certain."""

        def distance(item: ApiRequest) -> float:
            return abs(item.sent_ms - completion.sent_ms)

        candidates = [item for item in self._unanswered if item.role == completion.role]
        if not candidates:
            return ApiRequest(completion.session_id, completion.sent_ms, completion.role, ""), True
        request = min(candidates, key=distance)
        self._unanswered.remove(request)
        others = [item for item in candidates if _key(item) != _key(request)]
        is_certain = all(distance(item) - distance(request) > AMBIGUOUS_MS for item in others)
        return request, is_certain


def _started_at(failure: ApiError) -> float:
    """Return when the call was tried, on the monotonic clock."""
    if failure.sent_ms <= 0:  # the timestamp is invalid
        return time.monotonic()
    return time.monotonic() - max(0.0, time.time() - failure.sent_ms / 1000)


def _key(request: ApiRequest) -> str:
    """Return what repeated requests for the same thing have in common."""
    return f"tool {request.text}" if request.is_for_tool else "model"


def _kind(request: ApiRequest) -> CallKind:
    if not request.is_for_tool:
        return "model"
    return "page read" if is_fetch_request(request.text) else "search"


def _cause(call: _FailingCall) -> str:
    if isinstance(call.error, ConnectionFailed):
        return "no connection"
    if isinstance(call.error, TimedOut):
        return "no answer"
    status = call.last.status
    if status is None:
        return "error"
    return f"{status} {STATUS_WORDS[status]}" if status in STATUS_WORDS else str(status)


def _ordinal(number: int) -> str:
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
