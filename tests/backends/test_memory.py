"""The memory backends keep every promise, on asyncio and on trio."""

from __future__ import annotations

import pytest

from grelmicro.coordination.memory import (
    MemoryLeaderElectionAdapter,
    MemoryLockAdapter,
    MemoryScheduleAdapter,
)
from grelmicro.providers.memory import MemoryProvider
from grelmicro.testing.conformance import (
    KindsSuite,
    LeaderElectionBackendSuite,
    LockBackendSuite,
    ScheduleBackendSuite,
)

pytestmark = pytest.mark.variant("memory")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def provider():
    return MemoryProvider()


class TestLocks(LockBackendSuite):
    @pytest.fixture
    async def backend(self, provider):
        async with MemoryLockAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider):
        return provider.lock()


class TestElections(LeaderElectionBackendSuite):
    @pytest.fixture
    async def backend(self, provider):
        async with MemoryLeaderElectionAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider):
        return provider.leaderelection()


class TestSchedules(ScheduleBackendSuite):
    @pytest.fixture
    async def backend(self, provider):
        async with MemoryScheduleAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider):
        return provider.schedule()


class TestKinds(KindsSuite):
    @pytest.fixture
    def backends(self, provider):
        return provider.lock(), provider.leaderelection(), provider.schedule()
