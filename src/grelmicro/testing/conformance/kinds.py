"""The conformance suite of three backends over the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grelmicro.testing.conformance._base import LONG, BackendSuite

if TYPE_CHECKING:
    from grelmicro.coordination.abc import LeaderElectionBackend, LockBackend, ScheduleBackend


class KindsSuite(BackendSuite):
    """A lock, an election and a schedule of the same name are three things.

    The author's fixture `backends` yields open lock, election and schedule backends over the same data.
    """

    async def test_one_name_can_be_a_lock_and_an_election_and_a_schedule(
        self, backends: tuple[LockBackend, LeaderElectionBackend, ScheduleBackend], unique: str
    ) -> None:
        locks, elections, schedules = backends
        assert await locks.acquire(name=unique, token="a", duration=LONG) is not None
        assert await elections.get(name=unique) is None
        assert await schedules.last_fired(unique) is None
        record = await elections.acquire_or_renew(name=unique, token="b", duration=LONG)
        assert record.holder == "b"
        assert await schedules.claim(unique, 60.0) is True
        assert await elections.release(name=unique, token="a") is False
        assert await locks.release(name=unique, token="b") is False
        assert await locks.owned(name=unique, token="a") is True
        assert await locks.release(name=unique, token="a") is True
        assert await elections.get(name=unique) == record
        assert await elections.release(name=unique, token="b") is True
        assert await schedules.last_fired(unique) == 60.0
