"""Tell connected clients that there is a new report among the resources.

Only stdio and in-process clients stay connected. Over stateless HTTP, nobody is left to be
notified when a job ends.
"""

from contextlib import suppress

from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged
from mcp.types import NotificationParams

from gemini_cli_mcp.call_context import LOCAL_OWNER
from gemini_cli_mcp.server.client_call import RequestContext


class ReportAnnouncer:
    """The clients that can be notified, in both protocol eras."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.serve_subscription = ListenHandler(self._bus)
        """Handles `subscriptions/listen`, by which clients since 2026-07-28 ask for events."""
        self._sessions: set[ServerSession] = set()
        """Of earlier clients, which get events without asking."""

    async def on_initialized(self, context: RequestContext, params: NotificationParams) -> None:
        """Remember a client that has completed the handshake."""
        if context.request is None:  # over HTTP, the connection ends with this notification
            self._sessions.add(context.session)

    def forget_clients(self) -> None:
        """Forget all clients: their connections have ended."""
        self._sessions.clear()

    async def announce_new_report(self, owner: str) -> None:
        """Notify the clients of this owner that the list of resources has changed."""
        if owner != LOCAL_OWNER:
            return
        await self._bus.publish(ResourcesListChanged())
        for session in list(self._sessions):
            with suppress(Exception):  # the client may be gone; the report is stored anyway
                await session.send_resource_list_changed()
