"""Quota breakers: no run is started that Google has said it will refuse."""

import anyio
import pytest

from gemini_cli_mcp.errors import ExecutionFailed, GeminiMcpError, QuotaExhausted, RateLimited
from gemini_cli_mcp.providers.quota_breaker import INITIAL_DELAY, QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.quota_errors import parse_retry_delay
from tests.support import QUESTION, Clock, Stub, model_answer, search_with_sources
from tests.support.mcp_server import in_process_client

DAILY = {
    "status": "error",
    "message": "You have exhausted your daily quota on this model.",
    "exit_code": 1,
}


def attempt_run(
    breakers: QuotaBreakers, failure: GeminiMcpError | None = None, key: str = "a"
) -> str:
    """Return the outcome of a run that raises `failure`, or succeeds if there is none."""
    try:
        with breakers.guard(key):
            if failure:
                raise failure
    except (QuotaExhausted, RateLimited) as error:
        return "refused by us" if "No run was started" in error.message else error.code
    return "answered"


def test_a_retry_delay_is_followed_and_then_one_run_probes(clock: Clock) -> None:
    breakers = QuotaBreakers()
    assert attempt_run(breakers, QuotaExhausted("Used up.", retry_after_s=36)) == "QUOTA_EXHAUSTED"
    clock.skip(35)
    assert attempt_run(breakers) == "refused by us"
    assert attempt_run(breakers, key="another sign-in or model") == "answered"
    with pytest.raises(QuotaExhausted) as caught:
        breakers.raise_if_open("a")
    assert caught.value.retry_after_s == 1.0 and breakers.open_count == 1
    clock.skip(2)
    with breakers.guard("a"):  # the probe
        assert attempt_run(breakers) == "refused by us"
    assert breakers.open_count == 0
    assert attempt_run(breakers) == "answered"


def test_a_refusal_shows_nothing_of_the_run_that_caused_it() -> None:
    breakers = QuotaBreakers()
    failure = QuotaExhausted("Used up.", details="stderr of another owner's run")
    attempt_run(breakers, failure)

    with pytest.raises(QuotaExhausted) as caught:
        breakers.raise_if_open("a")

    assert caught.value.details is None


def test_without_a_retry_delay_the_waits_grow(clock: Clock) -> None:
    breakers = QuotaBreakers()
    for delay in (INITIAL_DELAY, 2 * INITIAL_DELAY, 4 * INITIAL_DELAY):
        assert attempt_run(breakers, QuotaExhausted("Used up.")) == "QUOTA_EXHAUSTED"
        clock.skip(delay - 1)
        assert attempt_run(breakers) == "refused by us"
        clock.skip(2)
    assert attempt_run(breakers) == "answered"


def test_refusals_of_concurrent_runs_count_once(clock: Clock) -> None:
    breakers = QuotaBreakers()
    runs = [breakers.guard("a") for _ in range(4)]
    for run in runs:
        run.__enter__()
    error = QuotaExhausted("Used up.")
    for run in runs:
        run.__exit__(type(error), error, None)
    clock.skip(INITIAL_DELAY + 1)
    assert attempt_run(breakers) == "answered"


def test_a_rate_limit_opens_the_breaker_only_with_a_retry_delay(clock: Clock) -> None:
    breakers = QuotaBreakers()
    assert attempt_run(breakers, RateLimited("Slow down.")) == "RATE_LIMITED"
    assert attempt_run(breakers) == "answered"
    assert attempt_run(breakers, RateLimited("Slow down.", retry_after_s=5)) == "RATE_LIMITED"
    assert attempt_run(breakers) == "refused by us"
    clock.skip(6)
    with breakers.guard("a"):
        assert attempt_run(breakers) == "answered", "after the delay, all runs continue"


def test_a_run_started_before_the_refusal_does_not_close_the_breaker(clock: Clock) -> None:
    breakers = QuotaBreakers()
    with breakers.guard("a"):
        attempt_run(breakers, QuotaExhausted("Used up.", retry_after_s=40_000))
    assert attempt_run(breakers) == "refused by us"


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Please retry in 7s.", 7),
        ("Please retry in 850ms", 0.85),
        ("You have exhausted your capacity. Your quota will reset after 13h22m5s.", 48125),
        ("Your quota will reset after 5s", 5),
        ("Please retry in 2m30.5s", 150.5),
        ('"retryDelay": "36s"', 36),
        ("retry in a while", None),
        ("retry after 12 files", None),
    ],
)
def test_retry_delays_are_parsed_from_error_messages(message: str, seconds: float | None) -> None:
    assert parse_retry_delay(message) == seconds


def test_after_an_unrelated_failure_of_a_probe_the_next_run_probes(clock: Clock) -> None:
    breakers = QuotaBreakers()
    attempt_run(breakers, QuotaExhausted("Used up."))
    clock.skip(INITIAL_DELAY + 1)
    for failure in (ExecutionFailed("It broke."), anyio.EndOfStream()):
        with pytest.raises(type(failure)), breakers.guard("a"):
            raise failure
    assert attempt_run(breakers) == "answered"


def test_breaker_keys_do_not_reveal_the_sign_in() -> None:
    assert "secret" not in breaker_key("secret", "model") != breaker_key("secret", "other")


async def test_all_tools_of_a_server_share_the_breaker(stub: Stub) -> None:
    stub.environ["GEMINI_MODEL"] = "gemini-2.5-flash"
    stub.environ["GEMINI_MCP_GROUNDED_MODEL"] = "gemini-2.5-flash"
    stub.plays(
        DAILY,
        {"text": model_answer("Blue."), "searches": [search_with_sources("blue sky", "nasa")]},
    )

    async with in_process_client(stub) as client:
        for tool in ("search", "search", "grounded_search", "web_search", "deep_search"):
            result = await client.call_tool(tool, {"query": QUESTION})
            assert result.structured_content
            error = result.structured_content["error"]
            assert error["code"] == "QUOTA_EXHAUSTED"
            assert len(stub.runs) == 1, tool
            if tool != "search":
                assert error["retry_after_s"] > 0
