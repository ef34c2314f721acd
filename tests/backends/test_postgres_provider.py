"""Where a PostgreSQL provider has its settings from, what it refuses and shows, and where it can be used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import anyio
import asyncpg
import pytest
from pydantic import ValidationError

from grelmicro.coordination.postgres import (
    PostgresLeaderElectionAdapter,
    PostgresLockAdapter,
    PostgresScheduleAdapter,
)
from grelmicro.errors import OutOfContextError, ProviderError, SettingsValidationError
from grelmicro.providers.postgres import PostgresConfig, PostgresProvider
from tests.backends._postgres import run_sql
from tests.support.proxy import Proxy

SECRET = "s3cr3t"
ADAPTERS = [PostgresLockAdapter, PostgresLeaderElectionAdapter, PostgresScheduleAdapter]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("URL", "HOST", "PORT", "DB", "USER", "PASSWORD", "CALL_TIMEOUT"):
        monkeypatch.delenv(f"POSTGRES_{name}", raising=False)


@pytest.fixture
def proxy(postgres_server):
    with Proxy(postgres_server.address) as proxy:
        yield proxy


def run_python(program, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


def arguments_of(provider):
    return {k: v for k, v in provider.config.connect_arguments.items() if v is not None}


class TestAddresses:
    def test_without_settings_it_is_the_local_server(self):
        assert arguments_of(PostgresProvider()) == {"host": "localhost", "port": 5432}

    def test_parts(self):
        provider = PostgresProvider(host="h", port=1, db="d", user="u", password=SECRET)
        assert arguments_of(provider) == {
            "host": "h",
            "port": 1,
            "database": "d",
            "user": "u",
            "password": SECRET,
        }

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://h",
            "postgres://u:p%40ss@h:1/d?sslmode=require&application_name=x",
            "postgresql://u@h1:1,h2,[::1]:3/d?target_session_attrs=read-write",
            "postgresql:///d?host=/run/postgresql",
        ],
    )
    def test_urls_are_asyncpgs(self, url):
        assert arguments_of(PostgresProvider(url)) == {"dsn": url}

    def test_credentials_may_stand_beside_the_url(self):
        url = "postgresql://h/d"
        expected = {"dsn": url, "user": "u", "password": SECRET}
        assert arguments_of(PostgresProvider(url, user="u", password=SECRET)) == expected
        for url in ("postgresql://v:p@h/d", "postgresql://h/d?user=v&password=p"):
            assert arguments_of(PostgresProvider(url, user="u", password=SECRET)) == {"dsn": url}

    async def test_parts_reach_the_server(self, postgres_server):
        host, port = postgres_server.address
        async with PostgresProvider(host=host, port=port, user="postgres", db="postgres") as provider:
            await provider.check()


class TestEnvironment:
    def test_a_url(self, monkeypatch):
        monkeypatch.setenv("POSTGRES_URL", "postgresql://env/d")
        assert arguments_of(PostgresProvider()) == {"dsn": "postgresql://env/d"}

    def test_parts(self, monkeypatch):
        for name, value in {
            "HOST": "env",
            "PORT": "7",
            "DB": "d",
            "USER": "u",
            "PASSWORD": SECRET,
        }.items():
            monkeypatch.setenv(f"POSTGRES_{name}", value)
        assert arguments_of(PostgresProvider()) == {
            "host": "env",
            "port": 7,
            "database": "d",
            "user": "u",
            "password": SECRET,
        }

    def test_keywords_win(self, monkeypatch):
        monkeypatch.setenv("POSTGRES_URL", "postgresql://env")
        assert arguments_of(PostgresProvider("postgresql://keyword")) == {"dsn": "postgresql://keyword"}
        assert arguments_of(PostgresProvider(host="keyword"))["host"] == "keyword"

    @pytest.mark.parametrize("by_keyword", [True, False])
    def test_a_url_outdoes_variables_for_its_parts(self, monkeypatch, by_keyword):
        # Kubernetes sets POSTGRES_PORT like this in every pod when a service is called postgres.
        monkeypatch.setenv("POSTGRES_PORT", "tcp://10.0.0.1:5432")
        monkeypatch.setenv("POSTGRES_PASSWORD", SECRET)
        if not by_keyword:
            monkeypatch.setenv("POSTGRES_URL", "postgresql://h")
        provider = PostgresProvider("postgresql://h") if by_keyword else PostgresProvider()
        assert arguments_of(provider) == {"dsn": "postgresql://h"}

    def test_another_prefix(self, monkeypatch):
        monkeypatch.setenv("POSTGRES_URL", "postgresql://default")
        monkeypatch.setenv("JOBS_URL", "postgresql://jobs")
        assert arguments_of(PostgresProvider(env_prefix="JOBS_")) == {"dsn": "postgresql://jobs"}

    def test_no_environment(self, monkeypatch):
        monkeypatch.setenv("POSTGRES_URL", "postgresql://env")
        assert arguments_of(PostgresProvider(env_load=False))["host"] == "localhost"
        monkeypatch.setenv("GREL_ENV_LOAD", "0")
        assert arguments_of(PostgresProvider())["host"] == "localhost"

    @pytest.mark.parametrize("adapter", ADAPTERS)
    async def test_adapters_without_a_provider_make_one_and_own_it(self, monkeypatch, postgres_url, adapter):
        monkeypatch.setenv("POSTGRES_URL", postgres_url)
        async with adapter() as backend:
            await backend.provider.check()
        assert not backend.provider.is_open


class TestRefusals:
    @pytest.mark.parametrize(
        ("keywords", "says"),
        [
            ({"url": f"mysql://u:{SECRET}@h"}, "must begin with postgresql://"),
            ({"url": SECRET}, "must begin with postgresql://"),
            ({"url": f"postgresql://h:{SECRET}/d"}, "port"),
            ({"url": "postgresql://h:70000/d"}, "port"),
            ({"url": f"postgresql://u:{SECRET}?@h/d"}, "percent-encode"),
            ({"url": 5}, "url"),
            ({"url": "postgresql://h", "host": "h"}, "either url, or host"),
            ({"port": True}, "not a boolean"),
            ({"port": SECRET}, "port"),
            ({"port": 0}, "port"),
            ({"host": ""}, "host"),
            ({"password": 7}, "password"),
            ({"call_timeout": 0}, "call_timeout"),
            ({"call_timeout": float("nan")}, "call_timeout"),
            ({"pool_max_size": 0}, "pool_max_size"),
            ({"transaction_pooling": SECRET}, "transaction_pooling"),
        ],
    )
    def test_a_bad_setting_is_named_and_not_shown(self, keywords, says):
        with pytest.raises(SettingsValidationError, match=says) as caught:
            PostgresProvider(**keywords)
        assert isinstance(caught.value, ValueError)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert "invalid PostgresConfig" in str(caught.value)

    def test_a_bad_variable_is_named_and_not_shown(self, monkeypatch):
        monkeypatch.setenv("POSTGRES_URL", f"mysql://u:{SECRET}@h")
        with pytest.raises(SettingsValidationError, match="POSTGRES_URL") as caught:
            PostgresProvider()
        assert SECRET not in str(caught.value)

    def test_a_configuration_is_frozen_and_hides_what_it_refuses(self):
        config = PostgresConfig(url=f"postgresql://u:{SECRET}@h")
        with pytest.raises(ValidationError):
            config.host = "other"
        with pytest.raises(ValidationError) as caught:
            PostgresConfig(url=f"mysql://u:{SECRET}@h")
        assert SECRET not in str(caught.value)

    def test_a_configuration_of_another_class(self):
        with pytest.raises(TypeError, match="PostgresConfig"):
            PostgresProvider.from_config({"url": "postgresql://h"})

    def test_a_client_that_is_no_pool(self):
        with pytest.raises(SettingsValidationError, match=r"asyncpg\.Pool"):
            PostgresProvider.from_client("postgresql://h")

    @pytest.mark.parametrize("adapter", ADAPTERS)
    @pytest.mark.parametrize("keyword", ["table_name", "schema"])
    @pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "a\0b", "\ud800", 5])
    def test_an_identifier_that_postgresql_would_cut_or_refuse(self, adapter, keyword, name):
        with pytest.raises(SettingsValidationError, match=keyword) as caught:
            adapter(provider=PostgresProvider(), **{keyword: name})
        if name:
            assert str(name) not in str(caught.value)

    @pytest.mark.parametrize("duration", [0, -1, float("nan"), float("inf"), 2**40])
    async def test_a_lease_that_cannot_be(self, postgres_url, duration):
        async with PostgresProvider(postgres_url) as provider:
            with pytest.raises(ValueError, match="duration"):
                await provider.lock().acquire(name="x", token="t", duration=duration)
            with pytest.raises(ValueError, match="duration"):
                await provider.leaderelection().acquire_or_renew(name="x", token="t", duration=duration)
            with pytest.raises(ValueError, match="due"):
                await provider.schedule().claim("x", float("nan"))

    async def test_names_and_tokens_that_are_no_strings(self, postgres_url):
        async with PostgresProvider(postgres_url) as provider:
            with pytest.raises(TypeError, match="name"):
                await provider.lock().acquire(name=5, token="t", duration=1)
            with pytest.raises(TypeError, match="token"):
                await provider.lock().release(name="x", token=5)


class TestShowing:
    def test_no_password_is_shown(self):
        shown = [
            repr(PostgresProvider(f"postgresql://u:{SECRET}@h:1/d?sslmode=require")),
            repr(PostgresProvider(f"postgresql://h/d?password={SECRET}")),
            repr(PostgresProvider(user="u", password=SECRET, db="d")),
            repr(PostgresConfig(url=f"postgresql://u:{SECRET}@h")),
            str(PostgresConfig(password=SECRET)),
        ]
        assert all(SECRET not in text for text in shown)
        assert shown[0] == "PostgresProvider('postgresql://u:***@h:1/d')"
        assert shown[2] == "PostgresProvider('postgresql://u:***@localhost:5432/d')"

    async def test_no_password_is_shown_when_the_server_is_away(self, proxy, postgres_url):
        url = proxy.url(postgres_url).replace("postgres@", f"postgres:{SECRET}@")
        proxy.refuse()
        async with PostgresProvider(url) as provider:
            with pytest.raises(ProviderError) as caught:
                await provider.check()
            assert SECRET not in str(caught.value)
            assert "postgres:***@" in str(caught.value)
            with pytest.raises(ProviderError, match=r"\*\*\*@") as caught:
                await provider.lock().locked(name="x")
            assert SECRET not in str(caught.value)
            assert isinstance(caught.value.__cause__, OSError)


class TestLifetime:
    async def test_opening_makes_no_round_trip(self, proxy, postgres_url):
        async with PostgresProvider(proxy.url(postgres_url)) as provider, provider.lock():
            assert proxy.accepted == 0
            await provider.check()
            assert proxy.accepted == 1

    async def test_it_opens_with_the_first_and_closes_with_the_last(self, postgres_url, unique):
        provider = PostgresProvider(postgres_url)
        async with provider, PostgresLockAdapter(provider=provider) as locks:
            async with provider:
                pool = provider.client
            assert await locks.locked(name=unique) is False
        with pytest.raises(OutOfContextError, match="not open"):
            await locks.locked(name=unique)
        assert pool.is_closing()
        async with provider:
            assert await locks.locked(name=unique) is False

    async def test_closing_leaves_no_connection_and_no_task(self, postgres_database, unique):
        before = asyncio.all_tasks()
        async with PostgresProvider(postgres_database) as provider:
            await asyncio.gather(*(provider.lock().locked(name=f"{unique}{n}") for n in range(50)))
        assert asyncio.all_tasks() == before
        with anyio.fail_after(5):
            while await run_sql(postgres_database, _OTHERS) != [0]:  # noqa: ASYNC110 - the server's own time
                await anyio.sleep(0.01)

    async def test_what_is_under_way_when_it_closes_is_answered(self, postgres_url, unique):
        async with PostgresProvider(postgres_url) as provider:
            locks = provider.lock()
            await locks.locked(name=unique)
            calls = [
                asyncio.create_task(locks.acquire(name=f"{unique}{n}", token="t", duration=9))
                for n in range(500)
            ]
            await anyio.lowlevel.checkpoint()
        assert all(await asyncio.gather(*calls))

    @pytest.mark.parametrize("own", [False, True])
    async def test_a_pool_of_the_users_is_closed_only_on_request(self, postgres_url, unique, own):
        async with asyncpg.create_pool(postgres_url, min_size=0, max_size=2) as pool:
            async with PostgresProvider.from_client(pool, own=own) as provider:
                assert provider.client is pool
                await provider.lock().locked(name=unique)
                assert repr(provider) == "PostgresProvider.from_client(Pool)"
            assert pool.is_closing() is own
            if not own:
                assert pool.get_idle_size() == pool.get_size()

    async def test_a_session_that_a_user_of_our_pool_changed_is_reset(self, postgres_url, unique):
        async with PostgresProvider(postgres_url, pool_max_size=1) as provider:
            async with provider.client.acquire() as connection:
                await connection.execute("SET lock_timeout = '7s'")
            await provider.lock().acquire(name=unique, token="t", duration=1)
            async with provider.client.acquire() as connection:
                assert await connection.fetchval("SHOW lock_timeout") == "0"

    async def test_providers_components_share_its_connections(self, postgres_url):
        provider = PostgresProvider(postgres_url)
        for adapter in (provider.lock(), provider.leaderelection(), provider.schedule()):
            assert adapter.provider is provider
            assert adapter.call_timeout == 5.0
            assert adapter.survives_cancellation


_OTHERS = (
    "SELECT count(*)::int FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


class TestWhereItRuns:
    def test_importing_the_package_loads_no_client(self):
        done = run_python("""
            import sys, grelmicro, grelmicro.coordination
            assert "asyncpg" not in sys.modules
        """)
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("module", ["grelmicro.providers.postgres", "grelmicro.coordination.postgres"])
    def test_a_missing_extra_is_named(self, module):
        done = run_python(f"""
            import sys
            sys.modules["asyncpg"] = None
            try:
                import {module}
            except ImportError as error:
                assert 'pip install ".[postgres]"' in str(error), error
            else:
                raise SystemExit("imported without asyncpg")
        """)
        assert done.returncode == 0, done.stderr

    def test_not_on_trio(self):
        async def main():
            with pytest.raises(OutOfContextError, match="asyncio only"):
                async with PostgresProvider():
                    pass

        anyio.run(main, backend="trio")

    def test_not_on_another_event_loop(self, postgres_url, unique):
        provider = PostgresProvider(postgres_url)
        locks = provider.lock()

        async def use():
            await locks.locked(name=unique)

        async def main():
            async with provider:
                await use()
                with pytest.raises(OutOfContextError, match="another event loop"):
                    await asyncio.to_thread(asyncio.run, use())
                with pytest.raises(OutOfContextError, match="another event loop"):
                    await asyncio.to_thread(lambda: provider.client)

        asyncio.run(main())
        asyncio.run(main())  # closed there, it may be opened here

    def test_a_pool_of_another_event_loop_is_refused(self, postgres_url):
        async def make():
            return await asyncpg.create_pool(postgres_url, min_size=0)

        async def use(pool):
            with pytest.raises(OutOfContextError, match="another event loop"):
                async with PostgresProvider.from_client(pool):
                    pass

        asyncio.run(use(asyncio.run(make())))

    def test_a_forked_child_gets_an_error_and_leaves_the_connection_alone(self, postgres_url, unique):
        done = run_python(
            """
            import asyncio, os, sys
            from grelmicro.errors import OutOfContextError
            from grelmicro.providers.postgres import PostgresProvider

            url, name = sys.argv[1:]
            provider = PostgresProvider(url)
            locks = provider.lock()
            loop = asyncio.new_event_loop()
            loop.run_until_complete(provider.__aenter__())
            assert loop.run_until_complete(locks.acquire(name=name, token="t", duration=60))
            child = os.fork()
            if child == 0:
                try:
                    loop.run_until_complete(locks.locked(name=name))
                except OutOfContextError as error:
                    assert "forked" in str(error), error
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert loop.run_until_complete(locks.owned(name=name, token="t"))
            loop.run_until_complete(provider.__aexit__(None, None, None))
            loop.close()
            """,
            postgres_url,
            unique,
        )
        assert done.returncode == 0, done.stderr
