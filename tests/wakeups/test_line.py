"""Callers of one process that wait for a lock: in order, as long as they want, with one contender."""

from __future__ import annotations

import gc
import time
import tracemalloc

import anyio
import pytest
from anyio.lowlevel import checkpoint

from grelmicro.coordination import LockAcquireError, LockTimeoutError
from grelmicro.testing.conformance._base import cancelling_at_every_turn
from tests.lock.test_bounds import assert_over_in_time
from tests.wakeups.support import (
    NEVER,
    SOON,
    Served,
    Watched,
    can_hear,
    patient_lock,
    until,
    until_waiting,
    waiting,
)

pytestmark = pytest.mark.usefixtures("only_signals")


async def start_in_order(tasks, count, run):
    """Start `run(number)` for each number; each has begun to wait before the next starts."""

    async def begin(number, *, task_status):
        task_status.started()
        await run(number)

    for number in range(count):
        await tasks.start(begin, number)


@pytest.mark.parametrize("held", ["here", "elsewhere"])
async def test_callers_are_served_in_the_order_in_which_they_came(near, other, unique, held):
    served, lock = Served(), patient_lock(near, unique)
    holder = patient_lock(near if held == "here" else other, unique)
    async with anyio.create_task_group() as tasks:
        await holder.acquire()
        await start_in_order(tasks, 50, lambda who: served.once(lock, who))
        await until_waiting(near, unique, 50)
        await can_hear(near)
        await holder.release()
    assert served.order == list(range(50))
    assert waiting(near, unique) == 0


async def test_callers_that_come_while_the_first_one_asks_stand_behind_it(near, other, unique):
    backend = Watched(near)
    served, lock, holder = Served(), patient_lock(backend, unique), patient_lock(other, unique)
    gate = backend.gates["acquire"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await holder.acquire()
        await start_in_order(tasks, 20, lambda who: served.once(lock, who))
        await until_waiting(backend, unique, 19)
        await can_hear(backend)
        assert backend.calls == {"acquire": 1}
        gate.set()
        await until_waiting(backend, unique, 20)
        await holder.release()
    assert served.order == list(range(20))
    assert backend.calls["acquire"] == 1
    assert backend.calls["hand_over"] == 19


async def test_when_the_first_one_gets_it_the_others_ask_for_nothing(near, unique):
    backend = Watched(near)
    served, lock = Served(), patient_lock(backend, unique)
    gate = backend.gates["acquire"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await start_in_order(tasks, 20, lambda who: served.once(lock, who))
        await until_waiting(backend, unique, 19)
        await can_hear(backend)
        gate.set()
    assert served.order == list(range(20))
    assert backend.calls["acquire"] + backend.calls["acquire_or_enqueue"] == 1


@pytest.mark.parametrize("how", ["cancelled", "timed out", "failed"])
async def test_when_the_first_one_is_gone_the_others_go_on(near, unique, how):
    backend = Watched(near)
    served, lock = Served(), patient_lock(backend, unique)
    backend.gates["acquire"] = anyio.Event()
    scope = anyio.CancelScope()
    failed = []

    async def first():
        with scope, pytest.raises((LockAcquireError, LockTimeoutError)):
            await lock.acquire(timeout=0.05 if how == "timed out" else None)

    async def second():
        try:
            await served.once(lock, 2)
        except LockAcquireError as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        await start_in_order(tasks, 2, lambda number: second() if number else first())
        await until_waiting(backend, unique, 1)
        if how == "cancelled":
            scope.cancel()
        elif how == "failed":
            backend.fail["acquire"] = [ConnectionError()]
            backend.gates["acquire"].set()
    # A backend that fails for one fails for all who wait.
    assert (served.order, len(failed)) == (([], 1) if how == "failed" else ([2], 0))


MANY = 10_000


def number(where, most):
    """Return how many wait: all of them where that is quick."""
    return most if where == "memory" else most // 5


async def test_ten_thousand_wait_at_the_price_of_one_and_leave_within_a_second(near, other, unique, where):
    many = MANY if where == "redis" else number(where, MANY)
    backend = Watched(near)
    lock, holder = patient_lock(backend, unique), patient_lock(other, unique)
    await holder.acquire()
    async with anyio.create_task_group() as tasks:
        for _ in range(many):
            tasks.start_soon(lock.acquire)
        await until_waiting(backend, unique, many)
        await can_hear(backend)
        with anyio.fail_after(10):
            while not backend.calls["acquire_or_enqueue"]:
                await checkpoint()
        # One more when the backend comes to hear.
        assert backend.calls["acquire"] == 1
        assert 1 <= backend.calls["acquire_or_enqueue"] <= 2
        start = time.process_time()  # the promise is a second, and other processes share the machine
        tasks.cancel_scope.cancel()
    assert time.process_time() - start < 1
    assert backend.calls.total() <= 3
    await until_waiting(backend, unique, 0)
    await holder.release()
    await lock.acquire(timeout=SOON)
    await lock.release()


@pytest.mark.parametrize("most", [2000, pytest.param(MANY, marks=pytest.mark.soak)])
async def test_many_waiters_are_all_served_in_order(near, other, unique, where, most):
    count = number(where, most)
    backend = Watched(near)
    served, lock, holder = Served(), patient_lock(backend, unique), patient_lock(other, unique)
    await holder.acquire()
    async with anyio.create_task_group() as tasks:
        await start_in_order(tasks, count, lambda who: served.once(lock, who))
        await until_waiting(backend, unique, count)
        await can_hear(backend)
        await holder.release()
    assert served.order == list(range(count))
    assert backend.calls["hand_over"] == count - 1
    assert backend.calls.total() <= count + 5


async def test_a_waiter_takes_little_memory_and_leaves_none_behind(near, unique):
    lock, holder = patient_lock(near, unique), patient_lock(near, unique)
    await holder.acquire()

    async def wait(count):
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(lock.acquire)
            await until_waiting(near, unique, count)
            taken = tracemalloc.get_traced_memory()[0]
            tasks.cancel_scope.cancel()
        await until_waiting(near, unique, 0)
        return taken

    tracemalloc.start()
    try:
        await wait(10)  # what is made once
        before = tracemalloc.get_traced_memory()[0]
        assert (await wait(1000) - before) / 1000 < 16_000  # mostly the tasks themselves
        for _ in range(3):
            await checkpoint()
        gc.collect()  # cancellations make cycles
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert left < 300_000
    await holder.release()


async def test_a_wait_in_line_is_over_in_time(near, unique):
    lock, holder = patient_lock(near, unique), patient_lock(near, unique)
    async with anyio.create_task_group() as tasks:
        await holder.acquire()
        for _ in range(5):
            tasks.start_soon(lock.acquire)
        await until_waiting(near, unique, 5)
        await assert_over_in_time(lambda: lock.acquire(timeout=0.3))
        assert waiting(near, unique) == 5
        tasks.cancel_scope.cancel()
    await holder.release()


async def test_those_who_leave_hold_up_nobody(near, unique):
    """First, in the middle and last in line."""
    served, lock, holder = Served(), patient_lock(near, unique), patient_lock(near, unique)
    scopes = {number: anyio.CancelScope() for number in (0, 1, 4, 9)}

    async def run(number):
        with scopes.get(number, anyio.CancelScope()):
            await served.once(lock, number)

    async with anyio.create_task_group() as tasks:
        await holder.acquire()
        await start_in_order(tasks, 10, run)
        await until_waiting(near, unique, 10)
        for scope in scopes.values():
            scope.cancel()
        await holder.release()
    assert served.order == [2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize("held", ["here", "elsewhere"])
async def test_a_taker_cancelled_at_any_turn_leaves_the_lock_to_the_next(near, other, unique, held):
    holding = patient_lock(near if held == "here" else other, unique)

    async def attempt(label, cancelled):
        name = f"{unique}-{label}"
        served, lock = Served(), patient_lock(near, name)
        holder = patient_lock(holding.backend, name)
        released = anyio.Event()
        await holder.acquire()
        async with anyio.create_task_group() as tasks:
            outcome = []

            async def cancelled_taker():
                outcome.append(await cancelled(lambda: served.once(lock, 1), after=released))

            await start_in_order(tasks, 1, lambda _: cancelled_taker())
            await until_waiting(near, name, 1)
            await start_in_order(tasks, 2, lambda who: served.once(lock, who + 2))
            await until_waiting(near, name, 3)
            await can_hear(near)
            released.set()
            with anyio.fail_after(SOON):
                await holder.release()
                while served.order[-2:] != [2, 3]:
                    await checkpoint()
        return outcome[0]

    await cancelling_at_every_turn(attempt)


async def test_a_release_cancelled_at_any_turn_serves_the_next(near, unique):
    async def attempt(label, cancelled):
        name = f"{unique}-{label}"
        served, lock = Served(), patient_lock(near, name)
        ready = anyio.Event()

        async def hold():
            await lock.acquire()
            await until_waiting(near, name, 2)
            ready.set()
            await lock.release()

        async with anyio.create_task_group() as tasks:
            outcome = []

            async def cancelled_holder():
                outcome.append(await cancelled(hold, after=ready))

            tasks.start_soon(cancelled_holder)
            await _until_held(near, name)
            await start_in_order(tasks, 2, lambda who: served.once(lock, who))
            with anyio.fail_after(SOON):
                while served.order != [0, 1]:
                    await checkpoint()
        return outcome[0]

    await cancelling_at_every_turn(attempt)


async def _until_held(backend, name):
    with anyio.fail_after(SOON):
        while not await backend.locked(name=name):
            await checkpoint()


UNCLEAR = {
    "refused": {"hand_over": [ConnectionError()]},
    "made, but unheard of": {"hand_over": [("after", ConnectionError())]},
    "refused, and so was the release": {"hand_over": [ConnectionError()], "release": [ConnectionError()]},
    "made unheard, and the release refused": {
        "hand_over": [("after", ConnectionError())],
        "release": [ConnectionError()],
    },
}


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
@pytest.mark.parametrize("failures", UNCLEAR.values(), ids=UNCLEAR)
async def test_a_hand_over_that_fails_holds_nobody_up(near, other, unique, failures, leaves):
    backend = Watched(near)
    served, lock = Served(), patient_lock(backend, unique)
    backend.fail = {operation: list(errors) for operation, errors in failures.items()}
    scope = anyio.CancelScope()

    async def first():
        with scope:
            await served.once(lock, 1)

    async with anyio.create_task_group() as tasks:
        with pytest.raises(Exception) if "release" in failures else anyio.CancelScope():  # noqa: PT011
            async with lock:
                await start_in_order(tasks, 1, lambda _: first())
                await until_waiting(backend, unique, 1)
                if leaves:
                    gate = backend.gates["acquire_or_enqueue"] = anyio.Event()
        if leaves:
            scope.cancel()
            gate.set()
    assert served.order in ([1], []) if leaves else [1]
    with anyio.fail_after(SOON):  # nothing is held for somebody who has left
        await served.once(patient_lock(other, unique, retry_interval=0.01), 2)


async def test_a_failing_backend_fails_for_all_in_line_and_for_each_with_an_error_of_its_own(
    near, other, unique
):
    backend = Watched(near)
    lock, holder = patient_lock(backend, unique), patient_lock(other, unique)
    errors = []

    async def wait(_):
        with pytest.raises(LockAcquireError) as caught:
            await lock.acquire()
        errors.append(caught.value)

    await holder.acquire()
    backend.fail["acquire_or_enqueue"] = [ConnectionError("gone")]
    gate = backend.gates["acquire_or_enqueue"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await start_in_order(tasks, 20, wait)
        await until_waiting(backend, unique, 20)
        gate.set()
    assert len(set(map(id, errors))) == 20
    assert all(isinstance(error.__cause__, ConnectionError) for error in errors)
    await holder.release()
    await lock.acquire(timeout=SOON)
    await lock.release()


async def test_a_call_that_fails_for_a_short_lease_fails_for_no_longer_one(near, unique):
    backend = Watched(near)
    lock, brief = patient_lock(backend, unique), patient_lock(backend, unique, lease_duration=0.05)
    served, holder = Served(), patient_lock(near, unique)
    await holder.acquire()
    gate = backend.gates["acquire_or_enqueue"] = anyio.Event()
    failed = []

    async def run(number):
        if number:
            await served.once(lock, number)
            return
        with pytest.raises(LockAcquireError):
            await brief.acquire()
        failed.append(number)
        gate.set()

    async with anyio.create_task_group() as tasks:
        await start_in_order(tasks, 2, run)
        await until(lambda: failed == [0])
        await can_hear(near)
        await holder.release()
    assert served.order == [1]


async def test_a_backend_that_cannot_listen_fails_instead_of_leaving_all_to_wait(near, other, unique):
    backend = Watched(near)
    backend.fail["on_turn"] = [ConnectionError("cannot listen")]
    async with patient_lock(other, unique):
        with anyio.fail_after(SOON), pytest.raises(LockAcquireError, match="cannot listen"):
            await patient_lock(backend, unique).acquire()


async def test_a_lapsed_lease_is_slept_to(near, other, unique):
    holder = patient_lock(other, unique, lease_duration=0.3)
    lock = patient_lock(near, unique, lease_duration=NEVER)
    await holder.acquire()
    await lock.acquire(timeout=SOON)
    await lock.release()
