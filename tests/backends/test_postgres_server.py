"""What a PostgreSQL server can do to the locks in it: lock their rows, forget, lack or refuse them."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from contextlib import asynccontextmanager

import anyio
import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grelmicro.coordination.postgres import (
    PostgresLeaderElectionAdapter,
    PostgresLockAdapter,
    PostgresScheduleAdapter,
)
from grelmicro.coordination.postgres._table import Table
from grelmicro.errors import ProviderError
from grelmicro.providers.postgres import PostgresProvider
from tests.backends._postgres import run_sql

LONG = 60.0
ADAPTERS = [PostgresLockAdapter, PostgresLeaderElectionAdapter, PostgresScheduleAdapter]


@pytest.fixture(scope="module")
def shared_database(postgres_server):
    with postgres_server.database() as url:
        yield url


@pytest.fixture
async def database(shared_database):
    """A database without our tables."""
    await run_sql(
        shared_database, "DROP TABLE IF EXISTS grelmicro_locks, grelmicro_leaders, grelmicro_schedules"
    )
    return shared_database


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
async def transaction(url):
    """Somebody else's transaction."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def use_everything(provider, name):
    locks, elections, schedules = provider.lock(), provider.leaderelection(), provider.schedule()
    fence = await locks.acquire(name=name, token="a", duration=LONG)
    assert await locks.acquire(name=name, token="a", duration=LONG) == fence
    assert await locks.acquire(name=name, token="b", duration=LONG) is None
    assert await locks.owned(name=name, token="a") is True
    assert await locks.release(name=name, token="a") is True
    record = await elections.acquire_or_renew(name=name, token="a", duration=LONG, metadata={"é": "🔒\0"})
    assert await elections.get(name=name) == record
    assert record.metadata == {"é": "🔒\0"}
    assert await elections.release(name=name, token="a") is True
    assert await schedules.claim(name, 1.5) is True
    assert await schedules.claim(name, 1.5) is False
    assert await schedules.last_fired(name) == 1.5
    return fence


class TestClock:
    @pytest.mark.parametrize("server_zone", ["America/St_Johns"])
    async def test_session_time_zones_make_no_difference(self, postgres_database, unique, server_zone):
        database = postgres_database
        await run_sql(
            database, f"ALTER DATABASE {database.rpartition('/')[2]} SET timezone = '{server_zone}'"
        )
        zones = ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Zurich"]
        for number, zone in enumerate(zones):
            name, other = f"{unique}-{number}", zones[number - 1]
            async with (
                PostgresProvider(f"{database}?timezone={zone}") as here,
                PostgresProvider(f"{database}?timezone={other}") as there,
            ):
                fence = await here.lock().acquire(name=name, token="a", duration=LONG)
                assert await there.lock().acquire(name=name, token="b", duration=LONG) is None
                assert await here.lock().release(name=name, token="a") is True
                assert await there.lock().acquire(name=name, token="b", duration=LONG) > fence
                assert await here.lock().locked(name=name) is True
        left = await run_sql(
            database, "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM grelmicro_locks"
        )
        assert all(LONG - 10 < seconds <= LONG for seconds in left)

    @pytest.mark.parametrize("many", [False, True])
    async def test_a_lease_begins_after_the_wait_for_its_row(self, locks, database, unique, sql, many):
        names = [f"{unique}-{number}" for number in range(20 if many else 1)]
        for name in names:
            assert await locks.acquire(name=name, token="old", duration=0.001)
        async with transaction(database) as other, anyio.create_task_group() as tasks:
            await other.execute("SELECT FROM grelmicro_locks FOR UPDATE")
            for name in names:
                tasks.start_soon(lambda name=name: locks.acquire(name=name, token="a", duration=0.8))
            await anyio.sleep(0.5)
            await other.execute("ROLLBACK; BEGIN")
            freed = anyio.current_time()
        waited = anyio.current_time() - freed
        left = await sql(
            "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM grelmicro_locks"
        )
        assert len(left) == len(names)
        assert all(0.8 - waited - 0.2 < seconds <= 0.8 for seconds in left)

    async def test_microseconds_count(self, locks, unique, sql):
        await locks.acquire(name=unique, token="a", duration=1.000001)
        (lease,) = await sql("SELECT to_char(expires_at, 'US') FROM grelmicro_locks")
        assert lease != "000000"
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        (now,) = await sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        assert 0 < now - fence < 60_000_000


class TestFences:
    async def test_they_grow_after_a_row_was_deleted_by_hand(self, locks, unique, sql):
        held = await locks.acquire(name=unique, token="a", duration=LONG)
        await sql("DELETE FROM grelmicro_locks")
        assert await locks.release(name=unique, token="a") is False
        taken = await locks.acquire(name=unique, token="b", duration=LONG)
        assert taken > held

    async def test_they_grow_by_one_while_the_clock_is_behind(self, locks, unique, sql):
        await locks.acquire(name=unique, token="a", duration=LONG)
        await locks.release(name=unique, token="a")
        await sql("UPDATE grelmicro_locks SET fence = 9000000000000000")
        assert await locks.acquire(name=unique, token="b", duration=LONG) == 9_000_000_000_000_001
        await locks.release(name=unique, token="b")
        both = await asyncio.gather(
            locks.acquire(name=unique, token="c", duration=LONG),
            locks.acquire(name=f"{unique}-2", token="c", duration=LONG),
        )
        assert both[0] == 9_000_000_000_000_002

    async def test_a_released_row_stays_and_keeps_its_fence(self, locks, unique, sql):
        await locks.acquire(name=unique, token="a", duration=LONG)
        await locks.release(name=unique, token="a")
        assert await sql("SELECT token FROM grelmicro_locks WHERE fence > 0") == [""]


class TestCollection:
    async def test_rows_unused_for_an_hour_go_and_all_others_stay(self, locks, unique, sql):
        await asyncio.gather(
            *(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG) for n in range(1500))
        )
        await sql(
            "UPDATE grelmicro_locks SET expires_at = clock_timestamp() - interval '59 minutes'"
            " WHERE name LIKE '%1'"
        )
        await sql(
            "UPDATE grelmicro_locks SET expires_at = clock_timestamp() - interval '61 minutes'"
            " WHERE name LIKE '%2'"
        )
        for _ in range(8):
            await asyncio.gather(
                *(locks.acquire(name=f"{unique}-{n}0", token="b", duration=LONG) for n in range(1, 150))
            )
        assert await sql("SELECT count(*)::int FROM grelmicro_locks WHERE name LIKE '%2'") == [0]
        assert await sql("SELECT count(*)::int FROM grelmicro_locks") == [1350]

    async def test_a_row_that_is_locked_or_was_just_renewed_is_left_alone(self, locks, database, unique, sql):
        await locks.acquire(name=unique, token="a", duration=LONG)
        await sql("UPDATE grelmicro_locks SET expires_at = clock_timestamp() - interval '2 hours'")
        collect = Table("lock_table", table_name="grelmicro_locks", schema="public").sql("collect")
        async with transaction(database) as other:
            await other.execute("SELECT FROM grelmicro_locks FOR UPDATE")
            assert await sql(collect, "") == [None]
            assert await sql("SELECT name FROM grelmicro_locks") == [unique]
            await other.execute("UPDATE grelmicro_locks SET expires_at = clock_timestamp()")
        assert await sql(collect, "") == [None]
        assert await sql("SELECT name FROM grelmicro_locks") == [unique]

    async def test_names_used_once_leave_no_more_rows_than_an_hour_brings(self, locks, unique, sql):
        for batch in range(12):
            names = [f"{unique}-{batch}-{n}" for n in range(200)]
            await asyncio.gather(*(locks.acquire(name=name, token="a", duration=LONG) for name in names))
            await asyncio.gather(*(locks.release(name=name, token="a") for name in names))
            await sql("UPDATE grelmicro_locks SET expires_at = clock_timestamp() - interval '2 hours'")
        (rows,) = await sql("SELECT count(*)::int FROM grelmicro_locks")
        assert rows < 1500

    async def test_schedules_are_never_forgotten(self, provider, unique, sql):
        await asyncio.gather(*(provider.schedule().claim(f"{unique}-{n}", 1.0) for n in range(500)))
        assert await sql("SELECT count(*)::int FROM grelmicro_schedules") == [500]


class TestRowsLockedBySomebodyElse:
    async def test_that_call_times_out_and_its_neighbours_do_not_notice(self, database, unique):
        names = [f"{unique}-{number}" for number in range(100)]
        async with PostgresProvider(database, call_timeout=1.5) as provider:
            locks = provider.lock()
            await asyncio.gather(*(locks.acquire(name=name, token="a", duration=LONG) for name in names))
            async with transaction(database) as other:
                await other.execute("SELECT FROM grelmicro_locks WHERE name = ANY ($1) FOR UPDATE", names[:3])
                start = anyio.current_time()
                calls = [
                    asyncio.create_task(locks.acquire(name=name, token="a", duration=LONG)) for name in names
                ]
                calls += [asyncio.create_task(locks.release(name=names[0], token="a"))]
                assert all(await asyncio.gather(*calls[3:100]))
                for name in names[3:20]:
                    assert await locks.acquire(name=name, token="b", duration=LONG) is None
                assert await locks.owned(name=names[5], token="a") is True
                assert anyio.current_time() - start < 1.5
                for call in (*calls[:3], calls[100]):
                    with pytest.raises(TimeoutError, match=r"within 1\.5 s"):
                        await call
            assert await locks.release(name=names[0], token="a") is True
            assert await locks.acquire(name=names[1], token="b", duration=LONG) is None

    async def test_one_by_one_they_do_not_use_up_the_lanes(self, database, unique):
        names = [f"{unique}-{number}" for number in range(12)]
        async with PostgresProvider(database, call_timeout=2) as provider:
            locks = provider.lock()
            await asyncio.gather(*(locks.acquire(name=name, token="a", duration=LONG) for name in names))
            async with transaction(database) as other:
                await other.execute("SELECT FROM grelmicro_locks FOR UPDATE")
                stuck = []
                for name in names:
                    stuck.append(asyncio.create_task(locks.release(name=name, token="a")))
                    await locks.locked(name=name + "-neighbour")
                assert await locks.acquire(name=f"{unique}-new", token="a", duration=LONG)
                assert not any(call.done() for call in stuck)
            assert all(await asyncio.gather(*stuck))

    async def test_a_lock_given_back_is_noticed_at_once(self, locks, database, unique):
        await locks.acquire(name=unique, token="a", duration=LONG)
        async with anyio.create_task_group() as tasks:
            async with transaction(database) as other:
                await other.execute("SELECT FROM grelmicro_locks FOR UPDATE")
                tasks.start_soon(lambda: locks.release(name=unique, token="a"))
                await anyio.sleep(0.3)
            with anyio.fail_after(0.3):
                while await locks.locked(name=unique):
                    await anyio.lowlevel.checkpoint()

    async def test_a_name_that_an_open_transaction_inserts_delays_nobody_else(self, database, unique):
        async with PostgresProvider(database, call_timeout=1.5) as provider:
            locks = provider.lock()
            await locks.locked(name=unique)
            async with transaction(database) as other:
                await other.execute(
                    "INSERT INTO grelmicro_locks VALUES ($1, 'b', clock_timestamp() + interval '1 hour', 1)",
                    f"{unique}-7",
                )
                start = anyio.current_time()
                calls = [
                    asyncio.create_task(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG))
                    for n in range(50)
                ]
                assert all(await asyncio.gather(*(call for n, call in enumerate(calls) if n != 7)))
                assert anyio.current_time() - start < 1.5
                assert not calls[7].done()
            assert await calls[7] is None

    async def test_a_fire_is_claimed_once_whatever_locks_its_row(self, provider, database, unique):
        schedules = provider.schedule()
        await schedules.claim(unique, 1.0)
        async with transaction(database) as other:
            await other.execute("SELECT FROM grelmicro_schedules FOR UPDATE")
            claims = [asyncio.create_task(schedules.claim(unique, 2.0)) for _ in range(10)]
            await anyio.sleep(0.25)
        assert sorted(await asyncio.gather(*claims)) == [False] * 9 + [True]


class TestBatches:
    async def test_the_same_name_twice_in_one_turn(self, locks, unique):
        first, second, holder, released, third = await asyncio.gather(
            locks.acquire(name=unique, token="a", duration=LONG),
            locks.acquire(name=unique, token="b", duration=LONG),
            locks.owned(name=unique, token="a"),
            locks.release(name=unique, token="a"),
            locks.acquire(name=unique, token="a", duration=LONG),
        )
        assert first
        assert second is None
        assert holder is True
        assert released is True
        assert third > first

    async def test_many_waiters_on_one_name_are_refused_together_and_its_holder_is_not(
        self, provider, locks, unique
    ):
        fence = await locks.acquire(name=unique, token="holder", duration=LONG)
        calls = [locks.acquire(name=unique, token=f"t{n}", duration=LONG) for n in range(200)]
        calls.insert(50, locks.acquire(name=unique, token="holder", duration=LONG))
        calls.insert(150, locks.release(name=unique, token="holder"))
        answers = await asyncio.gather(*calls)
        assert answers[50] == fence
        assert answers[150] is True
        granted = [answer for n, answer in enumerate(answers) if answer and n not in {50, 150}]
        assert len(granted) <= 1

    async def test_one_call_that_the_server_refuses_fails_alone(self, provider, locks, unique):
        calls = [
            asyncio.create_task(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG))
            for n in range(100)
        ]
        bad = asyncio.create_task(locks.acquire(name=f"{unique}\0", token="a", duration=LONG))
        worse = asyncio.create_task(locks.acquire(name=f"{unique}\ud800", token="a", duration=LONG))
        calls += [
            asyncio.create_task(locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG))
            for n in range(100, 200)
        ]
        assert all(await asyncio.gather(*calls))
        with pytest.raises(asyncpg.CharacterNotInRepertoireError):
            await bad
        with pytest.raises((UnicodeEncodeError, asyncpg.DataError)):
            await worse

    async def test_a_record_that_makes_no_sense_is_an_error_of_that_election_alone(
        self, provider, unique, sql
    ):
        elections = provider.leaderelection()
        for name in (unique, f"{unique}-2"):
            await elections.acquire_or_renew(name=name, token="a", duration=LONG)
        await sql("UPDATE grelmicro_leaders SET metadata = 'no JSON' WHERE name = $1", unique)
        bad, good = await asyncio.gather(
            elections.get(name=unique), elections.get(name=f"{unique}-2"), return_exceptions=True
        )
        assert isinstance(bad, ValueError)
        assert good.holder == "a"


class TestIsolationLevels:
    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    async def test_any_default_will_do(self, database, unique, level):
        database += f"?default_transaction_isolation={level.replace(' ', '%20')}"
        async with PostgresProvider(database) as one, PostgresProvider(database) as two:
            await use_everything(one, unique)
            for _ in range(10):
                answers = await asyncio.gather(
                    *(
                        side.lock().acquire(name=f"{unique}-{n}", token=f"{side is one}", duration=LONG)
                        for n in range(20)
                        for side in (one, two)
                    )
                )
                pairs = zip(answers[::2], answers[1::2], strict=True)
                assert all((a is None) != (b is None) for a, b in pairs)
                for side in (one, two):
                    await asyncio.gather(
                        *(
                            side.lock().release(name=f"{unique}-{n}", token=f"{side is one}")
                            for n in range(20)
                        )
                    )


class TestSchema:
    async def test_twenty_processes_that_start_together_agree(self, database, unique):
        program = """
            import asyncio, os, sys
            from grelmicro.coordination import postgres
            from grelmicro.providers.postgres import PostgresProvider

            async def main(url, name, token, start):
                async with PostgresProvider(url) as provider:
                    await provider.check()
                    os.write(ready, b".")
                    await asyncio.to_thread(os.read, start, 1)
                    won = await provider.lock().acquire(name=name, token=token, duration=60)
                    await provider.leaderelection().acquire_or_renew(name=name, token=token, duration=60)
                    await provider.schedule().claim(name, 1.0)
                    os.write(winners, b"." * bool(won))

            is_ready, ready = os.pipe()
            won, winners = os.pipe()
            start, go = os.pipe()
            children = []
            for number in range(20):
                child = os.fork()
                if child == 0:
                    asyncio.run(main(*sys.argv[1:], f"t{number}", start))
                    os._exit(0)
                children.append(child)
            for _ in children:
                os.read(is_ready, 1)
            os.write(go, b"." * 20)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert codes == [0] * 20, codes
            os.write(winners, b"|")
            assert os.read(won, 100) == b".|"
        """
        done = await anyio.run_process(
            [sys.executable, "-c", textwrap.dedent(program), database, unique], check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    async def test_a_schema_and_a_table_of_ones_own(self, provider, unique, sql):
        for adapter in ADAPTERS:
            own = adapter(provider=provider, table_name=f"{adapter.__name__} 1", schema="Own Schema")
            assert '"Own Schema".' in own.schema_sql()
        locks = PostgresLockAdapter(provider=provider, table_name="t", schema="Own Schema")
        assert await locks.acquire(name=unique, token="a", duration=LONG)
        assert await sql('SELECT name FROM "Own Schema".t') == [unique]
        assert await provider.lock().acquire(name=unique, token="b", duration=LONG)

    @pytest.mark.parametrize("adapter", ADAPTERS)
    async def test_who_may_not_create_is_told_what_to_run(
        self, postgres_server, database, unique, sql, adapter
    ):
        await sql(f'CREATE ROLE "{unique}" LOGIN')
        name = database.rpartition("/")[2]
        schema = f'S"{unique}'
        async with PostgresProvider(postgres_server.url_of(name, unique)) as provider:
            backend = adapter(provider=provider, table_name='ta"ble', schema=schema)

            async def use():
                if adapter is PostgresScheduleAdapter:
                    return await backend.claim(unique, 1.0)
                if adapter is PostgresLockAdapter:
                    return await backend.acquire(name=unique, token="a", duration=LONG)
                return await backend.acquire_or_renew(name=unique, token="a", duration=LONG)

            with pytest.raises(ProviderError) as caught:
                await use()
            assert backend.schema_sql() in str(caught.value)
            assert "lost" not in str(caught.value)
            assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)
            assert "GRANT" in str(caught.value).upper()
            for statement in backend.schema_sql().split(";\n"):
                if statement.strip():
                    await sql(statement)
            quoted = '"' + schema.replace('"', '""') + '"'
            await sql(f'GRANT USAGE ON SCHEMA {quoted} TO "{unique}"')
            await sql(f'GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted}."ta""ble" TO "{unique}"')
            assert await use()
        for owned in (f'DROP OWNED BY "{unique}"', f'DROP ROLE "{unique}"'):
            await sql(owned)

    async def test_a_table_that_is_dropped_is_made_again(self, provider, unique, sql):
        for _ in range(3):
            await use_everything(provider, unique)
            await sql("DROP TABLE grelmicro_locks, grelmicro_leaders, grelmicro_schedules")
        answers = await asyncio.gather(
            *(provider.lock().acquire(name=f"{unique}-{n}", token="a", duration=LONG) for n in range(300))
        )
        assert all(answers)

    async def test_another_table_in_the_way_is_an_error(self, locks, unique, sql):
        await sql("CREATE TABLE grelmicro_locks (id int)")
        calls = [locks.acquire(name=f"{unique}-{n}", token="a", duration=LONG) for n in range(3)]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, asyncpg.UndefinedColumnError)
        with pytest.raises(asyncpg.UndefinedColumnError):
            await locks.locked(name=unique)

    async def test_a_read_only_server_is_an_error(self, database, unique, sql):
        async with PostgresProvider(database) as provider:
            await use_everything(provider, unique)
        async with PostgresProvider(f"{database}?default_transaction_read_only=on") as provider:
            for call in (
                provider.lock().acquire(name=unique, token="b", duration=LONG),
                provider.lock().release(name=unique, token="b"),
                provider.leaderelection().acquire_or_renew(name=unique, token="b", duration=LONG),
                provider.schedule().claim(unique, 9.0),
            ):
                with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                    await call


IDENTIFIERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
    lambda text: len(text.encode()) <= 63
)


class TestHostileIdentifiers:
    @settings(
        max_examples=30,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        table=IDENTIFIERS
        | st.sampled_from(
            ['"; DROP TABLE x; --', "{table}", "$1", "'", "a.b", "%s", "\\", "\n", "--", "/*", "é" * 31]
        )
    )
    async def test_any_name_is_only_a_name(self, provider, table):
        schema = table[::-1]
        if schema.lower().startswith("pg_"):
            return
        locks = PostgresLockAdapter(provider=provider, table_name=table, schema=schema)
        assert await locks.acquire(name="x", token="a", duration=LONG)
        assert await locks.owned(name="x", token="a") is True
        async with provider.client.acquire() as connection:
            found = await connection.fetchval(
                "SELECT count(*)::int FROM pg_tables WHERE tablename = $1 AND schemaname = $2", table, schema
            )
        assert found == 1
        assert await locks.release(name="x", token="a") is True

    @pytest.mark.parametrize(
        "hostile", ["'; DROP TABLE grelmicro_locks; --", '"', "$1", "%", "\\'", "{", "}"]
    )
    async def test_lock_names_and_tokens_are_only_data(self, locks, unique, hostile):
        name = unique + hostile
        assert await locks.acquire(name=name, token=hostile, duration=LONG)
        assert await locks.owned(name=name, token=hostile) is True
        assert await locks.release(name=name, token=hostile) is True
