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
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.process.line_process import Dialogue

logger = logging.getLogger(__name__)

NOT_SIGNED_IN = -32000
"""The code of a refused session that has no sign-in."""
_NO_SUCH_METHOD = -32601

Listener = Callable[[Object], None]
"""Takes the updates of one session."""


class Refused(Exception):
    """The agent answered a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Lost(Exception):
    """The agent is gone, and with it whatever it was asked."""


class Agent:
    """One process that speaks the protocol."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Object]] = {}
        self._listeners: dict[str, Listener] = {}
        self._dialogue: Dialogue | None = None
        self._ended = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, scratch: Path
    ) -> AsyncGenerator["Agent"]:
        """The process, from its start to the end of its tree. Raises OSError if there is none."""
        agent = cls()
        async with (
            Dialogue.open(argv, env=env, cwd=cwd, on_line=agent._take, scratch=scratch) as dialogue,
            anyio.create_task_group() as tasks,
        ):
            agent._dialogue = dialogue
            tasks.start_soon(agent._watch)
            try:
                yield agent
            finally:
                agent._lose()
                tasks.cancel_scope.cancel()

    async def initialize(self) -> None:
        """Shake hands."""
        await self._ask(
            "initialize",
            protocolVersion=1,
            clientCapabilities={},
            clientInfo={"name": "gemini-cli-mcp", "version": __version__},
        )

    async def new_session(self, cwd: Path) -> str:
        """Open a session. One at a time: the CLI waits for a lock that doubles every wait."""
        opened = await self._ask("session/new", cwd=str(cwd), mcpServers=[])
        return str(opened.get("sessionId"))

    def prompt(self, session: str, text: str, listener: Listener) -> "asyncio.Future[Object]":
        """Begin a session's one turn; when it is over comes the answer, Refused, or Lost."""
        self._listeners[session] = listener
        prompted = [{"type": "text", "text": text}]
        return self._ask("session/prompt", sessionId=session, prompt=prompted)

    def cancel(self, session: str) -> None:
        """Ask for the turn to be ended; its answer tells that it was."""
        self._send({"method": "session/cancel", "params": {"sessionId": session}})

    def forget(self, session: str) -> None:
        """Listen to this session no longer."""
        self._listeners.pop(session, None)

    def _ask(self, method: str, **params: object) -> "asyncio.Future[Object]":
        """Send a request; its answer may be Refused, or Lost."""
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        future.add_done_callback(lambda _: self._asked.pop(number, None))
        if self.is_lost:
            future.set_exception(Lost())
        else:
            self._send({"id": number, "method": method, "params": params})
        return future

    @property
    def is_lost(self) -> bool:
        return self._ended or self._dialogue is None or self._dialogue.is_over

    async def lost(self) -> None:
        """Wait until nothing more can come of it."""
        if self._dialogue:
            await self._dialogue.over()

    @property
    def memory(self) -> int:
        """Bytes that it holds; 0 where that cannot be known."""
        return self._dialogue.memory if self._dialogue else 0

    async def _watch(self) -> None:
        await self.lost()
        self._lose()

    def _lose(self) -> None:
        self._ended = True
        for future in list(self._asked.values()):
            if not future.done():
                future.set_exception(Lost())
                future.exception()  # nobody may be waiting for it any more

    def _send(self, message: Object) -> None:
        if self._dialogue:
            self._dialogue.say(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def _take(self, line: bytes) -> None:
        try:
            self._understand(as_object(json.loads(line)))
        except Exception as error:  # noqa: BLE001 - the lines behind it may be somebody else's
            logger.debug("A line of a warm gemini was not understood: %s", type(error).__name__)

    def _understand(self, message: Object) -> None:
        if "method" not in message:
            self._answered(message)
        elif message["method"] == "session/update":
            params = as_object(message.get("params"))
            if listener := self._listeners.get(str(params.get("sessionId"))):
                listener(as_object(params.get("update")))
        elif message["method"] == "session/request_permission":
            # Never: the tools that we allow need none.
            self._send({"id": message.get("id"), "result": {"outcome": {"outcome": "cancelled"}}})
        elif "id" in message:
            error = {"code": _NO_SUCH_METHOD, "message": "not supported"}
            self._send({"id": message["id"], "error": error})

    def _answered(self, message: Object) -> None:
        number = message.get("id")
        future = self._asked.get(number) if isinstance(number, int) else None
        if not future or future.done():
            return
        if "error" in message:
            error = as_object(message["error"])
            code = error.get("code")
            told = Refused(code if isinstance(code, int) else 0, str(error.get("message") or ""))
            future.set_exception(told)
            future.exception()
        else:
            future.set_result(as_object(message.get("result")))
