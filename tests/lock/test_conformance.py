"""`Lock` keeps its promises on real servers, however they are reached."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from grelmicro.testing.conformance import LockSuite
from tests.lock.places import new_provider

FIXTURES = {"redis": "redis_url", "tls": "redis_tls", "postgres": "postgres_url"}
SERVERS = {
    "redis": "redis",
    "sentinel": "redis",
    "cluster": "redis",
    "tls": "redis",
    "postgres": "postgres",
    "pgbouncer": "postgres",
}
# For a `Lock` they are one server; their own ways are the business of the adapters' tests.
MARKS = {"sentinel": pytest.mark.soak, "tls": pytest.mark.soak}


class TestLock(LockSuite):
    short = 0.5

    @pytest.fixture(params=[pytest.param(one, marks=MARKS.get(one, ())) for one in SERVERS])
    async def adapters(self, request):
        """Open adapters, each over a connection of its own."""
        server = request.getfixturevalue(FIXTURES.get(request.param, request.param))
        url = getattr(server, "url", server)
        async with AsyncExitStack() as stack:

            async def adapter():
                adapter = await stack.enter_async_context(new_provider(SERVERS[request.param], url).lock())
                await adapter.locked(name="connected, before short leases are about that")
                return adapter

            yield adapter

    @pytest.fixture
    async def backend(self, adapters):
        return await adapters()

    @pytest.fixture
    async def peer(self, adapters):
        return await adapters()
