"""TaskLock: one try, a minimum hold, an exit that leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from grelmicro.coordination import (
    Lock,
    LockAcquireError,
    LockNotOwnedError,
    LockReentrantError,
    LockReleaseError,
    TaskLock,
    TaskLockConfig,
    WouldBlockError,
)
from grelmicro.coordination._names import tasklock_key
from grelmicro.errors import OutOfContextError, SettingsValidationError
from grelmicro.providers.memory import MemoryProvider
from tests.task.support import FaultyLockBackend


@pytest.fixture
def backend():
    return FaultyLockBackend(provider=MemoryProvider())


def lock_on(backend, **settings):
    return TaskLock("report", backend=backend, **settings)


async def free_again(lock):
    """Wait for the lock to be free; returns how long that took."""
    start = anyio.current_time()
    while await lock.locked():  # noqa: ASYNC110 - the end of a lease sets no event
        await anyio.sleep(0.01)
    return anyio.current_time() - start


async def test_a_quick_holder_keeps_the_lock_for_its_minimum_hold(backend):
    lock = lock_on(backend, min_hold_duration=5)
    async with lock as handle:
        assert handle.name == "report"
        assert await lock.locked()
    assert await free_again(lock) == pytest.approx(5, abs=0.02)


async def test_the_minimum_hold_counts_from_when_the_lock_was_taken(backend):
    lock = lock_on(backend, min_hold_duration=5)
    async with lock:
        await anyio.sleep(3)
    assert await free_again(lock) == pytest.approx(2, abs=0.02)


async def test_a_holder_that_took_longer_frees_the_lock_at_once(backend):
    lock = lock_on(backend, min_hold_duration=5)
    async with lock:
        await anyio.sleep(6)
    assert not await lock.locked()


async def test_no_minimum_hold_frees_the_lock_at_once(backend):
    lock = lock_on(backend, min_hold_duration=0)
    async with lock:
        pass
    assert not await lock.locked()


async def test_the_minimum_hold_stays_when_the_block_raised(backend):
    lock = lock_on(backend, min_hold_duration=5)
    with pytest.raises(KeyError):
        async with lock:
            raise KeyError
    assert await free_again(lock) == pytest.approx(5, abs=0.02)


async def test_the_minimum_hold_stays_when_the_block_was_cancelled(backend):
    lock = lock_on(backend, min_hold_duration=5)
    with anyio.move_on_after(1):
        async with lock:
            await anyio.sleep_forever()
    assert await free_again(lock) == pytest.approx(4, abs=0.02)


async def test_a_busy_lock_is_not_waited_for(backend):
    async with lock_on(backend):
        start = anyio.current_time()
        with pytest.raises(WouldBlockError):
            await lock_on(backend).__aenter__()
        assert anyio.current_time() == start


async def test_a_minimum_hold_keeps_the_same_lock_object_out_too(backend):
    lock = lock_on(backend, min_hold_duration=5)
    async with lock:
        pass
    with pytest.raises(WouldBlockError):
        await lock.__aenter__()
    await anyio.sleep(5.1)
    async with lock:
        pass


async def test_one_holder_does_not_enter_twice(backend):
    lock = lock_on(backend)
    async with lock:
        with pytest.raises(LockReentrantError):
            await lock.__aenter__()


async def test_a_lock_and_a_task_lock_of_one_name_do_not_meet(backend):
    async with Lock("report", backend=backend), TaskLock("report", backend=backend):
        assert [arguments["name"] for _, arguments in backend.asked] == ["report", tasklock_key("report")]


async def test_a_lapsed_lease_is_reported_and_not_taken_again(backend):
    lock = lock_on(backend, min_hold_duration=1, lease_duration=2)
    with pytest.raises(LockNotOwnedError):
        async with lock:
            await anyio.sleep(3)
    await anyio.wait_all_tasks_blocked()
    assert not await lock.locked()


async def test_the_holder_that_took_over_is_left_alone(backend):
    first, second = (lock_on(backend, min_hold_duration=1, lease_duration=2) for _ in range(2))
    with pytest.raises(LockNotOwnedError):  # noqa: PT012 - leaving the block is what is tested
        async with first:
            await anyio.sleep(2.5)
            await second.__aenter__()
    await anyio.wait_all_tasks_blocked()
    assert await second.locked()
    await second.__aexit__(None, None, None)


async def test_keeping_a_lease_that_the_backend_has_lost_gives_the_new_grant_back(backend):
    lock = lock_on(backend, min_hold_duration=10)
    with pytest.raises(LockNotOwnedError):
        async with lock as handle:
            await backend.release(name=tasklock_key("report"), token=handle.token)
    assert not await lock.locked()


async def test_a_lost_lease_does_not_hide_what_the_block_raised(backend):
    lock = lock_on(backend, min_hold_duration=1, lease_duration=2)
    with pytest.raises(KeyError) as caught:  # noqa: PT012 - as above
        async with lock:
            await anyio.sleep(3)
            raise KeyError
    assert any("its lease has ended" in note for note in caught.value.__notes__)


async def test_refresh_sets_the_lease_anew(backend):
    lock = lock_on(backend, min_hold_duration=1, lease_duration=2)
    async with lock:
        for _ in range(5):
            await anyio.sleep(1.5)
            await lock.refresh()
        with pytest.raises(WouldBlockError):
            await lock_on(backend).__aenter__()


async def test_refresh_needs_a_lease_that_lasts(backend):
    lock = lock_on(backend, min_hold_duration=0, lease_duration=2)
    with pytest.raises(LockNotOwnedError):
        await lock.refresh()
    with pytest.raises(LockNotOwnedError):  # noqa: PT012 - as above
        async with lock:
            await anyio.sleep(3)
            with pytest.raises(LockNotOwnedError):
                await lock.refresh()
    await anyio.wait_all_tasks_blocked()
    assert not await lock.locked()


async def test_a_failed_acquire_says_why_and_leaves_nothing(backend):
    lock = lock_on(backend)
    backend.away = True
    with pytest.raises(LockAcquireError) as caught:
        await lock.__aenter__()
    assert isinstance(caught.value.__cause__, ConnectionError)
    backend.away = False
    async with lock:
        pass


@pytest.mark.parametrize("held", [1, 4], ids=["to be kept", "to be released"])
async def test_an_exit_that_fails_is_made_up_for_when_the_backend_is_back(backend, held):
    lock = lock_on(backend, min_hold_duration=3)
    with pytest.raises(LockReleaseError):  # noqa: PT012 - as above
        async with lock:
            await anyio.sleep(held)
            backend.away = True
    await anyio.sleep(10)
    backend.away = False
    await anyio.sleep(1.1)
    assert not await lock.locked()


async def test_an_exit_that_failed_does_not_stand_in_the_way_of_its_own_replica(backend):
    lock = lock_on(backend, min_hold_duration=3)
    with pytest.raises(LockReleaseError):
        async with lock:
            backend.away = True
    await anyio.sleep(10)
    backend.away = False
    async with lock:
        pass


async def test_an_exit_that_failed_keeps_the_minimum_hold(backend):
    lock = lock_on(backend, min_hold_duration=8)
    with pytest.raises(LockReleaseError):
        async with lock:
            backend.away = True
    await anyio.sleep(2)
    backend.away = False
    await anyio.sleep(1.1)
    assert await free_again(lock) == pytest.approx(4.9, abs=0.02)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("held", [0, 4], ids=["to be kept", "to be released"])
async def test_an_exit_cancelled_at_any_turn_still_ends_the_hold(backend, turns, held):
    lock = lock_on(backend, min_hold_duration=3)

    async def use():
        async with lock:
            await anyio.sleep(held)
            leaving.set()

    leaving = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await leaving.wait()
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert await free_again(lock) == pytest.approx(max(3 - held, 0), abs=0.02)


@pytest.mark.parametrize("turns", range(12))
async def test_native_cancellation_of_an_exit_reaches_the_caller_after_the_hold_ended(
    backend, turns, only_asyncio
):
    lock = lock_on(backend, min_hold_duration=3)
    backend.before["acquire"] = backend.before["release"] = slowly

    async def use():
        async with lock:
            leaving.set()
        await anyio.sleep_forever()

    leaving = asyncio.Event()
    task = asyncio.create_task(use())
    await leaving.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await free_again(lock) == pytest.approx(3, abs=0.3)


async def slowly(**_):
    await anyio.sleep(0.1)


@pytest.mark.parametrize("at", [0.01, 0.05, 0.1, 0.15])
async def test_a_cancelled_acquire_leaves_nothing_held(backend, at):
    backend.before["acquire"] = slowly
    lock = lock_on(backend)
    with anyio.move_on_after(at):
        await lock.__aenter__()
    if at < 0.1:
        await anyio.sleep(0.5)
        assert not await lock.locked()


async def test_an_exit_with_no_answer_is_bounded(backend):
    lock = lock_on(backend, min_hold_duration=1)

    async def silent(**_):
        await anyio.sleep_forever()

    start = anyio.current_time()
    with pytest.raises(LockReleaseError):
        async with lock:
            backend.before["acquire"] = silent
    assert anyio.current_time() - start <= backend.call_timeout + 0.1
    del backend.before["acquire"]
    await anyio.sleep(2)
    assert not await lock.locked()


async def test_a_reply_of_another_shape_is_a_failed_exit(backend):
    lock = lock_on(backend, min_hold_duration=1)
    with pytest.raises(LockReleaseError) as caught:
        async with lock:
            backend.acquire = lambda **_: answer("OK")
    assert isinstance(caught.value.__cause__, TypeError)
    del backend.acquire


async def answer(value):
    return value


async def test_a_thread_holds_it_like_a_task(backend):
    lock = lock_on(backend, min_hold_duration=5)

    def use():
        with lock.from_thread as handle:
            assert handle.fencing_token > 0
            assert lock.from_thread.locked()
            lock.from_thread.refresh()
            with pytest.raises(LockReentrantError):
                lock.from_thread.__enter__()
        with pytest.raises(LockNotOwnedError):
            lock.from_thread.refresh()

    async with backend:
        await anyio.to_thread.run_sync(use)
        assert await lock.locked()
        with pytest.raises(WouldBlockError):
            await lock.__aenter__()


async def test_a_thread_holds_nothing_for_another(backend):
    lock, entered, checked = lock_on(backend), threading.Event(), threading.Event()

    def hold():
        with lock.from_thread:
            entered.set()
            assert checked.wait(5)

    def look():
        assert entered.wait(5)
        try:
            with pytest.raises(LockNotOwnedError):
                lock.from_thread.refresh()
            with pytest.raises(WouldBlockError):
                lock.from_thread.__enter__()
        finally:
            checked.set()

    async with backend, anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, hold)
        group.start_soon(anyio.to_thread.run_sync, look)


async def test_the_loops_own_thread_is_told_at_once(backend):
    async with backend:
        with pytest.raises(OutOfContextError):
            lock_on(backend).from_thread.__enter__()


async def test_the_single_steps(backend):
    lock = lock_on(backend)
    assert await lock.do_acquire("mine", duration=60)
    assert not await lock.do_acquire("yours", duration=60)
    assert await lock.do_reacquire("mine", 5)
    assert not await lock.do_reacquire("yours", 5)
    assert await lock.do_release("mine")
    assert not await lock.do_release("mine")

    assert await lock.do_acquire("mine", duration=60)
    await anyio.sleep(1)
    await lock.do_exit("mine", min_hold_duration=3)
    assert await free_again(lock) == pytest.approx(2, abs=0.02)
    assert await lock.do_acquire("mine", duration=60)
    await lock.do_exit("mine", min_hold_duration=0)
    assert not await lock.locked()

    await lock.do_thread_enter()
    assert await lock.locked()
    await lock.do_thread_exit()


async def test_a_swap_takes_effect_on_the_next_entry(backend):
    lock = lock_on(backend, min_hold_duration=2)
    async with lock:
        await lock.reconfigure(TaskLockConfig(min_hold_duration=7))
    assert await free_again(lock) == pytest.approx(2, abs=0.02)
    async with lock:
        pass
    assert await free_again(lock) == pytest.approx(7, abs=0.02)


def test_a_minimum_hold_longer_than_the_lease_is_refused_everywhere(monkeypatch):
    with pytest.raises(
        SettingsValidationError, match="min_hold_duration must not be longer than lease_duration"
    ):
        TaskLock("report", min_hold_duration=61)
    with pytest.raises(SettingsValidationError, match="min_hold_duration"):
        TaskLock("report", lease_duration=0.5)
    with pytest.raises(ValueError, match="min_hold_duration"):
        TaskLockConfig(min_hold_duration=2, lease_duration=1)
    with pytest.raises(SettingsValidationError, match="min_hold_duration"):
        TaskLock.from_config("report", TaskLockConfig().model_copy(update={"min_hold_duration": 90}))
    monkeypatch.setenv("GREL_TASKLOCK_REPORT_MIN_HOLD_DURATION", "61")
    with pytest.raises(SettingsValidationError, match="min_hold_duration"):
        TaskLock("report")


async def test_a_minimum_hold_longer_than_the_lease_is_refused_at_a_swap(backend):
    lock = lock_on(backend)
    broken = lock.config.model_copy(update={"min_hold_duration": 90})
    with pytest.raises(SettingsValidationError, match="min_hold_duration"):
        await lock.reconfigure(broken)
    assert lock.config.min_hold_duration == 1


def test_settings_come_from_keywords_then_environment_then_defaults(monkeypatch):
    monkeypatch.setenv("GREL_TASKLOCK_LEASE_DURATION", "90")
    monkeypatch.setenv("GREL_TASKLOCK_MIN_HOLD_DURATION", "9")
    lock = TaskLock(min_hold_duration=4)
    assert (lock.name, lock.config.min_hold_duration, lock.config.lease_duration) == ("default", 4, 90)
    assert TaskLock(env_load=False).config == TaskLockConfig()
    assert TaskLockConfig().min_hold_duration == 1
    assert TaskLockConfig().lease_duration == 60
