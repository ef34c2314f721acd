"""Locks, elections and schedules in this process's memory, on asyncio and on trio.

Every decision is synchronous, hence atomic, and follows the only checkpoint of its call: a cancelled call
has changed nothing. A release has no checkpoint at all, so that clean-up in a cancelled scope takes effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from typing_extensions import override

from grelmicro._threads import running_loop, yield_once
from grelmicro.coordination import _lease
from grelmicro.coordination._adapter import ProviderAdapter
from grelmicro.coordination._clock import utc, wall_time
from grelmicro.coordination.abc import (
    QueueingLockBackend,
    Refusal,
    ScheduleBackend,
    Succession,
    WakingElectionBackend,
)
from grelmicro.providers.memory import MemoryProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grelmicro.coordination.abc import LeaderRecord
    from grelmicro.providers.memory import MemoryStore

__all__ = ["MemoryLeaderElectionAdapter", "MemoryLockAdapter", "MemoryScheduleAdapter"]

_ELECTION_MEMORY = 3600.0  # seconds for which an election without a leader is remembered, for its transitions


class _MemoryAdapter(ProviderAdapter[MemoryProvider]):
    def __init__(self, *, provider: MemoryProvider | None = None) -> None:
        super().__init__(provider)

    @classmethod
    @override
    def _new_provider(cls) -> MemoryProvider:
        return MemoryProvider()

    @property
    def _store(self) -> MemoryStore:
        store = self._provider.client
        store.warn_of_processes()
        return store

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MemoryLockAdapter(_MemoryAdapter, QueueingLockBackend):
    """A `LockBackend` for the tasks and threads of one process; usable without being opened.

    Adapters of one provider see the same locks; an adapter made without one has locks of its own.
    """

    component_keyword: ClassVar[str] = "lock"

    @property
    @override
    def wakes(self) -> bool:
        return True

    @override
    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        await yield_once()
        return self.acquire_at_once(name, token, duration)

    def acquire_at_once(self, name: str, token: str, duration: float) -> int | None:
        """Grant like `acquire`, without yielding to the loop first."""
        store = self._store
        with store.guard:
            lease = self._take(store, name, token, duration)
            return lease.fence if lease.token == token else None

    @override
    async def acquire_or_enqueue(self, *, name: str, token: str, duration: float) -> int | Refusal:
        await yield_once()
        store, turn = self._store, (self, running_loop())
        with store.guard:
            lease = self._take(store, name, token, duration)
            if lease.token == token:
                store.turns.leave(name, turn)
                return lease.fence
            store.turns.join(name, turn)
            return Refusal(lease.expires_at - store.now())

    @override
    async def release(self, *, name: str, token: str) -> bool:
        return self.release_at_once(name, token)

    def release_at_once(self, name: str, token: str) -> bool:
        """Free like `release`."""
        store = self._store
        with store.guard:
            owned = _lease.is_owned(store.locks.get(name), token, store.now())
            if owned:
                store.locks.pop(name)
        if owned:
            store.turns.call_next(name, but=self)  # it is awake
        return owned

    @override
    async def hand_over(self, *, name: str, token: str, to: str, duration: float) -> Succession:
        store = self._store
        with store.guard:
            now, lease = store.now(), store.locks.get(name)
            if _lease.is_owned(lease, token, now):
                store.locks.pop(name)
                lease = self._take(store, name, to, duration)
            if lease is None or not _lease.is_owned(lease, to, now):
                return Succession(None, others_wait=False)
        turn = (self, running_loop())
        store.turns.leave(name, turn)
        return Succession(lease.fence, others_wait=store.turns.wanted_by_others(name, turn))

    @override
    async def pass_on(self, *, name: str) -> None:
        store = self._store
        with store.guard:
            held = _lease.is_live(store.locks.get(name), store.now())
        if not held:
            store.turns.call_next(name)

    @override
    def on_turn(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._store.turns.listen(name, (self, running_loop()), wake)

    @override
    async def locked(self, *, name: str) -> bool:
        await yield_once()
        store = self._store
        with store.guard:
            return _lease.is_live(store.locks.get(name), store.now())

    @override
    async def owned(self, *, name: str, token: str) -> bool:
        await yield_once()
        store = self._store
        with store.guard:
            return _lease.is_owned(store.locks.get(name), token, store.now())

    @staticmethod
    def _take(store: MemoryStore, name: str, token: str, duration: float) -> _lease.Lease:
        """Return the lease that stands after asking for one, perhaps somebody else's."""
        now, held = store.now(), store.locks.get(name)
        lease = _lease.take(held, token, duration, now, fence=store.mint())
        if lease is None:
            return cast("_lease.Lease", held)
        store.locks.put(name, lease, lease.expires_at, now)
        return lease


class MemoryLeaderElectionAdapter(_MemoryAdapter, WakingElectionBackend):
    """A `LeaderElectionBackend` for one process; usable without being opened.

    `transitions` is counted on for an hour after a lease ended, and starts at 0 after that.
    """

    component_keyword: ClassVar[str] = "election"

    @property
    @override
    def wakes(self) -> bool:
        return True

    @override
    async def acquire_or_renew(
        self, *, name: str, token: str, duration: float, metadata: Mapping[str, str] | None = None
    ) -> LeaderRecord:
        await yield_once()
        store = self._store
        with store.guard:
            now = store.now()
            held = store.elections.get(name)
            lease = _lease.campaign(held, token, duration, now, at=utc(wall_time()), metadata=metadata)
            if lease is not held:
                store.elections.put(name, lease, lease.expires_at + _ELECTION_MEMORY, now)
            return lease.record

    @override
    async def release(self, *, name: str, token: str) -> bool:
        store = self._store
        with store.guard:
            now = store.now()
            lease = store.elections.get(name)
            if lease is None or not _lease.is_owned(lease, token, now):
                return False
            store.elections.put(name, replace(lease, expires_at=now), now + _ELECTION_MEMORY, now)
        store.vacancies.call_all(name)
        return True

    @override
    def on_vacancy(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._store.vacancies.listen(name, (object(), running_loop()), wake)

    @override
    async def get(self, *, name: str) -> LeaderRecord | None:
        await yield_once()
        store = self._store
        with store.guard:
            lease = store.elections.get(name)
            return lease.record if lease is not None and _lease.is_live(lease, store.now()) else None


class MemoryScheduleAdapter(_MemoryAdapter, ScheduleBackend):
    """A `ScheduleBackend` for one process; usable without being opened. It keeps one number per schedule."""

    component_keyword: ClassVar[str] = "schedule"

    @override
    async def claim(self, name: str, due: float) -> bool:
        await yield_once()
        store = self._store
        with store.guard:
            claimed = _lease.claims(store.fires.get(name), due)
            if claimed:
                store.fires[name] = due
            return claimed

    @override
    async def last_fired(self, name: str) -> float | None:
        await yield_once()
        return self._store.fires.get(name)
