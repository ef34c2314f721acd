"""What a `Lock` promises when its user is cancelled: nothing stays held, and the cancellation arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from grelmicro.testing.conformance._base import LONG, Cancel, cancelling_at_every_turn
from grelmicro.testing.conformance._lock_use import LockKnobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grelmicro.coordination import Lock, LockBackend


class LockCancellation(LockKnobs):
    """Cancelled at every turn of the loop, by anyio and natively."""

    async def test_cancelled_from_the_start_nothing_stays_held(
        self, backend: LockBackend, unique: str
    ) -> None:
        async def use(lock: Lock, reached: anyio.Event) -> None:
            reached.set()
            async with lock:
                await checkpoint()

        await self._cancel(backend, unique, use)

    async def test_cancelled_while_extending_nothing_stays_held(
        self, backend: LockBackend, unique: str
    ) -> None:
        async def use(lock: Lock, reached: anyio.Event) -> None:
            async with lock:
                reached.set()
                await lock.extend()

        await self._cancel(backend, unique, use)

    async def test_cancelled_while_releasing_nothing_stays_held(
        self, backend: LockBackend, unique: str
    ) -> None:
        async def use(lock: Lock, reached: anyio.Event) -> None:
            await lock.acquire()
            reached.set()
            await lock.release()

        await self._cancel(backend, unique, use)

    async def test_cancelled_while_leaving_a_block_nothing_stays_held(
        self, backend: LockBackend, unique: str
    ) -> None:
        async def use(lock: Lock, reached: anyio.Event) -> None:
            async with lock:
                reached.set()

        await self._cancel(backend, unique, use)

    async def test_cancelled_while_waiting_nothing_is_taken(self, backend: LockBackend, unique: str) -> None:
        async def attempt(label: str, cancel: Cancel) -> bool:
            name = f"{unique}-{label}"
            holder, waiter = self.lock(name, backend), self.lock(name, backend)
            async with holder:
                finished = await cancel(waiter.acquire)
                assert finished is False
                assert await holder.owned() is True
            await self._until_free(holder)
            return False

        await cancelling_at_every_turn(attempt)

    async def _cancel(
        self,
        backend: LockBackend,
        unique: str,
        use: Callable[[Lock, anyio.Event], Awaitable[None]],
    ) -> None:
        async def attempt(label: str, cancel: Cancel) -> bool:
            lock, reached = self.lock(f"{unique}-{label}", backend), anyio.Event()

            async def call() -> None:
                await use(lock, reached)

            finished = await cancel(call, after=reached)
            await self._until_free(lock)
            async with lock:
                assert await lock.owned() is True
            return finished

        await cancelling_at_every_turn(attempt)

    async def _until_free(self, lock: Lock) -> None:
        """What is cleaned up behind the caller's back takes a moment, but far less than the lease."""
        with anyio.move_on_after(LONG / 3):
            while await lock.locked():  # noqa: ASYNC110 - a backend has no event to wait for
                await anyio.sleep(0.005)
            return
        msg = "a cancelled call left the lock held"
        raise AssertionError(msg)
