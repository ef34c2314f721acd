"""What the page on backends shows is enough, and is what is there: addresses, tables, rights, keys."""

from __future__ import annotations

import re
import runpy
import shlex

import anyio
import pytest

from grelmicro.coordination import Lock, TaskLock
from grelmicro.providers.postgres import PostgresProvider
from grelmicro.providers.redis import RedisProvider
from tests.docs.snippets import PAGES, SNIPPETS, run_sql, text_of


def test_redis_addresses_are_accepted():
    runpy.run_path(str(SNIPPETS / "backends/redis_addresses.py"))


def test_postgres_addresses_are_accepted():
    runpy.run_path(str(SNIPPETS / "backends/postgres_addresses.py"))


async def use_everything(provider):
    async with provider, provider.lock() as locks, provider.leaderelection() as elections:
        assert await locks.acquire(name="stock", token="a", duration=10)
        assert await locks.release(name="stock", token="a")
        assert await elections.acquire_or_renew(name="mailer", token="a", duration=10)
        assert await elections.release(name="mailer", token="a")
        assert await provider.schedule().claim("report", 1.0)
        assert await provider.schedule().last_fired("report") == 1.0


@pytest.mark.variant("postgres")
async def test_the_tables_and_rights_are_enough(postgres_server, postgres_database):
    await run_sql(postgres_database, "DROP ROLE IF EXISTS shop")
    await run_sql(postgres_database, "CREATE ROLE shop LOGIN; REVOKE CREATE ON SCHEMA public FROM public")
    await run_sql(postgres_database, text_of("backends/postgres_tables.sql"))
    await run_sql(postgres_database, text_of("backends/postgres_grants.sql"))
    await use_everything(PostgresProvider(re.sub("//[^@]+@", "//shop@", postgres_database)))


@pytest.mark.variant("postgres")
async def test_the_tables_are_those_that_are_created(postgres_database, capsys):
    runpy.run_path(str(SNIPPETS / "backends/postgres_schema.py"))
    created = capsys.readouterr().out
    await run_sql(postgres_database, created)
    plain = created.replace('"shop".', "").replace('"', "")
    for statement in text_of("backends/postgres_tables.sql").replace('"', "").split(";"):
        assert statement.strip() in plain


@pytest.mark.variant("pgbouncer")
def test_pgbouncer_is_tested_in_the_mode_that_is_shown(pgbouncer):
    ours = (pgbouncer.directory / "pgbouncer.ini").read_text()
    assert text_of("backends/pgbouncer.ini").partition("[pgbouncer]\n")[2].strip() in ours


def test_the_server_takes_the_settings_that_are_shown(own_redis):
    for line in text_of("backends/redis.conf").splitlines():
        assert own_redis.command("CONFIG", "SET", *line.split()) == "OK"


def add_user(redis, without=""):
    words = shlex.split(text_of("backends/redis_acl.txt"))
    assert redis.command(*(word for word in words if word != without)) == "OK"
    return f"redis://shop:secret@127.0.0.1:{redis.port}"


async def contend(url, *, woken):
    """Let two processes' worth of tasks wait for one lock, with or without wake-ups."""
    async with RedisProvider(url) as here, RedisProvider(url) as there:
        backends = one, other = here.lock(), there.lock()
        fences = []

        async def take(backend):
            async with Lock("stock", backend=backend, lease_duration=10) as handle:
                fences.append(handle.fencing_token)

        heard = [anyio.Event() for _ in backends]
        stops = [backend.on_turn("word", event.set) for backend, event in zip(backends, heard, strict=True)]
        async with (
            anyio.create_task_group() as group,
            Lock("stock", backend=one, lease_duration=10) as handle,
        ):
            fences.append(handle.fencing_token)
            for backend in (one, one, other):
                group.start_soon(take, backend)
            if woken:
                for event in heard:
                    await event.wait()
            assert (one.wakes, other.wakes) == (woken, woken)
        for stop in stops:
            stop()
        assert len(fences) == 4
        assert fences == sorted(set(fences))


async def test_the_acl_is_enough_for_everything(own_redis, caplog):
    url = add_user(own_redis)
    async with RedisProvider(url) as provider:
        await provider.check()
        elections, heard = provider.leaderelection(), anyio.Event()
        stop = elections.on_vacancy("word", heard.set)
        await heard.wait()
        assert elections.wakes
        stop()
    await use_everything(RedisProvider(url))
    await contend(url, woken=True)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_without_the_channels_waiting_callers_poll_and_the_log_says_so(own_redis, caplog):
    await contend(add_user(own_redis, without="&grelmicro:*"), woken=False)
    assert "whoever waits polls" in caplog.text


async def test_the_keys_are_those_that_are_shown(own_redis):
    async with RedisProvider(own_redis.url) as provider:
        lock = Lock("stock", backend=provider.lock(), lease_duration=10)
        async with lock, TaskLock("stock", backend=provider.lock()):
            await provider.lock().acquire_or_enqueue(name="stock", token="other", duration=10)
            await provider.leaderelection().acquire_or_renew(name="mailer", token="a", duration=10)
            await provider.schedule().claim("shop:report", 1.0)
            found = {key: own_redis.command("TYPE", key) for key in own_redis.command("KEYS", "*")}
            lives = {key: int(own_redis.command("TTL", key)) for key in found}
    table = (PAGES / "backends.md").read_text().partition("### Keys")[2].partition("### ")[0]
    shown = re.findall(r"^\| `(\S+)` \| ([^|]+) \| .* \| (.+) \|$", table, re.MULTILINE)
    rows = {key: (kind.replace("sorted set", "zset"), expiry) for key, kind, expiry in shown}
    counters = {key for key in found if key.endswith(":fence")}
    assert rows.keys() - counters == found.keys() - counters
    assert all(found[key] == kind for key, (kind, _) in rows.items())
    for key, (_, expiry) in rows.items():
        match = re.match(r"(\d+) (s|days) ", expiry)
        if match:
            life = int(match[1]) * (86400 if match[2] == "days" else 1)
            assert life - 60 < lives[key] <= life + 60
        else:
            assert (lives[key] == -1) == (expiry == "never")
