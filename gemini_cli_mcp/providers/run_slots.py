"""Which process a run gets: one that was started ahead, a shared one, or a new one."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gemini_cli_mcp.types import ProcessUse


class Slot(Protocol):
    """Permission for one run in a process that exists already."""

    def release(self) -> None:
        """Return the slot; called once."""
        ...


R_co = TypeVar("R_co", bound=Slot, covariant=True)
S_co = TypeVar("S_co", bound=Slot, covariant=True)


class SlotSource(Hashable, Protocol[R_co, S_co]):
    """The existing processes that could serve a run. Equal sources have the same ones."""

    def take_ready(self) -> R_co | None:
        """Take a process that was started ahead, if there is one."""
        ...

    def take_shared(self) -> S_co | None:
        """Acquire a slot in a shared process, if one is free."""
        ...


@dataclass(frozen=True, eq=False)
class Grant(Generic[R_co, S_co]):
    """Permission for one run, and the slot that belongs to it; a `cold` run has none."""

    process: ProcessUse
    ready: R_co | None = None
    shared: S_co | None = None


AnySource = SlotSource[Slot, Slot]
AnyGrant = Grant[Slot, Slot]
