"""uvicorn, with signals left to us and a time limit for request headers.

uvicorn has no option for either, so this module overrides parts of it that are not documented:
Server.capture_signals, Server.server_state.tasks, and H11Protocol's connection_made,
on_response_complete, cycle and transport. If uvicorn changes them, these tests fail:
test_serving (all of it), test_streamable_http::test_slow_clients_are_disconnected and
test_streamable_http::test_shutdown_cancels_calls_that_exceed_the_grace_period.
"""

import asyncio
from contextlib import AbstractContextManager, nullcontext

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol


class UvicornServer(uvicorn.Server):
    """Leave signals to us: uvicorn would re-raise them and exit before our cleanup."""

    def __init__(self, app: ASGIApp, *, head_timeout: float, shutdown_timeout: float) -> None:
        """Close connections whose request headers are not complete after `head_timeout` seconds.

        After `should_exit` is set, requests have `shutdown_timeout` seconds to end.
        """

        class Protocol(_HeaderTimeoutProtocol):
            head_timeout_seconds = head_timeout

        config = uvicorn.Config(
            app,
            http=Protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=shutdown_timeout,  # type: ignore[arg-type]
        )
        super().__init__(config)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def cancel_requests(self) -> None:
        """Cancel the tasks of all requests."""
        for task in self.server_state.tasks:
            task.cancel()


class _HeaderTimeoutProtocol(H11Protocol):
    """Close connections of clients that do not send complete request headers in time."""

    head_timeout_seconds: float  # a class attribute, because uvicorn creates the instances

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_head_timer()

    def _start_head_timer(self) -> None:
        previous_cycle = self.cycle

        def close_if_idle() -> None:
            if self.cycle is previous_cycle and not self.transport.is_closing():
                self.transport.close()

        asyncio.get_running_loop().call_later(self.head_timeout_seconds, close_if_idle)
