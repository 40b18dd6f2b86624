"""The processes of the CLI that one program keeps: started ahead, and shared."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import anyio

from gemini_cli_mcp.providers.gemini.acp_pool import AcpPool
from gemini_cli_mcp.providers.gemini.acp_process import AcpSlot
from gemini_cli_mcp.providers.gemini.launcher import ProcessKind
from gemini_cli_mcp.providers.gemini.ready_pool import ReadyPool, ReadySlot


@dataclass(frozen=True, eq=False)
class ProcessPools:
    """Both pools, which serve all providers of the program."""

    ready: ReadyPool
    shared: AcpPool

    async def run(self, first: ProcessKind | None) -> None:
        """Run both until cancelled; at first, processes of the kind `first` are started ahead."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.ready.run, first)
            tasks.start_soon(self.shared.run)


@dataclass(frozen=True)
class ProcessSource:
    """The processes that can serve runs of one kind."""

    pools: ProcessPools
    kind: ProcessKind

    def in_use(self) -> AbstractContextManager[None]:
        """Tell the pools about a run, from before it waits for a process until it ends."""
        return self.pools.ready.in_use(self.kind)

    def take_ready(self) -> ReadySlot | None:
        return self.pools.ready.take(self.kind)

    def take_shared(self) -> AcpSlot | None:
        return self.pools.shared.find_slot(self.kind)
