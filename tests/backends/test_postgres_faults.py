"""PostgreSQL behind a faulty network: cancelled calls, lost replies, silence, restarts, many callers."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from functools import partial

import anyio
import asyncpg
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from grelmicro.coordination.postgres import PostgresLockAdapter
from grelmicro.errors import ProviderError
from grelmicro.providers.postgres import PostgresProvider
from grelmicro.testing.conformance._base import cancelled_natively
from tests.backends._postgres import run_sql
from tests.support.proxy import Proxy
from tests.support.servers import PgBouncer, PostgresServer

LONG = 60.0


@pytest.fixture(scope="module")
def own_server(postgres_server):
    """Another server, which may be stopped if it is started again."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def proxy(postgres_server):
    with Proxy(postgres_server.address) as proxy:
        yield proxy


@asynccontextmanager
async def locks_at(url, **options):
    async with PostgresProvider(url, **options) as provider:
        yield provider.lock()


async def reply_held(proxy):
    await to_thread.run_sync(proxy.wait_held_reply)


async def run_sql_works(url):
    try:
        return await run_sql(url, "SELECT 1") == [1]
    except asyncpg.TooManyConnectionsError:
        return False


async def terminate_others(url):
    await run_sql(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


class TestCancellation:
    @pytest.mark.parametrize("of", ["pool", "provider"])
    async def test_every_answer_belongs_to_its_call_whenever_others_are_cancelled(
        self, postgres_url, unique, of
    ):
        chance = random.Random(3)
        async with (
            locks_at(postgres_url) as other,
            asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
            PostgresProvider.from_client(pool)
            if of == "pool"
            else PostgresProvider(postgres_url, pool_max_size=1) as provider,
        ):
            locks = provider.lock()
            for turn in range(120):
                name = f"{unique}-{turn}"
                call = chance.choice(
                    [
                        partial(locks.acquire, name=f"{name}-x", token="a", duration=LONG),
                        partial(locks.release, name=f"{name}-x", token="a"),
                        partial(locks.owned, name=f"{name}-x", token="a"),
                    ]
                )
                await cancelled_natively(call, chance.randrange(8))
                assert await locks.acquire(name=name, token=f"t{turn}", duration=LONG)
                assert await other.owned(name=name, token=f"t{turn}") is True
                assert await other.acquire(name=name, token="other", duration=LONG) is None

    @pytest.mark.parametrize("fresh", [False, True])
    async def test_a_release_cancelled_at_any_turn_is_carried_out(self, postgres_url, unique, fresh):
        async with locks_at(postgres_url) as other:
            for turns in range(1, 13):
                name = f"{unique}-{turns}"
                async with locks_at(postgres_url) as locks:
                    side = other if fresh else locks
                    assert await side.acquire(name=name, token="a", duration=LONG)
                    await cancelled_natively(partial(locks.release, name=name, token="a"), turns)
                assert await other.acquire(name=name, token="b", duration=LONG), (
                    f"still held after {turns} turns"
                )

    @pytest.mark.parametrize("company", [False, True])
    async def test_a_cancelled_acquire_whose_reply_is_late_is_undone_by_the_release_that_follows(
        self, proxy, postgres_url, unique, company
    ):
        async with locks_at(proxy.url(postgres_url)) as locks, locks_at(postgres_url) as other:
            for _ in range(2):  # so that the statements are known to the connections
                calls = [locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG) for n in range(20)]
                await asyncio.gather(*calls)
                await locks.acquire(name=f"{unique}-0", token="a", duration=LONG)
            proxy.delay(1.0)
            acquire = asyncio.create_task(locks.acquire(name=unique, token="a", duration=LONG))
            others = [
                asyncio.create_task(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG))
                for n in range(20 if company else 0)
            ]
            await reply_held(proxy)
            with anyio.fail_after(0.5):
                while not await other.owned(name=unique, token="a"):
                    await checkpoint()
            acquire.cancel()
            release = asyncio.create_task(locks.release(name=unique, token="a"))
            await checkpoint()
            assert not release.done()
            proxy.heal()
            assert await release is True
            assert await other.acquire(name=unique, token="b", duration=LONG)
            assert all(await asyncio.gather(*others))

    async def test_an_acquire_that_nobody_waits_for_any_more_is_not_sent(self, postgres_url, unique):
        async with locks_at(postgres_url) as locks:
            calls = [
                asyncio.create_task(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG))
                for n in range(10)
            ]
            await checkpoint()
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert not any([await locks.locked(name=f"{unique}-{n}") for n in range(10)])


class TestLostConnections:
    @pytest.mark.parametrize("kept", [True, False])
    async def test_the_next_call_works_after_the_server_ended_all_sessions(
        self, postgres_database, unique, kept
    ):
        async with locks_at(postgres_database, pool_max_size=3 if kept else 1) as locks:
            for turn in range(5):
                names = [f"{unique}-{turn}-{n}" for n in range(30)]
                assert all(
                    await asyncio.gather(
                        *(locks.acquire(name=name, token="a", duration=LONG) for name in names)
                    )
                )
                await terminate_others(postgres_database)
                assert await locks.owned(name=names[0], token="a") is True
                await terminate_others(postgres_database)
                assert all(await asyncio.gather(*(locks.release(name=name, token="a") for name in names)))

    async def test_a_users_pool_full_of_dead_connections_is_no_obstacle(self, postgres_database, unique):
        async with (
            asyncpg.create_pool(postgres_database, min_size=0, max_size=5) as pool,
            PostgresProvider.from_client(pool) as provider,
        ):
            locks = provider.lock()
            for connection in [await pool.acquire() for _ in range(5)]:
                await pool.release(connection)
            assert await locks.acquire(name=unique, token="a", duration=LONG)
            await terminate_others(postgres_database)
            assert await locks.owned(name=unique, token="a") is True

    async def test_connections_may_be_as_short_lived_as_the_user_likes(self, postgres_url, unique):
        async with (
            asyncpg.create_pool(
                postgres_url, min_size=0, max_size=2, max_queries=1, max_inactive_connection_lifetime=0.01
            ) as pool,
            PostgresProvider.from_client(pool) as provider,
        ):
            locks = provider.lock()
            for turn in range(10):
                names = [f"{unique}-{turn}-{n}" for n in range(3)]
                calls = [locks.acquire(name=name, token="a", duration=LONG) for name in names]
                assert all(await asyncio.gather(*calls))
                assert await locks.release(name=names[0], token="a") is True
                assert await locks.owned(name=names[1], token="a") is True

    @pytest.mark.parametrize("call", ["acquire", "release", "claim", "lead"])
    async def test_a_reply_lost_with_its_connection_is_asked_for_again(
        self, proxy, postgres_url, unique, call
    ):
        async with PostgresProvider(proxy.url(postgres_url)) as provider, locks_at(postgres_url) as other:
            locks, elections, schedules = provider.lock(), provider.leaderelection(), provider.schedule()
            fence = await locks.acquire(name=unique, token="a", duration=LONG)
            await elections.get(name=unique)
            await schedules.last_fired(unique)
            proxy.lose_reply()
            if call == "acquire":
                assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
            elif call == "release":
                assert await locks.release(name=unique, token="a") is True
                assert await other.acquire(name=unique, token="b", duration=LONG) > fence
            elif call == "claim":
                assert await schedules.claim(unique, 5.0) is True
                assert await schedules.claim(unique, 5.0) is False
            else:
                record = await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
                assert (record.holder, record.transitions) == ("a", 0)
            assert proxy.accepted >= 2

    async def test_a_connection_lost_twice_is_an_error(self, proxy, postgres_url, unique):
        async with locks_at(proxy.url(postgres_url)) as locks:
            await locks.locked(name=unique)
            proxy.lose_reply(50)
            with pytest.raises(ProviderError) as caught:
                await locks.acquire(name=unique, token="a", duration=LONG)
            assert caught.value.__cause__ is not None
            proxy.heal()
            assert await locks.acquire(name=unique, token="a", duration=LONG)

    async def test_a_restart_costs_one_error_at_most(self, own_server, unique):
        async with locks_at(own_server.url) as locks:
            assert await locks.acquire(name=unique, token="a", duration=LONG)
            own_server.restart(keep_data=True)
            assert await locks.owned(name=unique, token="a") is True
            own_server.stop()
            with pytest.raises(ProviderError, match="cannot be reached"):
                await locks.owned(name=unique, token="a")
            own_server.start()
            assert await locks.release(name=unique, token="a") is True

    async def test_a_crash_in_the_middle_of_many_calls(self, own_server, unique):
        async with locks_at(own_server.url) as locks:
            await locks.locked(name=unique)
            calls = [
                asyncio.create_task(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG))
                for n in range(2000)
            ]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            own_server.kill()
            own_server.start()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(a, int | ProviderError) for a in answers)
            assert await locks.acquire(name=f"{unique}-new", token="a", duration=LONG)


class TestSilence:
    @pytest.mark.parametrize("company", [False, True])
    async def test_a_silent_server_costs_the_timeout_and_then_a_fresh_connection_is_used(
        self, proxy, postgres_url, unique, company
    ):
        async with locks_at(proxy.url(postgres_url), call_timeout=0.5) as locks:
            names = [f"{unique}-{n}" for n in range(20 if company else 1)]
            await asyncio.gather(*(locks.locked(name=name) for name in names))
            proxy.black_hole()
            start = anyio.current_time()
            calls = [locks.acquire(name=name, token="a", duration=LONG) for name in names]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(answer, TimeoutError)
            assert anyio.current_time() - start < 1.0
            proxy.cut()
            proxy.heal()
            assert await locks.acquire(name=f"{unique}-new", token="a", duration=LONG)

    async def test_connecting_to_a_silent_server_is_bounded_too(self, proxy, postgres_url, unique):
        proxy.black_hole()
        async with locks_at(proxy.url(postgres_url), call_timeout=0.4) as locks:
            start = anyio.current_time()
            with pytest.raises((TimeoutError, ProviderError)):
                await locks.locked(name=unique)
            with pytest.raises(ProviderError, match="does not answer"):
                await locks.provider.check()
            assert anyio.current_time() - start < 1.5

    async def test_closing_does_not_wait_for_a_silent_server(self, proxy, postgres_url, unique):
        async with anyio.create_task_group() as tasks:
            async with locks_at(proxy.url(postgres_url), call_timeout=0.5) as locks:
                await locks.locked(name=unique)
                proxy.black_hole()

                async def fail():
                    with pytest.raises(TimeoutError):
                        await locks.locked(name=unique)

                tasks.start_soon(fail)
                await checkpoint()
                start = anyio.current_time()
            assert anyio.current_time() - start < 2.0

    async def test_a_connection_that_ended_in_silence_is_not_used_again(self, proxy, postgres_url, unique):
        async with locks_at(proxy.url(postgres_url), call_timeout=0.4, pool_max_size=1) as locks:
            await locks.locked(name=unique)
            proxy.black_hole(to_server=False)
            with pytest.raises(TimeoutError):
                await locks.acquire(name=unique, token="a", duration=LONG)
            proxy.heal()
            before = proxy.accepted
            assert await locks.acquire(name=unique, token="a", duration=LONG)
            assert await locks.owned(name=unique, token="b") is False
            assert proxy.accepted == before + 1


class TestManyCallers:
    async def test_thousands_of_names_at_the_same_time_with_default_settings(
        self, proxy, postgres_url, unique
    ):
        async with locks_at(proxy.url(postgres_url)) as locks:
            names = [f"{unique}-{n}" for n in range(5000)]
            fences = await asyncio.gather(
                *(locks.acquire(name=name, token="a", duration=LONG) for name in names)
            )
            assert all(fences)
            assert all(await asyncio.gather(*(locks.release(name=name, token="a") for name in names)))
            assert proxy.accepted <= 6

    @pytest.mark.parametrize("of", ["pool", "provider"])
    async def test_hundreds_wait_for_one_name_while_its_holder_and_a_leader_go_on(
        self, postgres_url, unique, of
    ):
        async with (
            asyncpg.create_pool(postgres_url, min_size=0, max_size=5) as pool,
            PostgresProvider.from_client(pool)
            if of == "pool"
            else PostgresProvider(postgres_url, pool_max_size=5) as provider,
        ):
            locks, elections = provider.lock(), provider.leaderelection()
            fence = await locks.acquire(name=unique, token="holder", duration=LONG)
            await elections.acquire_or_renew(name=unique, token="leader", duration=LONG)
            done = anyio.Event()
            winners = []

            async def wait(token):
                while not await locks.acquire(name=unique, token=token, duration=LONG):
                    if done.is_set():
                        return
                    await anyio.sleep(0.02)
                winners.append(token)

            async with anyio.create_task_group() as tasks:
                for number in range(500):
                    tasks.start_soon(wait, f"t{number}")
                for _ in range(20):
                    with anyio.fail_after(1):
                        assert await locks.acquire(name=unique, token="holder", duration=LONG) == fence
                        record = await elections.acquire_or_renew(name=unique, token="leader", duration=LONG)
                        assert record.holder == "leader"
                with anyio.fail_after(1):
                    assert await locks.release(name=unique, token="holder") is True
                with anyio.fail_after(5):
                    while not winners:  # noqa: ASYNC110 - the waiters poll
                        await anyio.sleep(0.01)
                done.set()
            assert len(winners) == 1

    async def test_a_server_with_few_connections_left_is_enough(self, postgres_server, unique):
        with PostgresServer("-c", "max_connections=5", "-c", "max_wal_senders=0") as server:
            async with locks_at(server.url) as locks:
                hogs = [await asyncpg.connect(server.url) for _ in range(4)]
                for _ in range(3):
                    calls = [
                        locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG) for n in range(900)
                    ]
                    assert all(await asyncio.gather(*calls))
                for hog in hogs:
                    await hog.close()

    async def test_no_connection_left_is_an_error(self, postgres_server, unique):
        with PostgresServer("-c", "max_connections=5", "-c", "max_wal_senders=0") as server:
            hogs = [await asyncpg.connect(server.url) for _ in range(5)]
            async with locks_at(server.url) as locks:
                with pytest.raises(ProviderError, match="TooManyConnections"):
                    await locks.locked(name=unique)
                await hogs.pop().close()
                with anyio.fail_after(5):
                    while await run_sql_works(server.url) is False:
                        await checkpoint()
                assert await locks.locked(name=unique) is False
            for hog in hogs:
                await hog.close()


class TestPgbouncer:
    @pytest.fixture
    def bouncer(self, postgres_server):
        with PgBouncer(postgres_server, pool_size=3) as bouncer:
            yield bouncer

    @pytest.mark.variant("pgbouncer")
    @pytest.mark.parametrize("pooling", [None, True])
    async def test_many_processes_worth_of_clients_share_few_server_connections(
        self, bouncer, postgres_server, unique, pooling
    ):
        with postgres_server.database() as direct:
            url = bouncer.url_of(direct.rpartition("/")[2])
            held = set()

            async def work(side, number):
                chance = random.Random(number)
                for turn in range(12):
                    name, token = f"{unique}-{chance.randrange(8)}", f"{number}-{turn}"
                    fence = await side.lock().acquire(name=name, token=token, duration=LONG)
                    if fence is None:
                        assert await side.lock().owned(name=name, token=token) is False
                        continue
                    assert name not in held
                    held.add(name)
                    await side.leaderelection().acquire_or_renew(name=name, token=token, duration=LONG)
                    await side.schedule().claim(name, float(turn))
                    held.remove(name)
                    assert await side.lock().release(name=name, token=token) is True

            async with (
                PostgresProvider(url, transaction_pooling=pooling) as one,
                PostgresProvider(url, transaction_pooling=pooling) as two,
                PostgresProvider(url, transaction_pooling=pooling) as three,
                asyncpg.create_pool(url, min_size=0, max_size=4) as pool,
                PostgresProvider.from_client(pool) as four,
                anyio.create_task_group() as tasks,
            ):
                for number in range(40):
                    tasks.start_soon(work, [one, two, three, four][number % 4], number)
            assert await run_sql(url, "SELECT count(*)::int FROM pg_prepared_statements") == [0]

    @pytest.mark.variant("pgbouncer")
    async def test_a_pooler_that_hides_is_noticed_by_what_it_does(self, bouncer, unique):
        async with PostgresProvider(bouncer.url, transaction_pooling=False) as provider:
            locks = [provider.lock() for _ in range(4)]
            for turn in range(20):
                await asyncio.gather(
                    *(
                        lock.acquire(name=f"{unique}-{turn}-{n}", token="a", duration=LONG)
                        for n, lock in enumerate(locks * 5)
                    )
                )

    @pytest.mark.variant("pgbouncer")
    async def test_the_pooler_restarts(self, bouncer, unique):
        async with locks_at(bouncer.url) as locks:
            assert await locks.acquire(name=unique, token="a", duration=LONG)
            bouncer.restart()
            assert await locks.owned(name=unique, token="a") is True

    @pytest.mark.variant("pgbouncer")
    async def test_more_clients_than_server_connections_wait(self, postgres_server, unique):
        with PgBouncer(postgres_server, pool_size=1) as bouncer:
            async with locks_at(bouncer.url) as locks:
                assert isinstance(locks, PostgresLockAdapter)
                assert all(
                    await asyncio.gather(
                        *(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG) for n in range(1000))
                    )
                )
