"""Each server does what its class says."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from tests.support.servers import (
    PgBouncer,
    PostgresServer,
    TlsFront,
    ValkeyCluster,
    ValkeySentinel,
    ValkeyServer,
)

ROOT = Path(__file__).parents[2]


def test_redis_url_answers(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


def test_valkey_answers_on_its_socket_file(own_redis: ValkeyServer) -> None:
    with redis.Redis.from_url(own_redis.unix_url) as client:
        assert client.ping()


def test_valkey_asks_for_its_password() -> None:
    with ValkeyServer(password="hush") as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with redis.Redis(port=server.port, retry=None) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_valkey_restarts_on_its_port_with_and_without_data(own_redis: ValkeyServer) -> None:
    port = own_redis.port
    own_redis.command("SET", "kept", "yes")

    own_redis.restart(keep_data=True)
    assert own_redis.command("GET", "kept") == "yes"

    own_redis.restart(keep_data=False)
    assert own_redis.command("GET", "kept") is None
    assert own_redis.port == port


def test_valkey_crashes_empty_and_with_a_journal_whole(own_redis: ValkeyServer) -> None:
    with ValkeyServer("--appendonly", "yes", "--appendfsync", "always") as journalled:
        for server in (own_redis, journalled):
            server.command("SET", "key", "value")
            server.kill()
            assert not server.running
            server.start()

        assert own_redis.command("GET", "key") is None
        assert journalled.command("GET", "key") == "value"


def test_paused_valkey_accepts_and_stays_silent(own_redis: ValkeyServer) -> None:
    with redis.Redis(port=own_redis.port, socket_timeout=0.1, retry=None) as client:
        client.ping()
        with own_redis.paused(), pytest.raises(redis.TimeoutError):
            client.ping()
        assert client.ping()


def test_a_taken_port_is_left_for_another() -> None:
    with ValkeyServer() as first:

        class Late(ValkeyServer):
            def _prepare(self) -> None:
                self.port = first.port

        with Late() as second:
            assert second.port != first.port
            assert second.command("PING") == "PONG"


def test_servers_end_with_a_process_that_had_no_time_to_clean_up() -> None:
    program = (
        "from tests.support.servers import ValkeyServer\n"
        "server = ValkeyServer()\n"
        "print(server.pid, server.directory, flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        process.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() or Path(directory).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_sentinel_failover_promotes_the_replica(sentinel: ValkeySentinel) -> None:
    before = sentinel.primary
    finder = Sentinel(sentinel.addresses)

    assert sentinel.failover() is not before

    assert await finder.discover_master(sentinel.name) == sentinel.primary.address
    client = finder.master_for(sentinel.name)
    assert await client.set("key", "value")
    await client.aclose()
    for each in finder.sentinels:
        await each.aclose()
    assert sentinel.replica is before


def test_sentinel_replaces_a_crashed_primary(sentinel: ValkeySentinel) -> None:
    dead = sentinel.primary

    promoted = sentinel.crash_primary()
    assert promoted.command("SET", "key", "value") == "OK"

    sentinel.recover()
    assert sentinel.primary is promoted
    assert sentinel.replica is dead


async def test_cluster_spreads_names_over_its_nodes(cluster: ValkeyCluster, unique: str) -> None:
    client = redis.asyncio.RedisCluster(*cluster.nodes[0].address)
    keys = [f"{unique}:{number}" for number in range(30)]
    for key in keys:
        await client.set(key, key)
    await client.aclose()

    assert {cluster.node_of(key).port for key in keys} == {node.port for node in cluster.nodes}
    assert all(cluster.node_of(key).command("GET", key) == key for key in keys)
    assert sorted(cluster.keys(f"{unique}:*")) == sorted(keys)


def test_tls_front_is_trusted_by_its_authority_only(redis_tls: TlsFront) -> None:
    with redis.Redis.from_url(redis_tls.url) as client:
        assert client.ping()
    stranger = redis.Redis(port=redis_tls.port, ssl=True, retry=None)
    with stranger as client, pytest.raises(redis.ConnectionError):
        client.ping()


async def test_postgres_url_answers(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_postgres_database_is_empty_and_its_own(
    postgres_database: str, postgres_server: PostgresServer
) -> None:
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("CREATE TABLE t (n int)")
    await connection.close()
    assert postgres_server.execute("SELECT to_regclass('public.t')") == [""]


def test_postgres_restarts_on_its_port_with_and_without_data(own_postgres: PostgresServer) -> None:
    own_postgres.execute("CREATE TABLE t AS SELECT 1 AS n, 'x' AS s")

    own_postgres.restart(keep_data=True)
    assert own_postgres.execute("TABLE t") == ["1|x"]

    own_postgres.kill()
    own_postgres.start()
    assert own_postgres.execute("TABLE t") == ["1|x"]

    own_postgres.restart(keep_data=False)
    with pytest.raises(RuntimeError, match='relation "t" does not exist'):
        own_postgres.execute("TABLE t")


async def test_paused_postgres_freezes_open_sessions(own_postgres: PostgresServer) -> None:
    connection = await asyncpg.connect(own_postgres.url)
    with own_postgres.paused():
        query = asyncio.create_task(connection.fetchval("SELECT 1"))
        done, _ = await asyncio.wait([query], timeout=0.1)
        assert not done
    assert await query == 1
    await connection.close()


async def test_pgbouncer_shares_few_sessions_by_transaction(pgbouncer: PgBouncer) -> None:
    async def backend() -> int:
        connection = await asyncpg.connect(pgbouncer.url, statement_cache_size=0)
        pid: int = await connection.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.01)")
        await connection.close()
        return pid

    assert len(set(await asyncio.gather(*(backend() for _ in range(10))))) <= 2


def test_no_server_runs_as_root(postgres_server: PostgresServer) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    assert Path(f"/proc/{postgres_server.pid}").stat().st_uid != 0


def test_a_signal_reaches_the_server(own_redis: ValkeyServer) -> None:
    own_redis.signal(signal.SIGTERM)
    deadline = time.monotonic() + 5
    while own_redis.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    own_redis.start()
    assert own_redis.command("PING") == "PONG"
