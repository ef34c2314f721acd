"""Three outcomes apart: busy, lost, and failed with the cause attached."""

from __future__ import annotations

import inspect

import anyio
import pytest

from grelmicro.coordination import Lock
from grelmicro.coordination import errors as e
from tests.lock.places import SERVERS, SOON, lock_on, new_provider, take_and_free, until

OPERATIONS = {
    "acquire": (lambda lock: lock.acquire(), e.LockAcquireError),
    "acquire_nowait": (lambda lock: lock.acquire_nowait(), e.LockAcquireError),
    "extend": (lambda lock: lock.extend(), e.LockAcquireError),
    "release": (lambda lock: lock.release(), e.LockReleaseError),
    "locked": (lambda lock: lock.locked(), e.LockLockedCheckError),
    "owned": (lambda lock: lock.owned(), e.LockOwnedCheckError),
    "do_acquire": (lambda lock: lock.do_acquire("t", duration=1), e.LockAcquireError),
    "do_release": (lambda lock: lock.do_release("t"), e.LockReleaseError),
    "do_owned": (lambda lock: lock.do_owned("t"), e.LockOwnedCheckError),
    "do_thread_acquire": (lambda lock: lock.do_thread_acquire(-1), e.LockAcquireError),
    "do_thread_acquire_nowait": (lambda lock: lock.do_thread_acquire_nowait(-1), e.LockAcquireError),
    "do_thread_extend": (lambda lock: lock.do_thread_extend(-2), e.LockAcquireError),
    "do_thread_release": (lambda lock: lock.do_thread_release(-2), e.LockReleaseError),
    "__aenter__": (lambda lock: lock.__aenter__(), e.LockAcquireError),
    "__aexit__": (lambda lock: lock.__aexit__(None, None, None), e.LockReleaseError),
}
NEEDS_HOLD = {"extend", "release", "owned", "__aexit__"}
NEEDS_THREAD_HOLD = {"do_thread_extend", "do_thread_release"}
NO_CALL = {"reconfigure", "do_thread_give_up"}


def test_the_walk_below_leaves_no_operation_out():
    public = {
        name
        for name, member in inspect.getmembers(Lock, inspect.iscoroutinefunction)
        if not name.startswith("_") or name in ("__aenter__", "__aexit__")
    }
    assert public == OPERATIONS.keys() | NO_CALL


async def failure_of(lock, operation):
    """Run an operation on a lock whose server is gone, and return its error."""
    call, expected = OPERATIONS[operation]
    with pytest.raises(e.CoordinationError) as caught:
        await call(lock)
    assert type(caught.value) is expected
    return caught.value


async def walk(backend, unique, break_it):
    """Get the locks that the operations need, break the server, and run each operation."""
    locks = {operation: lock_on(backend, f"{unique}-{operation}") for operation in OPERATIONS}
    for operation, lock in locks.items():
        if operation in NEEDS_HOLD:
            await lock.acquire()
        elif operation in NEEDS_THREAD_HOLD:
            await lock.do_thread_acquire(-2)
    await anyio.to_thread.run_sync(break_it)
    for operation, lock in locks.items():
        error = await failure_of(lock, operation)
        assert isinstance(error, e.LockBackendError)
        assert isinstance(error.__cause__, Exception), f"{operation} lost its cause"
        assert str(error.__cause__) in str(error)
    return locks


async def test_every_operation_on_an_unreachable_server_fails_in_its_own_way(place, unique):
    async with place.far(call_timeout=1) as (backend, network):

        def break_it():
            network.refuse()
            network.cut()

        locks = await walk(backend, unique, break_it)
        network.heal()
        # What failed can be tried again; what was held still is.
        assert (await locks["extend"].extend()).name == locks["extend"].name
        await locks["release"].release()
        await locks["acquire"].acquire(timeout=SOON)
        assert await locks["owned"].owned() is True
        await take_and_free(backend, locks["__aexit__"].name)


@pytest.mark.parametrize("server", SERVERS)
async def test_every_operation_on_a_stopped_server_fails_in_its_own_way(request, server, unique):
    machine = request.getfixturevalue(f"own_{server}")
    async with new_provider(server, machine.url, call_timeout=1).lock() as backend:
        await walk(backend, unique, machine.stop)
        await anyio.to_thread.run_sync(machine.start)
        await take_and_free(backend, f"{unique}-again")


async def test_every_operation_of_a_thread_fails_in_its_own_way(place, unique):
    async with place.far(call_timeout=1) as (backend, network):
        held, other = lock_on(backend, unique).from_thread, lock_on(backend, f"{unique}-2").from_thread

        def work():
            held.acquire()
            network.refuse()
            network.cut()
            for call, expected in (
                (other.acquire, e.LockAcquireError),
                (lambda: other.acquire(timeout=SOON), e.LockAcquireError),
                (lambda: other.acquire(timeout=0), e.LockAcquireError),
                (other.acquire_nowait, e.LockAcquireError),
                (other.locked, e.LockLockedCheckError),
                (held.extend, e.LockAcquireError),
                (held.owned, e.LockOwnedCheckError),
                (held.release, e.LockReleaseError),
                (lambda: held.__exit__(None, None, None), e.LockReleaseError),
            ):
                with pytest.raises(e.CoordinationError) as caught:
                    call()
                assert type(caught.value) is expected
                assert isinstance(caught.value.__cause__, Exception)

        await anyio.to_thread.run_sync(work)


BUSY = (e.WouldBlockError, e.LockTimeoutError)
LOST = (e.LockNotOwnedError,)
FAILED = (e.LockAcquireError, e.LockReleaseError, e.LockLockedCheckError, e.LockOwnedCheckError)


def test_busy_lost_and_failed_can_be_caught_apart():
    for group in (BUSY, LOST):
        for error in group:
            assert not issubclass(error, e.CoordinationBackendError)
    for error in FAILED:
        assert issubclass(error, e.LockBackendError)
        assert not issubclass(error, (*BUSY, *LOST, TimeoutError))
    assert not issubclass(e.LockNotOwnedError, BUSY)
    assert issubclass(e.LockTimeoutError, TimeoutError)
    assert issubclass(e.WouldBlockError, RuntimeError)
    assert issubclass(e.LockReentrantError, RuntimeError)


class Nonsense:
    """A backend whose answers cannot be."""

    def __init__(self, grant=7, flag=True):
        self.grant, self.flag = grant, flag
        self.released = []

    async def acquire(self, *, name, token, duration):
        return self.grant

    async def release(self, *, name, token):
        self.released.append(token)
        return self.flag

    async def locked(self, *, name):
        return self.flag

    async def owned(self, *, name, token):
        return self.flag


@pytest.mark.parametrize("grant", [True, False, "7", 7.0, b"7", [7]])
async def test_a_grant_that_cannot_be_is_an_error_and_given_back(grant):
    backend = Nonsense(grant=grant)
    lock = lock_on(backend, "x")
    with pytest.raises(e.LockAcquireError):
        await lock.acquire()

    async def given_back():
        return bool(backend.released)

    await until(given_back)
    with pytest.raises(e.LockNotOwnedError):
        await lock.release()


@pytest.mark.parametrize("flag", [None, 1, 0, "yes", b""])
async def test_an_answer_that_cannot_be_is_an_error(flag):
    lock = lock_on(Nonsense(flag=flag), "x")
    await lock.acquire()
    for call, expected in (
        (lock.locked, e.LockLockedCheckError),
        (lock.owned, e.LockOwnedCheckError),
        (lock.release, e.LockReleaseError),
    ):
        with pytest.raises(expected):
            await call()
