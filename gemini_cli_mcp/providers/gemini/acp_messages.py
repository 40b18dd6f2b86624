"""The messages of an ACP agent that we use, parsed from JSON-RPC."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gemini_cli_mcp.json_values import JsonValue


@dataclass(frozen=True)
class MessageChunk:
    """A piece of the agent's answer."""

    text: str


@dataclass(frozen=True)
class ToolCallUpdate:
    """The start, a change or the end of a tool call."""

    call_id: str
    kind: str
    title: str
    """Human-readable description; quotes the query or the prompt of the call."""
    end: Literal["completed", "failed"] | None
    """How the call ended; None if it is still running."""
    text: str
    """Output of an ended call."""


@dataclass(frozen=True)
class OtherUpdate:
    """An update that only shows that the agent is alive."""


SessionUpdate = MessageChunk | ToolCallUpdate | OtherUpdate


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of one model, or of all of them."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class PromptResult:
    """How a turn ended, with the token counts of the main model, not of the search helper."""

    stop_reason: str | None
    tokens: TokenCounts
    tokens_by_model: Mapping[str, TokenCounts]


def parse_session_id(result: JsonValue) -> str:
    """Parse the result of `session/new`."""
    match result:
        case {"sessionId": str(session_id)}:
            return session_id
        case _:
            return ""


def parse_update(update: JsonValue) -> SessionUpdate:
    """Parse the update in a `session/update` notification."""
    match update:
        case {"sessionUpdate": "agent_message_chunk", **fields}:
            return MessageChunk(_content_text(fields.get("content")))
        case {"sessionUpdate": "tool_call", **fields}:
            return _parse_tool_call(fields, None)
        case {"sessionUpdate": "tool_call_update", "status": "completed", **fields}:
            return _parse_tool_call(fields, "completed")
        case {"sessionUpdate": "tool_call_update", "status": "failed", **fields}:
            return _parse_tool_call(fields, "failed")
        case {"sessionUpdate": "tool_call_update", **fields}:
            return _parse_tool_call(fields, None)
        case _:
            return OtherUpdate()


def parse_prompt_result(result: JsonValue) -> PromptResult:
    """Parse the result of `session/prompt`."""
    match result:
        case {"stopReason": str(stop_reason)}:
            pass
        case _:
            stop_reason = None
    match result:
        case {"_meta": {"quota": {**quota}}}:
            tokens = _parse_token_counts(quota.get("token_count"))
            return PromptResult(stop_reason, tokens, _parse_models(quota.get("model_usage")))
        case _:
            return PromptResult(stop_reason, TokenCounts(), {})


def _parse_tool_call(
    fields: dict[str, JsonValue], end: Literal["completed", "failed"] | None
) -> ToolCallUpdate:
    match fields.get("content"):
        case [*parts]:
            text = " ".join(
                _content_text(part.get("content")) for part in parts if isinstance(part, dict)
            )
        case _:
            text = ""
    title = fields.get("title")
    return ToolCallUpdate(
        str(fields.get("toolCallId")),
        str(fields.get("kind")),
        title if isinstance(title, str) else "",
        end,
        text,
    )


def _content_text(content: JsonValue) -> str:
    match content:
        case {"text": str(text)}:
            return text
        case _:
            return ""


def _parse_models(value: JsonValue) -> dict[str, TokenCounts]:
    return {
        str(usage.get("model")): _parse_token_counts(usage.get("token_count"))
        for usage in (value if isinstance(value, list) else [])
        if isinstance(usage, dict)
    }


def _parse_token_counts(value: JsonValue) -> TokenCounts:
    fields = value if isinstance(value, dict) else {}
    counts = (fields.get(name) for name in ("input_tokens", "output_tokens"))
    return TokenCounts(*(count if isinstance(count, int) else 0 for count in counts))
