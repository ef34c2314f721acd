"""A holder that is killed at any point leaves nothing without an end, and the next one gets its turn."""

from __future__ import annotations

import random
from functools import partial

import anyio
import pytest

from grelmicro.testing.conformance._base import concurrently
from tests.faults.processes import Nursery
from tests.lock.places import lock_on, until

LEASE = 2.0
SLACK = 5.0
"""Seconds by which a busy machine may be late."""


@pytest.mark.parametrize("runs", [15, pytest.param(200, marks=pytest.mark.soak)])
async def test_a_holder_killed_at_a_random_point_leaves_the_lock_free_within_its_lease(
    server_place, unique, runs, request
):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    server = request.node.callspec.params["server_place"]
    names = [f"{unique}-{number}" for number in range(runs)]
    async with server_place.near() as backend:

        async def kill_and_take(nursery, name):
            await anyio.sleep(chance.uniform(0, 0.5))
            nursery.kill(name)
            await lock_on(backend, name).acquire(timeout=LEASE + SLACK)

        with Nursery("tests.faults.restless", server, server_place.url, LEASE) as nursery:
            for batch in range(0, runs, 15):
                some = names[batch : batch + 15]
                for name in some:
                    nursery.spawn(name)
                for name in some:  # held most of the time from its beginning on
                    await until(partial(backend.locked, name=name))
                await concurrently([partial(kill_and_take, nursery, name) for name in some])
        lasting = [key for key in await endless(server, backend) if unique in key]
        assert lasting == []


async def endless(server, backend):
    """Return the locks that the server would keep for ever, asking it directly."""
    if server == "redis":
        client = backend.provider.client
        keys = [key.decode() for key in await client.keys("*:lock:*")]
        return [key for key in keys if await client.pttl(key) == -1]
    rows = await backend.provider.client.fetch(
        "SELECT name FROM grelmicro_locks WHERE NOT isfinite(expires_at)"
    )
    return [row["name"] for row in rows]
