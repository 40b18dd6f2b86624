"""A program that uses shared ACP processes, as `serve` does, and the processes it started."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.providers.run_limiter import FindSlot, RunLimiter
from gemini_cli_mcp.research.requests import SearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace
from tests.support import QUESTION, Result, Stub, eventually


class SharedSlotsFirst(RunLimiter):
    """A limiter that prefers shared slots, so that tests need not fill the dedicated ones first."""

    def _free_slot(self, find_slot: FindSlot[Any] | None) -> Any:
        return (find_slot() if find_slot else None) or super()._free_slot(None)


class AcpProgram:
    """Runs searches in one program."""

    def __init__(
        self, stub: Stub, researcher: Researcher, provider: GeminiCliProvider, settings: Settings
    ) -> None:
        self.stub = stub
        self._researcher = researcher
        self._provider = provider
        self._settings = settings

    async def search(
        self, query: str = QUESTION, progress: ProgressCallback | None = None
    ) -> Result:
        context = CallContext(
            progress=progress or self.stub.messages.append, timeout=self._settings.timeout
        )
        return to_json(await search(SearchRequest(query), context, self._researcher))

    def pids(self) -> list[int]:
        """Return the pids of this program's ACP processes."""
        return acp_pids(self.stub)

    @property
    def has_ready_process(self) -> bool:
        """Whether an ACP process is ready for the next search."""
        return self._provider.has_ready_process

    async def wait_ready(self, except_pids: list[int] | None = None) -> None:
        """Wait until an ACP process other than these is ready."""
        await eventually(
            lambda: self.has_ready_process and set(self.pids()) - set(except_pids or []), 60
        )
        self.stub.messages.clear()


@asynccontextmanager
async def acp_program(stub: Stub) -> AsyncGenerator[AcpProgram]:
    settings = stub.settings
    workspace = Workspace(settings.config_dir)
    providers = ProviderRegistry(settings, workspace, stub.environ, warm=True)
    providers.limiter = SharedSlotsFirst(settings.concurrency, settings.queue)
    [provider] = providers.configured
    assert isinstance(provider, GeminiCliProvider)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(providers.run_pools)
            researcher = Researcher(settings, providers.configured, workspace)
            yield AcpProgram(stub, researcher, provider, settings)
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()


def acp_pids(stub: Stub) -> list[int]:
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue  # the process has exited
        is_ours = f"{stub.config_dir}/servers/".encode() in environ
        if is_ours and b"--acp" in command and b"guardian_main.py" not in command:
            pids.append(int(folder.name))
    return pids
