"""A small version of scripts/soak."""

import pytest

from gemini_cli_mcp import jobs
from tests.marks import needs_real_cli
from tests.soak import clients_killed, killed, many_calls, many_jobs, warm_calls

KNOWN = {"success", "cancelled", "TIMEOUT", "AUTH_ERROR", "EXECUTION_ERROR"}


async def test_many_faulted_calls_leave_nothing() -> None:
    await many_calls(6, 6, seed=2)

    tally = await many_calls(40, 10)

    assert tally.left == []
    assert set(tally.ended) <= KNOWN
    assert tally.descriptors[1] <= tally.descriptors[0]


@pytest.mark.parametrize("victim", ["server", "guardian"])
async def test_killed_at_a_random_instant_the_tree_is_gone(victim: str) -> None:
    tally = await killed(victim, 6)

    assert tally.left == []


async def test_a_client_killed_in_any_round_leaves_nothing() -> None:
    tally = await clients_killed(4)

    assert tally.left == []


async def test_jobs_that_are_cancelled_abandoned_or_finished_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "ABANDONED", 0.5)

    await many_jobs(3, seed=2)
    tally = await many_jobs(9)

    assert tally.left == []
    assert tally.ended["abandoned"] == 3
    assert set(tally.ended) <= {"abandoned", "done", "CANCELLED"}
    assert tally.descriptors[1] <= tally.descriptors[0]


@pytest.mark.real_cli
@needs_real_cli
async def test_no_warm_call_is_lost_to_a_killed_process() -> None:
    tally = await warm_calls(60, 10, 30)

    assert tally.left == []
    assert set(tally.ended) <= {"success", "cancelled"}
    assert tally.descriptors[1] <= tally.descriptors[0]
