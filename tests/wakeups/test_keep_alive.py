"""`auto_extend`: a lease is kept alive while a block runs, and the block stopped the moment it is lost."""

# ruff: noqa: PT012 - the block that raises is what these tests are about

from __future__ import annotations

import asyncio
import math
from typing import ClassVar

import anyio
import pytest
from anyio import current_time

from grelmicro.coordination import (
    Lock,
    LockConfig,
    LockNotOwnedError,
    TaskLock,
    TaskLockConfig,
)
from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.errors import SettingsValidationError
from grelmicro.providers.memory import MemoryProvider
from grelmicro.testing import virtual_asyncio, virtual_trio
from grelmicro.testing.conformance._base import cancelling_at_every_turn
from tests.lock.places import ServerPlace, new_provider
from tests.wakeups.support import SOON, Watched

pytestmark = pytest.mark.variant("memory")

LEASE = 30.0


@pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


on_asyncio = pytest.mark.parametrize("anyio_backend", [virtual_asyncio()], ids=["asyncio"])
on_real_time = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture
def backend():
    return Watched(MemoryLockAdapter(provider=MemoryProvider()))


def make_lock(backend, **settings):
    settings = {"auto_extend": True, "lease_duration": LEASE} | settings
    return Lock("kept", backend=backend, env_load=False, **settings)


def make_task_lock(backend, **settings):
    settings = {"auto_extend": True, "lease_duration": LEASE, "min_hold_duration": 0} | settings
    return TaskLock("kept", backend=backend, env_load=False, **settings)


both = pytest.mark.parametrize("make", [make_lock, make_task_lock], ids=["lock", "tasklock"])


def ender(backend, lock):
    """Return what releases a lock behind its holder's back."""
    key = "tasklock:kept" if isinstance(lock, TaskLock) else "kept"
    return lambda handle: backend.backend.release(name=key, token=handle.token)


@both
async def test_the_lease_is_extended_at_a_third_of_its_length(backend, make):
    lock = make(backend)
    async with lock as handle:
        start = current_time()
        for number in range(1, 10):
            await anyio.sleep(start + number * LEASE / 3 + 0.001 - current_time())
            assert backend.calls["acquire"] == 1 + number
            assert handle.expires_in() == pytest.approx(LEASE, abs=0.1)
        await anyio.sleep(100 * LEASE)
        assert await lock.locked()
    assert not await lock.locked()
    calls = backend.calls["acquire"]
    await anyio.sleep(2 * LEASE)
    assert backend.calls["acquire"] == calls


@both
async def test_a_block_shorter_than_a_third_of_the_lease_costs_no_extension(backend, make):
    for _ in range(10):
        async with make(backend):
            await anyio.sleep(LEASE / 3 - 0.1)
    assert backend.calls == {"acquire": 10, "release": 10}


@both
async def test_the_block_is_cancelled_when_somebody_else_has_ended_the_lease(backend, make):
    lock = make(backend)
    end_lease = ender(backend, lock)
    stopped = []
    with pytest.raises(LockNotOwnedError):
        async with lock as handle:
            await end_lease(handle)
            start = current_time()
            try:
                await anyio.sleep_forever()
            finally:
                stopped.append(current_time() - start)
    assert stopped == [pytest.approx(LEASE / 3, abs=0.1)]
    assert handle.expires_in() == 0
    assert not await lock.locked()  # the extension that found it free has left nothing behind


@both
async def test_the_block_is_cancelled_when_the_lease_ends_unextended_and_not_before(backend, make):
    lock = make(backend)
    with pytest.raises(LockNotOwnedError):
        async with lock as handle:
            backend.fail["acquire"] = [ConnectionError()] * 1000
            start = current_time()
            try:
                await anyio.sleep_forever()
            finally:
                assert current_time() - start == pytest.approx(LEASE, abs=0.1)
                assert handle.expires_in() < 0.1
    assert backend.calls["acquire"] > 5


@both
async def test_an_extension_that_fails_is_tried_again(backend, make, caplog):
    async with make(backend) as handle:
        backend.fail["acquire"] = [ConnectionError()] * 3
        await anyio.sleep(LEASE / 3 + 3.5 * LEASE / 20)
        assert backend.calls["acquire"] == 5
        assert handle.expires_in() > LEASE * 0.9
        await anyio.sleep(3 * LEASE)
    assert caplog.text.count("could not be extended") == 1


@both
async def test_the_blocks_own_error_leaves_as_it_is(backend, make):
    with pytest.raises(KeyError) as caught:
        async with make(backend):
            await anyio.sleep(LEASE)
            raise KeyError("mine")
    assert type(caught.value) is KeyError
    assert caught.value.args == ("mine",)
    lock = make(backend)
    end_lease = ender(backend, lock)
    with pytest.raises(ValueError, match="on the way out") as other:
        async with lock as handle:
            await end_lease(handle)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("on the way out")
    assert type(other.value) is ValueError


@both
async def test_max_hold_duration_bounds_it(backend, make):
    lock = make(backend, max_hold_duration=4.5 * LEASE)
    start = current_time()
    with pytest.raises(LockNotOwnedError):
        async with lock:
            try:
                await anyio.sleep_forever()
            finally:
                assert current_time() - start == pytest.approx(4.5 * LEASE, abs=0.1)
    assert current_time() - start == pytest.approx(4.5 * LEASE, abs=0.1)
    assert not await lock.locked()
    async with make(backend, max_hold_duration=4.5 * LEASE):
        await anyio.sleep(4.4 * LEASE)


@pytest.mark.parametrize("own_extension", [0.3, 0.9], ids=["before the first", "later"])
async def test_a_holder_that_extends_too_is_not_cut_short_before_max_hold_duration(backend, own_extension):
    lock = make_lock(backend, max_hold_duration=1.2 * LEASE)
    start = current_time()
    with pytest.raises(LockNotOwnedError):
        async with lock:
            await anyio.sleep(own_extension * LEASE)
            await lock.extend()
            await anyio.sleep_forever()
    assert current_time() - start == pytest.approx(1.2 * LEASE, abs=0.1)


@both
async def test_an_extension_unheard_of_may_have_shortened_the_lease(backend, make):
    lock = make(backend)
    start = current_time()
    with pytest.raises(LockNotOwnedError):
        async with lock:
            await anyio.wait_all_tasks_blocked()
            await lock.reconfigure(lock.config.model_copy(update={"lease_duration": LEASE / 10}))
            backend.fail["acquire"] = [("after", ConnectionError())] + [ConnectionError()] * 1000
            await anyio.sleep_forever()
    assert current_time() - start < LEASE


async def test_a_bare_acquire_is_left_alone(backend):
    lock = make_lock(backend)
    handle = await lock.acquire()
    await anyio.sleep(LEASE / 2)
    assert backend.calls["acquire"] == 1
    assert handle.expires_in() == pytest.approx(LEASE / 2, abs=0.1)
    await anyio.sleep(LEASE)
    with pytest.raises(LockNotOwnedError):
        await lock.release()


@both
async def test_threads_are_refused(backend, make):
    with pytest.raises(SettingsValidationError, match="auto_extend"):
        _ = make(backend).from_thread


async def test_a_thread_that_has_begun_leaves_well_while_others_are_kept_alive(backend):
    lock = Lock("kept", backend=backend, env_load=False)
    other = Lock("other", backend=backend, env_load=False)
    from_thread = lock.from_thread
    await lock.reconfigure(LockConfig(auto_extend=True))

    def work():
        with from_thread:
            pass

    await other.reconfigure(LockConfig(auto_extend=True))
    async with other:
        await anyio.to_thread.run_sync(work)
    assert not await lock.locked()


@pytest.mark.parametrize("config", [LockConfig, TaskLockConfig])
def test_settings_that_do_not_go_together_are_refused(config):
    for settings in (
        {"max_hold_duration": 100},
        {"auto_extend": True, "max_hold_duration": 59},
        {"auto_extend": True, "max_hold_duration": math.inf},
        {"auto_extend": True, "max_hold_duration": 0},
        {"auto_extend": "perhaps"},
    ):
        with pytest.raises(ValueError, match=r"max_hold_duration|auto_extend"):
            config(**settings)
    assert config().auto_extend is False
    assert config(auto_extend=True, max_hold_duration=60).max_hold_duration == 60


@pytest.mark.parametrize(("cls", "kind"), [(Lock, "LOCK"), (TaskLock, "TASKLOCK")])
def test_settings_come_from_the_environment_too(monkeypatch, backend, cls, kind):
    monkeypatch.setenv(f"GREL_{kind}_KEPT_AUTO_EXTEND", "true")
    monkeypatch.setenv(f"GREL_{kind}_KEPT_MAX_HOLD_DURATION", "120")
    config = cls("kept", backend=backend).config
    assert (config.auto_extend, config.max_hold_duration) == (True, 120)
    assert cls("kept", backend=backend, auto_extend=False, env_load=False).config.auto_extend is False
    with pytest.raises(SettingsValidationError, match="max_hold_duration"):
        cls("kept", backend=backend, lease_duration=121)


@both
async def test_a_running_block_follows_a_new_lease_duration(backend, make):
    lock = make(backend)
    async with lock as handle:
        new = lock.config.model_copy(update={"lease_duration": 3 * LEASE})
        await lock.reconfigure(new)
        await anyio.sleep(LEASE)
        assert handle.expires_in() > 1.5 * LEASE


@both
async def test_a_cancellation_from_outside_leaves_as_it_is(backend, make):
    lock = make(backend)
    with anyio.move_on_after(2 * LEASE) as scope:
        async with lock:
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not await lock.locked()
    with pytest.raises(TimeoutError):
        with anyio.fail_after(2 * LEASE):
            async with lock:
                await anyio.sleep_forever()


@on_asyncio
@both
async def test_a_native_cancellation_leaves_as_it_is(backend, make):
    lock = make(backend)

    async def run():
        async with lock:
            await anyio.sleep_forever()

    task = asyncio.create_task(run())
    await asyncio.sleep(2 * LEASE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await lock.locked()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * LEASE):
            await run()
    assert not await lock.locked()


async def test_nested_blocks_are_stopped_one_by_one(backend):
    outer, inner = (
        make_lock(backend),
        Lock("inner", backend=backend, env_load=False, auto_extend=True, lease_duration=LEASE),
    )
    async with outer as held:
        with pytest.raises(LockNotOwnedError, match="inner"):
            async with inner as handle:
                await backend.backend.release(name="inner", token=handle.token)
                await anyio.sleep_forever()
        assert held.expires_in() > 0
        await anyio.sleep(LEASE)
        assert await outer.owned()
    with pytest.raises(LockNotOwnedError, match="kept"):
        async with outer as handle, inner:
            await backend.backend.release(name="kept", token=handle.token)
            await anyio.sleep_forever()
    assert not await inner.locked()
    async with outer, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 5 * LEASE)


@both
async def test_leaving_at_any_moment_leaves_nothing_held(backend, make):
    """Also when an extension is due, or under way, at that very moment."""
    lock = make(backend, lease_duration=0.3)
    for step in range(60):
        async with lock:
            await anyio.sleep(0.1 + (step - 30) / 1e5 if step % 2 else 0.1)
        assert not await lock.locked()
        await anyio.sleep(0.15)
        assert not await lock.locked()


async def test_an_exit_cancelled_at_any_turn_leaves_nothing_held(backend):
    async def attempt(label, cancelled):
        lock = make_lock(backend)
        leaving = anyio.Event()

        async def run():
            async with lock:
                await anyio.sleep(LEASE / 3)  # an extension is due right now
                leaving.set()

        outcome = await cancelled(run, after=leaving)
        await anyio.sleep(1)
        assert not await lock.locked(), label
        return outcome

    await cancelling_at_every_turn(attempt)


@on_asyncio
async def test_a_task_that_is_gone_without_leaving_its_block_keeps_nothing_alive(backend):
    lock = make_lock(backend)
    await asyncio.create_task(lock.__aenter__())
    await anyio.sleep(2 * LEASE)
    assert not await lock.locked()


@both
async def test_lost_waits_for_the_end_and_expires_in_counts_down(backend, make):
    lock = make(backend, auto_extend=False)
    ends = []

    async def watch(handle):
        await handle.lost()
        ends.append(current_time())

    async with anyio.create_task_group() as tasks:
        async with lock as handle:
            tasks.start_soon(watch, handle)
            start = current_time()
            assert handle.expires_in() == pytest.approx(LEASE, abs=0.1)
            await anyio.sleep(10)
            assert handle.expires_in() == pytest.approx(LEASE - 10, abs=0.1)
            assert ends == []
        await anyio.wait_all_tasks_blocked()
        assert ends == [pytest.approx(start + 10, abs=0.1)]
    assert handle.expires_in() == 0
    await handle.lost()
    with pytest.raises(LockNotOwnedError):
        async with anyio.create_task_group() as tasks:
            try:
                async with lock as handle:
                    tasks.start_soon(watch, handle)
                    start = current_time()
                    await anyio.sleep(2 * LEASE)
            except LockNotOwnedError as error:
                lost = error
        assert ends[1:] == [pytest.approx(start + LEASE, abs=0.1)]
        raise lost


async def test_lost_follows_extensions(backend):
    lock = make_lock(backend, auto_extend=False)
    async with lock as handle, anyio.create_task_group() as tasks:
        tasks.start_soon(handle.lost)
        for _ in range(5):
            await anyio.sleep(LEASE * 0.9)
            await lock.extend()
        with anyio.move_on_after(LEASE * 0.9) as scope:
            await handle.lost()
        assert scope.cancelled_caught
        await lock.extend()
        tasks.cancel_scope.cancel()


class TestOnRedis:
    """The same, for real."""

    pytestmark: ClassVar = [pytest.mark.variant("redis"), on_real_time]

    @pytest.fixture
    def place(self, redis_url):
        return ServerPlace(redis_url, lambda url, **settings: new_provider("redis", url, **settings))

    async def test_a_lease_outlasts_itself(self, place, unique):
        async with place.near() as backend, place.near() as other:
            lock = Lock(unique, backend=backend, env_load=False, auto_extend=True, lease_duration=0.6)
            async with lock as handle:
                await anyio.sleep(1.5)
                assert await other.owned(name=unique, token=handle.token)
                assert handle.expires_in() > 0

    async def test_a_foreign_release_stops_the_block(self, place, unique):
        async with place.near() as backend, place.near() as other:
            lock = Lock(unique, backend=backend, env_load=False, auto_extend=True, lease_duration=1)
            with anyio.fail_after(SOON), pytest.raises(LockNotOwnedError):
                async with lock as handle:
                    await other.release(name=unique, token=handle.token)
                    await other.acquire(name=unique, token="thief", duration=LEASE)
                    await anyio.sleep_forever()
            assert await other.owned(name=unique, token="thief")

    async def test_a_server_that_is_gone_past_the_lease_stops_the_block_in_time(self, place, unique):
        async with place.far() as (backend, network):
            lock = Lock(unique, backend=backend, env_load=False, auto_extend=True, lease_duration=0.6)
            with pytest.raises(LockNotOwnedError):
                async with lock as handle:
                    network.black_hole()
                    try:
                        await anyio.sleep_forever()
                    finally:
                        assert -0.3 < handle._lease.deadline - current_time() <= 0.01
