"""Being woken by PostgreSQL: queues in the rows of locks, NOTIFY, and connections that listen, or do not."""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import asyncpg
import pytest
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream

from grelmicro.coordination import Lock, _line
from grelmicro.coordination.abc import Refusal
from grelmicro.coordination.postgres import PostgresLockAdapter
from grelmicro.errors import ProviderError
from grelmicro.providers import _listening
from grelmicro.providers._postgres.subscription import PostgresSubscription
from grelmicro.providers.postgres import PostgresProvider
from tests.backends._postgres import run_sql
from tests.support.proxy import Proxy
from tests.support.servers import PgBouncer, PostgresServer

LONG = 60.0
SOON = 15.0
EPOCH = "date_part('epoch', clock_timestamp())::bigint"
AGED = "UPDATE grelmicro_locks SET renewed = (SELECT jsonb_object_agg(key, 1) FROM jsonb_each(renewed))"
"""All signs of life become old."""


@pytest.fixture(scope="module")
def database(postgres_server):
    with postgres_server.database() as url:
        yield url


@pytest.fixture
async def provider(database):
    async with PostgresProvider(database) as provider:
        yield provider


@pytest.fixture
def locks(provider):
    return provider.lock()


@pytest.fixture
def sql(database):
    async def run(statement, *arguments):
        return await run_sql(database, statement, *arguments)

    return run


@asynccontextmanager
async def session(url, begin=""):
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(begin or "SELECT 1")
        yield connection
    finally:
        await connection.close()


async def until(condition):
    with anyio.fail_after(SOON):
        while not condition():
            await checkpoint()


async def heard(adapter, name="any"):
    """Listen, and wait until that is of use."""
    stop = adapter.on_turn(name, lambda: None)
    await until(lambda: adapter.wakes)
    return stop


def words(caplog):
    """Return what was logged about wake-ups: whether they come."""
    return [record.levelno == logging.INFO for record in caplog.records if "wakes" in record.message]


async def somebody_waits(url, name):
    """Wait until somebody stands in the queue."""
    with anyio.fail_after(SOON):
        while await run_sql(url, "SELECT waiting FROM grelmicro_locks WHERE name = $1", name) == [None]:
            await checkpoint()


async def take_turns(url, name, locks):
    """Let one process wait for the other, then that one for this."""

    async def take(lock):
        async with lock:
            pass

    with anyio.fail_after(SOON):
        for holder, waiter in (locks, locks[::-1]):
            async with anyio.create_task_group() as tasks, holder:
                tasks.start_soon(take, waiter)
                await somebody_waits(url, name)


async def fill_the_queue(session):
    while True:
        await session.execute(
            "SELECT pg_notify('anything', repeat('x', 7000) || n) FROM generate_series(1, 20) n"
        )


class TestQueue:
    @pytest.mark.parametrize("many", [False, True])
    async def test_a_release_that_nobody_waits_for_notifies_nobody(self, locks, database, unique, sql, many):
        async def cycles(waiter):
            async def cycle(name):
                await locks.acquire(name=name, token="a", duration=LONG)
                if waiter is not None:
                    answer = await waiter.acquire_or_enqueue(name=name, token="b", duration=LONG)
                    assert isinstance(answer, Refusal)
                assert await locks.release(name=name, token="a")

            names = [f"{unique}-{n}-{'x' * 200}" for n in range(200)]
            if many:
                await asyncio.gather(*(cycle(name) for name in names))
            else:
                for name in names:
                    await cycle(name)

        async def usage():
            return (await sql("SELECT pg_notification_queue_usage()"))[0]

        async with session(database, "LISTEN anything") as spy, PostgresProvider(database) as other:
            await spy.execute("BEGIN; SELECT 1")  # so that the server has to keep what it is told
            before = await usage()
            await cycles(None)
            assert await usage() == before
            await cycles(other.lock())
            assert await usage() > before

    async def test_a_place_lately_renewed_is_not_written_again(self, locks, provider, unique, sql):
        version = "SELECT xmin::text || ctid::text FROM grelmicro_locks WHERE name = $1"
        await locks.acquire(name=unique, token="a", duration=LONG)
        other = provider.lock()
        await other.acquire_or_enqueue(name=unique, token="b", duration=LONG)
        before = await sql(version, unique)
        for _ in range(3):
            answer = await other.acquire_or_enqueue(name=unique, token="b", duration=LONG)
            assert isinstance(answer, Refusal)
        assert await sql(version, unique) == before
        await sql(f"{AGED} WHERE name = $1", unique)
        await other.acquire_or_enqueue(name=unique, token="b", duration=LONG)
        (age,) = await sql(
            f"SELECT {EPOCH} - (renewed ->> waiting[1])::bigint FROM grelmicro_locks WHERE name = $1", unique
        )
        assert 0 <= age < SOON

    async def test_who_gives_no_sign_of_life_loses_its_place(self, locks, provider, unique, sql):
        await locks.acquire(name=unique, token="a", duration=LONG)
        for _ in range(3):
            await provider.lock().acquire_or_enqueue(name=unique, token="dead", duration=LONG)
        other, turn = provider.lock(), anyio.Event()
        await heard(other)
        other.on_turn(unique, turn.set)
        await other.acquire_or_enqueue(name=unique, token="b", duration=LONG)
        await sql(f"{AGED} WHERE name = $1", unique)
        await other.acquire_or_enqueue(name=unique, token="b", duration=LONG)
        await locks.release(name=unique, token="a")
        with anyio.fail_after(SOON):
            await turn.wait()
        assert await sql("SELECT waiting FROM grelmicro_locks WHERE name = $1", unique) == [None]

    async def test_it_holds_a_hundred_at_most_and_none_of_the_dead(self, locks, provider, unique, sql):
        length = "SELECT cardinality(waiting) FROM grelmicro_locks WHERE name = $1"
        await locks.acquire(name=unique, token="a", duration=LONG)
        for number in range(105):
            refusal = await provider.lock().acquire_or_enqueue(name=unique, token=f"{number}", duration=LONG)
            assert isinstance(refusal, Refusal)
            assert refusal.remaining > LONG / 2
        assert await sql(length, unique) == [100]
        await sql(f"{AGED} WHERE name = $1", unique)
        await provider.lock().acquire_or_enqueue(name=unique, token="late", duration=LONG)
        assert await sql(length, unique) == [1]

    @pytest.mark.parametrize("many", [False, True])
    async def test_a_release_in_flight_is_waited_for(self, locks, database, unique, many):
        names = [f"{unique}-{n}" for n in range(5 if many else 1)]
        for name in names:
            await locks.acquire(name=name, token="a", duration=LONG)
        async with session(database, "BEGIN") as other, PostgresProvider(database) as asking:
            await other.execute(
                "UPDATE grelmicro_locks SET token = '', expires_at = clock_timestamp() WHERE name = $1",
                names[0],
            )
            waiter = asking.lock()
            calls = [
                asyncio.create_task(waiter.acquire_or_enqueue(name=name, token="b", duration=LONG))
                for name in names
            ]
            assert all(isinstance(answer, Refusal) for answer in await asyncio.gather(*calls[1:]))
            done, _ = await asyncio.wait(calls[:1], timeout=0.3)
            assert not done
            await other.execute("COMMIT")
            assert isinstance(await calls[0], int)

    @pytest.mark.parametrize("many", [False, True])
    async def test_who_joins_while_the_holder_releases_is_woken(self, locks, database, unique, many):
        names = [f"{unique}-{n}" for n in range(5 if many else 1)]
        for name in names:
            await locks.acquire(name=name, token="a", duration=LONG)
        told = asyncio.Queue()
        async with session(database) as ear, session(database, "BEGIN") as joining:
            await ear.add_listener("joined", lambda *word: told.put_nowait(word[-1]))
            await joining.execute("UPDATE grelmicro_locks SET waiting = '{joined}' WHERE name = $1", names[0])
            calls = [asyncio.create_task(locks.release(name=name, token="a")) for name in names]
            assert all(await asyncio.gather(*calls[1:]))
            done, _ = await asyncio.wait(calls[:1], timeout=0.3)
            assert not done
            await joining.execute("COMMIT")
            assert await calls[0] is True
            with anyio.fail_after(SOON):
                assert await told.get() == names[0]

    async def test_a_hand_over_waits_for_its_row_and_its_neighbours_do_not(self, locks, database, unique):
        names = [f"{unique}-{n}" for n in range(20)]
        fences = [await locks.acquire(name=name, token="a", duration=LONG) for name in names]
        async with session(database, "BEGIN") as other:
            await other.execute("SELECT FROM grelmicro_locks WHERE name = $1 FOR UPDATE", names[0])
            calls = [
                asyncio.create_task(locks.hand_over(name=name, token="a", to="b", duration=LONG))
                for name in names
            ]
            rest = await asyncio.gather(*calls[1:])
            assert all(after.fencing_token > fence for after, fence in zip(rest, fences[1:], strict=True))
            assert not calls[0].done()
            await other.execute("COMMIT")
            assert (await calls[0]).fencing_token > fences[0]
        assert await locks.owned(name=names[0], token="b")

    async def test_a_hand_over_whose_reply_was_lost_is_answered_alike(
        self, postgres_server, database, unique
    ):
        with Proxy(postgres_server.address) as proxy:
            async with PostgresProvider(proxy.url(database)) as provider:
                locks = provider.lock()
                fence = await locks.acquire(name=unique, token="a", duration=LONG)
                await locks.hand_over(name=unique, token="a", to="b", duration=LONG)
                proxy.lose_reply()
                after = await locks.hand_over(name=unique, token="b", to="c", duration=LONG)
                assert after.fencing_token > fence
                assert await locks.acquire(name=unique, token="c", duration=LONG) == after.fencing_token

    async def test_a_server_that_takes_no_more_words_still_frees_locks(self):
        with PostgresServer("-c", "max_notify_queue_pages=64") as server:
            if int(server.execute("SHOW server_version_num")[0]) < 170000:
                pytest.skip("the size of the queue cannot be set before PostgreSQL 17")
            async with (
                session(server.url, "LISTEN anything") as spy,
                session(server.url) as noise,
                PostgresProvider(server.url) as provider,
            ):
                await spy.execute("BEGIN; SELECT 1")
                with pytest.raises(asyncpg.ProgramLimitExceededError):
                    await fill_the_queue(noise)
                locks, names = provider.lock(), [f"n{n}" for n in range(30)]
                for count in (1, 30):
                    for name in names[:count]:
                        await locks.acquire(name=name, token="a", duration=LONG)
                        await provider.lock().acquire_or_enqueue(name=name, token="b", duration=LONG)
                    calls = [locks.release(name=name, token="a") for name in names[:count]]
                    assert await asyncio.gather(*calls) == [True] * count
                elections = provider.leaderelection()
                await elections.acquire_or_renew(name="e", token="a", duration=LONG)
                assert await elections.release(name="e", token="a") is True


class TestTable:
    OLD = (
        'CREATE TABLE "{}" (name text COLLATE "C" PRIMARY KEY, token text COLLATE "C" NOT NULL,'
        " expires_at timestamptz NOT NULL, fence bigint NOT NULL)"
    )

    async def test_one_from_before_the_queues_is_brought_up_to_date(self, provider, unique, sql):
        await sql(self.OLD.format(unique))
        until_then = "clock_timestamp() + interval '1 minute'"
        await sql(f"INSERT INTO \"{unique}\" VALUES ('held', 'a', {until_then}, 7)")
        locks, other = (PostgresLockAdapter(provider=provider, table_name=unique) for _ in range(2))
        assert isinstance(await other.acquire_or_enqueue(name="held", token="b", duration=LONG), Refusal)
        assert await locks.acquire(name="held", token="a", duration=LONG) == 7
        assert (await locks.hand_over(name="held", token="a", to="c", duration=LONG)).others_wait is True
        assert await locks.release(name="held", token="c") is True

    async def test_who_may_not_do_that_is_told_what_to_run(self, postgres_server, database, unique, sql):
        await sql(self.OLD.format(unique))
        await sql(f'CREATE ROLE "{unique}" LOGIN')
        await sql(f'GRANT SELECT, INSERT, UPDATE, DELETE ON "{unique}" TO "{unique}"')
        url = postgres_server.url_of(database.rpartition("/")[2], unique)
        async with PostgresProvider(url) as provider, PostgresProvider(url) as other:
            locks, waiting = (
                PostgresLockAdapter(provider=side, table_name=unique) for side in (provider, other)
            )
            with pytest.raises(ProviderError) as caught:
                await locks.release(name="x", token="a")
            assert locks.schema_sql() in str(caught.value)
            assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)
            for statement in locks.schema_sql().split(";\n"):
                if statement.strip():
                    await sql(statement)
            # That is all that being woken takes.
            assert await locks.acquire(name="x", token="a", duration=LONG)
            turn = anyio.Event()
            await heard(waiting)
            waiting.on_turn("x", turn.set)
            assert isinstance(await waiting.acquire_or_enqueue(name="x", token="b", duration=LONG), Refusal)
            assert await locks.release(name="x", token="a") is True
            with anyio.fail_after(SOON):
                await turn.wait()
        for owned in (f'DROP OWNED BY "{unique}"', f'DROP ROLE "{unique}"'):
            await sql(owned)

    async def test_a_strangers_is_left_as_it_is(self, provider, unique, sql):
        await sql(f'CREATE TABLE "{unique}" (name text, token text, waiting text[])')
        locks = PostgresLockAdapter(provider=provider, table_name=unique)
        with pytest.raises(asyncpg.UndefinedColumnError):
            await locks.acquire_or_enqueue(name="x", token="a", duration=LONG)
        columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0"
        assert await sql(columns, f'"{unique}"') == ["name", "token", "waiting"]


class TestListening:
    @pytest.fixture(autouse=True)
    def _logs(self, caplog):
        caplog.set_level(logging.INFO)

    async def test_it_wakes_at_once_and_does_not_poll(self, database, unique, monkeypatch):
        monkeypatch.setattr(_line, "_SAFETY_POLL", LONG)
        async with PostgresProvider(database) as one, PostgresProvider(database) as two:
            first, second = (
                Lock(unique, backend=side.lock(), lease_duration=LONG, retry_interval=30)
                for side in (one, two)
            )
            for lock in (first, second):
                await heard(lock.backend)
            for _ in range(3):
                await take_turns(database, unique, (first, second))

    async def test_it_takes_a_connection_of_its_own(self, database, unique):
        async with PostgresProvider(database, pool_max_size=1) as provider:
            locks = provider.lock()
            await heard(locks)
            with anyio.fail_after(SOON):
                assert await locks.acquire(name=unique, token="a", duration=LONG)

    async def test_when_its_connection_ends_it_makes_another(self, locks, unique, sql, caplog):
        wakes = []
        await heard(locks)
        locks.on_turn(unique, lambda: wakes.append(locks.wakes))
        for turn in range(1, 3):
            await sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            )
            await until(lambda turn=turn: len(wakes) == 2 * turn)
        assert wakes == [False, True] * 2
        assert words(caplog) == [True, False, True, False, True]

    async def test_a_silent_network_is_noticed_and_so_is_its_recovery(
        self, postgres_server, database, monkeypatch, caplog
    ):
        monkeypatch.setattr(_listening, "_ECHO_INTERVAL", 0.05)
        with Proxy(postgres_server.address) as proxy:
            async with PostgresProvider(proxy.url(database), call_timeout=0.5) as provider:
                locks = provider.lock()
                await heard(locks)
                proxy.black_hole()
                await until(lambda: not locks.wakes)
                proxy.cut()
                proxy.heal()
                await until(lambda: locks.wakes)
        assert words(caplog) == [True, False, True]

    async def test_behind_a_pooler_that_parts_transactions_waiting_callers_poll(
        self, pgbouncer, unique, monkeypatch, caplog
    ):
        monkeypatch.setattr(_listening, "_ECHO_PATIENCE", 0.1)
        echoes = []
        send_echo = PostgresSubscription._send_echo

        async def counted(self):
            echoes.append(self)
            await send_echo(self)

        monkeypatch.setattr(PostgresSubscription, "_send_echo", counted)
        async with PostgresProvider(pgbouncer.url) as one, PostgresProvider(pgbouncer.url) as two:
            locks = one.lock()
            locks.on_turn("any", lambda: None)
            await until(lambda: len(echoes) > 3)
            assert locks.wakes is False
            assert words(caplog) == [False]
            both = [
                Lock(unique, backend=side.lock(), lease_duration=LONG, retry_interval=0.05)
                for side in (one, two)
            ]
            await take_turns(pgbouncer.url, unique, both)

    async def test_behind_one_that_does_not_they_are_woken(self, postgres_server, caplog):
        with PgBouncer(postgres_server, pool_size=10, pool_mode="session") as pgbouncer:
            async with PostgresProvider(pgbouncer.url) as provider:
                await heard(provider.lock())
        assert words(caplog) == [True]

    async def test_a_pool_lends_a_connection_if_others_are_left(self, database, unique, caplog):
        async with asyncpg.create_pool(database, min_size=0, max_size=2) as pool:
            async with PostgresProvider.from_client(pool) as provider:
                locks, elections = provider.lock(), provider.leaderelection()
                await heard(locks)
                assert await locks.acquire(name=unique, token="a", duration=LONG)
                elections.on_vacancy(unique, lambda: None)
                await until(lambda: words(caplog) == [True, False])
                assert "to spare" in caplog.text
                assert await locks.release(name=unique, token="a") is True
            async with pool.acquire(timeout=SOON) as one, pool.acquire(timeout=SOON) as two:
                assert await one.fetchval("SELECT count(*)::int FROM pg_listening_channels()") == 0
                assert await two.fetchval("SELECT count(*)::int FROM pg_listening_channels()") == 0

    async def test_it_ends_with_the_provider(self, database, sql):
        async with PostgresProvider(database) as provider:
            locks = provider.lock()
            await heard(locks)
        assert locks.wakes is False
        listening = "SELECT count(*)::int FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        with anyio.fail_after(SOON):
            while await sql(f"{listening} AND datname = current_database()") != [0]:
                await checkpoint()
        async with provider:
            await heard(locks)

    async def test_elections_in_different_tables_do_not_hear_of_each_other(self, provider, unique):
        here, there = (
            provider.leaderelection(),
            type(provider.leaderelection())(provider=provider, table_name=f"{unique}-2"),
        )
        heard_here, word = [], anyio.Event()
        here.on_vacancy(unique, lambda: heard_here.append(1))
        there.on_vacancy(unique, word.set)
        await until(lambda: here.wakes and there.wakes)
        heard_here.clear()
        word = anyio.Event()
        there.on_vacancy(unique, word.set)
        await there.acquire_or_renew(name=unique, token="a", duration=LONG)
        await there.release(name=unique, token="a")
        with anyio.fail_after(SOON):
            await word.wait()
        assert heard_here == []


class TestProcesses:
    PROGRAM = """
        import asyncio, os, sys
        from grelmicro.coordination import Lock, _line
        from grelmicro.providers.postgres import PostgresProvider

        _line._SAFETY_POLL = 300

        async def main(url, name):
            async with PostgresProvider(url) as provider:
                lock = Lock(name, backend=provider.lock(), lease_duration=300, retry_interval=30)
                print("ready", flush=True)
                for line in sys.stdin:
                    async with lock:
                        print(line.strip(), flush=True)

        asyncio.run(main(*sys.argv[1:]))
    """

    async def test_a_release_wakes_another_process(self, provider, database, unique):
        lock = Lock(unique, backend=provider.lock(), lease_duration=300, retry_interval=30)
        command = [sys.executable, "-c", textwrap.dedent(self.PROGRAM), database, unique]
        async with await anyio.open_process(command, stderr=None) as process:
            lines = BufferedByteReceiveStream(process.stdout)
            assert await lines.receive_until(b"\n", 100) == b"ready"
            for _ in range(3):
                async with lock:
                    await process.stdin.send(b"mine\n")
                    await somebody_waits(database, unique)
                with anyio.fail_after(SOON):
                    assert await lines.receive_until(b"\n", 100) == b"mine"
            await process.stdin.aclose()
            assert await process.wait() == 0

    @pytest.mark.parametrize(("processes", "most"), [(1, 3), (20, 8)])
    async def test_a_hold_costs_few_statements_however_many_wait(self, unique, processes, most):
        workers, holds = 20, 5
        with PostgresServer("-c", "shared_preload_libraries=pg_stat_statements") as server:
            server.execute("CREATE EXTENSION pg_stat_statements")
            inside = 0
            async with AsyncExitStack() as stack:
                backends = [
                    (await stack.enter_async_context(PostgresProvider(server.url))).lock()
                    for _ in range(processes)
                ]
                async with anyio.create_task_group() as tasks:

                    async def work(lock):
                        nonlocal inside
                        for _ in range(holds):
                            async with lock:
                                inside += 1
                                assert inside == 1
                                await anyio.sleep(0.002)
                                inside -= 1

                    for number in range(workers):
                        backend = backends[number % processes]
                        lock = Lock(unique, backend=backend, lease_duration=LONG, retry_interval=30)
                        tasks.start_soon(work, lock)
            (calls,) = server.execute("SELECT sum(calls) FROM pg_stat_statements")
        assert int(calls) <= most * workers * holds
