"""Leaders whose network, or whose etcd, fails at any moment of their renewal cycle, on a real API server."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from grelmicro.providers.kubernetes import KubernetesProvider
from tests.election.servers import overlap
from tests.election.support import TIMES, Work, candidate, running, until
from tests.support.proxy import Proxy

LEASE, DEADLINE, RETRY = TIMES["lease_duration"], TIMES["renew_deadline"], TIMES["retry_interval"] * 1.1
SLACK = 0.7
"""For a machine that is busy, and for two requests where other servers need one."""

FAULTS = {
    "black hole": lambda proxy: proxy.black_hole(),
    "replies lost": lambda proxy: proxy.black_hole(to_server=False),
    "replies a second late": lambda proxy: proxy.delay(1.2),
}


def provider_for(server, port=None):
    return KubernetesProvider(
        kubeconfig=server.kubeconfig_of("admin-token", port=port),
        call_timeout=TIMES["backend_timeout"],
        env_load=False,
    )


@asynccontextmanager
async def leading(election, work):
    """Run a candidate whose work is noted."""
    async with running(election) as group:
        group.start_soon(lambda: election.lead(work, repeat=True))
        yield


def spans(work):
    return [(start, end) for _, start, end in work.spans]


class Pair:
    """A leader behind a proxy, and a second candidate on another connection."""

    def __init__(self, server, name, stack):
        self.proxy = stack.enter_context(Proxy(server.address))
        self.server, self.name = server, name
        self.first, self.second = Work(clean_up=0.3), Work(clean_up=0.3)
        self.late = 0.0

    async def run(self, phase, fault, direct):
        async with provider_for(self.server, self.proxy.port) as provider:
            leader = candidate(provider.leaderelection(), self.name, retry_jitter=0)
            follower = candidate(direct.leaderelection(), self.name)
            async with leading(leader, self.first):
                await leader.wait_for_leader()
                async with leading(follower, self.second):
                    # The follower has seen the lease, and the leader has renewed it since.
                    await anyio.sleep(2 * RETRY)
                    await until(lambda: leader.last_confirmation_age() > 0.3)
                    await until(lambda: (leader.last_confirmation_age() or 0) < 0.3, step=0.001)
                    await anyio.sleep(TIMES["retry_interval"] * phase)
                    fault(self.proxy)
                    failed = anyio.current_time()
                    await self._watch(leader, follower)
                    self.taken_over = anyio.current_time() - failed
                    await anyio.sleep(0.5)
                    self.proxy.heal()  # and what was held back arrives
                    await anyio.sleep(0.5)
                    self.kept = follower.is_leader() and not leader.is_leader()

    async def _watch(self, leader, follower):
        while not follower.is_leader():
            age = leader.last_confirmation_age()
            if leader.is_leader() and age is not None:
                self.late = max(self.late, age - DEADLINE)
            await anyio.sleep(0.01)
        assert not leader.is_leader()


@pytest.mark.parametrize("phases", [2, pytest.param(12, marks=pytest.mark.soak)])
async def test_bodies_never_overlap_whenever_the_network_fails(kube_server, unique, phases):
    pairs = []
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        direct = await stack.enter_async_context(provider_for(kube_server))
        for kind, fault in FAULTS.items():
            for phase in range(phases):
                pair = Pair(kube_server, f"{unique} {kind} {phase}", stack)
                pairs.append(pair)
                group.start_soon(pair.run, phase / phases, fault, direct)
    for pair in pairs:
        assert pair.first.spans, pair.name
        assert pair.second.spans, pair.name
        assert overlap(spans(pair.first), spans(pair.second)) == 0, pair.name
        assert not pair.first.overlapped, pair.name
        assert pair.late <= 0, pair.name
        assert pair.kept, pair.name
    in_time = [pair for pair in pairs if "black hole" in pair.name]
    assert max(pair.taken_over for pair in in_time) <= LEASE + RETRY + SLACK


async def test_bodies_never_overlap_while_etcd_stands_still(kube_server, unique):
    """Requests that were cut off may be carried out when it runs again."""
    works = [Work(clean_up=0.1) for _ in range(3)]
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(provider_for(kube_server)) for _ in works]
        elections = [candidate(provider.leaderelection(), unique) for provider in providers]
        for election, work in zip(elections, works, strict=True):
            await stack.enter_async_context(leading(election, work))
        for pause in (1.0, LEASE + 1.0):
            with anyio.fail_after(30):
                await until(lambda: sum(len(work.running) for work in works) == 1)
            await anyio.sleep(2 * RETRY)
            with kube_server.etcd.paused():
                end = anyio.current_time() + pause
                while anyio.current_time() < end:
                    assert sum(election.is_leader() for election in elections) <= 1
                    for election in elections:
                        assert not election.is_leader() or election.last_confirmation_age() <= DEADLINE
                    await anyio.sleep(0.01)
                if pause > LEASE:
                    assert [work.running for work in works] == [[], [], []]
        with anyio.fail_after(30):
            await until(lambda: sum(len(work.running) for work in works) == 1)
        assert all(election.is_running() for election in elections)
    for number, work in enumerate(works):
        for other in works[number + 1 :]:
            assert overlap(spans(work), spans(other)) == 0


async def test_a_graceful_stop_hands_over_within_a_retry(kube_server, unique):
    async with provider_for(kube_server) as one, provider_for(kube_server) as two:
        first, second = (candidate(provider.leaderelection(), unique) for provider in (one, two))
        for _ in range(3):
            async with anyio.create_task_group() as group:
                async with running(first):
                    await first.wait_for_leader()
                    await group.start(second)
                    await anyio.sleep(0.2)
                    start = anyio.current_time()
                await second.wait_for_leader()
                assert anyio.current_time() - start <= RETRY + 0.1 + SLACK
                group.cancel_scope.cancel()
            first, second = second, first


async def test_an_api_server_that_was_away_longer_than_the_lease_finds_all_candidates_alive(
    kube_server, unique
):
    with Proxy(kube_server.address) as proxy:
        async with provider_for(kube_server, proxy.port) as provider:
            elections = [candidate(provider.leaderelection(), unique) for _ in range(2)]
            async with running(*elections):
                for _ in range(2):
                    with anyio.fail_after(3 * LEASE + SLACK):
                        await until(lambda: any(election.is_leader() for election in elections))
                    proxy.refuse()
                    proxy.cut()
                    await until(lambda: not any(election.is_leader() for election in elections))
                    proxy.heal()
                assert all(election.is_running() for election in elections)
