"""The result of a CLI run, in a dedicated process or a shared ACP process."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.execution_errors import ConnectionFailed
from gemini_cli_mcp.process.run import Completed
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.providers.gemini.api_route import ApiRoute
from gemini_cli_mcp.providers.gemini.events import EventLog
from gemini_cli_mcp.providers.gemini.failing_calls import FailingCalls
from gemini_cli_mcp.providers.gemini.failures import classify_failure, is_usage_error
from gemini_cli_mcp.providers.gemini.launcher import RunLaunch
from gemini_cli_mcp.providers.gemini.session_record import SessionRecord, read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry_evidence import Telemetry


@dataclass(frozen=True)
class RunResult:
    """The reply of a run, and the error if it failed."""

    reply: Reply
    failure: GeminiMcpError | None
    has_sources: bool
    """Whether a search returned sources."""
    search_model: str | None
    """The model that ran the searches."""
    exit_code: int | None
    rejected_flags: bool = False
    """Whether the binary does not support the flags for an event stream."""


def read_run_result(
    launch: RunLaunch, completed: Completed, events: EventLog, secrets: Sequence[str]
) -> RunResult:
    """Read and delete the files of a run in a process of its own, and return its result.

    A successful run shows that its sign-in works.
    Call it in a worker thread: after fifty turns, the telemetry has many megabytes.
    """
    is_official = launch.binary.is_official
    record = telemetry = None
    if session_id := events.session_id:
        record = read_and_delete_record(launch.home.path, session_id, official=is_official)
        recorded = record.searches if record else ()
        launch.read_api_calls(session_id)
        is_cut_off = completed.end_reason != "exited"
        telemetry = launch.telemetry.summarize_session(session_id, recorded, is_cut_off=is_cut_off)
    launch.delete_temp_folder()
    rejected_flags = launch.emits_events and not is_official and is_usage_error(completed, events)
    result = build_run_result(
        completed,
        events,
        record,
        telemetry,
        launch.failing_calls,
        launch.route,
        secrets,
        is_official_cli=is_official,
        rejected_flags=rejected_flags,
    )
    if result.failure is None or result.has_sources:
        launch.sign_ins.record_success(launch.sign_in)
    return result


def build_run_result(
    completed: Completed,
    events: EventLog,
    record: SessionRecord | None,
    telemetry: Telemetry | None,
    failing_calls: FailingCalls,
    route: ApiRoute,
    secrets: Sequence[str] = (),
    *,
    is_official_cli: bool,
    rejected_flags: bool = False,
) -> RunResult:
    """Return the result of a run with this evidence; an official CLI should have telemetry."""
    # If we stopped the run, its last search is missing on purpose.
    min_searches = 0 if completed.end_reason == "stopped" else len(events.searches)
    is_complete = telemetry is not None and len(telemetry.searches) >= min_searches
    reply = _build_reply(
        events, record, telemetry if is_complete else None, is_official_cli=is_official_cli
    )
    if completed.end_reason == "stopped":
        failure = failing_calls.stop_error
    else:
        was_blocked = telemetry is not None and telemetry.was_blocked
        failure = failing_calls.error_after_exit() or classify_failure(
            completed, events, secrets, was_blocked=was_blocked
        )
        if failure and failing_calls.has_lasted:
            failure = failure.as_final()
    if isinstance(failure, ConnectionFailed):
        failure = _name_route(failure, route)
    if failure and telemetry:
        successes = tuple(search for search in telemetry.searches if search.sources)
        failure = failure.with_searches(successes)
    return RunResult(
        reply,
        failure,
        not reply.record_only and any(search.sources for search in reply.searches),
        events.helper_model(reply.model),
        completed.exit_code,
        rejected_flags,
    )


def _name_route(failure: ConnectionFailed, route: ApiRoute) -> ConnectionFailed:
    """Return the error with the server and the proxy that could not be reached."""
    hint = None
    if route.url_variable:
        hint = f"Check the network, HTTPS_PROXY or {route.url_variable}."
    return ConnectionFailed(
        f"No connection to {route.summary}.", hint=hint, details=failure.details
    )


def _build_reply(
    events: EventLog,
    record: SessionRecord | None,
    telemetry: Telemetry | None,
    *,
    is_official_cli: bool,
) -> Reply:
    if telemetry:
        return Reply(
            events.text,
            telemetry.model or events.busiest_model,
            "ledger",
            telemetry.searches,
            telemetry.fetches,
            telemetry.usage,
        )
    if record:
        return Reply(
            events.text,
            record.model or events.busiest_model,
            "ledger",
            record.searches,
            record.fetches,
            events.usage,
            record_only=is_official_cli,
        )
    if events.is_stream:
        return Reply(
            events.text,
            events.busiest_model,
            "events",
            events.searches,
            usage=events.usage,
        )
    return Reply(events.text, None, "none")
