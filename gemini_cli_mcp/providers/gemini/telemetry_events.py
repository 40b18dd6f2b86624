"""Parse the events in the official CLI's telemetry file, a sequence of JSON objects."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.providers.gemini.event_types import ToolArguments
from gemini_cli_mcp.providers.gemini.events import parse_tool_arguments
from gemini_cli_mcp.providers.grounding_metadata import GroundedCandidate, parse_candidate
from gemini_cli_mcp.types import Usage

_HELPER_ROLE = "utility_tool"


@dataclass(frozen=True)
class ApiRequest:
    """A request to the API."""

    session_id: str
    sent_ms: float
    role: str
    text: str
    """What a tool asked for; empty for other requests."""

    @property
    def is_for_tool(self) -> bool:
        return self.role == _HELPER_ROLE


@dataclass(frozen=True)
class ApiResponse:
    """A response of the API to the main model or to a tool."""

    session_id: str
    sent_ms: float
    """When its request was sent."""
    role: str
    model: str
    usage: Usage
    """Without tool calls."""
    candidate: GroundedCandidate | None
    """The answer to a tool; None if there is none, and for the main model."""
    was_blocked: bool = False
    """Whether the API's safety filter blocked the question or the answer."""

    @property
    def is_for_tool(self) -> bool:
        return self.role == _HELPER_ROLE


@dataclass(frozen=True)
class ApiError:
    """The API refused a request, or could not be reached."""

    session_id: str
    sent_ms: float
    """When its request was sent."""
    role: str
    status: int | None
    """HTTP status; None if there was no response."""
    message: str
    duration_ms: float = 0
    """Until it failed."""

    @property
    def is_for_tool(self) -> bool:
        return self.role == _HELPER_ROLE


@dataclass(frozen=True)
class ToolCall:
    """A finished call to a tool."""

    session_id: str
    tool_name: str
    arguments: ToolArguments
    error: str | None
    """Why it failed; None if it succeeded."""


TelemetryEvent = ApiRequest | ApiResponse | ApiError | ToolCall


def parse_events(text: str) -> tuple[list[TelemetryEvent], str]:
    """Return all complete events that are of interest, and the unparsed rest."""
    decoder = json.JSONDecoder()
    events: list[TelemetryEvent] = []
    offset = 0
    while (offset := _skip_whitespace(text, offset)) < len(text):
        try:
            value, offset = cast("tuple[JsonValue, int]", decoder.raw_decode(text, offset))
        except (ValueError, RecursionError):
            break  # the object is not complete yet
        match value:
            case {"attributes": {"event.name": str(name), **attributes}}:
                if event := parse_event(name.removeprefix("gemini_cli."), attributes):
                    events.append(event)
            case _:
                pass
    return events, text[offset:]


def parse_event(name: str, attributes: dict[str, JsonValue]) -> TelemetryEvent | None:
    """Parse the attributes of an event; None if it is of no interest."""
    session_id, role = str(attributes.get("session.id")), attributes.get("role")
    time_ms = _parse_time(attributes.get("event.timestamp"))
    duration_ms = _count(attributes.get("duration_ms"))
    match name:
        case "api_request":
            # Only the tools' requests: those of the main model hold whole conversations.
            text = attributes.get("request_text") if role == _HELPER_ROLE else None
            return ApiRequest(session_id, time_ms, str(role), _parse_request_text(text))
        case "api_error":
            return ApiError(
                session_id,
                time_ms - duration_ms,
                str(role),
                _count(attributes.get("status_code")) or None,
                _error_message(attributes),
                duration_ms,
            )
        case "api_response":
            # Only the tools' answers: those of the main model hold no evidence.
            text = attributes.get("response_text") if role == _HELPER_ROLE else None
            return ApiResponse(
                session_id,
                time_ms - duration_ms,
                str(role),
                str(attributes.get("model")),
                _parse_usage(attributes),
                parse_candidate(_parse_json(text)),
                _was_blocked(attributes),
            )
        case "tool_call":
            return ToolCall(
                session_id,
                str(attributes.get("function_name")),
                parse_tool_arguments(_parse_json(attributes.get("function_args"))),
                None if attributes.get("success") is True else _error_message(attributes),
            )
        case _:
            return None


def _was_blocked(attributes: dict[str, JsonValue]) -> bool:
    """Return whether a response says that it was blocked, instead of containing text."""
    finish_reasons = attributes.get("finish_reasons")
    if isinstance(finish_reasons, list) and "content_filter" in finish_reasons:
        return True
    match _parse_json(attributes.get("response_text")) if not finish_reasons else None:
        case [*chunks]:
            return any(_has_block_reason(chunk) for chunk in chunks)
        case _:
            return False


def _has_block_reason(chunk: JsonValue) -> bool:
    match chunk:
        case {"promptFeedback": {"blockReason": str()}}:
            return True
        case _:
            return False


def _parse_request_text(encoded: JsonValue) -> str:
    """Return the text of a tool's request, which has a single message."""
    match _parse_json(encoded):
        case [{"parts": [*parts]}, *_]:
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            return "".join(text for text in texts if isinstance(text, str))
        case _:
            return ""


def _parse_usage(attributes: dict[str, JsonValue]) -> Usage:
    names = ("input", "output", "cached_content", "total")
    return Usage(*(_count(attributes.get(f"{name}_token_count")) for name in names))


def _error_message(attributes: dict[str, JsonValue]) -> str:
    return str(attributes.get("error.message") or attributes.get("error") or "unknown error")


def _parse_time(timestamp: JsonValue) -> float:
    """Return milliseconds since 1970; 0 if the timestamp is invalid."""
    try:
        return datetime.fromisoformat(str(timestamp).replace("Z", "+00:00")).timestamp() * 1000
    except ValueError:
        return 0.0


def _parse_json(text: JsonValue) -> JsonValue:
    """Parse JSON inside a JSON string."""
    try:
        return cast("JsonValue", json.loads(text)) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _count(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


def _skip_whitespace(text: str, offset: int) -> int:
    while offset < len(text) and text[offset].isspace():
        offset += 1
    return offset
