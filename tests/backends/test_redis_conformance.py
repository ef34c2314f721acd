"""The Redis backends keep every promise, however the server is reached and whatever client is given."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from grelmicro.coordination.redis import (
    RedisLeaderElectionAdapter,
    RedisLockAdapter,
    RedisScheduleAdapter,
)
from grelmicro.providers.redis import RedisProvider
from grelmicro.testing.conformance import (
    KindsSuite,
    LeaderElectionBackendSuite,
    LockBackendSuite,
    QueueingLockBackendSuite,
    ScheduleBackendSuite,
    WakingElectionBackendSuite,
)

CLIENT_OPTIONS = {
    "resp2": {"protocol": 2, "decode_responses": True, "max_connections": 10},
    "resp3": {"protocol": 3, "encoding": "latin-1", "retry": Retry(ExponentialBackoff(), 5)},
}
PLACES = [
    pytest.param("redis", marks=pytest.mark.variant("redis")),
    pytest.param("tls", marks=pytest.mark.variant("tls")),
    pytest.param("sentinel", marks=pytest.mark.variant("sentinel")),
    pytest.param("cluster", marks=pytest.mark.variant("cluster")),
    *(pytest.param(f"client-{name}", marks=pytest.mark.variant("redis")) for name in CLIENT_OPTIONS),
    pytest.param("client-cluster", marks=pytest.mark.variant("cluster")),
]
FEW_PLACES = [place for place in PLACES if place.values[0] in ("redis", "cluster")]

CUT_TIME = """
for _, key in ipairs(redis.call('KEYS', '*' .. ARGV[1] .. '*')) do
  local left = redis.call('PTTL', key) - ARGV[2]
  if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
end
"""
FORGET = "for _, key in ipairs(redis.call('KEYS', 'grelmicro:*')) do redis.call('DEL', key) end"


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
async def providers(request, place):
    """Make providers of one place, each with a connection of its own."""
    async with AsyncExitStack() as stack:

        async def make():
            return await stack.enter_async_context(_provider(request, place))

        yield make


def _provider(request, place):
    get = request.getfixturevalue
    match place.split("-", 1):
        case ["redis"]:
            return RedisProvider(get("redis_url"))
        case ["tls"]:
            return RedisProvider(get("redis_tls").url)
        case ["sentinel" | "cluster" as name]:
            return RedisProvider(get(name).url)
        case ["client", "cluster"]:
            host, port = get("cluster").nodes[0].address
            client = RedisCluster(host, port, decode_responses=True, max_connections=10)
            return RedisProvider.from_client(client, own=True)
        case ["client", options]:
            client = Redis.from_url(get("redis_server").url, **CLIENT_OPTIONS[options])
            return RedisProvider.from_client(client, own=True)
    raise AssertionError(place)


class OnServers:
    """Time passes for real on one server; elsewhere the remaining time of each lock is cut."""

    @pytest.fixture(autouse=True)
    def situation(self, request, place, unique):
        get = request.getfixturevalue
        self.place, self.unique_part = place, unique
        self.many = 2000 if place in ("redis", "cluster") else 200
        if "cluster" in place:
            self.urls = [node.url for node in get("cluster").nodes]
        elif "sentinel" in place:
            self.urls = [get("sentinel").primary.url]
        else:
            self.urls = [get("redis_url") if place == "redis" else get("redis_server").url]

    async def lapse(self, seconds):
        if self.place == "redis":
            await super().lapse(seconds)
        else:
            self._everywhere(CUT_TIME, self.unique_part, round(seconds * 1000))

    def _everywhere(self, script, *arguments):
        for url in self.urls:
            with BlockingRedis.from_url(url) as client:
                client.eval(script, 0, *arguments)


class TestLocks(OnServers, LockBackendSuite):
    keeps_fence_after_data_loss = True

    async def lose_data(self):
        self._everywhere(FORGET)

    @pytest.fixture
    async def backend(self, providers):
        async with RedisLockAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture
    async def peer(self, providers):
        return (await providers()).lock()


class TestElections(LeaderElectionBackendSuite):
    @pytest.fixture(params=FEW_PLACES)
    def place(self, request):
        return request.param

    @pytest.fixture
    async def backend(self, providers):
        async with RedisLeaderElectionAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture
    async def peer(self, providers):
        return (await providers()).leaderelection()


class TestQueueing(OnServers, QueueingLockBackendSuite):
    @pytest.fixture(params=FEW_PLACES)
    def place(self, request):
        return request.param

    @pytest.fixture
    async def processes(self, providers):
        return tuple([(await providers()).lock() for _ in range(4)])


class TestWakingElections(WakingElectionBackendSuite):
    @pytest.fixture(params=FEW_PLACES)
    def place(self, request):
        return request.param

    @pytest.fixture
    async def processes(self, providers):
        return tuple([(await providers()).leaderelection() for _ in range(3)])


class TestSchedules(ScheduleBackendSuite):
    @pytest.fixture(params=FEW_PLACES)
    def place(self, request):
        return request.param

    @pytest.fixture
    async def backend(self, providers):
        async with RedisScheduleAdapter(provider=await providers()) as backend:
            yield backend

    @pytest.fixture
    async def peer(self, providers):
        return (await providers()).schedule()


class TestKinds(KindsSuite):
    @pytest.fixture(params=FEW_PLACES)
    def place(self, request):
        return request.param

    @pytest.fixture
    async def backends(self, providers):
        provider = await providers()
        return provider.lock(), provider.leaderelection(), provider.schedule()
