"""What a lock backend promises about one name: exclusion, expiry, renewal, release, fencing tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest

from grelmicro.testing.conformance._base import LONG, MAX_FENCE, BackendSuite
from grelmicro.types import MAX_SECONDS

if TYPE_CHECKING:
    from grelmicro.coordination.abc import LockBackend


class LockBackendKnobs(BackendSuite):
    """Knobs of lock backends alone."""

    keeps_fence_after_data_loss: ClassVar[bool] = False
    """Whether fencing tokens go on growing after `lose_data`, which must then be overridden."""

    many: ClassVar[int] = 2000
    """How many names are locked at the same time."""

    @pytest.fixture
    def peer(self, backend: LockBackend) -> LockBackend:
        """Return the backend as another process has it: over another connection, where that makes sense."""
        return backend

    async def lose_data(self) -> None:
        """Make the backend lose everything that it stored."""
        raise NotImplementedError


async def fence_of(backend: LockBackend, name: str, token: str, duration: float = LONG) -> int:
    """Acquire what must be granted, and return its fencing token."""
    fence = await backend.acquire(name=name, token=token, duration=duration)
    assert fence is not None, f"{name!r} was refused to {token!r}"
    assert type(fence) is int, f"the fencing token is a {type(fence).__name__}"
    assert 0 < fence < MAX_FENCE
    return fence


class LockLeases(LockBackendKnobs):
    """One name at a time."""

    async def test_a_name_never_used_is_free(self, backend: LockBackend, unique: str) -> None:
        assert await backend.locked(name=unique) is False
        assert await backend.owned(name=unique, token="a") is False
        assert await backend.release(name=unique, token="a") is False

    async def test_asking_does_not_take(self, backend: LockBackend, unique: str) -> None:
        await backend.locked(name=unique)
        await backend.owned(name=unique, token="a")
        await backend.release(name=unique, token="a")
        await fence_of(backend, unique, "b")

    async def test_a_granted_lock_is_locked_and_owned(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        await fence_of(backend, unique, "a")
        for side in (backend, peer):
            assert await side.locked(name=unique) is True
            assert await side.owned(name=unique, token="a") is True
            assert await side.owned(name=unique, token="b") is False

    async def test_another_token_is_refused_while_one_is_live(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        await fence_of(backend, unique, "a")
        for side in (peer, backend):
            assert await side.acquire(name=unique, token="b", duration=LONG) is None
            assert await side.owned(name=unique, token="b") is False
        assert await backend.owned(name=unique, token="a") is True

    async def test_a_refused_request_does_not_touch_the_lease(
        self, backend: LockBackend, unique: str
    ) -> None:
        await fence_of(backend, unique, "a", self.short)
        await backend.acquire(name=unique, token="b", duration=LONG)
        await self.outlive(self.short)
        assert await backend.locked(name=unique) is False

    async def test_release_frees(self, backend: LockBackend, peer: LockBackend, unique: str) -> None:
        await fence_of(backend, unique, "a")
        assert await backend.release(name=unique, token="a") is True
        assert await peer.locked(name=unique) is False
        assert await backend.owned(name=unique, token="a") is False
        await fence_of(peer, unique, "b")

    async def test_a_second_release_finds_nothing(self, backend: LockBackend, unique: str) -> None:
        await fence_of(backend, unique, "a")
        assert await backend.release(name=unique, token="a") is True
        assert await backend.release(name=unique, token="a") is False

    async def test_release_with_a_foreign_token_does_nothing(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        await fence_of(backend, unique, "a")
        assert await peer.release(name=unique, token="b") is False
        assert await backend.owned(name=unique, token="a") is True
        assert await peer.acquire(name=unique, token="b", duration=LONG) is None

    async def test_a_released_token_cannot_free_the_next_holder(
        self, backend: LockBackend, unique: str
    ) -> None:
        await fence_of(backend, unique, "a")
        await backend.release(name=unique, token="a")
        await fence_of(backend, unique, "b")
        assert await backend.release(name=unique, token="a") is False
        assert await backend.owned(name=unique, token="b") is True

    async def test_a_lapsed_lock_is_free(self, backend: LockBackend, peer: LockBackend, unique: str) -> None:
        await fence_of(backend, unique, "a", self.short)
        await self.outlive(self.short)
        for side in (backend, peer):
            assert await side.locked(name=unique) is False
            assert await side.owned(name=unique, token="a") is False

    async def test_a_lapsed_token_cannot_be_released(self, backend: LockBackend, unique: str) -> None:
        await fence_of(backend, unique, "a", self.short)
        await self.outlive(self.short)
        assert await backend.release(name=unique, token="a") is False

    async def test_a_lapsed_token_cannot_free_the_next_holder(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        old = await fence_of(backend, unique, "a", self.short)
        await self.outlive(self.short)
        new = await fence_of(peer, unique, "b")
        assert new > old
        assert await backend.release(name=unique, token="a") is False
        assert await backend.acquire(name=unique, token="a", duration=LONG) is None
        assert await peer.owned(name=unique, token="b") is True

    async def test_a_repeated_request_gets_the_same_fence(self, backend: LockBackend, unique: str) -> None:
        fence = await fence_of(backend, unique, "a")
        for _ in range(10):
            assert await fence_of(backend, unique, "a") == fence

    async def test_a_repeated_request_can_lengthen_the_lease(self, backend: LockBackend, unique: str) -> None:
        start = anyio.current_time()
        fence = await fence_of(backend, unique, "a", 2 * self.short)
        again = await fence_of(backend, unique, "a", LONG)
        if anyio.current_time() - start < 2 * self.short:
            assert again == fence
        await self.outlive(2 * self.short)
        assert await backend.owned(name=unique, token="a") is True
        assert await backend.acquire(name=unique, token="b", duration=LONG) is None

    async def test_a_repeated_request_sets_the_time_left_and_adds_nothing(
        self, backend: LockBackend, unique: str
    ) -> None:
        fence = await fence_of(backend, unique, "a", LONG)
        assert await fence_of(backend, unique, "a", self.short) == fence
        await self.outlive(self.short)
        assert await backend.locked(name=unique) is False

    async def test_a_lapsed_token_is_granted_anew_with_a_larger_fence(
        self, backend: LockBackend, unique: str
    ) -> None:
        old = await fence_of(backend, unique, "a", self.short)
        await self.outlive(self.short)
        assert await fence_of(backend, unique, "a") > old

    async def test_a_released_token_is_granted_anew_with_a_larger_fence(
        self, backend: LockBackend, unique: str
    ) -> None:
        old = await fence_of(backend, unique, "a")
        await backend.release(name=unique, token="a")
        assert await fence_of(backend, unique, "a") > old

    async def test_fences_grow_strictly_over_many_cycles(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        fences: list[int] = []
        for turn in range(100):
            side, token = (backend, "a") if turn % 3 else (peer, "b")
            fences.append(await fence_of(side, unique, token))
            assert await side.release(name=unique, token=token) is True
        assert fences == sorted(set(fences))

    async def test_fences_grow_strictly_over_release_and_expiry(
        self, backend: LockBackend, unique: str
    ) -> None:
        fences: list[int] = []
        for turn in range(3):
            fences.append(await fence_of(backend, unique, f"released-{turn}"))
            await backend.release(name=unique, token=f"released-{turn}")
            fences.append(await fence_of(backend, unique, f"lapsed-{turn}", self.short))
            await self.outlive(self.short)
        assert fences == sorted(set(fences))

    async def test_fences_grow_after_the_data_was_lost(self, backend: LockBackend, unique: str) -> None:
        if not self.keeps_fence_after_data_loss:
            pytest.skip("the backend does not claim it (keeps_fence_after_data_loss)")
        held = [await fence_of(backend, f"{unique}-{number}", "a") for number in range(5)]
        await self.lose_data()
        for number, fence in enumerate(held):
            assert await fence_of(backend, f"{unique}-{number}", "b") > fence

    async def test_a_fraction_of_a_second_counts(self, backend: LockBackend, unique: str) -> None:
        start = anyio.current_time()
        await fence_of(backend, unique, "a", 1.5)
        await self.lapse(1.1)
        held = await backend.owned(name=unique, token="a")
        assert held is True or anyio.current_time() - start >= 1.5
        await self.lapse(self.lease_of(1.5) - 1.1 + self.grace)
        assert await backend.locked(name=unique) is False

    @pytest.mark.parametrize("duration", [0.001, 0.0101, 0.123456789])
    async def test_a_very_short_lease_ends(self, backend: LockBackend, unique: str, duration: float) -> None:
        await fence_of(backend, unique, "a", duration)
        await self.outlive(duration)
        assert await backend.locked(name=unique) is False
        await fence_of(backend, unique, "b")

    @pytest.mark.parametrize("duration", [86400.0, 31_536_000.5, float(MAX_SECONDS)])
    async def test_a_very_long_lease_holds_and_can_be_released(
        self, backend: LockBackend, unique: str, duration: float
    ) -> None:
        fence = await fence_of(backend, unique, "a", duration)
        assert await fence_of(backend, unique, "a", duration) == fence
        assert await backend.acquire(name=unique, token="b", duration=duration) is None
        assert await backend.release(name=unique, token="a") is True
        await fence_of(backend, unique, "b")

    async def test_a_whole_number_of_seconds_may_be_an_int(self, backend: LockBackend, unique: str) -> None:
        await fence_of(backend, unique, "a", 30)
        assert await backend.owned(name=unique, token="a") is True
