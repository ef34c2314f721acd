"""The Kubernetes backends keep every promise, on the strict Lease API and on a real API server."""

from __future__ import annotations

from contextlib import AsyncExitStack

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
    ScheduleBackendSuite,
)

FIXTURES = {"kubernetes": "strict_kube", "kube-apiserver": "kube_api"}


@pytest.fixture(params=FIXTURES)
def place(request):
    return request.param


@pytest.fixture
async def providers(request, place):
    """Make providers of one place, each with connections and sights of its own."""
    async with AsyncExitStack() as stack:

        async def make():
            kubeconfig = request.getfixturevalue(FIXTURES[place]).kubeconfig
            return await stack.enter_async_context(KubernetesProvider(kubeconfig=kubeconfig))

        yield make


class Known:
    """The peer has seen the lease that is let lapse: what it never saw, it would wait for anew."""

    async def outlive(self, duration):
        await self.look()
        await super().outlive(duration)


class TestLocks(Known, LockBackendSuite):
    many = 200

    @pytest.fixture
    async def backend(self, providers):
        async with KubernetesLockAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture(autouse=True)
    async def peer(self, providers, unique):
        peer = (await providers()).lock()
        self.look = lambda: peer.locked(name=unique)
        return peer


class TestElections(Known, LeaderElectionBackendSuite):
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
