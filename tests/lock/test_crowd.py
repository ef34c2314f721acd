"""Crowds that come, wait, give up and are cancelled at random: never two at once, never nobody for long."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial

import anyio
import pytest

from grelmicro.coordination import LockTimeoutError
from grelmicro.testing.conformance._base import concurrently
from tests.lock.places import SOON, lock_on, take_and_free


class Ward:
    """What is protected: notes who is in, and with which fence."""

    def __init__(self):
        self.inside, self.worst = 0, 0
        self.fences = []

    async def visit(self, handle, seconds):
        self.inside += 1
        self.worst = max(self.worst, self.inside)
        self.fences.append(handle.fencing_token)
        try:
            await anyio.sleep(seconds)
        finally:
            self.inside -= 1


@pytest.mark.parametrize("seconds", [1.5, pytest.param(30, marks=pytest.mark.soak)])
async def test_a_crowd_that_is_cancelled_at_random_never_holds_twice_and_never_gets_stuck(
    place, near, unique, seconds
):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    ward = Ward()
    async with place.near() as other:
        shared = [lock_on(backend, unique) for backend in (near, other)]
        end = anyio.current_time() + seconds

        async def use(lock):
            match chance.randrange(3):
                case 0:
                    async with lock as handle:
                        await ward.visit(handle, chance.uniform(0, 0.004))
                case 1:
                    with suppress(LockTimeoutError):
                        handle = await lock.acquire(timeout=chance.choice([0, 0.001, 0.01, 0.05]))
                        try:
                            await ward.visit(handle, 0)
                        finally:
                            await lock.release()
                case 2:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(chance.uniform(0, 0.03)), lock as handle:
                            await ward.visit(handle, chance.uniform(0, 0.004))

        async def come_and_go(number):
            lock = shared[number % 2] if number % 4 else lock_on(shared[number % 2].backend, unique)
            while anyio.current_time() < end:
                task = asyncio.create_task(use(lock))
                await asyncio.wait([task], timeout=chance.choice([0, 0.002, 0.01, 0.05, SOON]))
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()

        await concurrently([partial(come_and_go, number) for number in range(16)])
        await take_and_free(near, unique)
        await take_and_free(other, unique)
    assert ward.worst == 1
    assert len(ward.fences) > 20
    assert ward.fences == sorted(set(ward.fences))
