"""What a lock backend promises about names and tokens: any is fine, and none passes for another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from grelmicro.testing.conformance._base import LONG, concurrently
from grelmicro.testing.conformance._lock_leases import LockBackendKnobs, fence_of
from grelmicro.testing.conformance._names import HARD_TOKENS, hard_names

if TYPE_CHECKING:
    from grelmicro.coordination.abc import LockBackend


class LockNames(LockBackendKnobs):
    """Many names, and odd ones."""

    async def test_names_that_look_alike_are_locks_of_their_own(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        names = hard_names(unique)
        for number, name in enumerate(names):
            await fence_of(backend, name, f"t{number}")
        try:
            for number, name in enumerate(names):
                assert await peer.owned(name=name, token=f"t{number}") is True, repr(name)
                assert await peer.owned(name=name, token=f"t{number + 1}") is False, repr(name)
                assert await peer.acquire(name=name, token="other", duration=LONG) is None, repr(name)
        finally:
            freed = [
                await backend.release(name=name, token=f"t{number}") for number, name in enumerate(names)
            ]
        assert all(freed)

    async def test_releasing_one_name_leaves_its_lookalikes_held(
        self, backend: LockBackend, unique: str
    ) -> None:
        names = hard_names(unique)
        for name in names:
            await fence_of(backend, name, "a")
        while names:
            assert await backend.release(name=names.pop(), token="a") is True
            for name in names[-8:]:
                assert await backend.locked(name=name) is True, repr(name)

    async def test_tokens_that_look_alike_do_not_pass_for_each_other(
        self, backend: LockBackend, peer: LockBackend, unique: str
    ) -> None:
        for holder in HARD_TOKENS:
            fence = await fence_of(backend, unique, holder)
            for other in HARD_TOKENS[:12]:
                if other == holder:
                    continue
                assert await peer.owned(name=unique, token=other) is False, (holder, other)
                assert await peer.release(name=unique, token=other) is False, (holder, other)
                assert await peer.acquire(name=unique, token=other, duration=LONG) is None, (holder, other)
            assert await fence_of(peer, unique, holder) == fence
            assert await peer.owned(name=unique, token=holder) is True, holder
            assert await peer.release(name=unique, token=holder) is True, holder

    async def test_one_token_holds_many_names(self, backend: LockBackend, unique: str) -> None:
        names = [f"{unique}-{number}" for number in range(10)]
        for name in names:
            await fence_of(backend, name, "a")
        assert await backend.release(name=names[0], token="a") is True
        assert [await backend.owned(name=name, token="a") for name in names] == [False] + [True] * 9

    async def test_thousands_of_names_at_the_same_time(self, backend: LockBackend, unique: str) -> None:
        names = [f"{unique}-{number}" for number in range(self.many)]
        take = partial(backend.acquire, duration=LONG)
        granted = await concurrently([partial(take, name=name, token="a") for name in names])
        assert [name for name, fence in zip(names, granted, strict=True) if fence is None] == []
        refused = await concurrently([partial(take, name=name, token="b") for name in names])
        assert [name for name, fence in zip(names, refused, strict=True) if fence is not None] == []
        freed = await concurrently([partial(backend.release, name=n, token="a") for n in names])
        assert freed == [True] * len(names)
