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
    """A request that a tool sent to the API."""

    session_id: str
    sent_ms: float
    text: str


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

    @property
    def is_for_tool(self) -> bool:
        return self.role == _HELPER_ROLE


@dataclass(frozen=True)
class ApiError:
    """The API refused a request of a tool."""

    session_id: str
    sent_ms: float
    """When its request was sent."""


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
        case "api_request" if role == _HELPER_ROLE:
            return ApiRequest(
                session_id, time_ms, _parse_request_text(attributes.get("request_text"))
            )
        case "api_error" if role == _HELPER_ROLE:
            return ApiError(session_id, time_ms - duration_ms)
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
