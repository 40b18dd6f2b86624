"""Tool loop for the Responses API, with all turns merged into one response for the client."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from gemini_cli_mcp.gateway.events import SearchFinished, TurnStarted
from gemini_cli_mcp.gateway.responses.continuations import UpstreamContinuation, output_item
from gemini_cli_mcp.gateway.responses.events import (
    ResponseFinished,
    ResponsesEvent,
    message_events,
)
from gemini_cli_mcp.gateway.responses.native_turn import NativeTurn, parse_event
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.responses.upstream_items import TurnResponse
from gemini_cli_mcp.gateway.search_runner import NO_SEARCHES_LEFT, SearchOutcome, SearchRunner
from gemini_cli_mcp.gateway.sse import DONE, parse_events
from gemini_cli_mcp.gateway.tool_loop import sum_usage
from gemini_cli_mcp.gateway.upstream_client import (
    UpstreamClient,
    UpstreamResponse,
    UpstreamUnavailable,
    parse_json,
)
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.settings.engines import Engines

RESPONSES_PATH = "/responses"
_FIRST_TURN_FIELDS = ("id", "object", "created_at", "output", "previous_response_id", "status")
"""Fields that a response does not take over from its last turn."""


async def native_loop(
    request: ResponsesRequest,
    upstream: UpstreamClient,
    engines: Engines | None,
    runner: SearchRunner,
) -> AsyncGenerator[ResponsesEvent]:
    """Yield what happens in each turn, and ResponseFinished at the end.

    Iterate inside `contextlib.aclosing` and `UpstreamClient.limit_turns`: the upstream's response
    stays open between two events, and it must be closed at once when the client disconnects.
    """
    new_items: list[object] = []
    """Items since the client's input, as the upstream knows them."""
    usage: JsonObject = {}
    while True:
        offered_engines = engines if runner.has_budget else None
        max_items = upstream.limits.max_upstream_tool_calls
        turn = NativeTurn(request, max_items, show_searches=offered_engines is not None)
        body = request.turn_body(offered_engines, new_items)
        async with aclosing(_run_turn(body, upstream, turn)) as turn_events:
            async for event in turn_events:
                yield event
        usage = sum_usage(usage, turn.response.usage)
        may_continue = offered_engines is not None and turn.status == "completed"
        searches = await _run_searches(turn, runner if may_continue else None)
        if offered_engines:
            for search in searches:
                yield search
        if not searches or not may_continue or turn.client_call_ids:
            break
        if request.is_in_conversation:
            new_items = [output_item(search) for search in searches]
        else:
            new_items += turn.replayable_items()
            new_items += [output_item(search) for search in searches]
    if searches and not turn.client_call_ids and not turn.has_message:
        for event in message_events(runner.fallback_answer()):
            yield event
    response = turn.response.for_client(request)
    fields = {
        name: value for name, value in response.fields.items() if name not in _FIRST_TURN_FIELDS
    }
    if usage:
        fields["usage"] = usage
    continuation = UpstreamContinuation(response.id, tuple(searches))
    yield ResponseFinished(turn.status, turn.client_call_ids, fields, continuation)


async def _run_turn(
    body: JsonObject, upstream: UpstreamClient, turn: NativeTurn
) -> AsyncGenerator[ResponsesEvent]:
    """Send one request, and yield the answer while it arrives."""
    streaming = bool(body.get("stream"))
    async with upstream.post_json(RESPONSES_PATH, body) as response:
        if not streaming or response.is_json:
            answer = await _read_answer(response, streaming=streaming)
            yield TurnStarted(response.headers)
            for event in turn.add_answer(answer):
                yield event
            return
        yield TurnStarted(response.headers)
        async for data in parse_events(response.chunks(), upstream.limits):
            if data == DONE:
                break
            for event in turn.add_event(parse_event(data)):
                yield event
    if not turn.has_ended:
        raise UpstreamUnavailable("The upstream's answer ended prematurely.")


async def _read_answer(response: UpstreamResponse, *, streaming: bool) -> TurnResponse:
    """Return a complete answer; an upstream without streaming sends it instead of a stream."""
    body = await response.read_all()
    answer = TurnResponse(parse_json(body))
    if streaming and "output" not in answer.fields:  # an error with status 200
        raise response.rejection(body)
    return answer


async def _run_searches(turn: NativeTurn, runner: SearchRunner | None) -> list[SearchFinished]:
    """Run the searches of a turn; without a runner, none is allowed."""
    outcomes: Sequence[SearchOutcome] = [NO_SEARCHES_LEFT] * len(turn.searches)
    if runner and turn.searches:
        outcomes = await runner.run(turn.searches)
    pairs = zip(turn.searches, outcomes, strict=True)
    return [SearchFinished(call, outcome) for call, outcome in pairs]
