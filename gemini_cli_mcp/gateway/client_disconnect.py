"""Cancel the work on a response when its client disconnects."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.upstream_client import UpstreamRejected
from gemini_cli_mcp.limits import Limits

WriteResponse = Callable[[ResponseWriter], Awaitable[object]]


class DisconnectAwareResponse(Response):
    """A response that writes itself and is cancelled when the client disconnects."""

    def __init__(self, write: WriteResponse, limits: Limits, secrets: Sequence[str]) -> None:
        super().__init__()
        self._write = write
        self._limits = limits
        self._secrets = secrets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await _run_and_report(
                    self._write, ResponseWriter(send, self._limits, self._secrets)
                )
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()


async def _run_and_report(write: WriteResponse, writer: ResponseWriter) -> None:
    """Write the response and report failures.

    After the response start, a failure shows only as a response that is never completed.
    """
    try:
        await write(writer)
    except UpstreamRejected as error:
        if not writer.started:
            await writer.send_rejection(error)
    except Exception as error:  # noqa: BLE001 - never expose a stack trace
        if not writer.started:
            await writer.send_json(502, [], {"error": writer.error_object_for(error)})
