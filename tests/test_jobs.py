"""Deep searches as background jobs: polling, cancellation, pagination and report resources."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.shared.subscriptions import ResourcesListChanged
from mcp.types import (
    CallToolResult,
    Implementation,
    ResourceLink,
    ResourceListChangedNotification,
    TextContent,
    TextResourceContents,
)

from gemini_cli_mcp.errors import ExecutionFailed, NotFound
from gemini_cli_mcp.jobs.service import JobService
from gemini_cli_mcp.jobs.snapshot import JobSnapshot, JobState
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.research.results import DeepSearchResult, RoundSummary
from gemini_cli_mcp.server.pagination import MAX_RESULT_TOKENS, estimate_tokens, paginate
from tests.support import (
    QUESTION,
    REDIRECT,
    Clock,
    Result,
    Stub,
    Turn,
    eventually,
    model_answer,
    search_with_sources,
)
from tests.support.mcp_server import in_process_client, stdio_client
from tests.support.reports import (
    REQUEST,
    ControlledSearches,
    deep_search_result,
    ignore_progress,
    job_service,
)

DRAFT = "The sky is blue, a draft says."
VERIFIED_REPORT = "The sky is blue, and that is proved."


def deep_search_turn(*later_rounds: Turn, text: str = DRAFT, **options: object) -> Turn:
    """Return a deep search whose rounds after the first play `later_rounds`."""
    return {
        "text": model_answer(text),
        "searches": [search_with_sources("sky", "nasa")],
        "rounds": list(later_rounds) or [verified_round()],
        **options,
    }


def verified_round(text: str = VERIFIED_REPORT, **options: object) -> Turn:
    searches = [search_with_sources("no sky", "esa")]
    return {"text": model_answer(text, verified=True), "searches": searches, **options}


HANGING_TURN: Turn = {"hang": "start"}


async def call(client: Client, tool: str, **arguments: object) -> Result:
    result = await client.call_tool(tool, arguments)
    return payload(result)


def payload(result: CallToolResult) -> Result:
    block = result.content[0]
    assert isinstance(block, TextContent)
    assert json.loads(block.text) == result.structured_content
    assert result.structured_content is not None
    assert result.is_error is (not result.structured_content["success"])
    return result.structured_content


async def test_a_slow_deep_search_returns_a_job_that_can_be_polled(stub: Stub) -> None:
    stub.plays(deep_search_turn(verified_round(gate=True)))

    async with stdio_client(stub) as client:
        running = await call(client, "deep_search", query=QUESTION, wait_seconds=0.1)
        stub.open_gate()
        result = await call(client, "deep_search_result", job_id=running["job_id"])

    assert running.keys() == {"success", "status", "job_id", "poll_after_s", "round", "message"}
    assert (running["success"], running["status"]) == (True, "running")
    assert running["round"] in (1, 2)
    assert "deep_search_result" in running["message"] and running["job_id"] in running["message"]
    assert "Do not call deep_search again" in running["message"]
    assert (result["result"], result["verified"], result["status"]) == (
        VERIFIED_REPORT,
        True,
        "done",
    )
    assert result["job_id"] == running["job_id"]
    assert result["metadata"]["stop_reason"] == "verified"
    assert len(stub.runs) == 2


async def test_the_same_question_joins_the_running_job_unless_a_fresh_one_is_wanted(
    stub: Stub,
) -> None:
    stub.plays(deep_search_turn(verified_round(gate=True)))

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        second = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        other = await call(client, "deep_search", query=QUESTION, wait_seconds=0, max_iterations=2)
        clamped = await call(
            client, "deep_search", query=QUESTION, wait_seconds=0, max_iterations=9
        )
        fresh = await call(client, "deep_search", query=QUESTION, wait_seconds=0, fresh=True)
        stub.open_gate()
        done = await call(client, "deep_search", query=QUESTION)

    assert second["job_id"] == first["job_id"]
    assert "An earlier call had started this research" in second["message"]
    assert "An earlier call" not in first["message"] + fresh["message"]
    assert len(json.dumps(second)) < 600
    assert len({job["job_id"] for job in (first, other, clamped, fresh)}) == 4
    assert done["status"] == "done" and "An earlier call" in done["note"]


async def test_a_deep_search_that_finishes_in_time_returns_its_report(stub: Stub) -> None:
    stub.plays(deep_search_turn())

    async with in_process_client(stub) as client:
        result = await call(client, "deep_search", query=QUESTION)

    assert (result["status"], result["verified"]) == ("done", True)


async def test_the_result_of_a_running_job_includes_the_draft(stub: Stub) -> None:
    stub.plays(deep_search_turn(HANGING_TURN))

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        second = await call(client, "deep_search_result", job_id=first["job_id"], wait_seconds=0.1)

    assert (second["status"], second["round"]) == ("running", 2)
    assert (second["result"], second["verified"]) == (DRAFT, False)
    assert second["metadata"]["rounds"][0]["search_queries"] == ["sky"]
    assert "round 2/5: starting gemini" in second["message"]


async def test_a_long_draft_is_marked_as_truncated(stub: Stub) -> None:
    stub.plays(deep_search_turn(HANGING_TURN, text=LONG_REPORT))

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        arguments = {"job_id": first["job_id"], "wait_seconds": 0}
        second = await call(client, "deep_search_result", **arguments)

    assert LONG_REPORT.startswith(second["result"])
    assert f"The first {len(second['result'])} of {len(LONG_REPORT)} characters" in second["note"]
    assert "next_offset" not in second


async def test_a_job_without_a_draft_returns_no_report(stub: Stub) -> None:
    stub.plays(HANGING_TURN)

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        second = await call(client, "deep_search_result", job_id=first["job_id"], wait_seconds=0)

    assert second["status"] == "running"
    assert "result" not in second


async def test_cancelling_a_later_round_returns_the_draft(stub: Stub) -> None:
    stub.plays(deep_search_turn(HANGING_TURN))

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        result = await call(client, "deep_search_cancel", job_id=job["job_id"])
        again = await call(client, "deep_search_result", job_id=job["job_id"])

    assert result == again
    assert (result["result"], result["metadata"]["stop_reason"]) == (DRAFT, "cancelled")
    assert stub.live_pids() == []


async def test_cancelling_the_first_round_is_an_error(stub: Stub) -> None:
    stub.plays(HANGING_TURN)

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 1)
        result = await call(client, "deep_search_cancel", job_id=job["job_id"])

    assert result["error"]["code"] == "CANCELLED"
    assert stub.live_pids() == []


async def test_cancelling_a_finished_job_returns_its_result(stub: Stub) -> None:
    stub.plays(deep_search_turn())

    async with in_process_client(stub) as client:
        result = await call(client, "deep_search", query=QUESTION)
        cancelled = await call(client, "deep_search_cancel", job_id=result["job_id"])

    assert cancelled == result


async def test_a_failed_job_returns_the_same_error_on_every_poll(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        first = await call(client, "deep_search_result", job_id=job["job_id"])
        second = await call(client, "deep_search_result", job_id=job["job_id"])

    assert first["error"]["code"] == "AUTH_ERROR"
    assert first == second


async def test_two_jobs_run_concurrently(stub: Stub) -> None:
    stub.plays(deep_search_turn(gate=True))

    async with in_process_client(stub) as client:
        ids = [
            (await call(client, "deep_search", query=query, wait_seconds=0))["job_id"]
            for query in ("one", "two")
        ]
        await eventually(lambda: len(stub.live_pids()) == 2)
        await call(client, "deep_search_cancel", job_id=ids[0])
        stub.open_gate()
        other = await call(client, "deep_search_result", job_id=ids[1])

    assert len(set(ids)) == 2
    assert all(len(job_id) >= 22 for job_id in ids)
    assert (other["metadata"]["query"], other["verified"]) == ("two", True)


@pytest.mark.parametrize("tool", ["deep_search_result", "deep_search_cancel"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"job_id": "nobody-knows-it"}, "NOT_FOUND"),
        ({"job_id": ""}, "NOT_FOUND"),
        ({}, "INVALID_INPUT"),
        ({"job_id": 7}, "INVALID_INPUT"),
    ],
)
async def test_an_unknown_or_invalid_job_id_is_an_error(
    stub: Stub, tool: str, arguments: dict[str, Any], code: str
) -> None:
    async with in_process_client(stub) as client:
        error = (await call(client, tool, **arguments))["error"]

    assert (error["code"], error["retryable"]) == (code, False)
    assert error["hint"]


async def test_a_huge_wait_time_waits_until_the_job_finishes(stub: Stub) -> None:
    stub.plays(deep_search_turn())

    async with in_process_client(stub) as client:
        result = await call(client, "deep_search", query=QUESTION, wait_seconds=10**400)

    assert result["verified"] is True


async def test_only_deep_search_cancel_is_not_read_only(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        tools = (await client.list_tools()).tools

    hints = {tool.name: tool.annotations.read_only_hint for tool in tools if tool.annotations}
    assert [name for name, read_only in hints.items() if not read_only] == ["deep_search_cancel"]


@pytest.mark.parametrize("seconds", [-1, "soon", True, [1]])
async def test_an_invalid_wait_time_is_rejected(stub: Stub, seconds: object) -> None:
    async with in_process_client(stub) as client:
        error = (await call(client, "deep_search", query=QUESTION, wait_seconds=seconds))["error"]

    assert error["code"] == "INVALID_INPUT"
    assert stub.runs == []


@pytest.mark.parametrize("offset", [-1, "here", 1.5, True, 1_000])
async def test_an_invalid_offset_is_rejected(stub: Stub, offset: object) -> None:
    stub.plays(deep_search_turn())

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION)
        arguments = {"job_id": job["job_id"], "offset": offset}
        error = (await call(client, "deep_search_result", **arguments))["error"]

    assert error["code"] == "INVALID_INPUT"
    assert "offset" in error["message"]


async def test_a_job_is_visible_only_to_its_owner() -> None:
    async with job_service(ControlledSearches()) as service:
        job = service.submit("me", REQUEST)

        assert service.list_for_owner("me") == [job]
        assert service.list_for_owner("you") == []
        with pytest.raises(NotFound):
            await service.wait(job.id, "you", 0, ignore_progress)
        with pytest.raises(NotFound):
            await service.cancel(job.id, "you")


async def finish_job(service: JobService) -> JobSnapshot:
    job = service.submit("me", REQUEST)
    service.mark_delivered(job.id)
    return await service.cancel(job.id, "me")


async def test_finished_jobs_expire(clock: Clock) -> None:
    async with job_service(ControlledSearches()) as service:
        job = await finish_job(service)
        clock.skip(Limits().job_ttl - 1)
        assert service.list_for_owner("me") == [job]
        clock.skip(2)

        with pytest.raises(NotFound):
            await wait_for(service, job)


async def test_a_running_job_never_expires() -> None:
    limits = Limits(job_ttl=0, max_finished_jobs=0)
    async with job_service(ControlledSearches(), limits) as service:
        job = service.submit("me", REQUEST)

        assert service.list_for_owner("me") == [job]


async def test_only_the_newest_finished_jobs_are_kept() -> None:
    async with job_service(ControlledSearches(), Limits(max_finished_jobs=3)) as service:
        all_jobs = [await finish_job(service) for _ in range(5)]

        assert service.list_for_owner("me") == all_jobs[2:]


async def test_an_expired_job_is_not_found(stub: Stub) -> None:
    stub.limits = Limits(job_ttl=0)
    stub.plays(deep_search_turn())

    async with in_process_client(stub) as client:
        result = await call(client, "deep_search", query=QUESTION)
        expired = await call(client, "deep_search_result", job_id=result["job_id"])

    assert expired["error"]["code"] == "NOT_FOUND"


async def test_a_client_timeout_does_not_cancel_the_job(stub: Stub) -> None:
    stub.plays(deep_search_turn(verified_round(gate=True)))

    async with in_process_client(stub) as client:
        with pytest.raises(MCPError):
            await client.call_tool("deep_search", {"query": QUESTION}, read_timeout_seconds=0.2)
        stub.open_gate()
        # The model never received the job id: repeating the query returns the running job.
        result = await call(client, "deep_search", query=QUESTION)

    assert (result["result"], result["verified"]) == (VERIFIED_REPORT, True)
    assert len(stub.runs) == 2


async def test_an_undelivered_result_is_returned_once_for_the_same_query(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stub.plays(deep_search_turn(verified_round(gate=True)))

    async with in_process_client(stub) as client:
        with pytest.raises(MCPError):
            await client.call_tool("deep_search", {"query": QUESTION}, read_timeout_seconds=0.2)
        stub.open_gate()
        await eventually(lambda: "Deep search completed" in caplog.text)
        result = await call(client, "deep_search", query=QUESTION)
        another = await call(client, "deep_search", query=QUESTION)

    assert result["verified"] is True
    assert another["job_id"] != result["job_id"]
    assert len(stub.runs) == 4


async def time_out_polling(client: Client, arguments: dict[str, Any]) -> None:
    """Wait for a job until the client times out."""
    with pytest.raises(MCPError):
        await client.call_tool("deep_search_result", arguments, read_timeout_seconds=0.2)


ABANDONED_MESSAGE = "Cancelling abandoned deep search"


async def test_a_cancelled_wait_does_not_cancel_a_polled_job(
    stub: Stub, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stub.plays(deep_search_turn(HANGING_TURN))

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        arguments = {"job_id": job["job_id"], "wait_seconds": 100}
        await eventually(lambda: stub.hanging_pids)
        await time_out_polling(client, {"job_id": job["job_id"]})
        for _ in range(2):  # never 120 s without a waiter
            await clock.skip_and_settle(80)
            assert ABANDONED_MESSAGE not in caplog.text
            poll = asyncio.ensure_future(call(client, "deep_search_result", **arguments))
            await anyio.wait_all_tasks_blocked()
            await clock.skip_and_settle(100)
            assert (await poll)["status"] == "running"
        clock.skip(121)
        await eventually(lambda: ABANDONED_MESSAGE in caplog.text)


async def test_an_unpolled_job_is_cancelled_after_a_cancelled_wait(stub: Stub) -> None:
    stub.limits = Limits(job_abandon_timeout=0.3)
    stub.plays(deep_search_turn(HANGING_TURN))

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        await time_out_polling(client, {"job_id": job["job_id"]})
        await eventually(lambda: not stub.live_pids())
        result = await call(client, "deep_search_result", job_id=job["job_id"])

    assert (result["result"], result["metadata"]["stop_reason"]) == (DRAFT, "cancelled")


async def test_a_cancelled_wait_does_not_cancel_a_job_with_another_waiter(
    stub: Stub, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stub.limits = Limits(job_abandon_timeout=20)
    stub.plays(deep_search_turn(HANGING_TURN))

    async with in_process_client(stub) as client, anyio.create_task_group() as tasks:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        arguments = {"job_id": job["job_id"]}
        tasks.start_soon(client.call_tool, "deep_search_result", arguments)  # waits for 50 s
        await eventually(lambda: stub.hanging_pids)
        await time_out_polling(client, arguments)
        await clock.skip_and_settle(25)
        assert ABANDONED_MESSAGE not in caplog.text
        cancelled = await call(client, "deep_search_cancel", **arguments)
        assert cancelled["metadata"]["stop_reason"] == "cancelled"


async def wait_for(service: JobService, job: JobSnapshot) -> JobSnapshot:
    return await service.wait(job.id, job.owner, 60, ignore_progress)


async def test_only_running_or_successful_undelivered_jobs_are_reused() -> None:
    searches = ControlledSearches()
    async with job_service(searches) as service:
        assert service.find_same("me", REQUEST) is None
        running = service.submit("me", REQUEST)
        assert service.find_same("me", REQUEST) == running
        service.mark_delivered(running.id)
        assert service.find_same("me", REQUEST) == running
        searches.end_all(ExecutionFailed("It failed."))
        assert (await wait_for(service, running)).state is JobState.FAILED
        searches.restart()
        assert service.find_same("me", REQUEST) is None
        after_failure = service.submit("me", REQUEST)
        await service.cancel(after_failure.id, "me")
        assert service.find_same("me", REQUEST) is None
        after_cancel = service.submit("me", REQUEST)
        searches.end_all()
        assert (await wait_for(service, after_cancel)).state is JobState.DONE

        same = service.find_same("me", REQUEST)
        assert same and same.id == after_cancel.id
        assert service.find_same("you", REQUEST) is None
        assert service.find_same("me", replace(REQUEST, max_rounds=2)) is None
        service.mark_delivered(after_cancel.id)
        assert service.find_same("me", REQUEST) is None


async def test_closing_a_stdio_client_cancels_its_jobs(stub: Stub) -> None:
    stub.plays({**HANGING_TURN, "children": 1})

    async with stdio_client(stub) as client:
        await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.live_pids()) == 2)

    await eventually(lambda: not stub.live_pids() and not stub.leftover_files())


async def test_progress_increases_across_the_call_and_all_polls(stub: Stub) -> None:
    stub.plays(deep_search_turn(verified_round(delay=0.1), delay=0.1))
    updates: list[tuple[float, str]] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        updates.append((progress, message or ""))

    async with in_process_client(stub) as client:
        first = await client.call_tool(
            "deep_search", {"query": QUESTION, "wait_seconds": 0.2}, progress_callback=record
        )
        arguments = {"job_id": payload(first)["job_id"], "wait_seconds": 0.2}
        for _ in range(100):
            poll = await client.call_tool("deep_search_result", arguments, progress_callback=record)
            if payload(poll)["status"] == "done":
                break

    numbers = [number for number, _ in updates]
    steps = [re.sub(r" \(\d+ s\)$", "", message) for _, message in updates]
    assert numbers == sorted(set(numbers))
    assert steps == [  # each only once
        "round 1/5: starting gemini",
        "round 1/5: asking the model",
        "round 1/5: searching “sky”",
        "round 1/5: writing the answer",
        "round 1/5: not verified",
        "round 2/5: starting gemini",
        "round 2/5: asking the model",
        "round 2/5: searching “no sky”",
        "round 2/5: writing the answer",
        "round 2/5: verified",
    ]


LONG_REPORT = "".join(
    f"## Chapter {number}\n\nWords about the sky{'蓝' * (number % 3)}, [seen]({REDIRECT}nasa). "
    + " ".join(["word"] * 150)
    + "\n\n"
    for number in range(360)
).strip()


async def test_a_long_report_can_be_paged_through_without_loss(stub: Stub) -> None:
    stub.plays(deep_search_turn(verified_round(LONG_REPORT), text=LONG_REPORT))
    assert len(LONG_REPORT) > 300_000

    async with in_process_client(stub) as client:
        result = await client.call_tool("deep_search", {"query": QUESTION})
        pages = [payload(result)]
        while "next_offset" in pages[-1]:
            arguments = {"job_id": pages[0]["job_id"], "offset": pages[-1]["next_offset"]}
            pages.append(await call(client, "deep_search_result", **arguments))
        resource = (await client.read_resource(f"report://{pages[0]['job_id']}")).contents[0]

    assert "".join(page["result"] for page in pages) == LONG_REPORT
    assert isinstance(resource, TextResourceContents)
    assert (resource.text, resource.mime_type) == (LONG_REPORT, "text/markdown")
    assert all(page["result"].endswith("\n\n") for page in pages[:-1])
    assert all(estimate_tokens(page) <= MAX_RESULT_TOKENS + 100 for page in pages)
    assert f"offset {pages[0]['next_offset']}" in pages[0]["note"]
    _, link = result.content
    assert isinstance(link, ResourceLink)
    assert link.uri == f"report://{pages[0]['job_id']}"
    assert "metadata" in pages[0] and not any("metadata" in page for page in pages[1:])


@pytest.mark.parametrize(
    "text",
    [
        "x" * 300_000,
        "天空是蓝色的。" * 30_000,
        "one two " * 40_000,
        "a\nb\n" * 30_000,
        '\\"\n' * 50_000,
    ],
)
def test_every_page_of_a_report_fits_the_token_limit(text: str) -> None:
    report = deep_search_result(text)
    offset, combined = 0, ""
    while True:
        page: Result = paginate(report, "id", offset)
        combined += page["result"]
        assert estimate_tokens(page) <= MAX_RESULT_TOKENS + 100
        if "next_offset" not in page:
            break
        assert page["next_offset"] > offset
        offset = page["next_offset"]

    assert combined == text


def five_rounds(report: str, sources: int, summary: str = "", note: str = "") -> DeepSearchResult:
    """Return the result of five rounds with `sources` sources each."""
    urls = tuple(f"{REDIRECT}{'x' * 180}{number}" for number in range(5 * sources))
    rounds = tuple(
        RoundSummary(
            number,
            1.0,
            sources=urls[number * sources : (number + 1) * sources],
            queries=tuple(f"query {number} {index}" for index in range(4)),
            summary=summary,
        )
        for number in range(5)
    )
    return deep_search_result(report, sources=urls, rounds=rounds, note=note)


def test_a_typical_result_keeps_its_queries_and_sources() -> None:
    page = paginate(five_rounds("Blue. " * 250, 16), "id", 0)

    metadata: Result = object_or_empty(page["metadata"])
    assert estimate_tokens(page) <= MAX_RESULT_TOKENS
    assert len(metadata["search_queries_used"]) == 20
    assert len(metadata["sources_visited"]) == 80
    assert "report://id/metadata" in metadata["shortened"]


@pytest.mark.parametrize(
    "report",
    [
        five_rounds("Blue.", 400),
        five_rounds("Blue. " * 100_000, 400),
        five_rounds("Blue.", 0, "蓝" * 4_000),
        deep_search_result("Blue.", question="蓝" * 10_000, note="蓝" * 30_000),
    ],
)
def test_metadata_is_shortened_until_it_fits(report: DeepSearchResult) -> None:
    page = paginate(report, "id", 0)

    assert estimate_tokens(page) <= MAX_RESULT_TOKENS + 100
    assert "shortened" in object_or_empty(page["metadata"])


def test_pages_break_at_crlf_paragraph_ends() -> None:
    text = ("word " * 100 + "\r\n\r\n") * 200

    assert str(paginate(five_rounds(text, 1), "id", 0)["result"]).endswith("\r\n\r\n")


async def test_a_long_search_report_can_be_paged_through(stub: Stub) -> None:
    stub.plays(
        {"text": model_answer(LONG_REPORT), "searches": [search_with_sources("sky", "nasa")]}
    )

    async with in_process_client(stub) as client:
        page = await call(client, "search", query=QUESTION)
        report = page["result"]
        while "next_offset" in page:
            arguments = {"job_id": page["job_id"], "offset": page["next_offset"]}
            page = await call(client, "deep_search_result", **arguments)
            report += page["result"]

    assert report == LONG_REPORT


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_finished_report_is_listed_and_announced_as_a_resource(
    stub: Stub, mode: str
) -> None:
    stub.plays(deep_search_turn())
    notifications: list[object] = []

    async def record(message: object) -> None:
        if isinstance(message, ResourceListChangedNotification):
            notifications.append(message)

    async with stdio_client(stub, mode, message_handler=record) as client:
        if mode == "auto":
            async with client.listen(resources_list_changed=True) as changes:
                result = await call(client, "deep_search", query=QUESTION)
                assert isinstance(await anext(aiter(changes)), ResourcesListChanged)
        else:
            assert client.server_capabilities.resources
            assert client.server_capabilities.resources.list_changed
            result = await call(client, "deep_search", query=QUESTION)
            await eventually(lambda: bool(notifications))
        [resource] = (await client.list_resources()).resources
        report = (await client.read_resource(resource.uri)).contents[0]
        metadata = (await client.read_resource(resource.uri + "/metadata")).contents[0]

    assert isinstance(report, TextResourceContents) and isinstance(metadata, TextResourceContents)
    assert (resource.uri, resource.mime_type) == (f"report://{result['job_id']}", "text/markdown")
    assert (resource.name, resource.description) == (QUESTION, "A finished report, verified")
    assert report.text == VERIFIED_REPORT
    assert json.loads(metadata.text) == result["metadata"]


async def test_unfinished_and_unknown_reports_are_not_resources(stub: Stub) -> None:
    stub.plays(HANGING_TURN)

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        assert (await client.list_resources()).resources == []
        for uri in (f"report://{job['job_id']}", "report://x", "report://", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="Unknown resource"):
                await client.read_resource(uri)
        templates = (await client.list_resource_templates()).resource_templates

    assert [template.uri_template for template in templates] == [
        "report://{job_id}",
        "report://{job_id}/metadata",
    ]


async def test_prompts_contain_their_argument_and_name_the_polling_tool(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        prompts = (await client.list_prompts()).prompts
        research = await client.get_prompt("research", {"topic": "the sky {{claim}}"})
        check = await client.get_prompt("fact-check", {"claim": "The sky is green."})

    assert [prompt.name for prompt in prompts] == ["research", "fact-check"]
    assert all(argument.required for prompt in prompts for argument in prompt.arguments or ())
    for prompt, argument_text in ((research, "the sky {{claim}}"), (check, "The sky is green.")):
        [message] = prompt.messages
        assert isinstance(message.content, TextContent)
        assert argument_text in message.content.text
        assert "`deep_search_result`" in message.content.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("name", "waits_until_done"), [("claude-code", True), ("claude-ai", False)]
)
async def test_the_default_wait_depends_on_the_client(
    stub: Stub, clock: Clock, name: str, waits_until_done: bool, mode: str
) -> None:
    stub.limits = Limits(client_call_limit=20)
    stub.plays(deep_search_turn(verified_round(gate=True)))

    info = Implementation(name=name, version="1")
    async with in_process_client(stub, mode, client_info=info) as client:
        pending = asyncio.ensure_future(call(client, "deep_search", query=QUESTION))
        await eventually(lambda: len(stub.runs) == 2)
        await clock.skip_and_settle(21)
        stub.open_gate()
        assert ((await pending)["status"] == "done") is waits_until_done


async def test_a_client_with_a_hard_timeout_gets_the_report_by_polling(stub: Stub) -> None:
    stub.plays(
        deep_search_turn(verified_round(LONG_REPORT, delay=0.15), text=LONG_REPORT, delay=0.15)
    )
    client_timeout = 10.0

    async with in_process_client(stub) as client:

        async def call_with_timeout(tool: str, **arguments: object) -> Result:
            return payload(
                await client.call_tool(tool, arguments, read_timeout_seconds=client_timeout)
            )

        page = await call_with_timeout("deep_search", query=QUESTION, wait_seconds=0.3)
        job_id = page["job_id"]
        while page["status"] == "running":
            page = await call_with_timeout("deep_search_result", job_id=job_id, wait_seconds=0.3)
        report = page["result"]
        while "next_offset" in page:
            page = await call_with_timeout(
                "deep_search_result", job_id=job_id, offset=page["next_offset"]
            )
            report += page["result"]

    assert report == LONG_REPORT
