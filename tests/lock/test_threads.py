"""Locks used from threads: the thread is the holder, no wait is without end, and nobody waits for itself."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import pytest

from grelmicro.coordination import (
    LockNotOwnedError,
    LockReentrantError,
    LockTimeoutError,
    WouldBlockError,
)
from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.errors import OutOfContextError
from tests.lock.places import LEASE, SOON, lock_on, take_and_free, until


@pytest.fixture
def plain():
    """Run functions in threads that anyio knows nothing of, one pool for a test."""
    with ThreadPoolExecutor(8) as pool:

        def run(function, *arguments):
            return asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

        yield run


async def test_a_plain_thread_uses_a_lock_like_any_other(near, unique, plain):
    lock = lock_on(near, unique)
    if isinstance(near, MemoryLockAdapter):
        near._loop = None  # as when it was never opened: the loop of the first call is used
        await lock.locked()

    def work():
        with lock.from_thread as handle:
            assert lock.from_thread.owned() is True
            with pytest.raises(LockReentrantError):
                lock.from_thread.acquire(timeout=SOON)
            return handle

    handle = await plain(work)
    assert (await lock.acquire()).fencing_token > handle.fencing_token
    await lock.release()


async def test_what_one_thread_holds_another_neither_has_nor_frees(near, unique, plain):
    """Also not the task that the thread was started from, nor the next holder once the lease is over."""
    lock = lock_on(near, unique, lease_duration=0.5)
    held, next_held, checked = threading.Event(), threading.Event(), threading.Event()

    def slow_holder():
        handle = lock.from_thread.acquire()
        held.set()
        assert next_held.wait(SOON)
        assert handle.expires_in() == 0
        for operation in (lock.from_thread.release, lock.from_thread.extend):
            with pytest.raises(LockNotOwnedError):
                operation()
        checked.set()
        return handle

    def next_holder():
        assert held.wait(SOON)
        with pytest.raises(LockNotOwnedError):
            lock.from_thread.release()
        handle = lock.from_thread.acquire(timeout=SOON)
        lock.from_thread.extend()
        next_held.set()
        assert checked.wait(SOON)
        owned = lock.from_thread.owned()
        return handle, owned

    def third():
        assert next_held.wait(SOON)
        with pytest.raises(WouldBlockError):
            lock.from_thread.acquire_nowait()

    await lock.reconfigure(lock.config.model_copy(update={"lease_duration": 0.3}))
    first = plain(slow_holder)
    second, refused = plain(next_holder), plain(third)
    await asyncio.sleep(0.05)
    await lock.reconfigure(lock.config.model_copy(update={"lease_duration": LEASE}))
    old, (new, owned), _ = await asyncio.gather(first, second, refused)
    assert owned is True
    assert new.fencing_token > old.fencing_token


async def test_threads_of_one_lock_exclude_each_other(near, unique, plain):
    lock = lock_on(near, unique, retry_interval=0.002)
    inside, worst, fences = 0, 0, []

    def work():
        nonlocal inside, worst
        for _ in range(3):
            with lock.from_thread as handle:
                inside += 1
                worst = max(worst, inside)
                time.sleep(0.001)
                fences.append(handle.fencing_token)
                inside -= 1

    await asyncio.gather(*[plain(work) for _ in range(6)])
    assert worst == 1
    assert len(fences) == 18
    assert fences == sorted(set(fences))


async def test_a_later_thread_with_the_number_of_one_that_ended_is_no_holder(near, unique):
    lock = lock_on(near, unique)
    await lock.locked()

    def in_thread(work):
        """Run something in a new thread; return its number and its result."""
        result = []
        thread = threading.Thread(target=lambda: result.append((threading.get_ident(), work())))
        thread.start()
        thread.join()
        return result[0]

    def scene():
        ident, _ = in_thread(lock.from_thread.acquire)
        for _ in range(100):
            again, owned = in_thread(lock.from_thread.owned)
            if again == ident:
                return owned, in_thread(partial(raised_by, lock.from_thread.release))[1]
        pytest.skip("no thread got the number of an earlier one")

    owned, error = await anyio.to_thread.run_sync(scene)
    assert owned is False
    assert isinstance(error, LockNotOwnedError)


async def test_a_later_task_in_the_place_of_one_that_ended_is_no_holder(near, unique):
    lock = lock_on(near, unique)

    async def hold():
        await lock.acquire()
        return id(asyncio.current_task())

    async def look():
        error = None
        try:
            await lock.release()
        except LockNotOwnedError as caught:
            error = type(caught)
        return id(asyncio.current_task()), await lock.owned(), error

    task = asyncio.create_task(hold())
    place = await task
    del task
    seen = set()
    for _ in range(200):
        where, owned, error = await asyncio.create_task(look())
        seen.add(where)
        assert (owned, error) == (False, LockNotOwnedError)
        if place in seen:
            break
    with pytest.raises(LockTimeoutError):
        await lock.acquire(timeout=0)


def raised_by(call):
    try:
        return call()
    except Exception as error:
        return error


@pytest.mark.parametrize("how", ["a coroutine", "a loop callback"])
async def test_on_the_loops_own_thread_every_call_fails_at_once(near, unique, how):
    lock = lock_on(near, unique)
    await lock.locked()
    held = lock.from_thread

    def calls():
        operations = (
            held.acquire,
            lambda: held.acquire(timeout=SOON),
            held.acquire_nowait,
            held.extend,
            held.release,
            held.locked,
            held.owned,
            held.__enter__,
            lambda: held.__exit__(None, None, None),
        )
        return [raised_by(operation) for operation in operations]

    if how == "a coroutine":
        outcomes = calls()
    else:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: future.set_result(calls()))
        outcomes = await future
    assert {type(outcome) for outcome in outcomes} == {OutOfContextError}
    assert "own thread" in str(outcomes[0])
    assert await lock.locked() is False


def test_while_the_loop_is_paused_a_thread_is_refused_at_once(place, unique):
    loop = asyncio.new_event_loop()
    try:
        stack = place.near()
        backend = loop.run_until_complete(stack.__aenter__())
        lock = lock_on(backend, unique)
        loop.run_until_complete(lock.locked())
        with ThreadPoolExecutor(1) as pool:
            # From the loop's own thread and from another, between two runs of the loop.
            for error in (
                raised_by(lock.from_thread.acquire),
                pool.submit(raised_by, lock.from_thread.acquire).result(SOON),
            ):
                assert isinstance(error, OutOfContextError)
                assert "not running" in str(error)

            async def runs_again():
                return await asyncio.wrap_future(pool.submit(lock.from_thread.acquire))

            assert loop.run_until_complete(runs_again()).name == unique
        loop.run_until_complete(stack.__aexit__(None, None, None))
    finally:
        loop.close()


async def test_a_timeout_holds_while_the_loop_is_stalled_and_nothing_stays_held(near, unique, plain):
    lock = lock_on(near, unique)
    await lock.locked()
    over = threading.Event()
    took = []

    def work():
        start = time.perf_counter()
        outcome = raised_by(partial(lock.from_thread.acquire, timeout=0.1))
        took.append(time.perf_counter() - start)
        over.set()
        return outcome

    attempt = plain(work)
    assert over.wait(SOON)  # the loop does not turn before the thread has given up
    assert isinstance(await attempt, LockTimeoutError)
    assert took[0] < 2
    await take_and_free(near, unique)


async def test_a_single_try_gives_up_on_a_stalled_loop_too(place, unique, plain):
    async with place.far(call_timeout=0.2) as (backend, _):
        lock = lock_on(backend, unique)
        await lock.locked()
        over = threading.Event()

        def work():
            outcome = raised_by(partial(lock.from_thread.acquire, timeout=0))
            over.set()
            return outcome

        attempt = plain(work)
        assert over.wait(SOON)
        assert isinstance(await attempt, LockTimeoutError)
        await take_and_free(backend, unique)


async def test_a_thread_that_gave_up_frees_what_it_was_granted_in_the_meantime(place, near, unique, plain):
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        lock = lock_on(backend, unique)
        await lock.locked()
        network.delay(0.5)
        outcome = await plain(lambda: raised_by(partial(lock.from_thread.acquire, timeout=0.1)))
        assert isinstance(outcome, LockTimeoutError)
        await take_and_free(near, unique)


async def test_a_thread_that_gave_up_can_ask_again_at_once(place, unique, plain):
    """Whenever the grant of the first try arrives: before, while or after the thread gives up."""
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        locks = [lock_on(backend, f"{unique}-{number}") for number in range(12)]
        for lock in locks:
            await lock.locked()
        network.delay(0.15)

        def work(lock, timeout):
            try:
                lock.from_thread.acquire(timeout=timeout)
            except LockTimeoutError:
                lock.from_thread.acquire(timeout=SOON)
            lock.from_thread.release()

        work_all = [partial(work, lock, 0.1 + 0.01 * number) for number, lock in enumerate(locks)]
        await asyncio.gather(*[plain(one) for one in work_all])


class Holding:
    """Memory's locks, whose grants wait until they are let go."""

    call_timeout = 5.0

    def __init__(self):
        self._locks = MemoryLockAdapter()
        self.granted, self.let_go = threading.Event(), asyncio.Event()
        self.locked, self.owned, self.release = self._locks.locked, self._locks.owned, self._locks.release

    async def acquire(self, *, name, token, duration):
        fence = await self._locks.acquire(name=name, token=token, duration=duration)
        self.granted.set()
        await self.let_go.wait()
        return fence


async def test_a_grant_that_comes_as_the_thread_gives_up_is_not_forgotten(unique, plain, monkeypatch):
    """The reply is set between the end of the thread's patience and its giving up."""
    from grelmicro import _threads

    lock = lock_on(backend := Holding(), unique)
    await backend.locked(name=unique)
    lock._calls()
    loop = asyncio.get_running_loop()

    class Late(_threads.Future):
        def result(self, timeout=None):
            if timeout is None:
                return super().result(SOON)
            assert backend.granted.wait(SOON)
            loop.call_soon_threadsafe(backend.let_go.set)
            super().exception(SOON)
            raise TimeoutError

    monkeypatch.setattr(_threads, "Future", Late)

    def work():
        handle = raised_by(partial(lock.from_thread.acquire, timeout=0.1))
        return handle, lock.from_thread.owned()

    handle, owned = await plain(work)
    assert owned is not isinstance(handle, LockTimeoutError), "held, but the thread was told otherwise"


async def test_threads_that_wait_with_a_timeout_let_the_holder_have_one_in_the_end(near, unique):
    """All threads of the pool wait for a lock whose holder needs one more to let go."""
    pool = anyio.CapacityLimiter(40)
    lock = lock_on(near, unique)
    waiting, outcomes = [], []

    def wait():
        waiting.append(None)
        try:
            lock.from_thread.acquire(timeout=0.5)
        except LockTimeoutError as error:
            outcomes.append(error)
        else:
            lock.from_thread.release()

    async def all_wait():
        return len(waiting) == 40

    async with anyio.create_task_group() as tasks, lock:
        for _ in range(40):
            tasks.start_soon(partial(anyio.to_thread.run_sync, wait, limiter=pool))
        await until(all_wait)
        assert pool.available_tokens == 0
        with anyio.fail_after(SOON):
            await anyio.to_thread.run_sync(threading.get_ident, limiter=pool)
    assert outcomes
    await take_and_free(near, unique)


def test_one_lock_serves_the_threads_of_one_loop_after_another(unique):
    """A lock made at import, in a process whose loop is run anew."""
    lock = lock_on(MemoryLockAdapter(), unique)

    async def use():
        async with lock:
            pass
        with ThreadPoolExecutor(1) as pool:

            def work():
                with lock.from_thread as handle:
                    return handle

            return await asyncio.get_running_loop().run_in_executor(pool, work)

    first, second = asyncio.run(use()), asyncio.run(use())
    assert second.fencing_token > first.fencing_token
