"""What the handlers of the tools know about the request that they answer."""

from dataclasses import dataclass

from mcp.server import ServerRequestContext
from starlette.requests import Request

from gemini_cli_mcp.progress import ProgressSink

RequestContext = ServerRequestContext[None, Request]
"""The SDK's view of a request. It has an HTTP request only if it came over HTTP."""


@dataclass(frozen=True)
class ClientCall:
    """A tool call by a client."""

    owner: str
    client_name: str | None
    """None if the client did not identify itself, as in stateless HTTP before 2026-07-28."""
    report_progress: ProgressSink
    """Does nothing if the client did not ask for progress."""
