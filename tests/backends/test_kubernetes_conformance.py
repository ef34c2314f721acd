"""The Kubernetes backends keep every promise, on the strict Lease API and on a real API server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import pytest

from grelmicro.coordination.kubernetes import (
    KubernetesLeaderElectionAdapter,
    KubernetesLockAdapter,
    KubernetesScheduleAdapter,
)
from grelmicro.providers.kubernetes import KubernetesProvider
from grelmicro.testing.conformance import (
    KindsSuite,
    LeaderElectionBackendSuite,
    LockBackendSuite,
    LockSuite,
    QueueingLockBackendSuite,
    ScheduleBackendSuite,
    WakingElectionBackendSuite,
)
from grelmicro.testing.conformance._base import concurrently
from tests.kube.support import FIXTURES


@pytest.fixture(params=FIXTURES)
def place(request):
    return request.param


@pytest.fixture
def kube(request, place):
    return request.getfixturevalue(FIXTURES[place])


@pytest.fixture
async def providers(kube):
    """Make providers of one place, each with connections and sights of its own."""
    async with AsyncExitStack() as stack:

        async def make():
            return await stack.enter_async_context(KubernetesProvider(kubeconfig=kube.kubeconfig))

        yield make


class Known:
    """The peer has seen the lease that is let lapse: what it never saw, it would wait for anew."""

    async def outlive(self, duration):
        await self.look()
        await super().outlive(duration)


class TestLocks(Known, LockBackendSuite):
    many = 200
    racers = 25
    keeps_fence_after_data_loss = True

    @pytest.fixture(autouse=True)
    def losing(self, kube, unique):
        self.kube, self.unique_part = kube, unique

    async def lose_data(self):
        """Delete what this test stored; the cluster may be somebody's."""
        for lease, body in self.kube.leases().items():
            if self.unique_part in body["metadata"].get("annotations", {}).get("grelmicro/name", ""):
                self.kube.delete(lease)

    @pytest.fixture
    async def backend(self, providers):
        async with KubernetesLockAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture(autouse=True)
    async def peer(self, providers, unique):
        peer = (await providers()).lock()
        self.look = lambda: peer.locked(name=unique)
        return peer


class TestQueueingLocks(Known, QueueingLockBackendSuite):
    @pytest.fixture
    async def processes(self, providers, unique):
        backends = [(await providers()).lock() for _ in range(4)]
        self.look = lambda: concurrently([partial(backend.locked, name=unique) for backend in backends])
        return backends


class TestWakingElections(WakingElectionBackendSuite):
    @pytest.fixture
    async def processes(self, providers):
        return [(await providers()).leaderelection() for _ in range(3)]


class TestElections(Known, LeaderElectionBackendSuite):
    racers = 25

    @pytest.fixture
    async def backend(self, providers):
        async with KubernetesLeaderElectionAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture(autouse=True)
    async def peer(self, providers, unique):
        peer = (await providers()).leaderelection()
        self.look = lambda: peer.get(name=unique)
        return peer


class TestSchedules(ScheduleBackendSuite):
    racers = 25

    @pytest.fixture
    async def backend(self, providers):
        async with KubernetesScheduleAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture
    async def peer(self, providers):
        return (await providers()).schedule()


class TestKinds(KindsSuite):
    @pytest.fixture
    async def backends(self, providers):
        provider = await providers()
        return provider.lock(), provider.leaderelection(), provider.schedule()


class TestLockUse(Known, LockSuite):
    @pytest.fixture(params=["kubernetes"])
    def place(self, request):
        return request.param

    @pytest.fixture
    async def backend(self, providers):
        async with KubernetesLockAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture(autouse=True)
    async def peer(self, providers, unique):
        peer = (await providers()).lock()
        self.look = lambda: peer.locked(name=unique)
        return peer
