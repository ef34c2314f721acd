"""The vendors that are measured: their servers, our adapters over them, and the floor under each."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from grelmicro.coordination.memory import MemoryLeaderElectionAdapter, MemoryLockAdapter
from grelmicro.providers.memory import MemoryProvider

Cycle = Callable[[int], Awaitable[None]]
"""Takes and frees the lock with that number."""

POOL = 10
"""Connections that the floor for many callers may use."""


@dataclass
class Vendor:
    """One vendor, ready to be measured."""

    name: str
    url: str
    alone: Cycle
    """The floor for one caller."""
    pooled: Cycle
    """The floor for many callers."""
    commands: Callable[[], int] | None
    """How many commands clients have sent so far."""
    peer: Cycle | None = None
    """The same with the vendor's client's own lock, where there is one."""
    peer_name: str = ""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    providers: list[Any] = field(default_factory=list)

    async def lock_adapter(self) -> Any:
        """Return an open lock adapter over a provider of its own (memory: over the one there is)."""
        adapter, _ = adapters(self.name, self.url, self.providers[0] if self.providers else None)
        return await self.stack.enter_async_context(adapter)

    async def election_adapter(self) -> Any:
        """Return an open election adapter, likewise."""
        _, adapter = adapters(self.name, self.url, self.providers[0] if self.providers else None)
        return await self.stack.enter_async_context(adapter)


def adapters(name: str, url: str, provider: Any = None) -> tuple[Any, Any]:
    """Return a lock adapter and an election adapter with default settings."""
    if name == "memory":
        provider = provider or MemoryProvider()
        return MemoryLockAdapter(provider=provider), MemoryLeaderElectionAdapter(provider=provider)
    if name == "redis":
        from grelmicro.providers.redis import RedisProvider

        provider = RedisProvider(url)
    else:
        from grelmicro.providers.postgres import PostgresProvider

        provider = PostgresProvider(url)
    return provider.lock(), provider.leaderelection()


@asynccontextmanager
async def memory() -> AsyncGenerator[Vendor]:
    """Measure memory against `anyio.Lock`, which yields to the loop once for each acquire, as we do."""
    locks: dict[int, anyio.Lock] = {}

    async def cycle(number: int) -> None:
        lock = locks.setdefault(number, anyio.Lock())
        await lock.acquire()
        lock.release()

    async with AsyncExitStack() as stack:
        yield Vendor("memory", "", cycle, cycle, None, stack=stack, providers=[MemoryProvider()])


_TAKE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0
"""
_FREE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


@asynccontextmanager
async def redis() -> AsyncGenerator[Vendor]:
    """Measure Redis against two EVALSHA on redis-py's client; for many callers, on a blocking pool of 10."""
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.lock import Lock as RedisPyLock

    from tests.support.servers import ValkeyServer

    with ValkeyServer() as server:
        client = Redis.from_url(server.url)
        pool = BlockingConnectionPool.from_url(server.url, max_connections=POOL, timeout=60)
        pooled = Redis(connection_pool=pool)
        take, free = await client.script_load(_TAKE), await client.script_load(_FREE)

        def floor(client: Redis) -> Cycle:
            async def cycle(number: int) -> None:
                key = f"floor:{number}"
                await client.evalsha(take, 1, key, "token", 60000)  # type: ignore[misc]
                await client.evalsha(free, 1, key, "token")  # type: ignore[misc]

            return cycle

        async def peer(number: int) -> None:
            lock = RedisPyLock(pooled, f"peer:{number}", timeout=60)
            await lock.acquire()
            await lock.release()

        def commands() -> int:
            stats = server.info("commandstats")
            wanted = ("cmdstat_eval", "cmdstat_evalsha", "cmdstat_subscribe")
            return sum(_calls(value) for name, value in stats.items() if name in wanted)

        async with AsyncExitStack() as stack:
            vendor = Vendor(
                "redis", server.url, floor(client), floor(pooled), commands, peer, "redis-py Lock", stack
            )
            yield vendor
        await client.aclose()
        await pooled.aclose()


def _calls(stat: str) -> int:
    return int(str(stat).split("calls=")[1].split(",")[0])


_TABLE = "CREATE TABLE floor (name text PRIMARY KEY, token text, expires_at timestamptz)"
_TAKE_ROW = """
INSERT INTO floor AS f VALUES ($1, $2, clock_timestamp() + interval '60 s')
ON CONFLICT (name) DO UPDATE SET token = excluded.token, expires_at = excluded.expires_at
 WHERE f.expires_at <= clock_timestamp() RETURNING 1
"""
_FREE_ROW = "UPDATE floor SET expires_at = '-infinity' WHERE name = $1 AND token = $2 RETURNING 1"


@asynccontextmanager
async def postgres() -> AsyncGenerator[Vendor]:
    """Measure PostgreSQL (fsync on) against two prepared statements; for many callers, on a pool of 10."""
    import asyncpg

    from tests.support.servers import PostgresServer

    options = ("fsync=on", "full_page_writes=on", "shared_preload_libraries=pg_stat_statements")
    with PostgresServer(*(word for option in options for word in ("-c", option))) as server:
        server.execute("CREATE EXTENSION pg_stat_statements")
        kept = await asyncpg.connect(server.url)
        await kept.execute(_TABLE)
        take, free = await kept.prepare(_TAKE_ROW), await kept.prepare(_FREE_ROW)
        pool = await asyncpg.create_pool(server.url, min_size=POOL, max_size=POOL)

        async def alone(number: int) -> None:
            name = f"floor:{number}"
            await take.fetch(name, "token")
            await free.fetch(name, "token")

        async def pooled(number: int) -> None:
            name = f"floor:{number}"
            await pool.fetch(_TAKE_ROW, name, "token")
            await pool.fetch(_FREE_ROW, name, "token")

        def commands() -> int:
            # Not transactions: for each NOTIFY, every session that listens makes one of its own.
            return int(server.execute("SELECT sum(calls) FROM pg_stat_statements")[0])

        async with AsyncExitStack() as stack:
            yield Vendor("postgres", server.url, alone, pooled, commands, stack=stack)
        await kept.close()
        await pool.close()


VENDORS = {"memory": memory, "redis": redis, "postgres": postgres}


def rss() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
