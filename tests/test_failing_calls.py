"""API calls that keep failing: when they end a run, and what is said meanwhile."""

import time
from collections.abc import Sequence

import pytest

from gemini_cli_mcp.errors import (
    ExecutionFailed,
    GeminiMcpError,
    ModelNotFound,
    QuotaExhausted,
    RateLimited,
)
from gemini_cli_mcp.execution_errors import ConnectionFailed, Overloaded, RequestRejected
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.gemini.api_failures import classify_api_error
from gemini_cli_mcp.providers.gemini.api_route import find_route
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.failing_calls import FailingCalls
from gemini_cli_mcp.providers.gemini.run_result import build_run_result
from gemini_cli_mcp.providers.gemini.telemetry_events import (
    ApiError,
    ApiRequest,
    ApiResponse,
    TelemetryEvent,
)
from gemini_cli_mcp.sign_in_errors import (
    AccessDenied,
    KeyRejected,
    LoginRejected,
    PersonalLoginEnded,
)
from gemini_cli_mcp.types import Usage
from tests.support import Clock

LIMITS = Limits()
FOREVER = 1e9
DAILY_QUOTA = '{"error": {"code": 429, "details": [{"quotaId": "RequestsPerDay"}]}}'


class Run:
    """The telemetry of a run: requests and their outcomes, some seconds ago."""

    def __init__(self) -> None:
        self.events: list[TelemetryEvent] = []
        self.calls = FailingCalls(LIMITS)

    def sends(self, text: str = "sky", role: str = "utility_tool", ago: float = 0) -> float:
        sent_ms = (time.time() - ago) * 1000
        self.events.append(ApiRequest("s", sent_ms, role, text))
        return sent_ms

    def fails(
        self,
        status: int | None = 503,
        text: str = "sky",
        role: str = "utility_tool",
        ago: float = 0,
        message: str = "No capacity.",
        duration: float = 0,
    ) -> None:
        sent_ms = self.sends(text, role, ago)
        self.events.append(ApiError("s", sent_ms, role, status, message, duration * 1000))
        self.calls.update(self.events)

    def succeeds(self, text: str = "sky", role: str = "utility_tool") -> None:
        sent_ms = self.sends(text, role)
        self.events.append(ApiResponse("s", sent_ms, role, "m", Usage(), None))
        self.calls.update(self.events)

    def stops(self, seconds_left: float = FOREVER) -> bool:
        return self.calls.should_stop(seconds_left)


def test_a_search_may_fail_for_a_minute(clock: Clock) -> None:
    run = Run()

    run.fails(ago=5)
    assert not run.stops()
    clock.skip(LIMITS.failing_call_timeout - 6)
    run.fails()
    assert not run.stops()
    clock.skip(2)

    assert run.stops()
    assert isinstance(run.calls.stop_error, Overloaded)
    assert run.calls.stop_error.is_final


def test_a_success_clears_the_failures_of_the_same_search_only(clock: Clock) -> None:
    run = Run()

    run.fails(text="sky")
    run.fails(text="sea", status=500)
    run.succeeds(text="sky")
    clock.skip(LIMITS.failing_call_timeout)

    assert run.stops()
    assert "500" in str(run.calls.stop_error)
    run.succeeds(text="sea")
    assert not run.stops()


def test_a_slow_search_without_failures_is_not_stopped(clock: Clock) -> None:
    run = Run()

    run.sends()
    run.calls.update(run.events)
    clock.skip(10 * LIMITS.failing_call_timeout)

    assert not run.stops()


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "Bad.", RequestRejected),
        (400, "API key not valid.", KeyRejected),
        (401, "UNAUTHENTICATED", LoginRejected),
        (403, "No.", AccessDenied),
        (404, "models/x is not found", ModelNotFound),
        (429, DAILY_QUOTA, QuotaExhausted),
    ],
)
def test_a_permanent_error_of_a_search_ends_the_run_at_once(
    status: int, message: str, error: type[GeminiMcpError]
) -> None:
    run = Run()

    run.fails(status, message=message)

    assert run.stops()
    assert isinstance(run.calls.stop_error, error)
    assert isinstance(run.calls.error_after_exit(), error)


def test_one_rejected_query_among_good_ones_does_not_end_the_run() -> None:
    run = Run()

    run.succeeds("sky")
    run.fails(400, "sea")

    assert not run.stops()
    assert run.calls.error_after_exit() is None


@pytest.mark.parametrize("status", [400, 503])
def test_a_search_that_the_cli_has_given_up_does_not_end_the_run(clock: Clock, status: int) -> None:
    run = Run()
    run.succeeds("sky")
    run.fails(status, "sea")

    run.sends("", role="main")  # only after all tools have returned
    run.calls.update(run.events)
    clock.skip(2 * LIMITS.failing_call_timeout)

    assert not run.stops()
    assert not run.stops(seconds_left=1)


PAGE = "<authorized_urls>\nhttps://a.example\n</authorized_urls>"


def test_a_page_that_the_api_cannot_read_does_not_end_the_run(clock: Clock) -> None:
    run = Run()

    run.fails(400, PAGE)
    clock.skip(2 * LIMITS.failing_call_timeout)

    assert (run.stops(), run.calls.describe()) == (False, None)


def test_an_answer_may_rest_on_pages_if_the_only_search_is_rejected() -> None:
    run = Run()

    run.succeeds(PAGE)
    run.fails(400, "sea")

    assert run.calls.error_after_exit() is None


def test_a_search_sent_at_the_same_moment_is_not_blamed(clock: Clock) -> None:
    """Only time links failures to requests, so they may be mistaken for each other."""
    run = Run()
    sent_ms = run.sends("sky")
    run.sends("sea")
    run.events.append(ApiError("s", sent_ms, "utility_tool", 503, "No capacity."))
    run.calls.update(run.events)
    clock.skip(2 * LIMITS.failing_call_timeout)

    assert not run.stops()
    run.fails(text="sky")  # certain, if it fails again
    assert run.stops()


def test_an_invalid_timestamp_does_not_end_the_run() -> None:
    run = Run()

    run.events.append(ApiError("s", -5.0, "utility_tool", 503, "No capacity."))
    run.calls.update(run.events)

    assert not run.stops()


def test_an_overloaded_model_is_named_when_its_own_call_fails(clock: Clock) -> None:
    """The CLI asks one model which to use, and goes on without it."""
    run = Run()

    run.fails(role="utility_router")
    clock.skip(LIMITS.failing_call_timeout + 5)
    assert not run.stops()
    run.fails(role="main")

    assert run.stops()
    assert str(run.calls.stop_error) == "Gemini is overloaded (503)."


def test_a_missing_connection_ends_the_run_early(clock: Clock) -> None:
    run = Run()

    run.fails(None, role="utility_router", message="exception TypeError: fetch failed")
    assert not run.stops()
    clock.skip(LIMITS.connection_timeout)

    assert run.stops()
    assert isinstance(run.calls.stop_error, ConnectionFailed)


def test_a_lost_connection_may_come_back(clock: Clock) -> None:
    run = Run()

    run.succeeds(role="main")
    run.fails(None, message="exception TypeError: fetch failed")
    clock.skip(LIMITS.connection_timeout)

    assert not run.stops()
    clock.skip(LIMITS.failing_call_timeout)
    assert run.stops()
    assert str(run.calls.stop_error) == "The connection to the Gemini API was lost."


@pytest.mark.parametrize(
    ("role", "subject"), [("utility_tool", "Google's search"), ("main", "Gemini")]
)
def test_a_call_without_an_answer_gets_another_minute(
    clock: Clock, role: str, subject: str
) -> None:
    """The CLI itself ends a request after a minute, as if there were no connection."""
    run = Run()

    run.fails(None, role=role, message="TypeError: fetch failed", ago=61, duration=61)
    assert "failing (no answer), retrying: 2nd try, 61 s" in (run.calls.describe() or "")
    assert not run.stops()
    clock.skip(LIMITS.failing_call_timeout)

    assert run.stops()
    assert str(run.calls.stop_error) == f"{subject} did not answer within 61 s."


def test_a_model_that_chooses_the_model_is_forgotten_when_the_chosen_one_is_asked(
    clock: Clock,
) -> None:
    run = Run()
    run.fails(role="utility_router")

    run.sends("", role="main")
    run.calls.update(run.events)
    clock.skip(2 * LIMITS.failing_call_timeout)

    assert not run.stops(seconds_left=1)
    assert run.calls.describe() is None
    assert run.calls.has_lasted  # if the chosen one fails as well
    run.succeeds("", role="main")
    assert not run.calls.has_lasted


@pytest.mark.parametrize(("seconds", "is_final"), [(0, False), (60, True)])
def test_after_a_minute_of_failures_the_run_is_not_repeated(
    clock: Clock, seconds: float, is_final: bool
) -> None:
    run = Run()
    run.fails(role="utility_router")
    clock.skip(seconds)
    overloaded = Completed("exited", 503 % 256, "")
    events = EventLog(lambda _: None, LIMITS, session_id="s")

    result = build_run_result(
        overloaded, events, None, None, run.calls, find_route({}), is_official_cli=True
    )

    assert isinstance(result.failure, Overloaded)
    assert result.failure.is_final is is_final


def test_a_page_that_the_cli_reads_itself_is_forgotten(clock: Clock) -> None:
    run = Run()

    run.fails(503, PAGE)
    run.fails(400, PAGE)
    clock.skip(2 * LIMITS.failing_call_timeout)

    assert not run.stops()


def test_a_refused_key_needs_no_certainty() -> None:
    run = Run()
    sent_ms = run.sends("sky")
    run.sends("sea")
    run.events.append(ApiError("s", sent_ms, "utility_tool", 403, "Denied."))
    run.calls.update(run.events)

    assert run.stops()


def test_a_call_that_is_not_repeated_is_not_told() -> None:
    run = Run()

    run.succeeds("sky")
    run.fails(400, "sea")

    assert run.calls.describe() is None


@pytest.mark.parametrize("role", ["main", "utility_router"])
def test_a_model_that_fails_for_a_minute_is_not_asked_again(clock: Clock, role: str) -> None:
    run = Run()

    run.fails(role=role)
    assert not run.calls.has_lasted
    clock.skip(LIMITS.failing_call_timeout)

    assert run.calls.has_lasted


def test_the_cause_is_told_before_the_deadline() -> None:
    run = Run()

    assert not run.stops(seconds_left=1)
    run.fails()

    assert not run.stops(seconds_left=10)
    assert run.stops(seconds_left=1)


def test_each_failure_is_told_once(clock: Clock) -> None:
    run = Run()
    lines: list[str | None] = []

    for seconds in (2, 10, 30):
        run.fails()
        clock.skip(seconds)
        lines += [run.calls.describe(), run.calls.describe()]

    assert lines == [
        "search failing (503 overloaded), retrying: 2nd try, 2 s",
        None,
        "search failing (503 overloaded), retrying: 3rd try, 12 s",
        None,
        "search failing (503 overloaded), retrying: 4th try, 42 s",
        None,
    ]


def test_a_second_failing_call_is_told_after_the_first_has_recovered() -> None:
    run = Run()
    for _ in range(3):
        run.fails(text="sky")
    assert run.calls.describe()
    run.succeeds("sky")
    assert run.calls.describe() is None

    run.fails(text="sea")

    assert (run.calls.describe() or "").endswith("2nd try, 0 s")


@pytest.mark.parametrize(
    ("failures", "line"),
    [
        ([(429, "sky", "utility_tool")], "search failing (429 rate limited), retrying: 2nd"),
        ([(520, "sky", "utility_tool")], "search failing (520), retrying: 2nd"),
        ([(503, "", "utility_router")], "model failing (503 overloaded), retrying: 2nd"),
        ([(500, "", "main")] * 10, "model failing (500 internal error), retrying: 11th"),
    ],
)
def test_the_line_says_what_fails(failures: Sequence[tuple[int, str, str]], line: str) -> None:
    run = Run()

    for status, text, role in failures:
        run.fails(status, text, role)

    assert (run.calls.describe() or "").startswith(line)


@pytest.mark.parametrize(
    ("status", "text", "error", "message"),
    [
        (None, "IneligibleTierError", PersonalLoginEnded, "no longer supports personal"),
        (429, "Slow.", RateLimited, "rate limiting"),
        (400, '{"error": {"message": "API key not valid."}}', KeyRejected, "(400): API key not"),
        (None, '{"error": {"code": 403, "message": "Off."}}', AccessDenied, "(403): Off."),
        (None, "invalid_grant", LoginRejected, "refused the sign-in (401)"),
        (503, "RetryableQuotaError: busy", Overloaded, "Gemini is overloaded (503)."),
        (404, "<title>404 Not Found", RequestRejected, "not at the requested address (404)"),
        (
            400,
            '{"error": {"message": "User location is not supported."}}',
            AccessDenied,
            "at this place (400): User location is not supported.",
        ),
        (503, "[API Error: Try later]", Overloaded, "Gemini is overloaded (503): Try later"),
        (502, "", ExecutionFailed, "Gemini failed (502 bad gateway)."),
        (520, "", ExecutionFailed, "Gemini failed (520)."),
        (400, '{"error": {"message": "Too long."}}', RequestRejected, "(400): Too long."),
    ],
)
def test_each_error_of_the_api_has_its_own_name(
    status: int | None, text: str, error: type[GeminiMcpError], message: str
) -> None:
    classified = classify_api_error(status, text)

    assert isinstance(classified, error)
    assert message in classified.message
    assert classified.next_step


def test_other_texts_are_not_errors_of_the_api() -> None:
    assert classify_api_error(None, "Segmentation fault") is None


@pytest.mark.parametrize(
    "error",
    [AccessDenied, KeyRejected, LoginRejected, PersonalLoginEnded],
    ids=lambda e: e.__name__,
)
def test_a_refused_sign_in_has_one_next_step_for_clients_and_one_for_terminals(
    error: type[GeminiMcpError],
) -> None:
    client, terminal = error("No."), error("No.").for_terminal()

    assert "Claude Desktop" in client.next_step and "restart the client" in client.next_step
    assert "Claude" not in terminal.next_step and "doctor" in terminal.next_step
    assert error("No.", hint="Other.").for_terminal().next_step == "Other."
