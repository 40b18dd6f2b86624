"""The deadline, the cancellation and the progress of a call, in all of its parts."""

import anyio
import pytest

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import Cancelled, ExecutionFailed, TimedOut
from gemini_cli_mcp.progress import ProgressFeed


async def wait_in(*contexts: CallContext) -> None:
    """Wait for ever inside the innermost context."""
    with contexts[-1].enforce():
        await anyio.sleep_forever()


async def test_a_passed_deadline_raises_the_callers_words() -> None:
    context = CallContext(timeout=0.01, timeout_message="It did not end", timeout_hint="Wait.")

    with pytest.raises(TimedOut) as caught:
        await wait_in(context)

    assert (caught.value.message, caught.value.next_step) == (
        "It did not end within 0.01 s.",
        "Wait.",
    )
    assert context.has_expired


async def test_a_part_ends_with_the_whole_call() -> None:
    call = CallContext(timeout=0.01)
    part = call.part(60, timeout_message="The part did not end")

    assert part.seconds_left <= 0.011
    with pytest.raises(TimedOut, match="There was no answer"):
        await wait_in(part)


async def test_a_part_may_end_before_the_call() -> None:
    call = CallContext(timeout=60)
    part = call.part(0.01, timeout_message="The part did not end")

    with call.enforce(), pytest.raises(TimedOut, match="The part did not end"):
        await wait_in(part)
    assert not call.has_expired


@pytest.mark.parametrize("nested", [False, True])
async def test_cancelling_a_call_raises_the_given_error_wherever_it_waits(nested: bool) -> None:
    call = CallContext(timeout=60)
    waiting = call.part(30).part(20) if nested else call
    errors: list[Exception] = []

    async def run() -> None:
        try:
            await wait_in(waiting)
        except Cancelled as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        call.cancel(Cancelled("Stopped."))
        call.cancel(ExecutionFailed("Too late: the first reason counts."))

    assert [str(error) for error in errors] == ["Stopped.", "Stopped."]


async def test_a_cancelled_call_does_not_start() -> None:
    call = CallContext()
    call.cancel(Cancelled("Stopped."))
    started = False

    with pytest.raises(Cancelled), call.part(60).enforce():
        started = True

    assert not started


async def test_parts_know_the_call_and_its_owner() -> None:
    call = CallContext("alice")
    part = call.part(60).part(30)

    assert part.owner == "alice"
    assert part.root is call


async def test_a_progress_line_that_was_not_sent_comes_with_the_next_poll() -> None:
    feed = ProgressFeed(heartbeat=60)
    feed.publish("one")
    feed.publish("two")
    sent: list[str] = []

    async def slow_sink(number: int, text: str) -> None:
        if text.startswith("two"):
            await anyio.sleep_forever()
        sent.append(text)

    async def sink(number: int, text: str) -> None:
        sent.append(text)

    with anyio.move_on_after(0.05):
        await feed.forward_to(slow_sink)
    feed.close()
    await feed.forward_to(sink)

    assert sent == ["one (0 s)", "two (0 s)"]
