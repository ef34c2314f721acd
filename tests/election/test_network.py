"""A leader whose network fails at any moment of its renewal cycle, on real servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import anyio
import pytest

from tests.election.servers import overlap, provider_for
from tests.election.support import TIMES, Work, candidate, running, until
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.variant("redis"), pytest.mark.variant("postgres")]

PHASES = 12
LEASE, RETRY = TIMES["lease_duration"], TIMES["retry_interval"] * 1.1
SLACK = 0.5
"""For a machine that is busy."""

FAULTS = {
    "black hole": lambda proxy: proxy.black_hole(),
    "replies lost": lambda proxy: proxy.black_hole(to_server=False),
    "replies a second late": lambda proxy: proxy.delay(1.2),
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Pair:
    """A leader behind a proxy and a second candidate on another connection."""

    def __init__(self, url, name, stack):
        address = urlsplit(url)
        self.proxy = stack.enter_context(Proxy((address.hostname, address.port)))
        self.url, self.name = url, name
        self.first, self.second = Work(clean_up=0.3), Work(clean_up=0.3)

    async def run(self, phase, fault, direct):
        provider = provider_for(self.proxy.url(self.url))
        async with provider:
            leader = candidate(provider.leaderelection(), self.name, retry_jitter=0)
            follower = candidate(direct.leaderelection(), self.name)
            async with running(leader) as group:
                await leader.wait_for_leader()
                group.start_soon(lambda: leader.lead(self.first, repeat=True))
                await group.start(follower)
                group.start_soon(lambda: follower.lead(self.second, repeat=True))
                await until(lambda: leader.last_confirmation_age() > 0.3)
                await until(lambda: (leader.last_confirmation_age() or 0) < 0.3, step=0.001)
                await anyio.sleep(TIMES["retry_interval"] * phase / PHASES)
                fault(self.proxy)
                failed = anyio.current_time()
                await follower.wait_for_leader()
                self.taken_over = anyio.current_time() - failed
                await anyio.sleep(1)
                self.proxy.heal()  # and what was held back arrives
                await anyio.sleep(1)
                self.kept = follower.is_leader() and not leader.is_leader()


async def test_bodies_never_overlap_whenever_the_network_fails(addresses, unique):
    pairs = []
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        for url in addresses:
            direct = await stack.enter_async_context(provider_for(url))
            for kind, fault in FAULTS.items():
                for phase in range(PHASES):
                    pair = Pair(url, f"{unique} {kind} {phase}", stack)
                    pairs.append(pair)
                    group.start_soon(pair.run, phase, fault, direct)
    for pair in pairs:
        spans = [[(start, end) for _, start, end in work.spans] for work in (pair.first, pair.second)]
        assert spans[0], pair.name
        assert spans[1], pair.name
        assert overlap(*spans) == 0, pair.name
        assert not pair.first.overlapped, pair.name
        assert pair.kept, pair.name
    in_time = [pair for pair in pairs if "black hole" in pair.name]
    assert max(pair.taken_over for pair in in_time) <= LEASE + RETRY + SLACK


async def test_a_black_holed_stop_is_bounded(addresses, unique):
    async def stop(url):
        address = urlsplit(url)
        with Proxy((address.hostname, address.port)) as proxy:
            async with provider_for(proxy.url(url)) as provider:
                election, work = candidate(provider.leaderelection(), unique), Work()
                async with running(election) as group:
                    group.start_soon(election.lead, work)
                    await election.wait_for_leader()
                    await until(lambda: work.running == ["a"])
                    proxy.black_hole()
                    start = anyio.current_time()
                assert anyio.current_time() - start <= TIMES["backend_timeout"] + SLACK
                assert work.running == []
                proxy.heal()

    async with anyio.create_task_group() as group:
        for url in addresses:
            group.start_soon(stop, url)


async def test_a_graceful_stop_hands_over_within_a_retry(addresses, unique):
    async def hand_over(url):
        async with provider_for(url) as one, provider_for(url) as two:
            first, second = (candidate(provider.leaderelection(), unique) for provider in (one, two))
            for _ in range(4):
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

    async with anyio.create_task_group() as group:
        for url in addresses:
            group.start_soon(hand_over, url)


async def test_a_backend_that_was_away_longer_than_the_lease_finds_all_candidates_alive(addresses, unique):
    """Once per candidate: after each had its turn there is still a leader."""

    async def away(url):
        address = urlsplit(url)
        with Proxy((address.hostname, address.port)) as proxy:
            async with provider_for(proxy.url(url)) as provider:
                elections = [candidate(provider.leaderelection(), unique) for _ in range(2)]
                async with running(*elections):
                    for _ in range(2):
                        with anyio.fail_after(LEASE + RETRY + TIMES["backend_timeout"] + SLACK):
                            await until(lambda: any(e.is_leader() for e in elections))
                        proxy.refuse()
                        proxy.cut()
                        await until(lambda: not any(e.is_leader() for e in elections))
                        proxy.heal()
                    assert all(e.is_running() for e in elections)

    async with anyio.create_task_group() as group:
        for url in addresses:
            group.start_soon(away, url)
