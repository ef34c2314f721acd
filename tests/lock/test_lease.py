"""The end of a lease: local before the backend's, final, and never undone by a request that comes late."""

from __future__ import annotations

import anyio
import pytest

from grelmicro.coordination import LockAcquireError, LockConfig, LockNotOwnedError
from tests.lock.places import LEASE, SOON, lock_on, take_and_free


async def test_the_handle_counts_down_from_before_the_request(place, unique):
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        network.delay(0.3)
        lock = lock_on(backend, unique)
        handle = await lock.acquire()
        assert LEASE - SOON < handle.expires_in() <= LEASE - 0.3
        before = handle.expires_in()
        await lock.extend()
        assert LEASE - SOON < handle.expires_in() <= LEASE - 0.3
        assert handle.expires_in() > before - 0.3
        await lock.release()


async def test_a_grant_that_arrives_after_its_lease_is_none(place, near, unique):
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        network.delay(0.4)
        lock = lock_on(backend, unique, lease_duration=0.2)
        with pytest.raises(LockAcquireError, match="no answer"):
            await lock.acquire_nowait()
        assert await lock.owned() is False
        await take_and_free(near, unique)


async def test_extending_sets_the_time_left_also_to_less(near, unique):
    lock = lock_on(near, unique)
    handle = await lock.acquire()
    await lock.reconfigure(LockConfig(lease_duration=0.2))
    again = await lock.extend()
    assert again.fencing_token == handle.fencing_token
    assert handle.expires_in() <= 0.2
    start = anyio.current_time()
    next_handle = await lock_on(near, unique).acquire(timeout=SOON)
    assert next_handle.fencing_token > handle.fencing_token
    assert anyio.current_time() - start < SOON
    assert handle.expires_in() == 0
    with pytest.raises(LockNotOwnedError):
        await lock.extend()


async def test_extending_sets_the_time_left_also_to_more(near, unique):
    lock = lock_on(near, unique, lease_duration=1)
    handle = await lock.acquire()
    await lock.reconfigure(LockConfig(lease_duration=LEASE))
    await lock.extend()
    assert handle.expires_in() > LEASE / 2
    await anyio.sleep(1.1)
    assert await lock.owned() is True
    await lock.release()


async def test_many_extends_on_time_outlast_many_leases(near, unique):
    lock = lock_on(near, unique, lease_duration=0.6)
    handle = await lock.acquire()
    end = anyio.current_time() + 1.5
    while anyio.current_time() < end:
        assert (await lock.extend()).fencing_token == handle.fencing_token
        assert await near.acquire(name=unique, token="another", duration=LEASE) is None
        await anyio.sleep(0.03)
    await lock.release()


async def test_an_extend_that_reaches_the_server_too_late_leaves_the_lock_free(place, near, unique):
    """Nobody took it meanwhile, so the server grants it anew: that grant is given back."""
    async with place.far() as (backend, network):
        lock = lock_on(backend, unique, lease_duration=0.5)
        handle = await lock.acquire()
        await lock.reconfigure(LockConfig(lease_duration=LEASE))
        network.delay(0.8, to_server=True, to_client=False)
        with pytest.raises(LockNotOwnedError):
            await lock.extend()
        assert handle.expires_in() == 0
        await anyio.sleep(0.8)
        await take_and_free(near, unique)


async def test_extending_what_was_freed_behind_ones_back_takes_nothing(near, unique):
    lock = lock_on(near, unique)
    handle = await lock.acquire()
    await near.release(name=unique, token=handle.token)
    with pytest.raises(LockNotOwnedError):
        await lock.extend()
    assert await near.locked(name=unique) is False
    await lock.acquire(timeout=SOON)
    await lock.release()


async def test_extending_what_somebody_else_took_leaves_it_to_them(near, unique):
    lock, other = lock_on(near, unique), lock_on(near, unique)
    handle = await lock.acquire()
    await near.release(name=unique, token=handle.token)
    taken = await other.acquire()
    for operation in (lock.extend, lock.release):
        with pytest.raises(LockNotOwnedError):
            await operation()
    assert await near.owned(name=unique, token=taken.token) is True
    await other.release()


async def test_after_a_lost_lease_the_same_task_can_acquire_again(near, unique):
    lock = lock_on(near, unique, lease_duration=0.2)
    first = await lock.acquire()
    await anyio.sleep(0.25)
    assert first.expires_in() == 0
    again = await lock.acquire(timeout=SOON)
    assert again.fencing_token > first.fencing_token
    assert again.token != first.token
    await lock.release()


async def test_a_reconfiguration_leaves_the_identity_alone(near, unique):
    lock = lock_on(near, unique, worker="w")
    handle = await lock.acquire()
    with pytest.raises(ValueError, match="worker"):
        await lock.reconfigure(LockConfig(worker="v"))
    assert (await lock.extend()).token == handle.token
    await lock.release()


async def test_two_locks_with_the_same_worker_exclude_each_other(near, unique):
    one, two = (lock_on(near, unique, worker="same") for _ in range(2))
    handle = await one.acquire()
    assert await two.owned() is False
    for operation in (two.extend, two.release):
        with pytest.raises(LockNotOwnedError):
            await operation()
    with pytest.raises(TimeoutError):
        await two.acquire(timeout=0.1)
    assert await one.owned() is True
    await one.release()
    assert (await two.acquire()).token != handle.token
    await two.release()
