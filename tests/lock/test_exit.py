"""Leaving a block: in time, without hiding the body's own error, and without hiding a lost lease."""

from __future__ import annotations

import asyncio
import logging
import time

import anyio
import pytest

from grelmicro.coordination import LockAcquireError, LockNotOwnedError, LockReleaseError
from tests.lock.places import LEASE, lock_on, take_and_free

BOUND = 0.5
"""Seconds that a call may take in these tests."""


class BodyError(Exception):
    pass


@pytest.fixture(params=["call_timeout", "lease"])
def bound_by(request):
    """Return the settings that bound an exit: the provider's, or a lease that is shorter."""
    if request.param == "call_timeout":
        return {"call_timeout": BOUND}, LEASE
    return {"call_timeout": 5.0}, BOUND


async def test_leaving_a_block_on_a_dead_network_ends_in_time_and_says_so(place, unique, bound_by):
    settings, lease = bound_by
    async with place.far(**settings) as (backend, network):
        await take_and_free(backend, unique)
        lock = lock_on(backend, unique, lease_duration=lease)

        async def use():
            nonlocal start
            async with lock:
                network.black_hole()
                start = time.perf_counter()

        start = 0.0
        with pytest.raises(LockReleaseError) as caught:
            await use()
        assert time.perf_counter() - start < 2
        assert caught.value.__cause__ is not None
        with pytest.raises(LockNotOwnedError):  # the block is over
            await lock.release()


async def test_a_bodys_own_error_leaves_a_dead_network_too(place, unique, bound_by, caplog):
    settings, lease = bound_by
    async with place.far(**settings) as (backend, network):
        await take_and_free(backend, unique)

        async def use():
            nonlocal start
            async with lock_on(backend, unique, lease_duration=lease):
                network.black_hole()
                start = time.perf_counter()
                raise BodyError

        start = 0.0
        with caplog.at_level(logging.WARNING, "grelmicro"), pytest.raises(BodyError) as caught:
            await use()
        assert time.perf_counter() - start < 2
        assert unique in caught.value.__notes__[0]
        assert any(unique in record.message for record in caplog.records)


@pytest.mark.parametrize("cancel_at", [0.0, 0.9])
async def test_a_cancelled_exit_leaves_a_dead_network_within_the_same_bound(place, unique, cancel_at):
    async with place.far(call_timeout=1) as (backend, network):
        await take_and_free(backend, unique)

        async def use():
            async with lock_on(backend, unique):
                network.black_hole()
                leaving.set()

        leaving = anyio.Event()
        task = asyncio.create_task(use())
        await leaving.wait()
        start = time.perf_counter()
        await anyio.sleep(cancel_at)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert time.perf_counter() - start < 1.6


async def test_what_an_exit_could_not_free_is_freed_when_the_network_is_back(place, near, unique):
    async with place.far(call_timeout=BOUND) as (backend, network):
        await take_and_free(backend, unique)
        with pytest.raises(LockReleaseError):
            async with lock_on(backend, unique):
                network.black_hole()
        network.heal()
        network.cut()
        await take_and_free(near, unique)


async def test_a_cancelled_exit_on_a_dead_network_frees_when_the_network_is_back(place, near, unique):
    async with place.far(call_timeout=BOUND) as (backend, network):
        await take_and_free(backend, unique)
        with anyio.move_on_after(0.05):
            async with lock_on(backend, unique):
                network.black_hole()
                await anyio.sleep_forever()
        network.heal()
        network.cut()
        await take_and_free(near, unique)


async def test_a_bare_release_that_failed_can_be_tried_again(place, near, unique):
    async with place.far(call_timeout=BOUND) as (backend, network):
        lock = lock_on(backend, unique)
        handle = await lock.acquire()
        network.refuse()
        network.cut()
        with pytest.raises(LockReleaseError):
            await lock.release()
        network.heal()
        assert await near.owned(name=unique, token=handle.token) is True
        await lock.release()
        await take_and_free(near, unique)


async def test_a_lease_that_somebody_ended_is_reported_by_a_body_that_was_fine(near, unique):
    with pytest.raises(LockNotOwnedError):
        async with lock_on(near, unique) as handle:
            assert await near.release(name=unique, token=handle.token) is True


async def test_a_lease_that_somebody_ended_is_a_note_on_the_bodys_own_error(near, unique):
    async def use():
        async with lock_on(near, unique) as handle:
            await near.release(name=unique, token=handle.token)
            raise BodyError

    with pytest.raises(BodyError) as caught:
        await use()
    assert unique in caught.value.__notes__[0]


async def test_a_timeout_around_a_block_stays_a_timeout(far, near, unique):
    backend, network = far
    await take_and_free(backend, unique)

    async def use():
        async with asyncio.timeout(0.1), lock_on(backend, unique):
            network.delay(0.2)
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError):
        await use()
    await take_and_free(near, unique)


async def test_a_thread_leaves_a_dead_network_in_time(place, unique):
    async with place.far(call_timeout=BOUND) as (backend, network):
        lock = lock_on(backend, unique).from_thread

        def work():
            with lock:
                network.black_hole()
                return time.perf_counter()

        start = time.perf_counter()
        with pytest.raises(LockReleaseError):
            await anyio.to_thread.run_sync(work)
        assert time.perf_counter() - start < 3


async def test_an_extend_on_a_dead_network_keeps_what_is_left_of_the_lease(place, near, unique):
    async with place.far(call_timeout=BOUND) as (backend, network):
        lock = lock_on(backend, unique)
        handle = await lock.acquire()
        network.black_hole()
        with pytest.raises(LockAcquireError):
            await lock.extend()
        assert 0 < handle.expires_in() <= LEASE - BOUND + 0.1
        network.heal()
        network.cut()
        assert await near.owned(name=unique, token=handle.token) is True
        await lock.extend()
        await lock.release()
