"""A program that uses shared ACP processes, as `serve` does, and the processes it started."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.providers.gemini.process_pools import ProcessSource
from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.providers.run_slots import AnyGrant, AnySource
from gemini_cli_mcp.research.requests import SearchRequest
from gemini_cli_mcp.research.researcher import Researcher
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.research.search import search
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace
from tests.support import QUESTION, Result, Stub, eventually
from tests.support.cli_processes import acp_pids


class SharedSlotsFirst(RunLimiter):
    """A limiter that prefers shared slots, so that tests need not fill the dedicated ones first."""

    def _free_grant(self, source: AnySource | None) -> AnyGrant | None:
        return self._shared_grant(source) or super()._free_grant(None)


class AcpProgram:
    """Runs searches in one program."""

    def __init__(
        self, stub: Stub, researcher: Researcher, source: ProcessSource, settings: Settings
    ) -> None:
        self.stub = stub
        self._researcher = researcher
        self._source = source
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

    def has_ready_process(self, model: str | None = None) -> bool:
        """Whether an ACP process is ready for a search; if not, one is requested."""
        kind = self._source.kind
        if model:
            kind = replace(kind, profile=replace(kind.profile, model=model))
        slot = self._source.pools.shared.find_slot(kind)
        if slot:
            slot.release()
        return slot is not None

    async def wait_ready(
        self, except_pids: list[int] | None = None, model: str | None = None
    ) -> None:
        """Wait until an ACP process other than these is ready."""
        await eventually(
            lambda: self.has_ready_process(model) and set(self.pids()) - set(except_pids or []), 60
        )
        self.stub.messages.clear()


@asynccontextmanager
async def acp_program(stub: Stub) -> AsyncGenerator[AcpProgram]:
    settings = stub.settings
    workspace = Workspace(settings.config_dir)
    settings = settings.model_copy(update={"ready": 0})
    providers = ProviderRegistry(settings, workspace, stub.environ, keeps_processes=True)
    providers.limiter = SharedSlotsFirst(settings.concurrency, settings.queue)
    [provider] = providers.configured
    assert isinstance(provider, GeminiCliProvider) and providers.pools
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(providers.run_search_pools)
            researcher = Researcher(settings, providers.configured, workspace)
            source = ProcessSource(providers.pools, provider.search_kind)
            yield AcpProgram(stub, researcher, source, settings)
            tasks.cancel_scope.cancel()
    finally:
        workspace.close()
