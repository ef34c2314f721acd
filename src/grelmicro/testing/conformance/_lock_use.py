"""What a `Lock` promises to the tasks and threads that use it."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from grelmicro.coordination import (
    Lock,
    LockNotOwnedError,
    LockReentrantError,
    LockTimeoutError,
    WouldBlockError,
)
from grelmicro.testing.conformance._base import LONG, BackendSuite

if TYPE_CHECKING:
    from grelmicro.coordination import LockBackend

_PAUSE = 0.01


class LockKnobs(BackendSuite):
    """How the suite makes its locks."""

    @pytest.fixture
    def peer(self, backend: LockBackend) -> LockBackend:
        """Return the backend as another process has it: over another connection, where that makes sense."""
        return backend

    def lock(
        self, name: str, backend: LockBackend, duration: float = LONG, retry_interval: float = _PAUSE
    ) -> Lock:
        """Return a lock of its own identity, as another process would make it."""
        return Lock(
            name,
            backend=backend,
            lease_duration=self.lease_of(duration),
            retry_interval=retry_interval,
            retry_jitter=0,
            env_load=False,
        )


class LockUse(LockKnobs):
    """One lock, or several of one name, in tasks."""

    async def test_a_lock_is_held_from_acquire_to_release(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        lock, other = self.lock(unique, backend), self.lock(unique, peer)
        assert await lock.locked() is False
        handle = await lock.acquire()
        assert handle.name == unique
        assert await other.locked() is True
        assert (await lock.owned(), await other.owned()) == (True, False)
        await lock.release()
        assert (await lock.locked(), await lock.owned()) == (False, False)

    async def test_a_block_holds_the_lock(self, backend: LockBackend, peer: LockBackend, unique: str) -> None:
        lock, other = self.lock(unique, backend), self.lock(unique, peer)
        async with lock as handle:
            assert await backend.owned(name=unique, token=handle.token) is True
            with pytest.raises(WouldBlockError):
                await other.acquire_nowait()
        next_handle = await other.acquire_nowait()
        assert next_handle.fencing_token > handle.fencing_token
        assert next_handle.token != handle.token

    async def test_a_block_that_fails_frees_the_lock(self, backend: LockBackend, unique: str) -> None:
        lock = self.lock(unique, backend)
        with pytest.raises(ZeroDivisionError):
            async with lock:
                raise ZeroDivisionError
        assert await lock.locked() is False

    async def test_the_holder_cannot_acquire_again(self, backend: LockBackend, unique: str) -> None:
        lock = self.lock(unique, backend)
        handle = await lock.acquire()
        for again in (lock.acquire, lock.acquire_nowait, lock.__aenter__):
            with pytest.raises(LockReentrantError):
                await again()
        assert await backend.owned(name=unique, token=handle.token) is True
        await lock.release()
        await lock.acquire()

    async def test_a_child_task_waits_like_anybody_else(self, backend: LockBackend, unique: str) -> None:
        lock = self.lock(unique, backend)
        order: list[str] = []

        async def child() -> None:
            async with lock:
                order.append("child")

        async with anyio.create_task_group() as tasks, lock:
            tasks.start_soon(child)
            await anyio.sleep(3 * _PAUSE)
            order.append("parent")
        assert order == ["parent", "child"]

    async def test_no_update_is_lost_inside_the_block(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        shared = self.lock(unique, backend)
        total = 0
        fences: list[int] = []

        async def work(lock: Lock) -> None:
            nonlocal total
            for _ in range(3):
                async with lock as handle:
                    fences.append(handle.fencing_token)
                    seen = total
                    await checkpoint()
                    await checkpoint()
                    total = seen + 1

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(work, shared)
                tasks.start_soon(work, self.lock(unique, peer))
        assert total == 24
        assert fences == sorted(set(fences))

    async def test_a_busy_lock_is_refused_at_once_or_in_time(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        lock, other = self.lock(unique, backend), self.lock(unique, peer)
        async with lock:
            with pytest.raises(WouldBlockError):
                await other.acquire_nowait()
            for timeout in (0, 0.05):
                with pytest.raises(LockTimeoutError):
                    await other.acquire(timeout=timeout)
            assert await other.owned() is False
        assert await lock.locked() is False

    async def test_a_timeout_does_not_wait_for_the_next_try(self, backend: LockBackend, unique: str) -> None:
        patient = self.lock(unique, backend, retry_interval=LONG)
        async with self.lock(unique, backend):
            start = anyio.current_time()
            with pytest.raises(LockTimeoutError):
                await patient.acquire(timeout=0.2)
            assert anyio.current_time() - start < LONG / 2

    async def test_a_waiter_gets_the_lock_when_it_is_freed(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        lock, other = self.lock(unique, backend), self.lock(unique, peer)

        async def use(lock: Lock) -> None:
            async with lock:
                assert await lock.owned() is True

        async with anyio.create_task_group() as tasks, lock:
            tasks.start_soon(use, other)
            await anyio.sleep(3 * _PAUSE)

    async def test_a_waiter_gets_the_lock_when_its_lease_lapses(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        handle = await self.lock(unique, backend, self.short).acquire()
        next_handle = await self.lock(unique, peer).acquire(timeout=LONG)
        assert next_handle.fencing_token > handle.fencing_token

    @pytest.mark.parametrize("timeout", [-1, -0.001, nan, "1", True])
    async def test_a_timeout_that_cannot_be_is_refused(
        self, backend: LockBackend, unique: str, timeout: float
    ) -> None:
        lock = self.lock(unique, backend)
        with pytest.raises(ValueError, match="timeout"):
            await lock.acquire(timeout=timeout)
        assert await lock.locked() is False

    async def test_a_body_never_runs_without_the_lock(self, backend: LockBackend, unique: str) -> None:
        lock = self.lock(unique, backend)
        ran = False
        async with self.lock(unique, backend):
            with anyio.move_on_after(0.1) as scope:
                async with lock:
                    ran = True
            assert scope.cancelled_caught
        assert ran is False
        assert await lock.locked() is False

    async def test_extending_keeps_the_handle_and_the_fence(self, backend: LockBackend, unique: str) -> None:
        lock = self.lock(unique, backend)
        handle = await lock.acquire()
        for _ in range(50):
            again = await lock.extend()
            assert (again.token, again.fencing_token) == (handle.token, handle.fencing_token)
        assert await lock.owned() is True

    async def test_extending_sets_the_time_left_and_adds_nothing(
        self, backend: LockBackend, unique: str
    ) -> None:
        lock = self.lock(unique, backend, self.short)
        await lock.acquire()
        for _ in range(5):
            await lock.extend()
        await self.outlive(self.short)
        assert await lock.locked() is False

    async def test_extending_a_lapsed_lease_fails_and_leaves_the_lock_free(
        self, backend: LockBackend, unique: str
    ) -> None:
        lock = self.lock(unique, backend, self.short)
        await lock.acquire()
        await self.outlive(self.short)
        with pytest.raises(LockNotOwnedError):
            await lock.extend()
        assert await backend.locked(name=unique) is False
        with pytest.raises(LockNotOwnedError):
            await lock.release()
        await self.lock(unique, backend).acquire_nowait()

    async def test_extending_a_lapsed_lease_leaves_the_next_holder_alone(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        lock, other = self.lock(unique, backend, self.short), self.lock(unique, peer)
        await lock.acquire()
        await self.outlive(self.short)
        handle = await other.acquire_nowait()
        with pytest.raises(LockNotOwnedError):
            await lock.extend()
        assert await peer.owned(name=unique, token=handle.token) is True

    async def test_what_is_not_held_can_be_neither_extended_nor_released(
        self, backend: LockBackend, unique: str
    ) -> None:
        lock = self.lock(unique, backend)
        for operation in (lock.extend, lock.release):
            with pytest.raises(LockNotOwnedError):
                await operation()
        await lock.acquire()
        await lock.release()
        for operation in (lock.extend, lock.release):
            with pytest.raises(LockNotOwnedError):
                await operation()

    async def test_a_slow_holder_cannot_free_the_next_holders_lock(
        self, backend: LockBackend, unique: str
    ) -> None:
        shared = self.lock(unique, backend, 5 * self.short)
        token = ""
        held, done = anyio.Event(), anyio.Event()

        async def next_holder() -> None:
            nonlocal token
            token = (await shared.acquire_nowait()).token
            held.set()
            await done.wait()

        await shared.acquire()
        await self.outlive(5 * self.short)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(next_holder)
            await held.wait()
            with pytest.raises(LockNotOwnedError):
                await shared.release()
            assert await backend.owned(name=unique, token=token) is True
            with pytest.raises(WouldBlockError):
                await shared.acquire_nowait()
            done.set()

    async def test_leaving_a_block_whose_lease_lapsed_says_so(
        self, backend: LockBackend, unique: str
    ) -> None:
        lock = self.lock(unique, backend, self.short)

        async def use(error: BaseException | None) -> None:
            async with lock:
                await self.outlive(self.short)
                if error is not None:
                    raise error

        with pytest.raises(LockNotOwnedError):
            await use(None)
        with pytest.raises(ZeroDivisionError):
            await use(ZeroDivisionError())
