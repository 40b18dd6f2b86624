"""Quota sense: no run that Google has said it will refuse."""

import anyio
import pytest

from gemini_cli_mcp.errors import ExecutionFailed, GeminiMcpError, QuotaExhausted, RateLimited
from gemini_cli_mcp.providers.gemini.failures import _retry_delay
from gemini_cli_mcp.providers.quota_breaker import INITIAL_DELAY, QuotaBreakers, breaker_key
from tests.support import QUESTION, Clock, Stub, model_answer, search_with_sources
from tests.support.mcp_server import in_process_client

DAILY = {
    "status": "error",
    "message": "You have exhausted your daily quota on this model.",
    "exit_code": 1,
}


def ask(quotas: QuotaBreakers, answer: GeminiMcpError | None = None, name: str = "a") -> str:
    """What a run comes to: its answer, or that there was none."""
    try:
        with quotas.guard(name):
            if answer:
                raise answer
    except (QuotaExhausted, RateLimited) as error:
        return "refused by us" if "No run was started" in error.message else error.code
    return "answered"


def test_the_hint_is_followed_and_then_one_may_try(clock: Clock) -> None:
    quotas = QuotaBreakers()
    assert ask(quotas, QuotaExhausted("Used up.", retry_after_s=36)) == "QUOTA_EXHAUSTED"
    clock.skip(35)
    assert ask(quotas) == "refused by us"
    assert ask(quotas, name="another sign-in or model") == "answered"
    with pytest.raises(QuotaExhausted) as caught:
        quotas.raise_if_open("a")
    assert caught.value.retry_after_s == 1.0 and quotas.open_count == 1
    clock.skip(2)
    with quotas.guard("a"):  # the probe
        assert ask(quotas) == "refused by us"
    assert quotas.open_count == 0
    assert ask(quotas) == "answered"


def test_without_a_hint_the_waits_grow(clock: Clock) -> None:
    quotas = QuotaBreakers()
    for wait in (INITIAL_DELAY, 2 * INITIAL_DELAY, 4 * INITIAL_DELAY):
        assert ask(quotas, QuotaExhausted("Used up.")) == "QUOTA_EXHAUSTED"
        clock.skip(wait - 1)
        assert ask(quotas) == "refused by us"
        clock.skip(2)
    assert ask(quotas) == "answered"


def test_runs_that_were_under_way_are_one_refusal(clock: Clock) -> None:
    quotas = QuotaBreakers()
    runs = [quotas.guard("a") for _ in range(4)]
    for run in runs:
        run.__enter__()
    error = QuotaExhausted("Used up.")
    for run in runs:
        run.__exit__(type(error), error, None)
    clock.skip(INITIAL_DELAY + 1)
    assert ask(quotas) == "answered"


def test_a_rate_limit_opens_only_with_a_hint(clock: Clock) -> None:
    quotas = QuotaBreakers()
    assert ask(quotas, RateLimited("Slow down.")) == "RATE_LIMITED"
    assert ask(quotas) == "answered"
    assert ask(quotas, RateLimited("Slow down.", retry_after_s=5)) == "RATE_LIMITED"
    assert ask(quotas) == "refused by us"
    clock.skip(6)
    with quotas.guard("a"):
        assert ask(quotas) == "answered", "after a wait all go on"


def test_what_began_before_proves_nothing(clock: Clock) -> None:
    quotas = QuotaBreakers()
    with quotas.guard("a"):
        ask(quotas, QuotaExhausted("Used up.", retry_after_s=40_000))
    assert ask(quotas) == "refused by us"


@pytest.mark.parametrize(
    ("said", "seconds"),
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
def test_how_google_says_when(said: str, seconds: float | None) -> None:
    assert _retry_delay(said) == seconds


def test_a_probe_that_fails_otherwise_leaves_the_next_one_to_try(clock: Clock) -> None:
    quotas = QuotaBreakers()
    ask(quotas, QuotaExhausted("Used up."))
    clock.skip(INITIAL_DELAY + 1)
    for failure in (ExecutionFailed("It broke."), anyio.EndOfStream()):
        with pytest.raises(type(failure)), quotas.guard("a"):
            raise failure
    assert ask(quotas) == "answered"


def test_names_tell_nothing() -> None:
    assert "secret" not in breaker_key("secret", "model") != breaker_key("secret", "other")


async def test_all_tools_and_calls_of_a_server_know(stub: Stub) -> None:
    stub.environ["GEMINI_MODEL"] = "gemini-2.5-flash"
    stub.environ["GEMINI_MCP_GROUNDED_MODEL"] = "gemini-2.5-flash"
    stub.plays(
        DAILY,
        {"text": model_answer("Blue."), "searches": [search_with_sources("blue sky", "nasa")]},
    )

    async with in_process_client(stub) as client:
        for tool in ("search", "search", "grounded_search", "web_search", "deep_search"):
            answer = await client.call_tool(tool, {"query": QUESTION})
            assert answer.structured_content
            error = answer.structured_content["error"]
            assert error["code"] == "QUOTA_EXHAUSTED"
            assert len(stub.runs) == 1, tool
            if tool != "search":
                assert error["retry_after_s"] > 0
