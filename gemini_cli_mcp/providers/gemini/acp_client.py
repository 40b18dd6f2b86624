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
from typing import Generic, Protocol, TypeVar, cast

import anyio

from gemini_cli_mcp import __version__
from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.process.line_process import LineProcess
from gemini_cli_mcp.providers.gemini.acp_messages import (
    PromptResult,
    SessionUpdate,
    parse_prompt_result,
    parse_session_id,
    parse_update,
)

logger = logging.getLogger(__name__)

NOT_SIGNED_IN_CODE = -32000
"""JSON-RPC error code of `session/new` when the CLI is not signed in."""
_METHOD_NOT_FOUND = -32601

UpdateCallback = Callable[[SessionUpdate], None]
"""Receives the updates of one session."""

T = TypeVar("T")


class AcpError(Exception):
    """The agent answered a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AgentUnavailable(Exception):
    """The agent exited or stopped responding; its pending requests are lost."""


class _PendingRequest(Protocol):
    """A request without a response yet."""

    def resolve(self, result: JsonValue) -> None: ...

    def fail(self, error: Exception) -> None: ...


class _Request(Generic[T]):
    """A request and the future of its parsed result."""

    def __init__(self, parse: Callable[[JsonValue], T]) -> None:
        self._parse = parse
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def resolve(self, result: JsonValue) -> None:
        if not self.future.done():
            self.future.set_result(self._parse(result))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # mark as retrieved: the caller may no longer be waiting


class AcpClient:
    """A connection to one agent process."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process
        self._request_ids = itertools.count(1)
        self._pending: dict[int, _PendingRequest] = {}
        self._callbacks: dict[str, UpdateCallback] = {}
        self._closed = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, scratch: Path
    ) -> AsyncGenerator["AcpClient"]:
        """Run the process; terminate its process tree on exit. Raise OSError if it cannot start."""
        async with (
            LineProcess.open(argv, env=env, cwd=cwd, scratch=scratch) as process,
            anyio.create_task_group() as tasks,
        ):
            client = cls(process)
            tasks.start_soon(client._read_messages)
            try:
                yield client
            finally:
                client._fail_pending()
                tasks.cancel_scope.cancel()

    async def initialize(self) -> None:
        """Perform the protocol handshake."""
        await self._request(
            "initialize",
            lambda _: None,
            protocolVersion=1,
            clientCapabilities={},
            clientInfo={"name": "gemini-cli-mcp", "version": __version__},
        )

    async def new_session(self, cwd: Path) -> str:
        """Open a session. Do not call concurrently: the CLI backs off exponentially on a lock."""
        return await self._request("session/new", parse_session_id, cwd=str(cwd), mcpServers=[])

    def prompt(
        self, session_id: str, text: str, on_update: UpdateCallback
    ) -> "asyncio.Future[PromptResult]":
        """Start the only turn of a session.

        The future resolves when the turn ends, or raises AcpError or AgentUnavailable.
        """
        self._callbacks[session_id] = on_update
        blocks = [{"type": "text", "text": text}]
        return self._request(
            "session/prompt", parse_prompt_result, sessionId=session_id, prompt=blocks
        )

    def cancel(self, session_id: str) -> None:
        """Request cancellation of the turn; the prompt's response confirms it."""
        self._send(method="session/cancel", params={"sessionId": session_id})

    def unsubscribe(self, session_id: str) -> None:
        """Stop delivering updates of this session."""
        self._callbacks.pop(session_id, None)

    def _request(
        self, method: str, parse: Callable[[JsonValue], T], **params: object
    ) -> "asyncio.Future[T]":
        """Send a request; the future may raise AcpError or AgentUnavailable."""
        request_id = next(self._request_ids)
        request = _Request(parse)
        self._pending[request_id] = request
        request.future.add_done_callback(lambda _: self._pending.pop(request_id, None))
        if self.is_closed:
            request.fail(AgentUnavailable())
        else:
            self._send(id=request_id, method=method, params=params)
        return request.future

    @property
    def is_closed(self) -> bool:
        return self._closed or self._process.is_finished

    async def wait_closed(self) -> None:
        """Wait until the process has exited and its output is exhausted."""
        await self._process.wait_finished()

    @property
    def memory_bytes(self) -> int:
        """Memory usage of the process; 0 if unknown."""
        return self._process.memory_bytes

    async def _read_messages(self) -> None:
        """Handle messages until the process has exited."""
        async for line in self._process.lines():
            try:
                self._handle_message(cast("JsonValue", json.loads(line)))
            except Exception as error:  # noqa: BLE001 - later lines may belong to other sessions
                logger.debug("Ignoring invalid message from ACP process: %s", type(error).__name__)
        self._fail_pending()

    def _fail_pending(self) -> None:
        self._closed = True
        for request in list(self._pending.values()):
            request.fail(AgentUnavailable())

    def _send(self, **message: object) -> None:
        self._process.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def _handle_message(self, message: JsonValue) -> None:
        match message:
            case {"method": "session/update", "params": {"sessionId": str(session_id), **params}}:
                if callback := self._callbacks.get(session_id):
                    callback(parse_update(params.get("update")))
            case {"method": "session/request_permission", "id": request_id}:
                # Should not happen: the tools we allow do not need permission.
                self._send(id=request_id, result={"outcome": {"outcome": "cancelled"}})
            case {"method": _, "id": request_id}:
                error = {"code": _METHOD_NOT_FOUND, "message": "not supported"}
                self._send(id=request_id, error=error)
            case {"method": _}:
                pass
            case {"id": int(request_id), **response} if request := self._pending.get(request_id):
                self._handle_response(request, response)
            case _:
                pass

    def _handle_response(self, request: _PendingRequest, response: dict[str, JsonValue]) -> None:
        match response:
            case {"error": error}:
                request.fail(_parse_error(error))
            case _:
                request.resolve(response.get("result"))


def _parse_error(error: JsonValue) -> AcpError:
    match error:
        case {"code": int(code), **fields}:
            pass
        case {**fields}:
            code = 0
        case _:
            return AcpError(0, "")
    message = fields.get("message")
    return AcpError(code, message if isinstance(message, str) else "")
