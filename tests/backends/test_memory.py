"""The memory backends keep every promise, on asyncio and on trio."""

from __future__ import annotations

import pytest

from grelmicro.coordination.memory import (
    MemoryLeaderElectionAdapter,
    MemoryLockAdapter,
    MemoryScheduleAdapter,
)
from grelmicro.providers.memory import MemoryProvider, MemoryStore
from grelmicro.testing import virtual_asyncio, virtual_trio
from grelmicro.testing.conformance import (
    KindsSuite,
    LeaderElectionBackendSuite,
    LockBackendSuite,
    LockSuite,
    QueueingLockBackendSuite,
    ScheduleBackendSuite,
    WakingElectionBackendSuite,
)

pytestmark = pytest.mark.variant("memory")


CLOCKS = {
    "asyncio": "asyncio",
    "trio": "trio",
    "virtual-asyncio": virtual_asyncio(),
    "virtual-trio": virtual_trio(),
}


@pytest.fixture(params=CLOCKS.values(), ids=CLOCKS)
def anyio_backend(request):
    return request.param


@pytest.fixture
def provider():
    return MemoryProvider()


class Quick:
    """Knobs for a backend without a network."""

    short = 0.05
    grace = 0.01


class TestLocks(Quick, LockBackendSuite):
    keeps_fence_after_data_loss = True

    @pytest.fixture(autouse=True)
    def _provider(self, provider):
        self.provider = provider

    async def lose_data(self):
        # As after a restart of the process.
        self.provider._store = MemoryStore()

    @pytest.fixture
    async def backend(self, provider):
        async with MemoryLockAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider):
        return provider.lock()


class TestElections(Quick, LeaderElectionBackendSuite):
    @pytest.fixture
    async def backend(self, provider):
        async with MemoryLeaderElectionAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider):
        return provider.leaderelection()


class TestSchedules(Quick, ScheduleBackendSuite):
    @pytest.fixture
    async def backend(self, provider):
        async with MemoryScheduleAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider):
        return provider.schedule()


class TestQueueing(Quick, QueueingLockBackendSuite):
    @pytest.fixture
    def processes(self, provider):
        return tuple(provider.lock() for _ in range(4))


class TestWakingElections(Quick, WakingElectionBackendSuite):
    @pytest.fixture
    def processes(self, provider):
        return tuple(provider.leaderelection() for _ in range(3))


class TestKinds(KindsSuite):
    @pytest.fixture
    def backends(self, provider):
        return provider.lock(), provider.leaderelection(), provider.schedule()


class TestLock(Quick, LockSuite):
    @pytest.fixture
    def backend(self, provider):
        return provider.lock()

    @pytest.fixture
    def peer(self, provider):
        return provider.lock()
