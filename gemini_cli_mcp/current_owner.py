"""The owner of the current call: results belong to their owner, and owners share capacity."""

from contextvars import ContextVar

CURRENT_OWNER: ContextVar[str] = ContextVar("CURRENT_OWNER", default="stdio")
"""Set when a request arrives; the default is the single stdio client or terminal user."""
