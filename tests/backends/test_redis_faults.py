"""Redis behind a faulty network: cancelled calls, lost replies, silence, failover, and too many callers."""

from __future__ import annotations

import gc
import random
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketAttribute
from anyio.lowlevel import checkpoint
from redis.asyncio import Redis, RedisCluster

from grelmicro.errors import ProviderError
from grelmicro.providers.redis import RedisProvider
from grelmicro.testing.conformance._base import cancelled_natively, concurrently
from tests.support._process import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import ValkeyCluster, ValkeyServer

LONG = 60.0


@pytest.fixture
def proxy(own_redis):
    with Proxy(own_redis.address) as proxy:
        yield proxy


@asynccontextmanager
async def locks_at(url, **options):
    async with RedisProvider(url, **options) as provider:
        yield provider.lock()


async def start(tasks, call):
    """Start a call in a task, and return the scope that cancels it."""
    scope = anyio.CancelScope()

    async def run():
        with scope:
            await call()

    tasks.start_soon(run)
    await checkpoint()
    return scope


async def reply_held(proxy):
    await to_thread.run_sync(proxy.wait_held_reply)


class TestCancellation:
    async def test_every_answer_belongs_to_its_call_whenever_others_are_cancelled(self, redis_server, unique):
        client = Redis.from_url(redis_server.url, max_connections=1)
        chance = random.Random(3)
        async with (
            RedisProvider.from_client(client, own=True) as provider,
            locks_at(redis_server.url) as other,
        ):
            locks = provider.lock()
            for number in range(150):
                name = f"{unique}-{number}"
                call = chance.choice(
                    [
                        partial(locks.acquire, name=name, token="gone", duration=LONG),
                        partial(locks.release, name=name, token="gone"),
                        partial(locks.owned, name=name, token="gone"),
                    ]
                )
                await cancelled_natively(call, chance.randrange(12))
                await locks.release(name=name, token="gone")
                fence = await locks.acquire(name=name, token="here", duration=LONG)
                assert await other.acquire(name=name, token="here", duration=LONG) == fence
                assert await locks.owned(name=name, token="gone") is False
                assert await other.owned(name=name, token="here") is True
                assert await locks.locked(name=f"{name}-never") is False

    async def test_a_reply_that_comes_after_its_caller_left_reaches_nobody_else(
        self, own_redis, proxy, unique
    ):
        async with locks_at(proxy.url(own_redis.url)) as locks:
            await locks.locked(name=unique)
            proxy.delay(0.3)
            async with anyio.create_task_group() as tasks:
                take = partial(locks.acquire, name=unique, token="gone", duration=LONG)
                scope = await start(tasks, take)
                await reply_held(proxy)
                scope.cancel()
            assert await locks.locked(name=f"{unique}-other") is False
            assert await locks.release(name=unique, token="gone") is True
            assert proxy.accepted == 1

    async def test_a_release_is_carried_through_when_its_caller_leaves(self, own_redis, proxy, unique):
        async with locks_at(proxy.url(own_redis.url)) as locks, locks_at(own_redis.url) as other:
            await locks.acquire(name=unique, token="a", duration=LONG)
            proxy.black_hole()
            async with anyio.create_task_group() as tasks:
                scope = await start(tasks, partial(locks.release, name=unique, token="a"))
                await checkpoint()
                scope.cancel()
            assert await other.locked(name=unique) is True
            # Lost with its connection, it is sent again although nobody waits for it.
            proxy.cut()
            proxy.heal()
            assert await locks.locked(name=f"{unique}-other") is False
            assert await other.locked(name=unique) is False

    async def test_a_release_does_not_overtake_the_cancelled_acquire_before_it(
        self, own_redis, proxy, unique
    ):
        async with locks_at(proxy.url(own_redis.url)) as locks:
            for script_lost in (False, True):
                for number in range(20):
                    name = f"{unique}-{script_lost}-{number}"
                    if script_lost:
                        own_redis.command("SCRIPT", "FLUSH")
                    take = partial(locks.acquire, name=name, token="a", duration=LONG)
                    await cancelled_natively(take, number % 7)
                    await locks.release(name=name, token="a")
                    assert await locks.locked(name=name) is False


class TestLostReplies:
    async def test_an_acquire_whose_reply_was_lost_is_the_same_acquire(self, own_redis, proxy, unique):
        async with locks_at(proxy.url(own_redis.url)) as locks:
            await locks.acquire(name=unique, token="a", duration=LONG)
            for number in range(5):
                name = f"{unique}-{number}"
                proxy.lose_reply()
                fence = await locks.acquire(name=name, token="a", duration=LONG)
                assert await locks.acquire(name=name, token="a", duration=LONG) == fence
                assert await locks.acquire(name=name, token="b", duration=LONG) is None

    async def test_not_held_after_a_lost_reply_counts_as_released(self, own_redis, proxy, unique):
        async with RedisProvider(proxy.url(own_redis.url)) as provider:
            locks, elections = provider.lock(), provider.leaderelection()
            await locks.acquire(name=unique, token="a", duration=LONG)
            await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
            for backend in (locks, elections):
                proxy.lose_reply()
                assert await backend.release(name=unique, token="a") is True
                assert await backend.release(name=unique, token="a") is False

    async def test_a_claim_whose_reply_was_lost_is_still_the_callers(self, own_redis, proxy, unique):
        async with RedisProvider(proxy.url(own_redis.url)) as provider:
            schedules = provider.schedule()
            await schedules.last_fired(unique)
            proxy.lose_reply()
            assert await schedules.claim(unique, 1.0) is True
            assert await schedules.claim(unique, 1.0) is False

    async def test_a_call_is_tried_twice_and_no_more(self, unique):
        tries = 0

        async def serve(stream):
            nonlocal tries
            async with stream:
                buffered = b""
                while b"EVAL" not in buffered:
                    buffered += await stream.receive()
                    if b"EVAL" not in buffered:
                        await stream.send(b"+OK\r\n" * buffered.count(b"*"))
                        buffered = b""
                tries += 1

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            async with locks_at(f"redis://127.0.0.1:{port}?protocol=2") as locks:
                with pytest.raises(ProviderError, match="lost before the reply"):
                    await locks.locked(name=unique)
            tasks.cancel_scope.cancel()
        assert tries == 2

    async def test_a_call_that_is_sent_again_comes_before_later_ones(self, own_redis, proxy, unique):
        async with RedisProvider(proxy.url(own_redis.url)) as provider:
            locks = provider.lock()
            await locks.locked(name=unique)
            fences = {}

            async def run(token):
                fences[token] = await locks.acquire(name=unique, token=token, duration=LONG)

            proxy.black_hole()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, "first")
                before = proxy.bytes_to_server
                while proxy.bytes_to_server == before:
                    await checkpoint()
                # In one turn: the connection is found lost, and another call is made.
                provider.dispatcher._only.reset(ConnectionError())
                tasks.start_soon(run, "later")
                proxy.cut()
                proxy.heal()
            assert fences["first"]
            assert fences["later"] is None

    async def test_a_second_loss_is_an_error(self, own_redis, proxy, unique):
        async with locks_at(proxy.url(own_redis.url)) as locks:
            await locks.locked(name=unique)
            proxy.lose_reply(count=100)
            with pytest.raises(ProviderError, match=r"lost|connect"):
                await locks.acquire(name=unique, token="a", duration=LONG)
            proxy.heal()
            assert await locks.acquire(name=unique, token="a", duration=LONG)

    async def test_many_calls_on_a_connection_that_is_cut_all_come_to_an_answer(
        self, own_redis, proxy, unique
    ):
        async with locks_at(proxy.url(own_redis.url)) as locks:
            await locks.acquire(name=unique, token="a", duration=LONG)
            proxy.delay(0.2)
            take = partial(locks.acquire, token="a", duration=LONG)
            fences = []

            async def run():
                names = [f"{unique}-{number}" for number in range(300)]
                fences.extend(await concurrently([partial(take, name=name) for name in names]))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await reply_held(proxy)
                proxy.cut()
                proxy.heal()
            assert len(fences) == 300
            assert all(fences)

    async def test_an_idle_connection_that_was_closed_is_replaced_without_notice(self, own_redis, unique):
        async with locks_at(own_redis.url) as locks:
            for _ in range(3):
                assert await locks.locked(name=unique) is False
                own_redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


class TestSilence:
    async def test_a_call_ends_within_its_bound_and_the_next_one_works(self, own_redis, proxy, unique):
        async with locks_at(proxy.url(own_redis.url), call_timeout=0.3) as locks:
            await locks.acquire(name=unique, token="a", duration=LONG)
            proxy.black_hole()
            begin = anyio.current_time()
            with pytest.raises(ProviderError, match="no reply within call_timeout"):
                await locks.acquire(name=unique, token="a", duration=LONG)
            assert anyio.current_time() - begin < 1
            accepted = proxy.accepted
            proxy.heal()
            assert await locks.acquire(name=unique, token="b", duration=LONG) is None
            assert proxy.accepted > accepted, "the silent connection was thrown away"

    async def test_a_server_that_never_answers_is_an_error_within_the_bound(self, own_redis, proxy, unique):
        proxy.black_hole()
        async with locks_at(proxy.url(own_redis.url), call_timeout=0.3) as locks:
            begin = anyio.current_time()
            with pytest.raises(ProviderError):
                await locks.locked(name=unique)
            assert anyio.current_time() - begin < 1

    async def test_calls_later_than_the_silent_one_are_tried_again_in_their_own_time(
        self, own_redis, proxy, unique
    ):
        async with locks_at(proxy.url(own_redis.url), call_timeout=0.6) as locks:
            await locks.locked(name=unique)
            proxy.black_hole()
            results = {}

            async def run(name):
                try:
                    results[name] = await locks.acquire(name=f"{unique}-{name}", token="a", duration=LONG)
                except ProviderError:
                    results[name] = None
                    proxy.heal()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, "early")
                await anyio.sleep(0.3)
                tasks.start_soon(run, "late")
            assert results["early"] is None
            assert results["late"]

    async def test_closing_is_bounded_too(self, own_redis, proxy, unique):
        async with anyio.create_task_group() as tasks:
            async with locks_at(proxy.url(own_redis.url), call_timeout=0.3) as locks:
                await locks.locked(name=unique)
                proxy.black_hole()
                scope = await start(tasks, partial(locks.release, name=unique, token="a"))
                await checkpoint()
                scope.cancel()
                begin = anyio.current_time()
            assert anyio.current_time() - begin < 1.5

    async def test_a_server_that_stops_reading_holds_up_nobody_beyond_their_bound(self, own_redis, unique):
        async with locks_at(own_redis.url, call_timeout=0.5) as locks:
            await locks.locked(name=unique)
            names = [f"{unique}-{number}".ljust(10_000, "x") for number in range(2000)]

            async def fails(name):
                with pytest.raises(ProviderError):
                    await locks.acquire(name=name, token="a", duration=LONG)

            with own_redis.paused():
                begin = anyio.current_time()
                await concurrently([partial(fails, name) for name in names])
                assert anyio.current_time() - begin < 3
            assert await locks.locked(name=unique) is False

    async def test_closing_at_any_turn_after_a_loss_leaves_no_connection_open(self, own_redis, unique):
        before = len(own_redis.command("CLIENT", "LIST").splitlines())
        for turns in range(20):
            async with RedisProvider(own_redis.url) as provider, provider.lock() as locks:
                await locks.locked(name=unique)
                provider.dispatcher._only.reset(ConnectionError())
                for _ in range(turns):
                    await checkpoint()
            gc.collect()
        assert len(own_redis.command("CLIENT", "LIST").splitlines()) == before

    async def test_a_paused_server_is_not_taken_for_a_refusal(self, own_redis, unique):
        async with locks_at(own_redis.url, call_timeout=0.3) as locks:
            await locks.acquire(name=unique, token="a", duration=LONG)
            with own_redis.paused(), pytest.raises(ProviderError):
                await locks.acquire(name=unique, token="a", duration=LONG)
            assert await locks.owned(name=unique, token="a") is True


class TestManyCallers:
    @pytest.mark.parametrize("decode_responses", [False, True])
    @pytest.mark.parametrize("protocol", [2, 3])
    async def test_any_client_serves_thousands(self, redis_server, unique, decode_responses, protocol):
        client = Redis.from_url(
            redis_server.url, max_connections=10, decode_responses=decode_responses, protocol=protocol
        )
        async with RedisProvider.from_client(client, own=True) as provider:
            await self._thousands(provider, unique, 1000)

    async def test_a_provider_serves_5000_at_once_over_one_connection(self, own_redis, unique):
        async with RedisProvider(own_redis.url) as provider:
            await self._thousands(provider, unique, 5000)
            received = int(own_redis.info("stats")["total_connections_received"])
        assert received < 20  # most of them the test's own

    async def test_a_cluster_serves_5000_at_once(self, cluster, unique):
        host, port = cluster.nodes[0].address
        client = RedisCluster(host, port, max_connections=10)
        async with RedisProvider.from_client(client, own=True) as provider:
            await self._thousands(provider, unique, 5000)

    async def test_a_client_whose_connections_are_all_in_use_does_not_stop_the_locks(
        self, redis_server, unique
    ):
        client = Redis.from_url(redis_server.url, max_connections=2)
        async with (
            RedisProvider.from_client(client, own=True) as provider,
            anyio.create_task_group() as tasks,
        ):
            for number in range(2):
                tasks.start_soon(lambda key: client.blpop(key, timeout=5), f"{unique}-{number}")
            while len(client.connection_pool._in_use_connections) < 2:
                await checkpoint()
            await self._thousands(provider, unique, 100)
            tasks.cancel_scope.cancel()

    async def test_holder_and_leader_get_through_while_500_wait_for_one_name(self, redis_server, unique):
        client = Redis.from_url(redis_server.url, max_connections=10)
        lease = 1.5
        slowest = 0.0
        async with (
            RedisProvider.from_client(client, own=True) as provider,
            anyio.create_task_group() as tasks,
        ):
            locks, elections = provider.lock(), provider.leaderelection()
            assert await locks.acquire(name=unique, token="holder", duration=lease)

            async def wait(number):
                granted = None
                while granted is None:
                    granted = await locks.acquire(name=unique, token=f"w{number}", duration=lease)
                    await anyio.sleep(0.1)

            for number in range(500):
                tasks.start_soon(wait, number)
            for _ in range(10):
                begin = anyio.current_time()
                assert await locks.acquire(name=unique, token="holder", duration=lease)
                record = await elections.acquire_or_renew(name=unique, token="holder", duration=lease)
                assert record.holder == "holder"
                slowest = max(slowest, anyio.current_time() - begin)
                await anyio.sleep(0.05)
            assert slowest < lease / 3
            assert await locks.release(name=unique, token="holder") is True
            tasks.cancel_scope.cancel()

    async def _thousands(self, provider, unique, count):
        locks = provider.lock()
        names = [f"{unique}-{number}" for number in range(count)]
        take = partial(locks.acquire, token="a", duration=LONG)
        assert all(await concurrently([partial(take, name=name) for name in names]))
        free = partial(locks.release, token="a")
        assert all(await concurrently([partial(free, name=name) for name in names]))


class TestFailover:
    async def test_a_demoted_server_behind_an_address_that_moved_is_left(self, own_redis, proxy, unique):
        with ValkeyServer() as successor:
            async with locks_at(proxy.url(own_redis.url)) as locks:
                await locks.acquire(name=unique, token="a", duration=LONG)
                own_redis.command("REPLICAOF", *successor.address)
                proxy.set_target(successor.address)
                assert await locks.acquire(name=unique, token="b", duration=LONG)
                assert proxy.accepted == 2

    async def test_the_call_after_a_failover_in_good_order_finds_the_new_primary(self, sentinel, unique):
        async with RedisProvider(sentinel.url) as provider:
            locks = provider.lock()
            before = await locks.acquire(name=unique, token="a", duration=LONG)
            await to_thread.run_sync(sentinel.failover)
            after = await locks.acquire(name=unique, token="a", duration=LONG)
            assert after >= before
            assert await locks.release(name=unique, token="a") is True
            assert await locks.acquire(name=unique, token="b", duration=LONG) > after

    # On a busy machine the sentinels take their time to agree.
    @pytest.mark.soak
    async def test_the_call_after_a_crash_finds_the_new_primary(self, sentinel, unique):
        async with RedisProvider(sentinel.url) as provider:
            locks = provider.lock()
            await locks.acquire(name=unique, token="a", duration=LONG)
            await to_thread.run_sync(sentinel.crash_primary)
            try:
                assert await locks.acquire(name=f"{unique}-2", token="a", duration=LONG)
            finally:
                await to_thread.run_sync(sentinel.recover)

    async def test_a_dead_sentinel_in_the_list_does_no_harm(self, sentinel, unique):
        url = sentinel.url.replace("redis+sentinel://", "redis+sentinel://127.0.0.1:1,")
        async with locks_at(url) as locks:
            assert await locks.locked(name=unique) is False

    async def test_a_grant_that_replication_missed_is_lost_to_its_holder_and_outgrown(
        self, own_redis, unique
    ):
        own_redis.command("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        with ValkeyServer("--replicaof", f"127.0.0.1 {own_redis.port}") as replica:
            async with locks_at(own_redis.url) as old, locks_at(replica.url) as new:
                await old.acquire(name=f"{unique}-known", token="a", duration=LONG)
                while not replica.command("KEYS", f"*{unique}-known"):
                    await checkpoint()
                replica.command("REPLICAOF", "NO", "ONE")
                forgotten = await old.acquire(name=unique, token="a", duration=LONG)
                assert await new.owned(name=unique, token="a") is False
                taken = await new.acquire(name=unique, token="b", duration=LONG)
                assert taken > forgotten
                assert await new.acquire(name=unique, token="a", duration=LONG) is None
                assert await new.release(name=unique, token="a") is False
                assert await new.owned(name=unique, token="b") is True


@pytest.fixture(scope="module")
def own_cluster():
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.mark.variant("cluster")
class TestClusterChanges:
    async def test_slots_that_moved_are_followed(self, own_cluster, unique):
        cluster = own_cluster
        async with RedisProvider(cluster.url) as provider:
            locks = provider.lock()
            fence = await locks.acquire(name=unique, token="a", duration=LONG)
            (key,) = cluster.keys(f"*lock:{unique}")
            slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", key)
            source = cluster.node_of(key)
            target = next(node for node in cluster.nodes if node is not source)
            ids = {node: node.command("CLUSTER", "MYID") for node in (source, target)}
            target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
            moving = source.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
            source.command("MIGRATE", *target.address, "", 0, 5000, "KEYS", key)
            async with anyio.create_task_group() as tasks:
                # Its two keys are at two nodes: to be tried again.
                tasks.start_soon(partial(locks.acquire, name=unique, token="a", duration=LONG))
                while not source.info("errorstats").get("errorstat_TRYAGAIN"):
                    await checkpoint()
                source.command("MIGRATE", *target.address, "", 0, 5000, "KEYS", *moving)
            assert await locks.owned(name=unique, token="a") is True
            assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
            for node in (target, source):
                node.command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
            for _ in range(3):
                assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
            assert await locks.release(name=unique, token="a") is True
            target.command("SCRIPT", "FLUSH")
            assert await locks.acquire(name=unique, token="b", duration=LONG) > fence
            assert target.command("KEYS", f"*lock:{unique}") == [key]

    async def test_a_node_that_is_away_fails_its_own_names_only_and_works_when_back(
        self, own_cluster, unique
    ):
        cluster = own_cluster
        for node in cluster.nodes:
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        async with RedisProvider(cluster.url, call_timeout=2) as provider:
            locks = provider.lock()
            names = [f"{unique}-{number}" for number in range(30)]
            for name in names:
                await locks.acquire(name=name, token="a", duration=LONG)
            away = cluster.nodes[0]
            lost = {key.rpartition(":")[2] for key in away.command("KEYS", "*:lock:*")}
            assert 0 < len(lost) < len(names)
            away.kill()
            for name in names:
                if name in lost:
                    with pytest.raises(ProviderError):
                        await locks.acquire(name=name, token="a", duration=LONG)
                else:
                    assert await locks.acquire(name=name, token="a", duration=LONG)
            away.start()
            await to_thread.run_sync(wait_until, cluster._settled, "the cluster is whole again")
            for name in names:
                assert await locks.acquire(name=name, token="a", duration=LONG)
