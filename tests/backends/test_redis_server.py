"""What a Redis server can do to the locks in it: forget, refuse, answer nonsense, hold foreign data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest
from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from grelmicro.coordination.redis import RedisLockAdapter
from grelmicro.coordination.redis._adapter import SHARDS
from grelmicro.errors import ProviderError
from grelmicro.providers.redis import RedisProvider
from grelmicro.testing.conformance._base import concurrently

LONG = 60.0


@pytest.fixture
async def provider(own_redis):
    async with RedisProvider(own_redis.url) as provider:
        yield provider


@pytest.fixture
def locks(provider):
    return provider.lock()


def keys(server, pattern="*"):
    return sorted(server.command("KEYS", pattern))


def digest(server, key):
    return server.command("EVAL", "return redis.sha1hex(redis.call('DUMP', KEYS[1]))", 1, key)


async def use_everything(provider, name, between):
    """Run every script there is, calling `between` before each."""
    locks, elections, schedules = provider.lock(), provider.leaderelection(), provider.schedule()
    between()
    fence = await locks.acquire(name=name, token="a", duration=LONG)
    between()
    assert await locks.acquire(name=name, token="a", duration=LONG) == fence
    between()
    assert await locks.acquire(name=name, token="b", duration=LONG) is None
    between()
    assert await locks.owned(name=name, token="a") is True
    between()
    assert await locks.release(name=name, token="a") is True
    between()
    assert (await elections.acquire_or_renew(name=name, token="a", duration=LONG)).holder == "a"
    between()
    record = await elections.acquire_or_renew(name=name, token="a", duration=LONG, metadata={"é": "🔒"})
    between()
    assert await elections.get(name=name) == record
    between()
    assert await elections.release(name=name, token="a") is True
    between()
    assert await schedules.claim(name, 1.5) is True
    between()
    assert await schedules.claim(name, 1.5) is False
    between()
    assert await schedules.last_fired(name) == 1.5
    return fence


class TestEveryWayIn:
    async def test_through_a_socket_file(self, own_redis, unique):
        async with RedisProvider(own_redis.unix_url) as provider:
            await use_everything(provider, unique, lambda: None)

    @pytest.mark.parametrize("decode_responses", [False, True])
    @pytest.mark.parametrize("protocol", [2, 3])
    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
    async def test_with_a_client_of_any_settings(
        self, redis_server, unique, decode_responses, protocol, encoding
    ):
        client = Redis.from_url(
            redis_server.url,
            decode_responses=decode_responses,
            protocol=protocol,
            encoding=encoding if not decode_responses else "utf-8",
            retry=Retry(ExponentialBackoff(), 3),
            retry_on_timeout=True,
            health_check_interval=1,
            socket_timeout=0.5,
            max_connections=1,
        )
        async with RedisProvider.from_client(client, own=True) as provider:
            await use_everything(provider, f"{unique}🔒", lambda: None)

    async def test_with_a_blocking_pool(self, redis_server, unique):
        client = Redis.from_pool(BlockingConnectionPool.from_url(redis_server.url, max_connections=1))
        async with RedisProvider.from_client(client, own=True) as provider:
            await use_everything(provider, unique, lambda: None)

    async def test_with_a_sentinels_client(self, sentinel, unique):
        sentinels = Sentinel(sentinel.addresses)
        client = sentinels.master_for(sentinel.name, decode_responses=True)
        async with RedisProvider.from_client(client, own=True) as provider:
            await use_everything(provider, unique, lambda: None)
        await sentinels.aclose()

    async def test_a_socket_timeout_of_the_client_does_not_end_an_idle_connection(self, own_redis, unique):
        client = Redis.from_url(own_redis.url, socket_timeout=0.05)
        async with RedisProvider.from_client(client, own=True) as provider, provider.lock() as locks:
            await locks.locked(name=unique)
            before = own_redis.info("stats")["total_connections_received"]
            await anyio.sleep(0.2)  # there is no event to wait for: nothing must happen
            await locks.locked(name=unique)
            # One is the helper's, asking for the number.
            assert int(own_redis.info("stats")["total_connections_received"]) == int(before) + 1


class TestForgetting:
    async def test_scripts_that_were_flushed_are_sent_again(self, own_redis, provider, unique):
        await use_everything(provider, unique, partial(own_redis.command, "SCRIPT", "FLUSH"))

    async def test_many_calls_at_once_after_a_flush(self, own_redis, locks):
        await locks.acquire(name="warm", token="a", duration=LONG)
        own_redis.command("SCRIPT", "FLUSH")
        take = partial(locks.acquire, token="a", duration=LONG)
        assert all(await concurrently([partial(take, name=f"n{number}") for number in range(500)]))
        # Each time the script was missing, its source travelled once, not once for each call.
        assert own_redis.info("commandstats")["cmdstat_eval"].startswith("calls=2,")

    async def test_scripts_in_a_cluster_are_sent_to_every_node_that_lacks_them(self, cluster, unique):
        def flush():
            for node in cluster.nodes:
                node.command("SCRIPT", "FLUSH")

        async with RedisProvider(cluster.url) as provider:
            for number in range(6):
                await use_everything(provider, f"{unique}-{number}", flush)

    async def test_every_call_works_right_after_a_restart_that_kept_the_data(
        self, provider, own_redis, unique
    ):
        await use_everything(provider, unique, partial(own_redis.restart, keep_data=True))

    async def test_fences_grow_over_a_restart_without_data(self, own_redis, locks, unique):
        names = [f"{unique}-{number}" for number in range(20)]
        before = [await locks.acquire(name=name, token="a", duration=LONG) for name in names]
        own_redis.restart(keep_data=False)
        after = [await locks.acquire(name=name, token="b", duration=LONG) for name in names]
        assert all(new > old for old, new in zip(before, after, strict=True))

    async def test_fences_grow_over_flushall_and_the_old_holder_has_lost(self, own_redis, locks, unique):
        before = await locks.acquire(name=unique, token="a", duration=LONG)
        own_redis.command("FLUSHALL")
        assert await locks.owned(name=unique, token="a") is False
        assert await locks.release(name=unique, token="a") is False
        assert await locks.acquire(name=unique, token="b", duration=LONG) > before

    async def test_fences_grow_past_a_counter_that_is_ahead_of_the_clock(self, own_redis, locks, unique):
        first = await locks.acquire(name=unique, token="a", duration=LONG)
        (counter,) = keys(own_redis, "*fence")
        own_redis.command("SET", counter, first + 10**12)
        await locks.release(name=unique, token="a")
        assert await locks.acquire(name=unique, token="b", duration=LONG) == first + 10**12 + 1

    async def test_a_renewal_after_expiry_is_a_new_grant(self, own_redis, locks, unique):
        first = await locks.acquire(name=unique, token="a", duration=LONG)
        own_redis.command("DEL", *keys(own_redis, f"*lock:{unique}"))
        assert await locks.acquire(name=unique, token="a", duration=LONG) > first


class TestState:
    @pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
    async def test_names_used_once_leave_a_fixed_number_of_keys(self, own_redis, locks, count):
        async def once(number):
            await locks.acquire(name=f"order:{number}", token="a", duration=LONG)
            await locks.release(name=f"order:{number}", token="a")

        for start in range(0, count, 2000):
            await concurrently([partial(once, number) for number in range(start, start + 2000)])
        assert own_redis.command("DBSIZE") == SHARDS

    async def test_everything_but_the_counters_expires(self, own_redis, provider, unique):
        await provider.lock().acquire(name=unique, token="a", duration=1.0001)
        await provider.leaderelection().acquire_or_renew(name=unique, token="a", duration=LONG)
        await provider.leaderelection().acquire_or_renew(name=f"{unique}-2", token="a", duration=LONG)
        await provider.leaderelection().release(name=f"{unique}-2", token="a")
        await provider.schedule().claim(unique, 1.0)
        lasting = [key for key in keys(own_redis) if own_redis.command("PTTL", key) < 0]
        assert [key.rpartition(":")[2] for key in lasting] == ["fence"]
        (lock,) = keys(own_redis, "*:lock:*")
        assert 900 < own_redis.command("PTTL", lock) <= 1001

    async def test_prefixes_keep_applications_apart(self, own_redis, provider, unique):
        sides = [RedisLockAdapter(provider=provider, prefix=prefix) for prefix in ("", "a:", "b")]
        for side in sides:
            assert await side.acquire(name=unique, token=repr(side), duration=LONG)
        assert [key.partition("grelmicro:")[0] for key in keys(own_redis, "*:lock:*")] == ["a:", "b", ""]

    async def test_the_layout_is_the_same_in_a_cluster(self, cluster, own_redis, provider, unique):
        async with RedisProvider(cluster.url) as clustered:
            for side in (provider, clustered):
                await use_everything(side, f"{unique}-{{x}}:🔒", lambda: None)
                await side.lock().acquire(name=f"{unique}-{{x}}:🔒", token="a", duration=LONG)
        mine = sorted(cluster.keys(f"*{unique}*"))
        assert mine == keys(own_redis, f"*{unique}*")
        assert len(mine) == 3

    async def test_names_spread_over_the_nodes_of_a_cluster(self, cluster, unique):
        async with RedisProvider(cluster.url) as provider, provider.lock() as locks:
            take = partial(locks.acquire, token="a", duration=LONG)
            await concurrently([partial(take, name=f"{unique}-{number}") for number in range(300)])
        for node in cluster.nodes:
            assert len(node.command("KEYS", f"*{unique}*")) > 50

    async def test_a_due_time_comes_back_exactly(self, provider, unique):
        schedules = provider.schedule()
        for due in (0.1, 1 / 3, 1796151572, 1_796_151_572.0127961, 2.0**53, 1e300):
            assert await schedules.claim(unique, due) is True
            assert await schedules.claim(unique, due) is False
            assert await schedules.last_fired(unique) == due

    async def test_a_due_time_that_is_no_time_is_refused(self, provider, unique):
        for due in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="due"):
                await provider.schedule().claim(unique, due)

    async def test_a_lease_that_is_no_length_of_time_is_refused(self, locks, provider, unique):
        for duration in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="duration"):
                await locks.acquire(name=unique, token="a", duration=duration)
            with pytest.raises(ValueError, match="duration"):
                await provider.leaderelection().acquire_or_renew(name=unique, token="a", duration=duration)

    async def test_records_are_dated_by_the_server(self, own_redis, provider, unique):
        before = own_redis.command("TIME")
        record = await provider.leaderelection().acquire_or_renew(name=unique, token="a", duration=1.5)
        start = datetime.fromtimestamp(int(before[0]), UTC)
        assert start <= record.acquired_at <= start + timedelta(seconds=5)
        assert record.lease_duration == 1.5


FOREIGN = {
    "a string": lambda server, key: server.command("SET", key, "mine"),
    "a list": lambda server, key: server.command("RPUSH", key, "mine"),
    "a hash": lambda server, key: server.command("HSET", key, "mine", "1"),
    "a number": lambda server, key: server.command("SET", key, "7"),
}


class TestUnclearAnswers:
    @pytest.fixture
    def calls(self, provider, unique):
        locks, elections, schedules = provider.lock(), provider.leaderelection(), provider.schedule()
        return {
            "lock": [
                partial(locks.acquire, name=unique, token="a", duration=LONG),
                partial(locks.release, name=unique, token="a"),
                partial(locks.locked, name=unique),
                partial(locks.owned, name=unique, token="a"),
            ],
            "election": [
                partial(elections.acquire_or_renew, name=unique, token="a", duration=LONG),
                partial(elections.release, name=unique, token="a"),
                partial(elections.get, name=unique),
            ],
            "schedule": [partial(schedules.claim, unique, 2.0), partial(schedules.last_fired, unique)],
        }

    async def _fill(self, own_redis, calls, kind):
        """Return the key that calls of this kind use, having removed it."""
        await calls[kind][0]()
        (key,) = keys(own_redis, f"*:{kind}:*")
        own_redis.command("DEL", key)
        return key

    @pytest.mark.parametrize("kind", ["lock", "election", "schedule"])
    @pytest.mark.parametrize("foreign", FOREIGN)
    async def test_a_foreign_key_in_the_way_is_an_error_that_names_it(self, own_redis, calls, kind, foreign):
        key = await self._fill(own_redis, calls, kind)
        FOREIGN[foreign](own_redis, key)
        before = digest(own_redis, key)
        for call in calls[kind]:
            with pytest.raises(ProviderError, match=r"in use for something else|cannot be read") as caught:
                await call()
            assert key in str(caught.value)
            assert caught.value.__cause__ is not None
        assert digest(own_redis, key) == before
        own_redis.command("DEL", key)
        await calls[kind][0]()

    @pytest.mark.parametrize("field", ["until", "transitions", "holder", "metadata"])
    async def test_a_record_that_lost_a_field_is_not_taken_over(self, own_redis, calls, field, unique):
        await calls["election"][0]()
        (key,) = keys(own_redis, "*:election:*")
        own_redis.command("HDEL", key, field)
        for call in calls["election"]:
            with pytest.raises(ProviderError, match="cannot be read"):
                await call()

    @pytest.mark.parametrize("metadata", ["{", "[1]", "null", '"x"'])
    async def test_metadata_that_is_no_object_is_an_error(self, own_redis, calls, metadata):
        await calls["election"][0]()
        (key,) = keys(own_redis, "*:election:*")
        own_redis.command("HSET", key, "metadata", metadata)
        with pytest.raises(ProviderError, match="unexpected shape"):
            await calls["election"][2]()

    async def test_a_lock_without_expiry_is_an_error_for_others(self, own_redis, locks, unique):
        await locks.acquire(name=unique, token="a", duration=LONG)
        own_redis.command("PERSIST", *keys(own_redis, "*:lock:*"))
        with pytest.raises(ProviderError, match="something else"):
            await locks.acquire(name=unique, token="b", duration=LONG)

    async def test_a_counter_that_holds_no_number_is_an_error(self, own_redis, locks, unique):
        await locks.acquire(name=unique, token="a", duration=LONG)
        await locks.release(name=unique, token="a")
        own_redis.command("SET", *keys(own_redis, "*fence"), "mine")
        with pytest.raises(ProviderError, match="something else"):
            await locks.acquire(name=unique, token="a", duration=LONG)
        assert await locks.locked(name=unique) is False

    async def test_a_full_server_says_so_and_release_still_works(self, own_redis, locks, unique):
        await locks.acquire(name=unique, token="a", duration=LONG)
        own_redis.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(ProviderError, match="out of memory"):
            await locks.acquire(name=f"{unique}-2", token="a", duration=LONG)
        assert await locks.release(name=unique, token="a") is True
        own_redis.command("CONFIG", "SET", "maxmemory", 0)
        assert await locks.acquire(name=f"{unique}-2", token="a", duration=LONG)

    async def test_a_replica_answers_nothing_and_works_once_promoted(self, own_redis, calls):
        for call in (calls["lock"][0], calls["election"][0], calls["schedule"][0]):
            await call()
        for name in ("known", "unknown"):
            own_redis.command("REPLICAOF", "127.0.0.1", 1)
            for call in [call for kind in calls.values() for call in kind]:
                with pytest.raises(ProviderError, match="read-only"):
                    await call()
            own_redis.command("REPLICAOF", "NO", "ONE")
            if name == "known":
                own_redis.command("FLUSHALL")
        for call in [call for kind in calls.values() for call in kind]:
            await call()

    async def test_a_server_that_lost_its_primary_says_so(self, own_redis, locks, unique):
        await locks.acquire(name=unique, token="a", duration=LONG)
        own_redis.command("CONFIG", "SET", "replica-serve-stale-data", "no")
        own_redis.command("REPLICAOF", "127.0.0.1", 1)
        for call in (partial(locks.locked, name=unique), partial(locks.release, name=unique, token="a")):
            with pytest.raises(ProviderError, match=r"(?i)link with master"):
                await call()

    async def test_a_user_without_permission_is_told(self, own_redis, unique):
        own_redis.command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-eval", "-evalsha")
        url = f"redis://limited:pw@127.0.0.1:{own_redis.port}"
        async with RedisProvider(url) as provider, provider.lock() as locks:
            with pytest.raises(ProviderError, match="permission"):
                await locks.locked(name=unique)
