"""Small versions of the soak tests in scripts/soak."""

import pytest

from gemini_cli_mcp.limits import Limits
from tests.support.matrix import needs_real_cli, representatives
from tests.support.soak import (
    ANSWERS,
    FAULTS,
    kill_clients,
    kill_servers,
    many_calls,
    many_jobs,
    shared_process_calls,
)

ALL_CASES = len(FAULTS) + len(ANSWERS)


@pytest.mark.parametrize("repetitions", representatives([1, 3], [1]))
async def test_many_calls_with_faults_leave_nothing_behind(repetitions: int) -> None:
    await many_calls(3, 3, seed=2)  # warm-up: one-time imports and descriptors

    tally = await many_calls(repetitions * ALL_CASES, 20)

    assert tally.leftovers == []
    assert tally.unexpected == []
    assert tally.reached > repetitions * len(FAULTS) / 3
    assert tally.descriptors[1] <= tally.descriptors[0]


@pytest.mark.long
@pytest.mark.parametrize("victim", ["server", "guardian"])
async def test_a_kill_at_a_random_instant_leaves_no_processes(victim: str) -> None:
    tally = await kill_servers(victim, 6)

    assert (tally.leftovers, tally.outcomes[victim]) == ([], 6)


@pytest.mark.long
async def test_a_client_killed_in_any_round_leaves_nothing_behind() -> None:
    tally = await kill_clients(4)

    assert (tally.leftovers, sum(tally.outcomes.values())) == ([], 4)


@pytest.mark.parametrize("count", representatives([6, 30], [6]))
async def test_cancelled_abandoned_and_finished_jobs_leave_nothing_behind(count: int) -> None:
    limits = Limits(job_abandon_timeout=0.5)
    await many_jobs(3, limits, seed=2)

    tally = await many_jobs(count, limits)

    assert tally.leftovers == []
    assert tally.outcomes["abandoned"] == count / 3
    assert set(tally.outcomes) <= {"abandoned", "done", "CANCELLED"}
    assert tally.descriptors[1] <= tally.descriptors[0]


@pytest.mark.long
@needs_real_cli
async def test_no_call_is_lost_when_a_shared_process_is_killed() -> None:
    tally = await shared_process_calls(60, 10, 30)

    assert tally.leftovers == []
    assert set(tally.outcomes) == {"success", "cancelled"}
    assert tally.descriptors[1] <= tally.descriptors[0]
