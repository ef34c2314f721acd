"""Where a Redis provider has its settings from, what it refuses and shows, and where it can be used."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError
from redis import Redis as BlockingRedis
from redis.asyncio import Redis, RedisCluster

from grelmicro.coordination.redis import (
    RedisLeaderElectionAdapter,
    RedisLockAdapter,
    RedisScheduleAdapter,
)
from grelmicro.errors import OutOfContextError, ProviderError, SettingsValidationError
from grelmicro.providers.memory import MemoryProvider
from grelmicro.providers.redis import RedisConfig, RedisProvider
from tests.support.servers import ValkeyServer

SECRET = "s3cr3t"
TLS = {"ssl": True, "ssl_cert_reqs": "none"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("URL", "HOST", "PORT", "DB", "USERNAME", "PASSWORD", "CALL_TIMEOUT"):
        monkeypatch.delenv(f"REDIS_{name}", raising=False)


def run_python(program):
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def options_of(provider):
    return provider.config.address.options


class TestAddresses:
    def test_without_settings_it_is_the_local_server(self):
        assert options_of(RedisProvider()) == {"host": "localhost", "port": 6379, "db": 0}

    def test_parts(self):
        provider = RedisProvider(host="h", port=1, db=2, username="u", password=SECRET)
        assert options_of(provider) == {"host": "h", "port": 1, "db": 2, "username": "u", "password": SECRET}

    @pytest.mark.parametrize(
        ("url", "options"),
        [
            ("redis://h", {"host": "h", "port": 6379}),
            ("redis://h:1/2", {"host": "h", "port": 1, "db": 2}),
            ("redis://[::1]:1/2", {"host": "::1", "port": 1, "db": 2}),
            ("redis://u:p%40ss@h", {"host": "h", "port": 6379, "username": "u", "password": "p@ss"}),
            ("redis://:p@h:1?db=3", {"host": "h", "port": 1, "password": "p", "db": 3}),
            ("redis://h:1?socket_timeout=2", {"host": "h", "port": 1, "socket_timeout": 2.0}),
            ("rediss://h:1?ssl_cert_reqs=none", {"host": "h", "port": 1, **TLS}),
            ("unix:///run/r.sock?db=1", {"unix_socket_path": "/run/r.sock", "db": 1}),
            ("unix://u:p@/run/r.sock", {"unix_socket_path": "/run/r.sock", "username": "u", "password": "p"}),
        ],
    )  # fmt: skip
    def test_urls_of_one_server(self, url, options):
        assert options_of(RedisProvider(url)) == options

    def test_sentinel_urls_name_sentinels_service_and_database(self):
        url = f"redis+sentinel://u:p@h1:1,h2/my%2Fmaster/3?sentinel_password={SECRET}&socket_timeout=2"
        address = RedisProvider(url).config.address
        assert address.hosts == (("h1", 1), ("h2", 26379))
        client = address.client(5.0)
        pool = client.connection_pool
        assert pool.service_name == "my/master"
        assert {k: pool.connection_kwargs[k] for k in ("username", "password", "db", "socket_timeout")} == {
            "username": "u",
            "password": "p",
            "db": 3,
            "socket_timeout": 2.0,
        }
        assert pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs["password"] == SECRET

    def test_tls_reaches_sentinels_and_primary(self):
        client = RedisProvider("rediss+sentinel://h/m?ssl_cert_reqs=none").config.address.client(5.0)
        pools = [client.connection_pool, client.connection_pool.sentinel_manager.sentinels[0].connection_pool]
        for pool in pools:
            assert pool.make_connection().cert_reqs.name == "CERT_NONE"

    def test_cluster_urls_name_nodes(self):
        client = RedisProvider("rediss+cluster://u:p@10.0.0.1:1,10.0.0.2").config.address.client(5.0)
        assert isinstance(client, RedisCluster)
        assert sorted(client.nodes_manager.startup_nodes) == ["10.0.0.1:1", "10.0.0.2:6379"]
        assert client.connection_kwargs["password"] == "p"
        assert client.connection_kwargs["connection_class"].__name__ == "SSLConnection"

    def test_credentials_may_stand_beside_the_url(self):
        assert options_of(RedisProvider("redis://h", password=SECRET))["password"] == SECRET
        assert options_of(RedisProvider("redis://:p@h", password=SECRET))["password"] == "p"


class TestEnvironment:
    def test_a_url(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "redis://env:1/2")
        assert options_of(RedisProvider()) == {"host": "env", "port": 1, "db": 2}

    def test_parts(self, monkeypatch):
        for name, value in {"HOST": "env", "PORT": "7", "DB": "1", "PASSWORD": SECRET}.items():
            monkeypatch.setenv(f"REDIS_{name}", value)
        assert options_of(RedisProvider()) == {"host": "env", "port": 7, "db": 1, "password": SECRET}

    def test_keywords_win(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "redis://env")
        assert options_of(RedisProvider("redis://keyword"))["host"] == "keyword"
        assert options_of(RedisProvider(host="keyword"))["host"] == "keyword"

    @pytest.mark.parametrize("by_keyword", [True, False])
    def test_a_url_outdoes_variables_for_its_parts(self, monkeypatch, by_keyword):
        # Kubernetes sets REDIS_PORT like this in every pod when a service is called redis.
        monkeypatch.setenv("REDIS_PORT", "tcp://10.0.0.1:6379")
        monkeypatch.setenv("REDIS_PASSWORD", SECRET)
        if not by_keyword:
            monkeypatch.setenv("REDIS_URL", "redis://h")
        provider = RedisProvider("redis://h") if by_keyword else RedisProvider()
        assert options_of(provider) == {"host": "h", "port": 6379}

    def test_another_prefix(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "redis://default")
        monkeypatch.setenv("CACHE_URL", "redis://cache")
        assert options_of(RedisProvider(env_prefix="CACHE_"))["host"] == "cache"

    def test_no_environment(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "redis://env")
        assert options_of(RedisProvider(env_load=False))["host"] == "localhost"
        monkeypatch.setenv("GREL_ENV_LOAD", "0")
        assert options_of(RedisProvider())["host"] == "localhost"

    def test_adapters_without_a_provider_make_one(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "redis://env")
        for adapter in (RedisLockAdapter(), RedisLeaderElectionAdapter(), RedisScheduleAdapter()):
            assert options_of(adapter.provider)["host"] == "env"

    def test_a_bad_variable_is_named(self, monkeypatch):
        monkeypatch.setenv("REDIS_PORT", f"{SECRET}")
        with pytest.raises(SettingsValidationError, match="REDIS_PORT") as caught:
            RedisProvider()
        assert SECRET not in str(caught.value)


class TestRefusals:
    @pytest.mark.parametrize(
        ("url", "hint"),
        [
            (f"{SECRET}://h", "redis://"),
            (SECRET, "redis://"),
            (f"http://:{SECRET}@h", "redis"),
            (f"redis://:{SECRET}@h:port", "port must be a number"),
            (f"redis://:{SECRET}@h:65536", "port must be a number"),
            (f"redis://:{SECRET}@h:0", "port must be a number"),
            (f"redis://:pass/{SECRET}@h:1", "percent-encode"),
            (f"redis://h/{SECRET}", "number of a database"),
            (f"redis://h?socket_timeout={SECRET}", "wrong type"),
            (f"redis://h?{SECRET}=1", "unknown to redis-py"),
            (f"redis://[{SECRET}", "not a URL"),
            (f"redis://h1,{SECRET}", "several hosts"),
            (f"unix://{SECRET}", "path of a socket"),
            (f"redis+sentinel://{SECRET}", "name of the primary"),
            (f"redis+sentinel://h/m/{SECRET}", "number of a database"),
            (f"redis+sentinel://h/m?sentinel_{SECRET}=1", "unknown to redis-py"),
            (f"redis+sentinel://h/m?{SECRET}=1", "unknown to redis-py"),
            ("redis+cluster://h/3", "other database than 0"),
            (f"redis+cluster://h?{SECRET}=1", "unknown to redis-py"),
        ],
    )  # fmt: skip
    def test_urls(self, url, hint):
        with pytest.raises(SettingsValidationError, match=hint) as caught:
            RedisProvider(url)
        assert SECRET not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"
        assert isinstance(caught.value, ValueError)
        assert "url" in str(caught.value)

    @pytest.mark.parametrize(
        ("keywords", "field"),
        [
            ({"url": 7}, "url"),
            ({"host": 7}, "host"),
            ({"host": ""}, "host"),
            ({"port": SECRET}, "port"),
            ({"port": 0}, "port"),
            ({"port": 65536}, "port"),
            ({"port": True}, "port"),
            ({"db": -1}, "db"),
            ({"password": 7}, "password"),
            ({"call_timeout": 0}, "call_timeout"),
            ({"call_timeout": float("nan")}, "call_timeout"),
            ({"call_timeout": SECRET}, "call_timeout"),
            ({"url": "redis://h", "host": SECRET}, "either url, or host"),
        ],
    )
    def test_keywords(self, keywords, field):
        with pytest.raises(SettingsValidationError, match=field) as caught:
            RedisProvider(**keywords)
        assert SECRET not in str(caught.value)

    def test_a_configuration_shows_no_value_either(self):
        with pytest.raises(ValidationError) as caught:
            RedisConfig(url=f"{SECRET}://h", port=SECRET)
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize("client", [None, "redis://h", BlockingRedis(), Redis])
    def test_clients_of_another_kind(self, client):
        with pytest.raises(SettingsValidationError, match=r"redis\.asyncio"):
            RedisProvider.from_client(client)

    def test_a_configuration_of_another_kind(self):
        with pytest.raises(TypeError, match="RedisConfig"):
            RedisProvider.from_config({"url": "redis://h"})

    @pytest.mark.parametrize("prefix", ["{", "a}b", "{x}:", 7, None, "\ud800"])
    def test_prefixes(self, prefix):
        with pytest.raises(SettingsValidationError, match="prefix"):
            RedisLockAdapter(provider=RedisProvider(), prefix=prefix)

    def test_a_provider_of_another_vendor(self):
        with pytest.raises(SettingsValidationError, match="RedisProvider"):
            RedisScheduleAdapter(provider=MemoryProvider())


class TestSecrets:
    @pytest.mark.parametrize(
        "url",
        [
            f"redis://u:{SECRET}@h:1/0",
            f"redis://h:1/0?password={SECRET}",
            f"redis+sentinel://u:{SECRET}@h:1/m/0?sentinel_password={SECRET}",
            f"redis+cluster://u:{SECRET}@h:1",
            f"unix://u:{SECRET}@/run/r.sock?password={SECRET}",
            f"rediss://h?ssl_password={SECRET}",
        ],
    )
    def test_nothing_shows_a_password(self, url):
        provider = RedisProvider(url)
        shown = [repr(provider), repr(provider.lock()), repr(provider.config), str(provider.config)]
        shown += [
            repr(provider.config.address),
            provider.config.masked_url,
            repr(provider.config.model_dump()),
        ]
        assert SECRET not in "".join(shown)

    def test_a_representation_says_where_it_goes(self):
        assert repr(RedisProvider(f"redis://u:{SECRET}@h:1/0")) == "RedisProvider('redis://u:***@h:1/0')"
        assert repr(RedisProvider(host="h", password=SECRET)) == "RedisProvider('redis://h:6379/0')"
        assert repr(RedisProvider.from_client(Redis())) == "RedisProvider.from_client(Redis)"

    async def test_errors_show_no_password(self):
        async with RedisProvider(f"redis://u:{SECRET}@127.0.0.1:1/0", call_timeout=1) as provider:
            with pytest.raises(ProviderError, match="cannot connect") as caught:
                await provider.check()
        assert SECRET not in f"{caught.value!r}{caught.value.__cause__!r}"

    async def test_a_wrong_password_is_said(self):
        with ValkeyServer(password="right") as server:
            async with RedisProvider(server.url) as provider:
                await provider.check()
            wrong = server.url.replace("right", SECRET)
            async with RedisProvider(wrong) as provider, provider.lock() as locks:
                with pytest.raises(ProviderError, match=r"cannot connect.*password") as caught:
                    await locks.acquire(name="a", token="t", duration=1)
            assert SECRET not in str(caught.value)
            async with RedisProvider(host="127.0.0.1", port=server.port) as provider:
                with pytest.raises(ProviderError, match=r"(?i)auth"):
                    await provider.check()


class TestLifetime:
    async def test_opening_needs_no_server(self, unique):
        async with RedisProvider("redis://127.0.0.1:1") as provider, provider.lock() as locks:
            with pytest.raises(ProviderError, match="cannot connect"):
                await locks.acquire(name=unique, token="t", duration=1)

    async def test_calls_need_an_open_provider(self, redis_url, unique):
        provider = RedisProvider(redis_url)
        locks = provider.lock()
        for use in (provider.check, lambda: locks.locked(name=unique)):
            with pytest.raises(OutOfContextError, match="not open"):
                await use()
        with pytest.raises(OutOfContextError):
            _ = provider.client

    async def test_it_opens_again_after_closing(self, redis_url, unique):
        provider = RedisProvider(redis_url)
        for _ in range(2):
            async with provider, provider.lock() as locks:
                assert await locks.locked(name=unique) is False
            with pytest.raises(OutOfContextError):
                await locks.locked(name=unique)

    async def test_closing_lets_started_releases_finish(self, redis_url, unique):
        provider = RedisProvider(redis_url)
        async with provider.lock() as locks:
            await locks.acquire(name=unique, token="t", duration=60)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: locks.release(name=unique, token="t"))
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        async with provider.lock() as locks:
            assert await locks.locked(name=unique) is False

    async def test_a_given_client_stays_open_unless_owned(self, redis_url, unique):
        client = Redis.from_url(redis_url)
        async with RedisProvider.from_client(client) as provider, provider.lock() as locks:
            assert provider.client is client
            await client.ping()
            await locks.locked(name=unique)
        idle = client.connection_pool._available_connections[0]
        assert idle.is_connected
        async with RedisProvider.from_client(client, own=True):
            pass
        assert not idle.is_connected

    async def test_the_client_is_a_redis_client(self, redis_url):
        async with RedisProvider(redis_url) as provider:
            assert await provider.client.ping() in (True, b"PONG")

    async def test_another_event_loop_is_refused(self, redis_url, unique):
        async with RedisProvider(redis_url) as provider, provider.lock() as locks:
            await locks.locked(name=unique)

            async def elsewhere():
                with pytest.raises(OutOfContextError, match="event loop"):
                    await locks.locked(name=unique)
                with pytest.raises(OutOfContextError, match="event loop"):
                    await provider.__aenter__()

            await anyio.to_thread.run_sync(anyio.run, elsewhere)
            assert await locks.locked(name=unique) is False

    @pytest.mark.parametrize("anyio_backend", ["trio"])
    async def test_trio_is_refused(self, redis_url):
        with pytest.raises(OutOfContextError, match="asyncio"):
            async with RedisProvider(redis_url):
                pass

    def test_a_forked_child_is_refused(self, redis_url):
        program = f"""
            import asyncio, os, sys
            from grelmicro.errors import OutOfContextError
            from grelmicro.providers.redis import RedisProvider

            provider = RedisProvider({redis_url!r})

            async def used(own):
                async with own.lock() as locks:
                    return await locks.locked(name="forked")

            async def main():
                async with provider:
                    await provider.check()
                    child = os.fork()
                    if child == 0:
                        asyncio._set_running_loop(None)
                        code = 1
                        try:
                            asyncio.run(used(provider))
                        except OutOfContextError as error:
                            code = 2 if "forked" in str(error) else 3
                            asyncio.run(used(RedisProvider({redis_url!r})))
                        finally:
                            os._exit(code)
                    _, status = os.waitpid(child, 0)
                    await provider.check()
                    return os.waitstatus_to_exitcode(status)

            sys.exit(asyncio.run(main()))
        """
        run = run_python(program)
        assert run.returncode == 2, run.stderr


class TestImports:
    def test_the_front_doors_import_no_client(self):
        program = "import sys, grelmicro, grelmicro.coordination; sys.exit('redis' in sys.modules)"
        assert run_python(program).returncode == 0

    @pytest.mark.parametrize("module", ["grelmicro.providers.redis", "grelmicro.coordination.redis"])
    def test_a_missing_client_names_the_extra(self, module):
        program = f"import sys; sys.modules['redis'] = None; import {module}"
        run = run_python(program)
        assert 'pip install ".[redis]"' in run.stderr.splitlines()[-1]
