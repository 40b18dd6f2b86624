"""Deep searches that outlive their call: jobs, polling, parts of long reports, resources."""

import asyncio
import json
import re
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
from gemini_cli_mcp.jobs import Job, JobService
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.server.pagination import MAX_RESULT_TOKENS, estimate_tokens, paginate
from gemini_cli_mcp.types import ProgressCallback
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

DRAFT = "The sky is blue, a draft says."
PROVED = "The sky is blue, and that is proved."


def deep(*turns: Turn, text: str = DRAFT, **more: object) -> Turn:
    """A deep search whose rounds after the first play these turns."""
    return {
        "text": model_answer(text),
        "searches": [search_with_sources("sky", "nasa")],
        "rounds": list(turns) or [proved()],
        **more,
    }


def proved(text: str = PROVED, **more: object) -> Turn:
    searches = [search_with_sources("no sky", "esa")]
    return {"text": model_answer(text, verified=True), "searches": searches, **more}


HANGING: Turn = {"hang": "start"}


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


async def test_a_job_is_handed_back_polled_and_finished(stub: Stub) -> None:
    stub.plays(deep(proved(gate=True)))

    async with stdio_client(stub) as client:
        running = await call(client, "deep_search", query=QUESTION, wait_seconds=0.1)
        stub.open_gate()
        done = await call(client, "deep_search_result", job_id=running["job_id"])

    assert running.keys() == {"success", "status", "job_id", "poll_after_s", "round", "message"}
    assert (running["success"], running["status"]) == (True, "running")
    assert running["round"] in (1, 2)
    assert "deep_search_result" in running["message"] and running["job_id"] in running["message"]
    assert "Do not call deep_search again" in running["message"]
    assert (done["result"], done["verified"], done["status"]) == (PROVED, True, "done")
    assert done["job_id"] == running["job_id"]
    assert done["metadata"]["stop_reason"] == "verified"
    assert len(stub.runs) == 2


async def test_a_search_that_is_done_in_time_is_not_handed_back(stub: Stub) -> None:
    stub.plays(deep())

    async with in_process_client(stub) as client:
        done = await call(client, "deep_search", query=QUESTION)

    assert (done["status"], done["verified"]) == ("done", True)


async def test_while_it_runs_the_result_carries_the_draft(stub: Stub) -> None:
    stub.plays(deep(HANGING))

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        second = await call(client, "deep_search_result", job_id=first["job_id"], wait_seconds=0.1)

    assert (second["status"], second["round"]) == ("running", 2)
    assert (second["result"], second["verified"]) == (DRAFT, False)
    assert second["metadata"]["rounds"][0]["search_queries"] == ["sky"]
    assert "round 2/5: starting gemini" in second["message"]


async def test_a_long_draft_says_that_it_is_cut(stub: Stub) -> None:
    stub.plays(deep(HANGING, text=LONG))

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        asked = {"job_id": first["job_id"], "wait_seconds": 0}
        second = await call(client, "deep_search_result", **asked)

    assert LONG.startswith(second["result"])
    assert f"The first {len(second['result'])} of {len(LONG)} characters" in second["note"]
    assert "next_offset" not in second


async def test_before_there_is_a_draft_the_result_has_none(stub: Stub) -> None:
    stub.plays(HANGING)

    async with in_process_client(stub) as client:
        first = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        second = await call(client, "deep_search_result", job_id=first["job_id"], wait_seconds=0)

    assert second["status"] == "running"
    assert "result" not in second


async def test_a_cancel_in_a_later_round_returns_the_draft(stub: Stub) -> None:
    stub.plays(deep(HANGING))

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        done = await call(client, "deep_search_cancel", job_id=job["job_id"])
        again = await call(client, "deep_search_result", job_id=job["job_id"])

    assert done == again
    assert (done["result"], done["metadata"]["stop_reason"]) == (DRAFT, "cancelled")
    assert stub.live_pids() == []


async def test_a_cancel_in_the_first_round_is_an_error(stub: Stub) -> None:
    stub.plays(HANGING)

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 1)
        done = await call(client, "deep_search_cancel", job_id=job["job_id"])

    assert done["error"]["code"] == "CANCELLED"
    assert stub.live_pids() == []


async def test_a_cancel_of_what_is_done_returns_it(stub: Stub) -> None:
    stub.plays(deep())

    async with in_process_client(stub) as client:
        done = await call(client, "deep_search", query=QUESTION)
        cancelled = await call(client, "deep_search_cancel", job_id=done["job_id"])

    assert cancelled == done


async def test_a_failed_job_tells_its_error_again(stub: Stub) -> None:
    stub.plays_scenario("no-sign-in")

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        first = await call(client, "deep_search_result", job_id=job["job_id"])
        second = await call(client, "deep_search_result", job_id=job["job_id"])

    assert first["error"]["code"] == "AUTH_ERROR"
    assert first == second


async def test_two_jobs_run_side_by_side(stub: Stub) -> None:
    stub.plays(deep(gate=True))

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
async def test_an_unknown_job_is_an_error(
    stub: Stub, tool: str, arguments: dict[str, Any], code: str
) -> None:
    async with in_process_client(stub) as client:
        error = (await call(client, tool, **arguments))["error"]

    assert (error["code"], error["retryable"]) == (code, False)
    assert error["hint"]


async def test_a_huge_time_to_wait_is_as_long_as_it_takes(stub: Stub) -> None:
    stub.plays(deep())

    async with in_process_client(stub) as client:
        done = await call(client, "deep_search", query=QUESTION, wait_seconds=10**400)

    assert done["verified"] is True


async def test_only_the_tool_that_ends_something_says_so(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        tools = (await client.list_tools()).tools

    hints = {tool.name: tool.annotations.read_only_hint for tool in tools if tool.annotations}
    assert [name for name, read_only in hints.items() if not read_only] == ["deep_search_cancel"]


@pytest.mark.parametrize("seconds", [-1, "soon", True, [1]])
async def test_what_is_no_time_to_wait_is_refused(stub: Stub, seconds: object) -> None:
    async with in_process_client(stub) as client:
        error = (await call(client, "deep_search", query=QUESTION, wait_seconds=seconds))["error"]

    assert error["code"] == "INVALID_INPUT"
    assert stub.runs == []


@pytest.mark.parametrize("offset", [-1, "here", 1.5, True, 1_000])
async def test_what_is_no_place_in_the_report_is_refused(stub: Stub, offset: object) -> None:
    stub.plays(deep())

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION)
        asked = {"job_id": job["job_id"], "offset": offset}
        error = (await call(client, "deep_search_result", **asked))["error"]

    assert error["code"] == "INVALID_INPUT"
    assert "offset" in error["message"]


class Nothing:
    """A work that takes as long as it is let."""

    dedup_key: object = None

    def __init__(self) -> None:
        self._end = anyio.Event()

    async def run(self, progress: ProgressCallback) -> JsonObject:
        await self._end.wait()
        return {"success": True}

    def cancel(self) -> None:
        self._end.set()

    def snapshot(self) -> JsonObject:
        return {}


async def nothing(*_: object) -> None:
    """Tell nobody."""


async def test_a_job_exists_for_its_owner_alone() -> None:
    async with JobService.open(Limits()) as opened:
        job = opened.submit("me", Nothing(), nothing)

        assert opened.get(job.id, "me") is job
        assert opened.list_for_owner("you") == []
        with pytest.raises(NotFound):
            opened.get(job.id, "you")


async def finished(opened: JobService) -> Job:
    job = opened.submit("me", Nothing(), nothing)
    job.id_delivered = True
    await opened.cancel(job)
    return job


async def test_finished_jobs_are_forgotten_after_their_time(clock: Clock) -> None:
    async with JobService.open(Limits()) as opened:
        job = await finished(opened)
        clock.skip(Limits().job_ttl - 1)
        assert opened.list_for_owner("me") == [job]
        clock.skip(2)

        with pytest.raises(NotFound):
            opened.get(job.id, "me")


async def test_a_running_job_is_never_forgotten() -> None:
    async with JobService.open(Limits(job_ttl=0, max_finished_jobs=0)) as opened:
        job = opened.submit("me", Nothing(), nothing)

        assert opened.get(job.id, "me") is job


async def test_only_so_many_finished_jobs_are_kept() -> None:
    async with JobService.open(Limits(max_finished_jobs=3)) as opened:
        all_jobs = [await finished(opened) for _ in range(5)]

        assert opened.list_for_owner("me") == all_jobs[2:]


async def test_an_expired_job_is_not_found(stub: Stub) -> None:
    stub.limits = Limits(job_ttl=0)
    stub.plays(deep())

    async with in_process_client(stub) as client:
        done = await call(client, "deep_search", query=QUESTION)
        late = await call(client, "deep_search_result", job_id=done["job_id"])

    assert late["error"]["code"] == "NOT_FOUND"


async def test_a_client_that_times_out_does_not_end_the_job(stub: Stub) -> None:
    stub.plays(deep(proved(gate=True)))

    async with in_process_client(stub) as client:
        with pytest.raises(MCPError):
            await client.call_tool("deep_search", {"query": QUESTION}, read_timeout_seconds=0.2)
        stub.open_gate()
        # Its model never saw an id: it asks the same again, and gets the job that goes on.
        done = await call(client, "deep_search", query=QUESTION)

    assert (done["result"], done["verified"]) == (PROVED, True)
    assert len(stub.runs) == 2


async def test_what_ended_unheard_is_handed_over_to_the_same_question(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stub.plays(deep(proved(gate=True)))

    async with in_process_client(stub) as client:
        with pytest.raises(MCPError):
            await client.call_tool("deep_search", {"query": QUESTION}, read_timeout_seconds=0.2)
        stub.open_gate()
        await eventually(lambda: "Deep search completed" in caplog.text)
        done = await call(client, "deep_search", query=QUESTION)
        another = await call(client, "deep_search", query=QUESTION)

    assert done["verified"] is True
    assert another["job_id"] != done["job_id"]
    assert len(stub.runs) == 4


async def gives_up(client: Client, asked: dict[str, Any]) -> None:
    """A client whose patience ends while it waits for a job."""
    with pytest.raises(MCPError):
        await client.call_tool("deep_search_result", asked, read_timeout_seconds=0.2)


ENDED = "Cancelling abandoned deep search"


async def test_a_cancelled_wait_does_not_end_a_job_that_is_polled(
    stub: Stub, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stub.plays(deep(HANGING))

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        asked = {"job_id": job["job_id"], "wait_seconds": 100}
        await eventually(lambda: stub.hanging_pids)
        await gives_up(client, {"job_id": job["job_id"]})
        for _ in range(2):  # never 120 s without anybody
            await clock.skip_and_settle(80)
            assert ENDED not in caplog.text
            polled = asyncio.ensure_future(call(client, "deep_search_result", **asked))
            await anyio.wait_all_tasks_blocked()
            await clock.skip_and_settle(100)
            assert (await polled)["status"] == "running"
        clock.skip(121)
        await eventually(lambda: ENDED in caplog.text)


async def test_a_job_that_nobody_polls_after_a_cancelled_wait_is_ended(stub: Stub) -> None:
    stub.limits = Limits(job_abandon_timeout=0.3)
    stub.plays(deep(HANGING))

    async with in_process_client(stub) as client:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.runs) == 2)
        await gives_up(client, {"job_id": job["job_id"]})
        await eventually(lambda: not stub.live_pids())
        done = await call(client, "deep_search_result", job_id=job["job_id"])

    assert (done["result"], done["metadata"]["stop_reason"]) == (DRAFT, "cancelled")


async def test_a_cancelled_wait_does_not_end_a_job_that_somebody_waits_for(
    stub: Stub, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stub.limits = Limits(job_abandon_timeout=20)
    stub.plays(deep(HANGING))

    async with in_process_client(stub) as client, anyio.create_task_group() as tasks:
        job = await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        asked = {"job_id": job["job_id"]}
        tasks.start_soon(client.call_tool, "deep_search_result", asked)  # it waits for 50 s
        await eventually(lambda: stub.hanging_pids)
        await gives_up(client, asked)
        await clock.skip_and_settle(25)
        assert ENDED not in caplog.text
        ended = await call(client, "deep_search_cancel", **asked)
        assert ended["metadata"]["stop_reason"] == "cancelled"


class Failing(Nothing):
    """A work that fails when it is told to end."""

    async def run(self, progress: ProgressCallback) -> JsonObject:
        await super().run(progress)
        raise ExecutionFailed("It failed.")


def end(job: Job) -> None:
    """Let its work come to its own end."""
    assert job.task
    job.task.cancel()


async def test_only_a_job_that_runs_or_ended_well_unheard_is_handed_over() -> None:
    async with JobService.open(Limits()) as opened:
        running = opened.submit("me", Failing(), nothing)
        assert opened.submit("me", Nothing(), nothing) is running
        end(running)
        await running.done.wait()
        after_failure = opened.submit("me", Nothing(), nothing)
        await opened.cancel(after_failure)
        after_cancel = opened.submit("me", Nothing(), nothing)
        end(after_cancel)
        await after_cancel.done.wait()

        assert len({running, after_failure, after_cancel}) == 3
        assert opened.submit("me", Nothing(), nothing) is after_cancel
        assert opened.submit("you", Nothing(), nothing) is not after_cancel
        after_cancel.id_delivered = True
        assert opened.submit("me", Nothing(), nothing) is not after_cancel


async def test_a_client_that_leaves_ends_its_jobs(stub: Stub) -> None:
    stub.plays({**HANGING, "children": 1})

    async with stdio_client(stub) as client:
        await call(client, "deep_search", query=QUESTION, wait_seconds=0)
        await eventually(lambda: len(stub.live_pids()) == 2)

    await eventually(lambda: not stub.live_pids() and not stub.leftover_files())


async def test_progress_grows_over_the_call_and_all_polls(stub: Stub) -> None:
    stub.plays(deep(proved(delay=0.1), delay=0.1))
    seen: list[tuple[float, str]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message or ""))

    async with in_process_client(stub) as client:
        first = await client.call_tool(
            "deep_search", {"query": QUESTION, "wait_seconds": 0.2}, progress_callback=note
        )
        asked = {"job_id": payload(first)["job_id"], "wait_seconds": 0.2}
        for _ in range(100):
            poll = await client.call_tool("deep_search_result", asked, progress_callback=note)
            if payload(poll)["status"] == "done":
                break

    numbers = [number for number, _ in seen]
    steps = [re.sub(r" \(\d+ s\)$", "", message) for _, message in seen]
    assert numbers == sorted(set(numbers))
    assert list(dict.fromkeys(steps)) == [
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


LONG = "".join(
    f"## Chapter {number}\n\nWords about the sky{'蓝' * (number % 3)}, [seen]({REDIRECT}nasa). "
    + " ".join(["word"] * 150)
    + "\n\n"
    for number in range(360)
).strip()


async def test_a_long_report_is_read_to_its_end_byte_for_byte(stub: Stub) -> None:
    stub.plays(deep(proved(LONG), text=LONG))
    assert len(LONG) > 300_000

    async with in_process_client(stub) as client:
        result = await client.call_tool("deep_search", {"query": QUESTION})
        pages = [payload(result)]
        while "next_offset" in pages[-1]:
            asked = {"job_id": pages[0]["job_id"], "offset": pages[-1]["next_offset"]}
            pages.append(await call(client, "deep_search_result", **asked))
        whole = (await client.read_resource(f"report://{pages[0]['job_id']}")).contents[0]

    assert "".join(part["result"] for part in pages) == LONG
    assert isinstance(whole, TextResourceContents)
    assert (whole.text, whole.mime_type) == (LONG, "text/markdown")
    assert all(part["result"].endswith("\n\n") for part in pages[:-1])
    assert all(estimate_tokens(part) <= MAX_RESULT_TOKENS + 100 for part in pages)
    assert f"offset {pages[0]['next_offset']}" in pages[0]["note"]
    _, link = result.content
    assert isinstance(link, ResourceLink)
    assert link.uri == f"report://{pages[0]['job_id']}"
    assert "metadata" in pages[0] and not any("metadata" in part for part in pages[1:])


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
def test_any_report_comes_in_parts_that_are_not_too_long(text: str) -> None:
    payload: JsonObject = {
        "success": True,
        "result": text,
        "verified": True,
        "metadata": {"rounds": []},
    }
    offset, read = 0, ""
    while True:
        part = paginate(payload, "id", offset)
        read += part["result"]
        assert estimate_tokens(part) <= MAX_RESULT_TOKENS + 100
        if "next_offset" not in part:
            break
        assert part["next_offset"] > offset
        offset = part["next_offset"]

    assert read == text


def researched(report: str, sources: int, summary: str = "") -> JsonObject:
    """The result of five rounds that found as many sources each."""
    urls = [f"{REDIRECT}{'x' * 180}{number}" for number in range(5 * sources)]
    rounds: list[JsonObject] = [
        {
            "round_number": number,
            "sources_visited": urls[number * sources : (number + 1) * sources],
            "search_queries": [f"query {number} {index}" for index in range(4)],
            "intermediate_result_summary": summary,
        }
        for number in range(5)
    ]
    queries: list[str] = [query for told in rounds for query in told["search_queries"]]
    metadata: JsonObject = {
        "sources_visited": urls,
        "search_queries_used": queries,
        "rounds": rounds,
    }
    return {"success": True, "result": report, "verified": True, "metadata": metadata}


def test_an_ordinary_research_keeps_its_queries_and_most_sources() -> None:
    told = paginate(researched("Blue. " * 250, 16), "id", 0)

    metadata = told["metadata"]
    assert estimate_tokens(told) <= MAX_RESULT_TOKENS
    assert len(metadata["search_queries_used"]) == 20
    assert len(metadata["sources_visited"]) == 80
    assert "report://id/metadata" in metadata["shortened"]


@pytest.mark.parametrize(
    "payload",
    [
        researched("Blue.", 400),
        researched("Blue. " * 100_000, 400),
        researched("Blue.", 0, "蓝" * 4_000),
        {**researched("Blue.", 1), "metadata": {"query": "蓝" * 10_000, "note": "蓝" * 30_000}},
    ],
)
def test_metadata_is_shortened_until_it_fits(payload: JsonObject) -> None:
    before = json.dumps(payload)

    told = paginate(payload, "id", 0)

    assert estimate_tokens(told) <= MAX_RESULT_TOKENS + 100
    assert "shortened" in told["metadata"]
    assert json.dumps(payload) == before


def test_paragraphs_may_end_with_carriage_returns() -> None:
    text = ("word " * 100 + "\r\n\r\n") * 200

    assert paginate(researched(text, 1), "id", 0)["result"].endswith("\r\n\r\n")


async def test_a_long_search_can_be_read_on_too(stub: Stub) -> None:
    stub.plays({"text": model_answer(LONG), "searches": [search_with_sources("sky", "nasa")]})

    async with in_process_client(stub) as client:
        told = await call(client, "search", query=QUESTION)
        read = told["result"]
        while "next_offset" in told:
            asked = {"job_id": told["job_id"], "offset": told["next_offset"]}
            told = await call(client, "deep_search_result", **asked)
            read += told["result"]

    assert read == LONG


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_finished_report_is_a_resource_and_announced(stub: Stub, mode: str) -> None:
    stub.plays(deep())
    heard: list[object] = []

    async def hear(message: object) -> None:
        if isinstance(message, ResourceListChangedNotification):
            heard.append(message)

    async with stdio_client(stub, mode, message_handler=hear) as client:
        if mode == "auto":
            async with client.listen(resources_list_changed=True) as changes:
                done = await call(client, "deep_search", query=QUESTION)
                assert isinstance(await anext(aiter(changes)), ResourcesListChanged)
        else:
            assert client.server_capabilities.resources
            assert client.server_capabilities.resources.list_changed
            done = await call(client, "deep_search", query=QUESTION)
            await eventually(lambda: bool(heard))
        [listed] = (await client.list_resources()).resources
        read = (await client.read_resource(listed.uri)).contents[0]
        metadata = (await client.read_resource(listed.uri + "/metadata")).contents[0]

    assert isinstance(read, TextResourceContents) and isinstance(metadata, TextResourceContents)
    assert (listed.uri, listed.mime_type) == (f"report://{done['job_id']}", "text/markdown")
    assert (listed.name, listed.description) == (QUESTION, "A finished report, verified")
    assert read.text == PROVED
    assert json.loads(metadata.text) == done["metadata"]


async def test_a_report_that_is_not_there_is_no_resource(stub: Stub) -> None:
    stub.plays(HANGING)

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


async def test_prompts_lead_through_the_tools(stub: Stub) -> None:
    async with in_process_client(stub) as client:
        listed = (await client.list_prompts()).prompts
        research = await client.get_prompt("research", {"topic": "the sky {{claim}}"})
        check = await client.get_prompt("fact-check", {"claim": "The sky is green."})

    assert [prompt.name for prompt in listed] == ["research", "fact-check"]
    assert all(argument.required for prompt in listed for argument in prompt.arguments or ())
    for prompt, asked in ((research, "the sky {{claim}}"), (check, "The sky is green.")):
        [message] = prompt.messages
        assert isinstance(message.content, TextContent)
        assert asked in message.content.text
        assert "`deep_search_result`" in message.content.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("name", "waits"), [("claude-code", True), ("claude-ai", False)])
async def test_known_clients_get_the_longest_wait_they_allow(
    stub: Stub, clock: Clock, name: str, waits: bool, mode: str
) -> None:
    stub.limits = Limits(client_call_limit=20)
    stub.plays(deep(proved(gate=True)))

    info = Implementation(name=name, version="1")
    async with in_process_client(stub, mode, client_info=info) as client:
        told = asyncio.ensure_future(call(client, "deep_search", query=QUESTION))
        await eventually(lambda: len(stub.runs) == 2)
        await clock.skip_and_settle(21)
        stub.open_gate()
        assert ((await told)["status"] == "done") is waits


async def test_a_client_with_a_hard_limit_gets_everything_by_polling(stub: Stub) -> None:
    stub.plays(deep(proved(LONG, delay=0.15), text=LONG, delay=0.15))
    limit = 10.0

    async with in_process_client(stub) as client:

        async def limited(tool: str, **arguments: object) -> Result:
            return payload(await client.call_tool(tool, arguments, read_timeout_seconds=limit))

        told = await limited("deep_search", query=QUESTION, wait_seconds=0.3)
        asked = {"job_id": told["job_id"]}
        while told["status"] == "running":
            told = await limited("deep_search_result", **asked, wait_seconds=0.3)
        read = told["result"]
        while "next_offset" in told:
            told = await limited("deep_search_result", **asked, offset=told["next_offset"])
            read += told["result"]

    assert read == LONG
