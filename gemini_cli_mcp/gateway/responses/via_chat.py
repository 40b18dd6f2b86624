"""The Responses API on upstreams that support chat completions only.

Text, functions and streams are converted; anything else is rejected, never silently dropped.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from gemini_cli_mcp.gateway.events import (
    AnswerDelta,
    ChatEvent,
    SearchFinished,
    SearchStarted,
    TurnsFinished,
    TurnStarted,
)
from gemini_cli_mcp.gateway.responses.chat_request import to_chat_request
from gemini_cli_mcp.gateway.responses.events import (
    ResponseFinished,
    ResponsesEvent,
    ResponseStarted,
    TextItemFinished,
    TextItemStarted,
    TextReceived,
    message_events,
)
from gemini_cli_mcp.gateway.responses.items import (
    FunctionCallItem,
    MessageItem,
    ReasoningItem,
    RefusalItem,
)
from gemini_cli_mcp.gateway.responses.request import ResponsesRequest
from gemini_cli_mcp.gateway.search_runner import SearchRunner
from gemini_cli_mcp.gateway.tool_calls import CallDelta
from gemini_cli_mcp.gateway.tool_loop import chat_tool_loop
from gemini_cli_mcp.gateway.upstream_client import UpstreamClient
from gemini_cli_mcp.json_values import int_or_zero, object_or_empty
from gemini_cli_mcp.settings.engines import Engines

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by finish reason."""


async def via_chat(
    request: ResponsesRequest,
    upstream: UpstreamClient,
    engines: Engines | None,
    runner: SearchRunner,
) -> AsyncGenerator[ResponsesEvent]:
    """Yield what happens in a chat tool loop, as events of a response.

    Raise UnsupportedByUpstream if chat completions cannot express the request. Iterate inside
    `contextlib.aclosing`, as with `chat_tool_loop`.
    """
    converter = ChatToResponses(runner)
    chat_request = to_chat_request(request)
    async with aclosing(chat_tool_loop(chat_request, upstream, engines, runner)) as chat_events:
        async for chat_event in chat_events:
            for event in converter.convert(chat_event):
                yield event


class ChatToResponses:
    """Converts the events of a chat tool loop, in order."""

    def __init__(self, runner: SearchRunner) -> None:
        self._runner = runner
        self._text_item: MessageItem | ReasoningItem | None = None
        """The text in progress."""
        self._refusal_item: RefusalItem | None = None
        """The refusal in progress."""
        self._call_items: dict[int, FunctionCallItem] = {}
        """The client's calls in progress, by call index; they may be interleaved."""

    def convert(self, event: ChatEvent) -> Iterator[ResponsesEvent]:
        match event:
            case TurnStarted():
                yield event
                yield ResponseStarted()
            case AnswerDelta():
                yield from self._append(event)
            case SearchStarted():
                yield from self._finish_items()
                yield event
            case SearchFinished():
                yield event
            case TurnsFinished():
                yield from self._finish_items()
                yield from self._end(event)

    def _append(self, delta: AnswerDelta) -> Iterator[ResponsesEvent]:
        if delta.reasoning:
            yield from self._append_text(ReasoningItem, delta.reasoning)
        if delta.text:
            yield from self._append_text(MessageItem, delta.text)
        if delta.refusal:
            yield from self._append_refusal(delta.refusal)
        for call in delta.calls:
            yield from self._append_call(call)

    def _append_text(
        self, item_type: type[MessageItem | ReasoningItem], text: str
    ) -> Iterator[ResponsesEvent]:
        """Append text to the message, or to the reasoning before it."""
        item = self._text_item
        if not isinstance(item, item_type):
            yield from self._finish_text()
            item = self._text_item = item_type()
            yield TextItemStarted(item)
        yield TextReceived(item.id, text)

    def _append_refusal(self, text: str) -> Iterator[ResponsesEvent]:
        """Append text to the refusal, which gets a message of its own."""
        item = self._refusal_item
        if item is None:
            yield from self._finish_text()
            item = self._refusal_item = RefusalItem()
            yield TextItemStarted(item)
        yield TextReceived(item.id, text)

    def _append_call(self, call: CallDelta) -> Iterator[ResponsesEvent]:
        """Start a call of the client's own, or append to it."""
        item = self._call_items.get(call.index)
        if item is None:
            yield from self._finish_text()
            item = self._call_items[call.index] = FunctionCallItem(call.call_id, call.name)
            yield TextItemStarted(item)
        if call.arguments:
            yield TextReceived(item.id, call.arguments)

    def _finish_text(self) -> Iterator[ResponsesEvent]:
        item, self._text_item = self._text_item, None
        if item:
            yield TextItemFinished(item.id)

    def _finish_items(self) -> Iterator[ResponsesEvent]:
        """Finish all items of the turn."""
        yield from self._finish_text()
        refusal, self._refusal_item = self._refusal_item, None
        calls, self._call_items = self._call_items, {}
        for item in [*([refusal] if refusal else []), *calls.values()]:
            yield TextItemFinished(item.id)

    def _end(self, last_turn: TurnsFinished) -> Iterator[ResponsesEvent]:
        client_call_ids = tuple(call.id for call in last_turn.client_calls)
        has_text = bool(last_turn.message.get("content"))
        if last_turn.searches and not client_call_ids and not has_text:
            yield from message_events(self._runner.fallback_answer())
        usage = {"usage": _responses_usage(last_turn.usage)} if last_turn.usage else {}
        reason = _INCOMPLETE_REASONS.get(str(last_turn.finish_reason))
        if reason is None:
            yield ResponseFinished("completed", client_call_ids, {**usage})
        else:
            details = {"reason": reason}
            yield ResponseFinished(
                "incomplete", client_call_ids, {**usage, "incomplete_details": details}
            )


def _responses_usage(value: object) -> dict[str, int | dict[str, int]]:
    """Convert the usage of a chat completion."""
    usage = object_or_empty(value)
    prompt_details = object_or_empty(usage.get("prompt_tokens_details"))
    completion_details = object_or_empty(usage.get("completion_tokens_details"))
    return {
        "input_tokens": int_or_zero(usage.get("prompt_tokens")),
        "input_tokens_details": {
            "cached_tokens": int_or_zero(prompt_details.get("cached_tokens")),
            "cache_write_tokens": int_or_zero(prompt_details.get("cache_write_tokens")),
        },
        "output_tokens": int_or_zero(usage.get("completion_tokens")),
        "output_tokens_details": {
            "reasoning_tokens": int_or_zero(completion_details.get("reasoning_tokens"))
        },
        "total_tokens": int_or_zero(usage.get("total_tokens")),
    }
