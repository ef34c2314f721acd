"""The conformance suite of `LeaderElectionBackend`."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from grelmicro.coordination.abc import LeaderRecord
from grelmicro.testing.conformance._base import (
    LONG,
    BackendSuite,
    Cancel,
    cancelling_at_every_turn,
    concurrently,
)
from grelmicro.testing.conformance._names import HARD_TOKENS, hard_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from grelmicro.coordination.abc import LeaderElectionBackend

_NO_OFFSET = timedelta(0)


async def _lead(
    backend: LeaderElectionBackend,
    name: str,
    token: str,
    duration: float = LONG,
    metadata: Mapping[str, str] | None = None,
) -> LeaderRecord:
    record = await backend.acquire_or_renew(name=name, token=token, duration=duration, metadata=metadata)
    assert record.holder == token
    return record


class LeaderElectionBackendSuite(BackendSuite):
    """Everything that a `LeaderElectionBackend` promises, for any backend with its three methods.

    Used and adjusted like `LockBackendSuite`.
    """

    @pytest.fixture
    def peer(self, backend: LeaderElectionBackend) -> LeaderElectionBackend:
        """Return the backend as another process has it: over another connection, where that makes sense."""
        return backend

    async def test_nobody_leads_an_election_never_used(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        assert await backend.get(name=unique) is None
        assert await backend.release(name=unique, token="a") is False

    async def test_the_first_candidate_leads(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        record = await _lead(backend, unique, "a", 29.5, {"pod": "a-0", "version": "1"})
        assert isinstance(record, LeaderRecord)
        assert record.lease_duration == pytest.approx(self.lease_of(29.5))
        assert record.acquired_at == record.renewed_at
        assert record.acquired_at.utcoffset() == record.renewed_at.utcoffset() == _NO_OFFSET
        assert type(record.transitions) is int
        assert record.transitions == 0
        assert dict(record.metadata) == {"pod": "a-0", "version": "1"}
        assert await peer.get(name=unique) == record

    async def test_another_candidate_sees_the_leader_and_changes_nothing(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        record = await _lead(backend, unique, "a", metadata={"pod": "a-0"})
        seen = await peer.acquire_or_renew(name=unique, token="b", duration=1.0, metadata={"pod": "b-0"})
        assert seen == record
        assert await backend.get(name=unique) == record

    async def test_another_candidate_does_not_prolong_the_lease(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        await _lead(backend, unique, "a", self.short)
        await backend.acquire_or_renew(name=unique, token="b", duration=LONG)
        await self.outlive(self.short)
        assert await backend.get(name=unique) is None

    async def test_a_renewal_moves_renewed_at_and_replaces_the_metadata(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        first = await _lead(backend, unique, "a", metadata={"pod": "a-0", "version": "1"})
        await self.lapse(0.01)
        second = await _lead(backend, unique, "a", metadata={"pod": "a-1"})
        assert second.acquired_at == first.acquired_at
        assert second.renewed_at > first.renewed_at
        assert second.transitions == first.transitions
        assert dict(second.metadata) == {"pod": "a-1"}
        third = await _lead(backend, unique, "a")
        assert dict(third.metadata) == {}
        assert await backend.get(name=unique) == third

    async def test_a_renewal_sets_the_time_left_and_adds_nothing(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        await _lead(backend, unique, "a", LONG)
        record = await _lead(backend, unique, "a", self.short)
        assert record.lease_duration == pytest.approx(self.lease_of(self.short))
        await self.outlive(self.short)
        assert await backend.get(name=unique) is None

    async def test_a_renewal_keeps_the_lease_alive(self, backend: LeaderElectionBackend, unique: str) -> None:
        await _lead(backend, unique, "a", 2 * self.short)
        await _lead(backend, unique, "a", LONG)
        await self.outlive(2 * self.short)
        seen = await backend.acquire_or_renew(name=unique, token="b", duration=LONG)
        assert seen.holder == "a"

    async def test_a_lapsed_lease_is_taken_over(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        first = await _lead(backend, unique, "a", self.short, {"pod": "a-0"})
        await self.outlive(self.short)
        assert await peer.get(name=unique) is None
        second = await _lead(peer, unique, "b")
        assert second.transitions == first.transitions + 1
        assert second.acquired_at == second.renewed_at > first.renewed_at
        assert dict(second.metadata) == {}
        assert (await backend.acquire_or_renew(name=unique, token="a", duration=LONG)) == second

    async def test_whoever_lets_a_lease_lapse_leads_anew(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        first = await _lead(backend, unique, "a", self.short)
        await self.outlive(self.short)
        second = await _lead(backend, unique, "a")
        assert second.transitions == first.transitions + 1
        assert second.acquired_at > first.acquired_at

    async def test_release_hands_over_at_once(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        first = await _lead(backend, unique, "a")
        assert await backend.release(name=unique, token="a") is True
        assert await peer.get(name=unique) is None
        second = await _lead(peer, unique, "b")
        assert second.transitions == first.transitions + 1
        assert second.acquired_at > first.acquired_at

    async def test_a_second_release_finds_nothing(self, backend: LeaderElectionBackend, unique: str) -> None:
        await _lead(backend, unique, "a")
        assert await backend.release(name=unique, token="a") is True
        assert await backend.release(name=unique, token="a") is False

    async def test_only_the_leader_can_release(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        record = await _lead(backend, unique, "a")
        assert await peer.release(name=unique, token="b") is False
        assert await backend.get(name=unique) == record

    async def test_a_former_leader_cannot_release_its_successor(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        await _lead(backend, unique, "a", self.short)
        await self.outlive(self.short)
        assert await backend.release(name=unique, token="a") is False
        record = await _lead(backend, unique, "b")
        assert await backend.release(name=unique, token="a") is False
        assert await backend.get(name=unique) == record

    async def test_holders_that_look_alike_do_not_pass_for_each_other(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        for number, holder in enumerate(HARD_TOKENS):
            name = f"{unique}-{number}"
            await _lead(backend, name, holder)
            for other in HARD_TOKENS[:12]:
                if other == holder:
                    continue
                seen = await backend.acquire_or_renew(name=name, token=other, duration=LONG)
                assert seen.holder == holder
                assert await backend.release(name=name, token=other) is False, (holder, other)
            assert await backend.release(name=name, token=holder) is True, holder

    async def test_names_that_look_alike_are_elections_of_their_own(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        names = hard_names(unique)
        for number, name in enumerate(names):
            await _lead(backend, name, f"t{number}")
        for number, name in enumerate(names):
            record = await backend.get(name=name)
            assert record is not None, repr(name)
            assert record.holder == f"t{number}", repr(name)
            assert await backend.release(name=name, token=f"t{number}") is True, repr(name)

    async def test_metadata_comes_back_as_it_was_given(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        metadata = {"": "empty key", "empty": "", "pod name": "quo\"te's", "é🔒": "line\nbreak", "n": "1.0"}
        metadata |= {f"key-{number}": "v" * 100 for number in range(20)}
        await _lead(backend, unique, "a", metadata=metadata)
        record = await peer.get(name=unique)
        assert record is not None
        assert dict(record.metadata) == metadata

    async def test_of_many_candidates_one_leads(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        await self._race(unique, backend, peer)

    async def test_of_many_candidates_one_takes_over_a_lapsed_lease(
        self, backend: LeaderElectionBackend, peer: LeaderElectionBackend, unique: str
    ) -> None:
        await _lead(backend, unique, "old", self.short)
        await self.outlive(self.short)
        assert (await self._race(unique, backend, peer)).transitions == 1

    async def test_a_cancelled_campaign_leaves_nothing_that_its_token_cannot_release(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        await self._cancel_at_every_turn(
            backend,
            unique,
            lambda name: backend.get(name=name),
            lambda name: backend.acquire_or_renew(name=name, token="a", duration=LONG),
        )

    async def test_a_cancelled_release_can_be_repeated(
        self, backend: LeaderElectionBackend, unique: str
    ) -> None:
        await self._cancel_at_every_turn(
            backend,
            unique,
            lambda name: _lead(backend, name, "a"),
            lambda name: backend.release(name=name, token="a"),
        )

    async def _race(self, name: str, *sides: LeaderElectionBackend) -> LeaderRecord:
        records = await concurrently(
            [
                partial(
                    sides[number % len(sides)].acquire_or_renew, name=name, token=f"t{number}", duration=LONG
                )
                for number in range(self.racers)
            ]
        )
        leaders = [number for number, record in enumerate(records) if record.holder == f"t{number}"]
        assert len(leaders) == 1, f"{len(leaders)} candidates lead the same election"
        record = records[leaders[0]]
        assert await sides[0].get(name=name) == record
        return record

    async def _cancel_at_every_turn(
        self,
        backend: LeaderElectionBackend,
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
                assert await backend.get(name=name) is None, f"still led when {label}"
                await _lead(backend, name, "b")
            await _lead(backend, f"{name}-next", "b")
            return finished

        await cancelling_at_every_turn(attempt)
