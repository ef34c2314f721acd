"""PostgreSQL keeps every promise: directly, behind a transaction-mode pgbouncer, on a pool of the user's."""

from __future__ import annotations

import anyio
import asyncpg
import pytest

from grelmicro.coordination.postgres import (
    PostgresLeaderElectionAdapter,
    PostgresLockAdapter,
    PostgresScheduleAdapter,
)
from grelmicro.providers.postgres import PostgresProvider
from grelmicro.testing.conformance import (
    KindsSuite,
    LeaderElectionBackendSuite,
    LockBackendSuite,
    QueueingLockBackendSuite,
    ScheduleBackendSuite,
    WakingElectionBackendSuite,
)
from tests.backends._postgres import run_sql


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("direct", marks=pytest.mark.variant("postgres")),
        pytest.param("pgbouncer", marks=pytest.mark.variant("pgbouncer")),
        pytest.param("pool", marks=pytest.mark.variant("postgres")),
    ],
)
def way(request):
    return request.param


@pytest.fixture(scope="module")
def url(request, way):
    return request.getfixturevalue("pgbouncer_url" if way == "pgbouncer" else "postgres_url")


@pytest.fixture(scope="module")
async def provider(url, way):
    if way != "pool":
        async with PostgresProvider(url) as provider:
            yield provider
        return
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=3, statement_cache_size=10) as pool,
        PostgresProvider.from_client(pool) as provider,
    ):
        yield provider


@pytest.fixture(scope="module")
async def other(url):
    """Another process's provider."""
    async with PostgresProvider(url) as provider:
        yield provider


class Lapsing:
    """Time passes for real once; on the other ways, leases are brought nearer to their end instead."""

    table: str

    @pytest.fixture(autouse=True)
    def _server(self, url, way):
        self.url, self.way = url, way

    async def lapse(self, seconds):
        if self.way == "direct":
            await anyio.sleep(seconds)
        else:
            sql = f"UPDATE {self.table} SET expires_at = expires_at - $1::float8 * interval '1 second'"
            await run_sql(self.url, sql, seconds)


class TestLocks(Lapsing, LockBackendSuite):
    keeps_fence_after_data_loss = True
    table = "grelmicro_locks"

    @pytest.fixture
    async def backend(self, provider):
        async with PostgresLockAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, other):
        return other.lock()

    async def lose_data(self):
        await run_sql(self.url, "TRUNCATE grelmicro_locks")


class TestElections(Lapsing, LeaderElectionBackendSuite):
    table = "grelmicro_leaders"

    @pytest.fixture
    async def backend(self, provider):
        async with PostgresLeaderElectionAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, other):
        return other.leaderelection()


# Behind a pooler nothing is heard, and a pool as small as ours has no four connections to listen on.
where_heard = pytest.mark.parametrize(
    "way", [pytest.param("direct", marks=pytest.mark.variant("postgres"))], indirect=True, scope="module"
)


@where_heard
class TestQueueing(Lapsing, QueueingLockBackendSuite):
    table = "grelmicro_locks"

    @pytest.fixture
    def processes(self, provider, other):
        return provider.lock(), other.lock(), provider.lock(), other.lock()


@where_heard
class TestWakingElections(Lapsing, WakingElectionBackendSuite):
    table = "grelmicro_leaders"

    @pytest.fixture
    def processes(self, provider, other):
        return provider.leaderelection(), other.leaderelection(), other.leaderelection()


class TestSchedules(ScheduleBackendSuite):
    @pytest.fixture
    async def backend(self, provider):
        async with PostgresScheduleAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, other):
        return other.schedule()


class TestKinds(KindsSuite):
    @pytest.fixture
    def backends(self, provider):
        return provider.lock(), provider.leaderelection(), provider.schedule()
