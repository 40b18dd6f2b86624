"""Minimal Agent Client Protocol client: newline-delimited JSON-RPC over stdio.

Not the public ACP library: it takes half a second to import and fails on lines over 64 KiB.
"""

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path

import anyio

from gemini_cli_mcp import __version__
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.process.line_process import LineProcess

logger = logging.getLogger(__name__)

NOT_SIGNED_IN_CODE = -32000
"""JSON-RPC error code of `session/new` when the CLI is not signed in."""
_METHOD_NOT_FOUND = -32601

UpdateCallback = Callable[[JsonObject], None]
"""Receives the updates of one session."""


class AcpError(Exception):
    """The agent answered a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AgentUnavailable(Exception):
    """The agent exited or stopped responding; its pending requests are lost."""


class AcpClient:
    """A connection to one agent process."""

    def __init__(self) -> None:
        self._request_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[JsonObject]] = {}
        self._callbacks: dict[str, UpdateCallback] = {}
        self._process: LineProcess | None = None
        self._closed = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, scratch: Path
    ) -> AsyncGenerator["AcpClient"]:
        """Run the process; terminate its process tree on exit. Raise OSError if it cannot start."""
        client = cls()
        async with (
            LineProcess.open(
                argv, env=env, cwd=cwd, on_line=client._handle_line, scratch=scratch
            ) as process,
            anyio.create_task_group() as tasks,
        ):
            client._process = process
            tasks.start_soon(client._fail_pending_on_exit)
            try:
                yield client
            finally:
                client._fail_pending()
                tasks.cancel_scope.cancel()

    async def initialize(self) -> None:
        """Perform the protocol handshake."""
        await self._request(
            "initialize",
            protocolVersion=1,
            clientCapabilities={},
            clientInfo={"name": "gemini-cli-mcp", "version": __version__},
        )

    async def new_session(self, cwd: Path) -> str:
        """Open a session. Do not call concurrently: the CLI backs off exponentially on a lock."""
        response = await self._request("session/new", cwd=str(cwd), mcpServers=[])
        return str(response.get("sessionId"))

    def prompt(
        self, session_id: str, text: str, on_update: UpdateCallback
    ) -> "asyncio.Future[JsonObject]":
        """Start the only turn of a session.

        The future resolves when the turn ends, or raises AcpError or AgentUnavailable.
        """
        self._callbacks[session_id] = on_update
        blocks = [{"type": "text", "text": text}]
        return self._request("session/prompt", sessionId=session_id, prompt=blocks)

    def cancel(self, session_id: str) -> None:
        """Request cancellation of the turn; the prompt's response confirms it."""
        self._send({"method": "session/cancel", "params": {"sessionId": session_id}})

    def unsubscribe(self, session_id: str) -> None:
        """Stop delivering updates of this session."""
        self._callbacks.pop(session_id, None)

    def _request(self, method: str, **params: object) -> "asyncio.Future[JsonObject]":
        """Send a request; the future may raise AcpError or AgentUnavailable."""
        request_id = next(self._request_ids)
        future = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        future.add_done_callback(lambda _: self._pending.pop(request_id, None))
        if self.is_closed:
            future.set_exception(AgentUnavailable())
        else:
            self._send({"id": request_id, "method": method, "params": params})
        return future

    @property
    def is_closed(self) -> bool:
        return self._closed or self._process is None or self._process.is_finished

    async def wait_closed(self) -> None:
        """Wait until the process has exited and its output is exhausted."""
        if self._process:
            await self._process.wait_finished()

    @property
    def memory_bytes(self) -> int:
        """Memory usage of the process; 0 if unknown."""
        return self._process.memory_bytes if self._process else 0

    async def _fail_pending_on_exit(self) -> None:
        await self.wait_closed()
        self._fail_pending()

    def _fail_pending(self) -> None:
        self._closed = True
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(AgentUnavailable())
                future.exception()  # mark as retrieved: the caller may no longer be waiting

    def _send(self, message: JsonObject) -> None:
        if self._process:
            self._process.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def _handle_line(self, line: bytes) -> None:
        try:
            self._handle_message(object_or_empty(json.loads(line)))
        except Exception as error:  # noqa: BLE001 - later lines may belong to other sessions
            logger.debug("Ignoring invalid message from ACP process: %s", type(error).__name__)

    def _handle_message(self, message: JsonObject) -> None:
        if "method" not in message:
            self._handle_response(message)
        elif message["method"] == "session/update":
            params = object_or_empty(message.get("params"))
            if callback := self._callbacks.get(str(params.get("sessionId"))):
                callback(object_or_empty(params.get("update")))
        elif message["method"] == "session/request_permission":
            # Should not happen: the tools we allow do not need permission.
            self._send({"id": message.get("id"), "result": {"outcome": {"outcome": "cancelled"}}})
        elif "id" in message:
            error = {"code": _METHOD_NOT_FOUND, "message": "not supported"}
            self._send({"id": message["id"], "error": error})

    def _handle_response(self, message: JsonObject) -> None:
        request_id = message.get("id")
        future = self._pending.get(request_id) if isinstance(request_id, int) else None
        if not future or future.done():
            return
        if "error" in message:
            error = object_or_empty(message["error"])
            code = error.get("code")
            acp_error = AcpError(
                code if isinstance(code, int) else 0, str(error.get("message") or "")
            )
            future.set_exception(acp_error)
            future.exception()
        else:
            future.set_result(object_or_empty(message.get("result")))
