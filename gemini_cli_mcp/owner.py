"""Whose call is being worked on: results belong to their owner, and owners share what there is."""

from contextvars import ContextVar

CURRENT_OWNER: ContextVar[str] = ContextVar("OWNER", default="stdio")
"""Set where a request comes in; by default the one client of a pipe, or a person."""
