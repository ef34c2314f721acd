"""The conformance suite of `QueueingLockBackend`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from grelmicro.coordination.abc import QueueingLockBackend, Refusal
from grelmicro.testing.conformance._base import LONG, MAX_FENCE
from grelmicro.testing.conformance._ears import Ear, can_hear
from grelmicro.testing.conformance._lock_leases import LockBackendKnobs, fence_of
from grelmicro.testing.conformance._names import HARD_TOKENS, hard_names

if TYPE_CHECKING:
    from collections.abc import Sequence

Backends = tuple[QueueingLockBackend, ...]


async def _entered(backend: QueueingLockBackend, name: str, token: str, duration: float = LONG) -> int:
    """Acquire what must be granted through the queue, and return its fencing token."""
    fence = await backend.acquire_or_enqueue(name=name, token=token, duration=duration)
    assert type(fence) is int, f"{name!r} was not granted to {token!r}: {fence!r}"
    assert 0 < fence < MAX_FENCE
    return fence


async def _refused(backend: QueueingLockBackend, name: str, token: str) -> Refusal:
    """Stand in the queue, the lock being held."""
    refusal = await backend.acquire_or_enqueue(name=name, token=token, duration=LONG)
    assert isinstance(refusal, Refusal), f"{name!r} was granted to {token!r}"
    return refusal


async def _handed_over(
    backend: QueueingLockBackend, name: str, token: str, to: str, duration: float = LONG
) -> int:
    """Hand over what must be held, and return the successor's fencing token."""
    succession = await backend.hand_over(name=name, token=token, to=to, duration=duration)
    assert type(succession.fencing_token) is int
    assert 0 < succession.fencing_token < MAX_FENCE
    return succession.fencing_token


async def _listening(backends: Sequence[QueueingLockBackend], name: str) -> list[Ear]:
    """Listen to a name with each of the backends."""
    ears = [Ear(backend.on_turn, name) for backend in backends]
    for backend in backends:
        await can_hear(backend)
    for ear in ears:
        ear.forget()  # coming to hear is itself a reason to look
    return ears


class QueueingLockBackendSuite(LockBackendKnobs):
    """Everything that a `QueueingLockBackend` promises beyond a `LockBackend`.

    Used and adjusted like `LockBackendSuite`. Its fixture `processes` yields four open backends over the same
    data, each as a process of its own has it.
    """

    @pytest.fixture
    def backend(self, processes: Backends) -> QueueingLockBackend:
        """Return the first process's backend."""
        return processes[0]

    @pytest.fixture
    def peer(self, processes: Backends) -> QueueingLockBackend:
        """Return the second process's backend."""
        return processes[1]

    async def test_it_has_the_protocol(self, processes: Backends) -> None:
        assert len(set(map(id, processes))) == 4
        for backend in processes:
            assert isinstance(backend, QueueingLockBackend)
            assert type(backend.wakes) is bool

    # Granting and refusing

    async def test_a_free_lock_is_granted_as_by_acquire(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        fence = await _entered(backend, unique, "a")
        assert await backend.acquire(name=unique, token="a", duration=LONG) == fence
        for side in (backend, peer):
            assert await side.owned(name=unique, token="a") is True
            assert await side.acquire(name=unique, token="b", duration=LONG) is None

    async def test_a_repeated_request_gets_the_same_fence_and_sets_the_time_left(
        self, backend: QueueingLockBackend, unique: str
    ) -> None:
        fence = await _entered(backend, unique, "a")
        assert await _entered(backend, unique, "a", self.short) == fence
        await self.outlive(self.short)
        assert await backend.locked(name=unique) is False

    async def test_a_refusal_says_what_the_holder_has_left_and_changes_nothing(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        await _entered(peer, unique, "b")
        assert LONG / 2 < (await _refused(backend, unique, "a")).remaining <= self.lease_of(LONG)
        await _handed_over(peer, unique, "b", "c", 5 * self.short)
        refusal = await backend.acquire_or_enqueue(name=unique, token="a", duration=LONG)
        assert isinstance(refusal, Refusal), "either the backend is slow, or it granted a lock that was held"
        assert 0 <= refusal.remaining <= self.lease_of(5 * self.short)
        await self.outlive(5 * self.short)
        assert await backend.locked(name=unique) is False

    async def test_fences_grow_strictly_whatever_way_a_lock_is_granted(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        fences: list[int] = []
        for turn in range(20):
            a, b, c = f"a{turn}", f"b{turn}", f"c{turn}"
            fences.append(await _entered(backend, unique, a))
            fences.append(await _handed_over(backend, unique, a, b))
            fences.append(await _handed_over(peer, unique, b, c))
            assert await peer.release(name=unique, token=c) is True
            fences.append(await fence_of(peer, unique, a))
            assert await backend.release(name=unique, token=a) is True
        assert fences == sorted(set(fences))

    # Handing over

    async def test_a_hand_over_ends_one_token_and_begins_another(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        old = await _entered(backend, unique, "a")
        new = await _handed_over(backend, unique, "a", "b")
        assert new > old
        for side in (backend, peer):
            assert await side.owned(name=unique, token="a") is False
            assert await side.owned(name=unique, token="b") is True
            assert await side.release(name=unique, token="a") is False
            assert await side.acquire(name=unique, token="a", duration=LONG) is None
        assert await backend.acquire(name=unique, token="b", duration=LONG) == new
        assert await backend.release(name=unique, token="b") is True

    async def test_the_successor_gets_a_full_lease_of_its_own(
        self, backend: QueueingLockBackend, unique: str
    ) -> None:
        await _entered(backend, unique, "a", 2 * self.short)
        await _handed_over(backend, unique, "a", "b")
        await self.outlive(2 * self.short)
        assert await backend.owned(name=unique, token="b") is True
        await _handed_over(backend, unique, "b", "c", self.short)
        await self.outlive(self.short)
        assert await backend.locked(name=unique) is False

    async def test_a_repeated_hand_over_gets_the_same_answer(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        await _entered(backend, unique, "a")
        await _refused(peer, unique, "x")
        first = await backend.hand_over(name=unique, token="a", to="b", duration=LONG)
        assert first.others_wait is True
        for _ in range(3):
            assert await backend.hand_over(name=unique, token="a", to="b", duration=LONG) == first
        assert await backend.owned(name=unique, token="b") is True

    async def test_who_holds_nothing_hands_nothing_over(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        succession = await backend.hand_over(name=unique, token="a", to="b", duration=LONG)
        assert succession.fencing_token is None
        assert await backend.locked(name=unique) is False
        await _entered(peer, unique, "c", 5 * self.short)
        succession = await backend.hand_over(name=unique, token="a", to="b", duration=LONG)
        assert succession.fencing_token is None
        assert await peer.acquire(name=unique, token="b", duration=LONG) is None
        await self.outlive(5 * self.short)
        assert await backend.locked(name=unique) is False

    async def test_a_lapsed_lease_cannot_be_handed_over(
        self, backend: QueueingLockBackend, unique: str
    ) -> None:
        await _entered(backend, unique, "a", self.short)
        await self.outlive(self.short)
        succession = await backend.hand_over(name=unique, token="a", to="b", duration=LONG)
        assert succession.fencing_token is None
        assert await backend.locked(name=unique) is False

    async def test_tokens_are_compared_whole(self, backend: QueueingLockBackend, unique: str) -> None:
        fence = await _entered(backend, unique, HARD_TOKENS[0])
        for token, to in pairwise(HARD_TOKENS):
            for other in HARD_TOKENS:
                if other not in (token, to):
                    wrong = await backend.hand_over(name=unique, token=other, to=to, duration=LONG)
                    assert wrong.fencing_token is None, (token, other)
            new = await _handed_over(backend, unique, token, to)
            assert new > fence
            fence = new

    async def test_a_hand_over_says_whether_somebody_waits_in_another_process(
        self, processes: Backends, unique: str
    ) -> None:
        holder, first, second, _ = processes
        await _entered(holder, unique, "0")

        async def others_wait(token: int) -> bool:
            succession = await holder.hand_over(
                name=unique, token=str(token), to=str(token + 1), duration=LONG
            )
            return succession.others_wait

        assert await others_wait(0) is False
        await _refused(holder, unique, "one of its own")
        assert await others_wait(1) is False
        await _refused(first, unique, "x")
        assert await others_wait(2) is True
        await _refused(second, unique, "y")
        assert await others_wait(3) is True
        await holder.release(name=unique, token="4")
        await _entered(first, unique, "x")
        await first.release(name=unique, token="x")
        await _entered(second, unique, "y")
        await second.release(name=unique, token="y")
        await _entered(holder, unique, "5")
        assert await others_wait(5) is False

    # Being woken

    async def test_a_release_wakes_the_first_in_the_queue_and_only_that_one(
        self, processes: Backends, unique: str
    ) -> None:
        holder, *waiting = processes
        await _entered(holder, unique, "holder")
        ears = await _listening(waiting, unique)
        for number, backend in enumerate(waiting):
            await _refused(backend, unique, f"{number}")
        await _refused(waiting[0], unique, "0")  # asking again keeps the place
        for number in range(len(waiting)):
            releasing, token = (waiting[number - 1], f"{number - 1}") if number else (holder, "holder")
            assert await releasing.release(name=unique, token=token) is True
            await ears[number].woken()
            await self._assert_silent(processes, ears, unique)
            await _entered(waiting[number], unique, f"{number}")

    async def test_the_queue_keeps_nobody_from_a_free_lock(self, processes: Backends, unique: str) -> None:
        holder, waiting, passer_by, late = processes
        await _entered(holder, unique, "holder")
        (ear,) = await _listening([waiting], unique)
        await _refused(waiting, unique, "waiting")
        await holder.release(name=unique, token="holder")
        await fence_of(passer_by, unique, "passer-by")
        await passer_by.release(name=unique, token="passer-by")
        await _entered(late, unique, "late")
        await ear.woken()
        await _refused(waiting, unique, "waiting")
        await late.release(name=unique, token="late")
        await ear.woken()

    async def test_what_concerns_no_waiter_wakes_nobody(self, processes: Backends, unique: str) -> None:
        holder, other, *_ = processes
        ears = await _listening(processes, unique)
        await _entered(holder, unique, "a")
        assert await other.acquire(name=unique, token="b", duration=LONG) is None
        assert await other.release(name=unique, token="b") is False
        assert await holder.release(name=unique, token="a") is True
        await self._assert_silent(processes, ears, unique)

    async def test_neither_a_foreign_release_nor_a_hand_over_nor_a_renewal_wakes_anybody(
        self, processes: Backends, unique: str
    ) -> None:
        holder, waiting, *_ = processes
        ears = await _listening(processes, unique)
        await _entered(holder, unique, "a")
        await _refused(waiting, unique, "w")
        assert await holder.release(name=unique, token="b") is False
        await _entered(holder, unique, "a")
        await _handed_over(holder, unique, "a", "b")
        await self._assert_silent(processes, ears, unique)
        await holder.release(name=unique, token="b")
        await ears[1].woken()

    async def test_a_release_does_not_wake_the_process_that_released(
        self, processes: Backends, unique: str
    ) -> None:
        holder, waiting, *_ = processes
        ears = await _listening(processes, unique)
        await _entered(holder, unique, "a")
        await _refused(holder, unique, "another one here")
        await _refused(waiting, unique, "w")
        await holder.release(name=unique, token="a")
        await ears[1].woken()
        await self._assert_silent(processes, ears, unique)

    async def test_one_who_has_left_is_passed_over(self, processes: Backends, unique: str) -> None:
        holder, *waiting = processes
        ears = await _listening(waiting, unique)
        await _entered(holder, unique, "a")
        for backend in waiting:
            await _refused(backend, unique, "w")
        ears[0].stop()
        ears[1].stop()
        ears[1].stop()
        await holder.release(name=unique, token="a")
        await ears[2].woken()
        assert [ear.count for ear in ears] == [0, 0, 0]

    async def test_a_turn_can_be_passed_on(self, processes: Backends, unique: str) -> None:
        holder, *waiting = processes
        ears = await _listening(waiting, unique)
        await _entered(holder, unique, "a")
        for backend in waiting:
            await _refused(backend, unique, "w")
        await holder.release(name=unique, token="a")
        for backend, ear in zip(waiting, ears, strict=True):
            await ear.woken()
            await self._assert_silent(processes, ears, unique)
            await backend.pass_on(name=unique)
        await self._assert_silent(processes, ears, unique)

    async def test_nobody_is_woken_for_a_lock_that_is_held(self, processes: Backends, unique: str) -> None:
        holder, waiting, third, _ = processes
        ears = await _listening(processes, unique)
        await _entered(holder, unique, "a")
        await _refused(waiting, unique, "w")
        await third.pass_on(name=unique)
        await self._assert_silent(processes, ears, unique)
        await holder.release(name=unique, token="a")
        await ears[1].woken()

    async def test_each_name_has_a_queue_of_its_own(
        self, backend: QueueingLockBackend, peer: QueueingLockBackend, unique: str
    ) -> None:
        names = hard_names(unique)
        ears = {name: Ear(peer.on_turn, name) for name in names}
        await can_hear(peer)
        for ear in ears.values():
            ear.forget()
        for name in names:
            await _entered(backend, name, "a")
            await _refused(peer, name, "b")
        for name, ear in ears.items():
            await backend.release(name=name, token="a")
            await ear.woken()
            assert not any(other.count for other in ears.values()), name

    async def _assert_silent(self, processes: Backends, ears: Sequence[Ear], name: str) -> None:
        """Show that nobody was woken, by words about another name, which come later."""
        for number, backend in enumerate(processes):
            other = processes[number - 1]
            (ear,) = await _listening([backend], f"{name}-silence")
            await _entered(other, f"{name}-silence", "a")
            await _refused(backend, f"{name}-silence", "b")
            await other.release(name=f"{name}-silence", token="a")
            await ear.woken()
            ear.stop()
        assert [ear.count for ear in ears] == [0] * len(ears)
