"""How a lock finds its backend in an app, on every backend, for tasks and threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock, LockReentrantError, TaskLock
from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.errors import OutOfContextError
from tests.lock.places import LEASE, SOON, lock_on


async def test_a_helper_that_makes_the_lock_anew_does_not_wait_for_the_task_it_runs_in(near, unique):
    async def helper(micro):
        async with micro.coordination.lock(unique):
            pytest.fail("nested")

    async with Grelmicro(uses=[Coordination(lock=near)]) as micro:
        with anyio.fail_after(SOON):
            async with micro.coordination.lock(unique):
                with pytest.raises(LockReentrantError):
                    await helper(micro)
            await micro.coordination.lock(unique).acquire()
            with pytest.raises(LockReentrantError):
                await helper(micro)
            await micro.coordination.lock(unique).release()

        def thread():
            with micro.coordination.lock(unique).from_thread, pytest.raises(LockReentrantError):
                micro.coordination.lock(unique).from_thread.acquire(timeout=SOON)

        await anyio.to_thread.run_sync(thread)


async def test_tasks_that_each_make_the_lock_anew_exclude_each_other(near, unique):
    inside, worst = 0, 0

    async def work(micro):
        nonlocal inside, worst
        async with micro.coordination.lock(unique, retry_interval=0.005):
            inside += 1
            worst = max(worst, inside)
            await anyio.sleep(0.005)
            inside -= 1

    async with Grelmicro(uses=[Coordination(lock=near)]) as micro, anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work, micro)
    assert worst == 1


async def test_a_lock_made_at_import_finds_the_backend_of_the_app_it_runs_in(place, near, unique):
    lock, named = Lock(unique, env_load=False), Lock(unique, backend="other", env_load=False)
    for one in (lock, named):
        with pytest.raises(OutOfContextError, match="async with micro"):
            await one.acquire()
        with pytest.raises(OutOfContextError):
            await anyio.to_thread.run_sync(lambda one=one: one.from_thread.acquire(timeout=SOON))
    other = Coordination(lock=MemoryLockAdapter(), name="other")
    async with Grelmicro(uses=[Coordination(lock=near), other]) as micro:
        async with lock as handle, named:
            assert await near.owned(name=unique, token=handle.token) is True
            assert await micro.get("coordination", "other").lock_backend.locked(name=unique) is True
        with pytest.raises(OutOfContextError, match="missing"):
            await Lock(unique, backend="missing", env_load=False).acquire()
    with pytest.raises(OutOfContextError):
        await lock.locked()


async def test_what_was_acquired_before_an_override_is_released_where_it_is(near, unique):
    lock = Lock(unique, env_load=False)
    async with Grelmicro(uses=[Coordination(lock=near)]) as micro:
        handle = await lock.acquire()
        async with micro.override(Coordination(lock=MemoryLockAdapter())):
            assert await lock.locked() is False
            assert (await lock.extend()).token == handle.token
            assert await near.owned(name=unique, token=handle.token) is True
            await lock.release()
            assert await near.locked(name=unique) is False
            await lock.acquire()
            assert await near.locked(name=unique) is False
            await lock.release()


async def test_anyios_threads_see_the_app_and_plain_ones_need_the_backend(near, unique):
    ambient, explicit = Lock(unique, env_load=False), lock_on(near, f"{unique}-2")

    def use(lock):
        with lock.from_thread as handle:
            return handle.name

    async with Grelmicro(uses=[Coordination(lock=near)]):
        assert await anyio.to_thread.run_sync(use, ambient) == unique
        with ThreadPoolExecutor(1) as pool:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(pool, use, explicit) == f"{unique}-2"
            with pytest.raises(OutOfContextError):
                await loop.run_in_executor(pool, use, ambient)


async def test_locks_and_task_locks_whose_names_look_alike_exclude_nobody_else(near, unique):
    locks = [lock_on(near, f"{kind}{unique}{kind}") for kind in ("", "lock:", "tasklock:", "lock:tasklock:")]
    tasklocks = [
        TaskLock(lock.name, backend=near, min_hold_duration=0, lease_duration=LEASE, env_load=False)
        for lock in locks
    ]
    async with locks[0], locks[1], locks[2], locks[3]:
        async with tasklocks[0], tasklocks[1], tasklocks[2], tasklocks[3]:
            assert all([await one.locked() for one in (*locks, *tasklocks)])
        assert not any([await one.locked() for one in tasklocks])
        assert all([await one.locked() for one in locks])


@pytest.mark.parametrize(
    "pair",
    [
        ("a b", "a_b"),
        ("a_b", "a-b"),
        ("A", "a"),
        ("é", "e\u0301"),
        ("{x}a", "{x}b"),
        ("a:", "a"),
        ("🦀", "🦞"),
    ],
    ids=str,
)
async def test_names_that_a_lossy_mapping_would_confuse_are_two_locks(near, unique, pair):
    one, two = (lock_on(near, unique + name) for name in pair)
    async with one, two:
        assert await one.owned() is True
        assert await two.owned() is True


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 256, 7, None, b"x"], ids=repr)
def test_one_rule_for_names_at_construction(name):
    with pytest.raises(ValueError, match="name"):
        Lock(name, backend=MemoryLockAdapter())
    with pytest.raises(ValueError, match="name"):
        TaskLock(name, backend=MemoryLockAdapter())
