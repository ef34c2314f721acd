"""The conformance suite of `ScheduleBackend`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from grelmicro.testing.conformance._base import (
    BackendSuite,
    Cancel,
    cancelling_at_every_turn,
    concurrently,
)
from grelmicro.testing.conformance._names import hard_names

if TYPE_CHECKING:
    from grelmicro.coordination.abc import ScheduleBackend

_DUE = 1_764_614_700.0


class ScheduleBackendSuite(BackendSuite):
    """Everything that a `ScheduleBackend` promises, for any backend with its two methods.

    Used and adjusted like `LockBackendSuite`.
    """

    @pytest.fixture
    def peer(self, backend: ScheduleBackend) -> ScheduleBackend:
        """Return the backend as another process has it: over another connection, where that makes sense."""
        return backend

    async def test_a_schedule_never_used_has_not_fired(self, backend: ScheduleBackend, unique: str) -> None:
        assert await backend.last_fired(unique) is None

    async def test_the_first_claim_of_a_fire_wins(
        self, backend: ScheduleBackend, peer: ScheduleBackend, unique: str
    ) -> None:
        assert await backend.claim(unique, _DUE) is True
        assert await peer.claim(unique, _DUE) is False
        assert await backend.claim(unique, _DUE) is False
        assert await peer.last_fired(unique) == _DUE

    async def test_an_earlier_fire_comes_too_late(self, backend: ScheduleBackend, unique: str) -> None:
        await backend.claim(unique, _DUE)
        for earlier in (_DUE - 60, _DUE - 0.001, 0.0):
            assert await backend.claim(unique, earlier) is False
        assert await backend.last_fired(unique) == _DUE

    async def test_a_later_fire_can_be_claimed(
        self, backend: ScheduleBackend, peer: ScheduleBackend, unique: str
    ) -> None:
        for later in (_DUE, _DUE + 0.001, _DUE + 60, _DUE + 86_400):
            assert await backend.claim(unique, later) is True
            assert await peer.last_fired(unique) == later

    async def test_the_start_of_the_epoch_is_a_time_like_any_other(
        self, backend: ScheduleBackend, unique: str
    ) -> None:
        assert await backend.claim(unique, 0.0) is True
        assert await backend.last_fired(unique) == 0.0
        assert await backend.claim(unique, 0.0) is False
        assert await backend.claim(unique, 60.0) is True

    @pytest.mark.parametrize(
        "due",
        [1_764_614_725.123456, 1_764_614_725.1234567, 0.1 + 0.2, 1e-6, 253_402_300_799.999, 1_764_614_725],
    )
    async def test_the_last_fire_comes_back_exactly(
        self, backend: ScheduleBackend, unique: str, due: float
    ) -> None:
        assert await backend.claim(unique, due) is True
        last = await backend.last_fired(unique)
        assert isinstance(last, float | int)
        assert last == due
        assert await backend.claim(unique, due) is False

    async def test_a_claim_does_not_lapse(self, backend: ScheduleBackend, unique: str) -> None:
        await backend.claim(unique, _DUE)
        await self.outlive(self.short)
        assert await backend.last_fired(unique) == _DUE
        assert await backend.claim(unique, _DUE) is False

    async def test_of_many_claims_for_one_fire_one_wins(
        self, backend: ScheduleBackend, peer: ScheduleBackend, unique: str
    ) -> None:
        sides = [backend if number % 2 else peer for number in range(self.racers)]
        for due in (_DUE, _DUE + 60, _DUE + 120):
            claimed = await concurrently([partial(side.claim, unique, due) for side in sides])
            assert claimed.count(True) == 1
            assert claimed.count(False) == self.racers - 1

    async def test_of_many_claims_for_many_fires_the_latest_stays(
        self, backend: ScheduleBackend, unique: str
    ) -> None:
        dues = [_DUE + (number * 7) % self.racers for number in range(self.racers)]
        claimed = await concurrently([partial(backend.claim, unique, due) for due in dues])
        assert claimed[dues.index(max(dues))] is True
        assert await backend.last_fired(unique) == max(dues)

    async def test_names_that_look_alike_are_schedules_of_their_own(
        self, backend: ScheduleBackend, unique: str
    ) -> None:
        names = hard_names(unique)[
            1:
        ]  # a fire is remembered for ever: the name without a prefix is not for it
        for number, name in enumerate(names):
            assert await backend.claim(name, _DUE + number) is True, repr(name)
        for number, name in enumerate(names):
            assert await backend.last_fired(name) == _DUE + number, repr(name)

    async def test_a_cancelled_claim_is_whole_or_absent(self, backend: ScheduleBackend, unique: str) -> None:
        async def attempt(label: str, cancel: Cancel) -> bool:
            name = f"{unique}-{label}"
            finished = await cancel(partial(backend.claim, name, _DUE))
            assert await backend.claim(name, _DUE + 60) is True
            assert await backend.claim(name, _DUE) is False
            assert await backend.last_fired(name) == _DUE + 60
            return finished

        await cancelling_at_every_turn(attempt)
