"""What a lock backend promises under contention and cancellation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from grelmicro.testing.conformance._base import LONG, Cancel, cancelling_at_every_turn, concurrently
from grelmicro.testing.conformance._lock_leases import LockBackendKnobs, fence_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grelmicro.coordination.abc import LockBackend


class LockRaces(LockBackendKnobs):
    """Many tasks on one name, and calls that are cancelled half-way."""

    async def test_of_many_tasks_one_gets_a_free_lock(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        for race in range(5):
            name = f"{unique}-{race}"
            winner = await self._race(name, backend, peer)
            assert await backend.owned(name=name, token=f"t{winner}") is True

    async def test_of_many_tasks_one_takes_over_a_lapsed_lock(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        old = await fence_of(backend, unique, "old", self.short)
        await self.outlive(self.short)
        winner = await self._race(unique, backend, peer)
        assert await fence_of(peer, unique, f"t{winner}") > old

    async def test_of_many_tasks_one_frees_a_lock(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        await fence_of(backend, unique, "a")
        sides = [backend if number % 2 else peer for number in range(self.racers)]
        freed = await concurrently([partial(side.release, name=unique, token="a") for side in sides])
        assert freed.count(True) == 1

    async def test_repeats_sent_together_are_one_grant(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        sides = [backend if number % 2 else peer for number in range(self.racers)]
        fences = await concurrently(
            [partial(side.acquire, name=unique, token="a", duration=LONG) for side in sides]
        )
        assert len(set(fences)) == 1
        assert fences[0] is not None

    async def test_no_update_is_lost_inside_the_lock_and_fences_follow_its_order(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        tasks, rounds = 10, 3
        total = 0
        fences: list[int] = []

        async def work(side: LockBackend, token: str) -> None:
            nonlocal total
            done = 0
            while done < rounds:
                fence = await side.acquire(name=unique, token=token, duration=LONG)
                if fence is None:
                    await checkpoint()
                    continue
                fences.append(fence)
                seen = total
                await checkpoint()
                await checkpoint()
                total = seen + 1
                assert await side.release(name=unique, token=token) is True
                done += 1

        await concurrently(
            [partial(work, backend if number % 2 else peer, f"t{number}") for number in range(tasks)]
        )
        assert total == tasks * rounds
        assert fences == sorted(set(fences))

    async def test_a_cancelled_acquire_leaves_nothing_that_its_token_cannot_release(
        self, backend: LockBackend, unique: str
    ) -> None:
        await self._cancel_at_every_turn(
            backend,
            unique,
            lambda name: backend.locked(name=name),
            lambda name: backend.acquire(name=name, token="a", duration=LONG),
        )

    async def test_a_cancelled_renewal_leaves_nothing_that_its_token_cannot_release(
        self, backend: LockBackend, unique: str
    ) -> None:
        await self._cancel_at_every_turn(
            backend,
            unique,
            lambda name: fence_of(backend, name, "a"),
            lambda name: backend.acquire(name=name, token="a", duration=LONG),
        )

    async def test_a_cancelled_release_can_be_repeated(self, backend: LockBackend, unique: str) -> None:
        await self._cancel_at_every_turn(
            backend,
            unique,
            lambda name: fence_of(backend, name, "a"),
            lambda name: backend.release(name=name, token="a"),
        )

    async def _race(self, name: str, *sides: LockBackend) -> int:
        fences = await concurrently(
            [
                partial(sides[number % len(sides)].acquire, name=name, token=f"t{number}", duration=LONG)
                for number in range(self.racers)
            ]
        )
        winners = [number for number, fence in enumerate(fences) if fence is not None]
        assert len(winners) == 1, f"{len(winners)} tokens were granted the same lock"
        return winners[0]

    async def _cancel_at_every_turn(
        self,
        backend: LockBackend,
        unique: str,
        prepare: Callable[[str], Awaitable[object]],
        call: Callable[[str], Awaitable[object]],
    ) -> None:
        async def attempt(label: str, cancel: Cancel) -> bool:
            name = f"{unique}-{label}"
            await prepare(name)
            finished = await cancel(partial(call, name))
            await backend.release(name=name, token="a")
            if getattr(backend, "survives_cancellation", False):
                assert await backend.locked(name=name) is False, f"still held when {label}"
                await fence_of(backend, name, "b")
            await fence_of(backend, f"{name}-next", "b")
            assert await backend.owned(name=f"{name}-next", token="b") is True
            return finished

        await cancelling_at_every_turn(attempt)
