"""A small version of scripts/soak."""

import pytest

from tests.soak import clients_killed, killed, many_calls

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
