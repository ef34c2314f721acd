"""How long a call may take: the caller's timeout, else the provider's, whatever the network does."""

from __future__ import annotations

import asyncio
import math
import time

import anyio
import pytest

from grelmicro.coordination import LockAcquireError, LockTimeoutError, WouldBlockError
from grelmicro.coordination.memory import MemoryLockAdapter
from tests.lock.places import LEASE, MemoryPlace, lock_on, take_and_free

TIMEOUT = 0.3
IN_TIME = 0.4
"""Seconds by which a wait of `TIMEOUT` is over."""
RETRY_INTERVAL = 2.0


class Counting:
    """Counts the requests that reach a backend."""

    def __init__(self, backend):
        self._backend = backend
        self.asked = []

    async def acquire(self, *, name, token, duration):
        self.asked.append("acquire")
        return await self._backend.acquire(name=name, token=token, duration=duration)

    async def release(self, *, name, token):
        self.asked.append("release")
        return await self._backend.release(name=name, token=token)

    async def locked(self, *, name):
        self.asked.append("locked")
        return await self._backend.locked(name=name)

    async def owned(self, *, name, token):
        self.asked.append("owned")
        return await self._backend.owned(name=name, token=token)


async def assert_over_in_time(attempt):
    """Show that an attempt ends in time; a busy machine may delay it, but not three times in a row."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with pytest.raises(LockTimeoutError):
            await attempt()
        times.append(time.perf_counter() - start)
        assert TIMEOUT - 0.01 <= times[-1] < RETRY_INTERVAL / 2
        if times[-1] < IN_TIME:
            return
    pytest.fail(f"a wait of {TIMEOUT} s took {times}")


async def test_a_wait_for_a_busy_lock_is_over_in_time_whatever_the_retry_interval(near, unique):
    waiter = lock_on(near, unique, retry_interval=RETRY_INTERVAL)
    async with lock_on(near, unique):
        await assert_over_in_time(lambda: waiter.acquire(timeout=TIMEOUT))


@pytest.mark.parametrize("lost", ["everything", "requests", "replies"])
async def test_a_wait_for_a_server_that_never_answers_is_over_in_time(far, unique, lost):
    backend, network = far
    lock = lock_on(backend, unique, retry_interval=RETRY_INTERVAL)
    await take_and_free(backend, unique)  # connected
    network.black_hole(to_server=lost != "replies", to_client=lost != "requests")
    await assert_over_in_time(lambda: lock.acquire(timeout=TIMEOUT))


async def test_a_wait_for_a_server_that_never_accepts_is_over_in_time(far, unique):
    backend, network = far
    network.black_hole()
    lock = lock_on(backend, unique, retry_interval=RETRY_INTERVAL)
    await assert_over_in_time(lambda: lock.acquire(timeout=TIMEOUT))


async def test_a_thread_waits_no_longer_either(far, unique):
    backend, network = far
    lock = lock_on(backend, unique, retry_interval=RETRY_INTERVAL)
    await take_and_free(backend, unique)
    network.black_hole()
    await assert_over_in_time(
        lambda: anyio.to_thread.run_sync(lambda: lock.from_thread.acquire(timeout=TIMEOUT))
    )


@pytest.mark.parametrize("lease", [LEASE, 0.5], ids=["call_timeout", "lease"])
async def test_without_a_timeout_an_unanswered_call_fails_within_the_providers_bound(place, unique, lease):
    """The bound is the shorter of the provider's `call_timeout` and the lease."""
    async with place.far(call_timeout=0.5 if lease == LEASE else 5) as (backend, network):
        await take_and_free(backend, unique)
        lock = lock_on(backend, unique, lease_duration=lease)
        network.black_hole()
        for attempt in (lock.acquire, lambda: lock.acquire(timeout=0), lock.acquire_nowait):
            start = time.perf_counter()
            with pytest.raises(LockAcquireError) as caught:
                await attempt()
            assert time.perf_counter() - start < 2
            assert caught.value.__cause__ is not None
            assert not isinstance(caught.value, TimeoutError)


async def test_after_an_unanswered_call_the_next_one_works(place, near, unique):
    async with place.far(call_timeout=0.5) as (backend, network):
        lock = lock_on(backend, unique)
        await take_and_free(backend, unique)
        network.black_hole()
        with pytest.raises(LockAcquireError):
            await lock.acquire()
        network.heal()
        network.cut()  # what was held back never comes
        async with lock as handle:
            assert await near.owned(name=unique, token=handle.token) is True


async def test_a_timeout_of_zero_tries_once(near, unique):
    backend = Counting(near)
    lock = lock_on(backend, unique, retry_interval=0.001)
    async with lock_on(near, unique):
        for attempt, error in (
            (lambda: lock.acquire(timeout=0), LockTimeoutError),
            (lambda: lock.acquire(timeout=-0.0), LockTimeoutError),
            (lock.acquire_nowait, WouldBlockError),
        ):
            backend.asked.clear()
            with pytest.raises(error):
                await attempt()
            assert backend.asked == ["acquire"]
    await lock.acquire(timeout=0)
    await lock.release()


@pytest.mark.parametrize("timeout", [-1, -1e-9, -math.inf, math.nan, "1", True, [], 1j])
async def test_a_timeout_that_cannot_be_is_refused_in_threads_too_before_anything_is_asked(unique, timeout):
    backend = Counting(None)
    lock = lock_on(backend, unique)
    with pytest.raises(ValueError, match="timeout"):
        await anyio.to_thread.run_sync(lambda: lock.from_thread.acquire(timeout=timeout))
    with pytest.raises(ValueError, match="timeout"):
        await lock.acquire(timeout=timeout)
    assert backend.asked == []


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400, 1e10])
async def test_a_timeout_longer_than_anything_is_none(place, near, unique, timeout):
    lock = lock_on(near, unique)
    await lock.acquire(timeout=timeout)
    await lock.release()

    def work():
        lock.from_thread.acquire(timeout=timeout)
        lock.from_thread.release()

    await anyio.to_thread.run_sync(work)


class Hanging:
    """A backend that grants and then never answers, unless it is cancelled."""

    call_timeout = 0.3

    def __init__(self):
        self.locks = MemoryLockAdapter()
        self.locked, self.owned = self.locks.locked, self.locks.owned

    async def acquire(self, *, name, token, duration):
        await self.locks.acquire(name=name, token=token, duration=duration)
        await anyio.sleep_forever()

    async def release(self, *, name, token):
        return await self.locks.release(name=name, token=token)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("timeout", [None, 0, 0.1])
async def test_a_backend_that_never_answers_cannot_keep_the_clean_up_from_its_turn(anyio_backend, timeout):
    backend = Hanging()
    with pytest.raises(LockTimeoutError if timeout else LockAcquireError):
        await lock_on(backend, "x").acquire(timeout=timeout)
    await take_and_free(backend.locks, "x")


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_thread_that_gives_up_on_either_loop_leaves_nothing_held(anyio_backend):
    place = MemoryPlace()
    async with place.far() as (backend, network):
        lock = lock_on(backend, "x")
        await take_and_free(backend, "x")
        network.delay(0.5)

        def work():
            with pytest.raises(LockTimeoutError):
                lock.from_thread.acquire(timeout=0.1)

        await anyio.to_thread.run_sync(work)
        network.heal()
        await take_and_free(backend, "x")


@pytest.mark.parametrize("limit", ["asyncio.timeout", "anyio.fail_after", "acquire"])
async def test_no_end_of_a_wait_lets_the_body_run(near, unique, limit):
    lock, ran = lock_on(near, unique), []

    async def use():
        match limit:
            case "asyncio.timeout":
                async with asyncio.timeout(0.1), lock:
                    ran.append(limit)
            case "anyio.fail_after":
                with anyio.fail_after(0.1):
                    async with lock:
                        ran.append(limit)
            case "acquire":
                assert await lock.acquire(timeout=0.1) is False  # it has nothing false to return
                ran.append(limit)

    async with lock_on(near, unique):
        with pytest.raises(TimeoutError):
            await use()
    assert ran == []
    await take_and_free(near, unique)
