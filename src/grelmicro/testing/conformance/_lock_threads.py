"""What a `Lock` promises to worker threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from grelmicro.coordination import (
    Lock,
    LockNotOwnedError,
    LockReentrantError,
    LockTimeoutError,
    WouldBlockError,
)
from grelmicro.errors import OutOfContextError
from grelmicro.testing.conformance._lock_use import LockKnobs

if TYPE_CHECKING:
    from grelmicro.coordination import LockBackend


class LockThreads(LockKnobs):
    """One lock, used through `from_thread`."""

    async def test_a_thread_holds_the_lock_from_acquire_to_release(
        self, backend: LockBackend, unique: str
    ) -> None:
        lock = self.lock(unique, backend)

        def work() -> None:
            held = lock.from_thread
            handle = held.acquire(timeout=5)
            assert (held.locked(), held.owned()) == (True, True)
            assert held.extend().fencing_token == handle.fencing_token
            for again in (held.acquire, held.acquire_nowait):
                with pytest.raises(LockReentrantError):
                    again()
            held.release()
            with pytest.raises(LockNotOwnedError):
                held.release()
            with held as next_handle:
                assert next_handle.fencing_token > handle.fencing_token
            assert (held.locked(), held.owned()) == (False, False)

        await anyio.to_thread.run_sync(work)
        assert await lock.locked() is False

    async def test_a_thread_is_refused_while_a_task_holds_the_lock(
        self, backend: LockBackend, unique: str
    ) -> None:
        lock = self.lock(unique, backend)

        def work() -> None:
            with pytest.raises(WouldBlockError):
                lock.from_thread.acquire_nowait()
            for timeout in (0, 0.05):
                with pytest.raises(LockTimeoutError):
                    lock.from_thread.acquire(timeout=timeout)
            with pytest.raises(LockNotOwnedError):
                lock.from_thread.release()
            assert (lock.from_thread.locked(), lock.from_thread.owned()) == (True, False)

        async with lock:
            await anyio.to_thread.run_sync(work)
            assert await lock.owned() is True

    async def test_threads_exclude_each_other(self, backend: LockBackend, unique: str) -> None:
        shared = self.lock(unique, backend)
        inside = 0
        worst = 0

        def work(lock: Lock) -> None:
            nonlocal inside, worst
            for _ in range(3):
                with lock.from_thread:
                    inside += 1
                    worst = max(worst, inside)
                    assert anyio.from_thread.run(lock.locked) is True
                    inside -= 1

        async with anyio.create_task_group() as tasks:
            for lock in (shared, shared, self.lock(unique, backend)):
                tasks.start_soon(anyio.to_thread.run_sync, work, lock)
        assert worst == 1

    async def test_the_loops_own_thread_is_refused_at_once(self, backend: LockBackend, unique: str) -> None:
        lock = self.lock(unique, backend)
        await lock.locked()
        with pytest.raises(OutOfContextError):
            lock.from_thread.acquire(timeout=5)
        assert await lock.locked() is False
