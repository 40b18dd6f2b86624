"""The Agent Client Protocol, as far as we need it: JSON-RPC, one message a line, over stdio.

A small client of our own: the public library takes half a second to import and stops at lines of
64 KiB.
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
"""The code of a refused session that has no sign-in."""
_METHOD_NOT_FOUND = -32601

UpdateCallback = Callable[[JsonObject], None]
"""Takes the updates of one session."""


class AcpError(Exception):
    """The agent answered a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AgentGone(Exception):
    """The agent is gone, and with it whatever it was asked."""


class AcpClient:
    """One process that speaks the protocol."""

    def __init__(self) -> None:
        self._request_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[JsonObject]] = {}
        self._callbacks: dict[str, UpdateCallback] = {}
        self._process: LineProcess | None = None
        self._ended = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, scratch: Path
    ) -> AsyncGenerator["AcpClient"]:
        """The process, from its start to the end of its tree. Raises OSError if there is none."""
        client = cls()
        async with (
            LineProcess.open(
                argv, env=env, cwd=cwd, on_line=client._handle_line, scratch=scratch
            ) as process,
            anyio.create_task_group() as tasks,
        ):
            client._process = process
            tasks.start_soon(client._watch)
            try:
                yield client
            finally:
                client._fail_pending()
                tasks.cancel_scope.cancel()

    async def initialize(self) -> None:
        """Shake hands."""
        await self._request(
            "initialize",
            protocolVersion=1,
            clientCapabilities={},
            clientInfo={"name": "gemini-cli-mcp", "version": __version__},
        )

    async def new_session(self, cwd: Path) -> str:
        """Open a session. One at a time: the CLI waits for a lock that doubles every wait."""
        response = await self._request("session/new", cwd=str(cwd), mcpServers=[])
        return str(response.get("sessionId"))

    def prompt(
        self, session: str, text: str, on_update: UpdateCallback
    ) -> "asyncio.Future[JsonObject]":
        """Begin a session's one turn; when it is over comes the answer, Refused, or Lost."""
        self._callbacks[session] = on_update
        blocks = [{"type": "text", "text": text}]
        return self._request("session/prompt", sessionId=session, prompt=blocks)

    def cancel(self, session: str) -> None:
        """Ask for the turn to be ended; its answer tells that it was."""
        self._send({"method": "session/cancel", "params": {"sessionId": session}})

    def forget(self, session: str) -> None:
        """Listen to this session no longer."""
        self._callbacks.pop(session, None)

    def _request(self, method: str, **params: object) -> "asyncio.Future[JsonObject]":
        """Send a request; its answer may be Refused, or Lost."""
        number = next(self._request_ids)
        future = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        future.add_done_callback(lambda _: self._pending.pop(number, None))
        if self.is_gone:
            future.set_exception(AgentGone())
        else:
            self._send({"id": number, "method": method, "params": params})
        return future

    @property
    def is_gone(self) -> bool:
        return self._ended or self._process is None or self._process.is_finished

    async def wait_gone(self) -> None:
        """Wait until nothing more can come of it."""
        if self._process:
            await self._process.wait_finished()

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds; 0 where that cannot be known."""
        return self._process.memory_bytes if self._process else 0

    async def _watch(self) -> None:
        await self.wait_gone()
        self._fail_pending()

    def _fail_pending(self) -> None:
        self._ended = True
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(AgentGone())
                future.exception()  # nobody may be waiting for it any more

    def _send(self, message: JsonObject) -> None:
        if self._process:
            self._process.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def _handle_line(self, line: bytes) -> None:
        try:
            self._handle_message(object_or_empty(json.loads(line)))
        except Exception as error:  # noqa: BLE001 - the lines behind it may be somebody else's
            logger.debug("A line of a warm gemini was not understood: %s", type(error).__name__)

    def _handle_message(self, message: JsonObject) -> None:
        if "method" not in message:
            self._handle_response(message)
        elif message["method"] == "session/update":
            params = object_or_empty(message.get("params"))
            if listener := self._callbacks.get(str(params.get("sessionId"))):
                listener(object_or_empty(params.get("update")))
        elif message["method"] == "session/request_permission":
            # Never: the tools that we allow need none.
            self._send({"id": message.get("id"), "result": {"outcome": {"outcome": "cancelled"}}})
        elif "id" in message:
            error = {"code": _METHOD_NOT_FOUND, "message": "not supported"}
            self._send({"id": message["id"], "error": error})

    def _handle_response(self, message: JsonObject) -> None:
        number = message.get("id")
        future = self._pending.get(number) if isinstance(number, int) else None
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
