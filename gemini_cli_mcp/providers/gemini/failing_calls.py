"""Watch the API calls of a running CLI, and name the one that keeps failing.

The CLI repeats failing calls for minutes, some of them endlessly, without a word on stdout. Its
telemetry reports each failure, about five seconds later.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gemini_cli_mcp.errors import (
    ExecutionFailed,
    GeminiMcpError,
    ModelNotFound,
    NotSignedIn,
    QuotaExhausted,
)
from gemini_cli_mcp.execution_errors import ConnectionFailed, RequestRejected
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.api_failures import STATUS_WORDS, classify_api_error
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

CallKind = Literal["search", "page read", "model"]

SUBJECTS: dict[CallKind, str] = {
    "search": "Google's search",
    "page read": "Google's page reader",
    "model": "Gemini",
}
PERMANENT_ERRORS = (NotSignedIn, QuotaExhausted, ModelNotFound, RequestRejected)
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


class FailingCalls:
    """The failing API calls of one run."""

    def __init__(self, limits: Limits, secrets: Sequence[str] = ()) -> None:
        self._limits = limits
        self._secrets = secrets
        self._event_count = 0
        self._unanswered: list[ApiRequest] = []
        self._started_ms: dict[str, float] = {}
        self._failing: dict[str, _FailingCall] = {}
        self._succeeded: set[CallKind] = set()
        self._described = 0
        self.stop_error: GeminiMcpError | None = None
        """Why the run should be stopped, once `should_stop` has returned true."""

    def update(self, events: Sequence[TelemetryEvent]) -> None:
        """Take notice of all events of the run so far."""
        for event in events[self._event_count :]:
            match event:
                case ApiRequest():
                    self._unanswered.append(event)
                case ApiResponse():
                    request = self._take_request(event)
                    self._succeeded.add(_kind(request))
                    self._failing.pop(_key(request), None)
                    self._started_ms.pop(_key(request), None)
                case ApiError():
                    self._add_failure(self._take_request(event), event)
                case _:
                    pass
        self._event_count = len(events)

    def should_stop(self, seconds_left: float) -> bool:
        """Return whether a failing call ends the run, which may take `seconds_left` more."""
        for call in self._failing.values():
            age = time.monotonic() - call.started_at
            if age >= self._limit(call) or seconds_left <= DEADLINE_MARGIN:
                self.stop_error = call.error.as_final()
                return True
        return False

    def error_after_exit(self) -> GeminiMcpError | None:
        """Return why all searches of a finished run failed, if the reason is permanent."""
        if "search" in self._succeeded:
            return None
        for call in self._failing.values():
            if call.kind == "search" and isinstance(call.error, PERMANENT_ERRORS):
                return call.error.as_final()
        return None

    def describe(self) -> str | None:
        """Return a line about the latest failure; None if there is no new one."""
        calls = list(self._failing.values())
        count = sum(call.failures for call in calls)
        if not calls or count <= self._described:
            return None
        self._described = count
        call = max(calls, key=lambda item: item.last.sent_ms)
        seconds = time.monotonic() - call.started_at
        return (
            f"{call.kind} failing ({_status_words(call)}), retrying: "
            f"{_ordinal(call.failures + 1)} try, {seconds:.0f} s"
        )

    def _limit(self, call: _FailingCall) -> float:
        """Return the seconds after which this call ends the run."""
        if isinstance(call.error, ConnectionFailed) and not self._succeeded:
            return self._limits.connection_timeout
        if call.kind == "search" and isinstance(call.error, PERMANENT_ERRORS):
            # The API may reject one query of many as invalid.
            is_rejected = isinstance(call.error, RequestRejected)
            if not (is_rejected and "search" in self._succeeded):
                return 0
        # If only the model that chooses the model fails, the CLI goes on without it.
        if call.kind == "model" and call.last.role != "main":
            return float("inf")
        return self._limits.failing_call_timeout

    def _add_failure(self, request: ApiRequest, failure: ApiError) -> None:
        key, kind = _key(request), _kind(request)
        started_ms = self._started_ms.setdefault(key, failure.sent_ms)
        previous = self._failing.get(key)
        error = classify_api_error(
            failure.status, failure.message, subject=SUBJECTS[kind], secrets=self._secrets
        ) or ExecutionFailed(f"{SUBJECTS[kind]} failed.")
        self._failing[key] = _FailingCall(
            kind,
            time.monotonic() - max(0.0, time.time() - started_ms / 1000),
            previous.failures + 1 if previous else 1,
            failure,
            error,
        )
        if previous:  # the clocks may differ a little
            self._failing[key] = replace(self._failing[key], started_at=previous.started_at)

    def _take_request(self, completion: ApiResponse | ApiError) -> ApiRequest:
        """Return the request that was sent when this call started; only time links them."""
        candidates = [item for item in self._unanswered if item.role == completion.role]
        if not candidates:
            return ApiRequest(completion.session_id, completion.sent_ms, completion.role, "")
        request = min(candidates, key=lambda item: abs(item.sent_ms - completion.sent_ms))
        self._unanswered.remove(request)
        return request


def _key(request: ApiRequest) -> str:
    """Return what repeated requests for the same thing have in common."""
    return f"tool {request.text}" if request.is_for_tool else "model"


def _kind(request: ApiRequest) -> CallKind:
    if not request.is_for_tool:
        return "model"
    return "page read" if is_fetch_request(request.text) else "search"


def _status_words(call: _FailingCall) -> str:
    if isinstance(call.error, ConnectionFailed):
        return "no connection"
    status = call.last.status
    if status is None:
        return "error"
    return f"{status} {STATUS_WORDS[status]}" if status in STATUS_WORDS else str(status)


def _ordinal(number: int) -> str:
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
