"""This process's own memory as a vendor: for one process, for tests, and for development."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from typing_extensions import override

from grelmicro.providers._base import Provider
from grelmicro.providers._memory_store import MemoryStore

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from types import TracebackType

    from grelmicro.coordination.memory import (
        MemoryLeaderElectionAdapter,
        MemoryLockAdapter,
        MemoryScheduleAdapter,
    )

__all__ = ["MemoryProvider", "MemoryStore"]


class MemoryProvider(Provider):
    """Keeps locks, elections and schedules in this process, shared by all adapters of one provider.

    It needs no opening and does no I/O, runs on asyncio and on trio, and may be used on several event loops,
    one after another. It coordinates nothing between processes; use in a forked or spawned one is logged.
    """

    vendor: ClassVar[str] = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._store = MemoryStore()

    @classmethod
    def from_client(cls, client: MemoryStore, own: bool = False) -> Self:  # noqa: ARG003, FBT001, FBT002 - like every provider's
        """Build a provider that shares the state of another, given as that one's `client`."""
        self = cls()
        self._store = client
        return self

    @property
    @override
    def client(self) -> MemoryStore:
        return self._store

    @override
    def lock(self) -> MemoryLockAdapter:
        from grelmicro.coordination.memory import MemoryLockAdapter  # noqa: PLC0415 - it imports this module

        return MemoryLockAdapter(provider=self)

    @override
    def leaderelection(self) -> MemoryLeaderElectionAdapter:
        from grelmicro.coordination.memory import MemoryLeaderElectionAdapter  # noqa: PLC0415 - as above

        return MemoryLeaderElectionAdapter(provider=self)

    @override
    def schedule(self) -> MemoryScheduleAdapter:
        from grelmicro.coordination.memory import MemoryScheduleAdapter  # noqa: PLC0415 - as above

        return MemoryScheduleAdapter(provider=self)

    @override
    async def check(self) -> None:
        return

    @override
    async def _open(self, stack: AsyncExitStack) -> None:
        return

    # The base class guards its count with a lock, which would tie a provider to the first event loop it sees.
    @override
    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    @override
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._users -= 1

    def __repr__(self) -> str:
        return "MemoryProvider()"
