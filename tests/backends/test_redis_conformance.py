"""The Redis backends keep every promise, however the server is reached and whatever client is given."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis, RedisCluster, Sentinel
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
    ScheduleBackendSuite,
)

CLIENT_OPTIONS = {
    "resp2": {"protocol": 2},
    "resp2-decoded": {"protocol": 2, "decode_responses": True, "max_connections": 10},
    "resp3": {"protocol": 3, "encoding": "latin-1", "health_check_interval": 1},
    "resp3-decoded": {
        "protocol": 3,
        "decode_responses": True,
        "retry": Retry(ExponentialBackoff(), 5),
        "retry_on_timeout": True,
    },
}
PLACES = [
    pytest.param("redis", marks=pytest.mark.variant("redis")),
    pytest.param("unix", marks=pytest.mark.variant("redis")),
    pytest.param("tls", marks=pytest.mark.variant("tls")),
    pytest.param("sentinel", marks=pytest.mark.variant("sentinel")),
    pytest.param("cluster", marks=pytest.mark.variant("cluster")),
    *(pytest.param(f"client-{name}", marks=pytest.mark.variant("redis")) for name in CLIENT_OPTIONS),
    pytest.param("client-sentinel", marks=pytest.mark.variant("sentinel")),
    pytest.param("client-cluster", marks=pytest.mark.variant("cluster")),
]
FEW_PLACES = [place for place in PLACES if place.values[0] in ("redis", "cluster", "client-resp3-decoded")]

CUT_TIME = """
for _, key in ipairs(redis.call('KEYS', '*' .. ARGV[1] .. '*')) do
  local left = redis.call('PTTL', key) - ARGV[2]
  if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
end
"""


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
async def providers(request, place):
    """Make providers of one place, each with a connection of its own."""
    async with AsyncExitStack() as stack:

        async def make():
            return await stack.enter_async_context(_provider(request, place, stack))

        yield make


def _provider(request, place, stack):
    get = request.getfixturevalue
    match place.split("-", 1):
        case ["redis"]:
            return RedisProvider(get("redis_url"))
        case ["unix"]:
            return RedisProvider(get("redis_server").unix_url)
        case ["tls"]:
            return RedisProvider(get("redis_tls").url)
        case ["sentinel" | "cluster" as name]:
            return RedisProvider(get(name).url)
        case ["client", "cluster"]:
            host, port = get("cluster").nodes[0].address
            client = RedisCluster(host, port, decode_responses=True, max_connections=10)
            return RedisProvider.from_client(client, own=True)
        case ["client", "sentinel"]:
            sentinels = Sentinel(get("sentinel").addresses)
            stack.push_async_callback(sentinels.aclose)
            return RedisProvider.from_client(sentinels.master_for(get("sentinel").name), own=True)
        case ["client", options]:
            client = Redis.from_url(get("redis_server").url, **CLIENT_OPTIONS[options])
            return RedisProvider.from_client(client, own=True)
    raise AssertionError(place)


class TestLocks(LockBackendSuite):
    """Time passes for real on one server and in the cluster; elsewhere each lock's remaining time is cut."""

    @pytest.fixture(autouse=True)
    def time(self, request, place, unique):
        self._cut_time = None
        if place in ("redis", "cluster"):
            return
        get = request.getfixturevalue
        nodes = get("cluster").nodes if "cluster" in place else [None]
        server = get("sentinel").primary if "sentinel" in place else get("redis_server")

        def cut(seconds):
            for node in nodes:
                (node or server).command("EVAL", CUT_TIME, 0, unique, round(seconds * 1000))

        self._cut_time = cut

    async def lapse(self, seconds):
        if self._cut_time is None:
            await super().lapse(seconds)
        else:
            self._cut_time(seconds)

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
