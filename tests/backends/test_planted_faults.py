"""The suites find what they look for: a fault planted in a sound backend fails the fitting tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

PLANTED = """
import asyncio
from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from grelmicro.coordination import Lock, _lease
from grelmicro.coordination._holders import current_owner
from grelmicro.coordination._clock import utc, wall_time
from grelmicro.coordination.memory import (
    MemoryLeaderElectionAdapter as Elections, MemoryLockAdapter as Locks, MemoryScheduleAdapter as Schedules,
)
from grelmicro.testing import virtual_asyncio
from grelmicro.testing.conformance import *


@pytest.fixture
def anyio_backend():
    return virtual_asyncio()


class ReleasesForAnybody(Locks):
    async def release(self, *, name, token):
        self._store.locks.pop(name)
        return True

class ReleasesWhatLapsed(Locks):
    async def release(self, *, name, token):
        lease = self._store.locks.get(name)
        self._store.locks.pop(name)
        return lease is not None and lease.token == token

class NeverExpires(Locks):
    async def acquire(self, *, name, token, duration):
        return await super().acquire(name=name, token=token, duration=1e9)

class DropsFractions(Locks):
    async def acquire(self, *, name, token, duration):
        return await super().acquire(name=name, token=token, duration=int(duration))

class AddsUp(Locks):
    async def acquire(self, *, name, token, duration):
        if await self.owned(name=name, token=token):
            duration += self._store.locks.get(name).expires_at - self._store.now()
        return await super().acquire(name=name, token=token, duration=duration)

class RepeatsFences(Locks):
    async def acquire(self, *, name, token, duration):
        return await super().acquire(name=name, token=token, duration=duration) and 7

class CountsFencesAnewAfterRelease(Locks):
    fences = {}
    async def acquire(self, *, name, token, duration):
        fresh = not await self.owned(name=name, token=token)
        fence = await super().acquire(name=name, token=token, duration=duration)
        if fence is not None:
            self.fences[name] = self.fences.get(name, 0) + fresh
            return self.fences[name]
    async def release(self, *, name, token):
        released = await super().release(name=name, token=token)
        if released:
            del self.fences[name]
        return released

class NewFenceForEachRequest(Locks):
    async def acquire(self, *, name, token, duration):
        return await super().acquire(name=name, token=token, duration=duration) and self._store.mint()

class SameFenceAfterALapse(Locks):
    async def acquire(self, *, name, token, duration):
        lease = self._store.locks.get(name)
        fence = await super().acquire(name=name, token=token, duration=duration)
        if fence is not None and lease is not None and lease.token == token:
            self._store.locks.put(name, replace(self._store.locks.get(name), fence=lease.fence), 1e9, 0)
            return lease.fence
        return fence

class ReadsThenWrites(Locks):
    async def acquire(self, *, name, token, duration):
        if await self.locked(name=name) and not await self.owned(name=name, token=token):
            return None
        owned = await self.owned(name=name, token=token)
        fence = self._store.locks.get(name).fence if owned else self._store.mint()
        await checkpoint()
        now = self._store.now()
        self._store.locks.put(name, _lease.Lease(token, now + duration, fence), now + duration, now)
        return fence

class FoldsCase(Locks):
    async def acquire(self, *, name, token, duration):
        return await super().acquire(name=name.casefold(), token=token, duration=duration)
    async def owned(self, *, name, token):
        return await super().owned(name=name.casefold(), token=token)
    async def release(self, *, name, token):
        return await super().release(name=name.casefold(), token=token)
    async def locked(self, *, name):
        return await super().locked(name=name.casefold())

class CutsNames(Locks):
    async def acquire(self, *, name, token, duration):
        return await super().acquire(name=name[:250], token=token, duration=duration)
    async def release(self, *, name, token):
        return await super().release(name=name[:250], token=token)

class ComparesStarts(Locks):
    async def owned(self, *, name, token):
        await checkpoint()
        lease = self._store.locks.get(name)
        return _lease.is_live(lease, self._store.now()) and token.startswith(lease.token)

class StripsTokens(Locks):
    async def release(self, *, name, token):
        return await super().release(name=name, token=token.strip())

class RefusesWhatItCannotTell(Locks):
    async def acquire(self, *, name, token, duration):
        try:
            return await super().acquire(name=name, token=token, duration=duration)
        except anyio.get_cancelled_exc_class():
            return None

class GrantsBehindTheRelease(Locks):
    async def acquire(self, *, name, token, duration):
        task = asyncio.ensure_future(self.late(name, token, duration))
        return await asyncio.shield(task)
    async def late(self, name, token, duration):
        for _ in range(10):
            await checkpoint()
        return await super().acquire(name=name, token=token, duration=duration)

class FloatFences(Locks):
    async def acquire(self, *, name, token, duration):
        fence = await super().acquire(name=name, token=token, duration=duration)
        return fence and float(fence)


class AnybodyEndsTheLease(Elections):
    async def release(self, *, name, token):
        record = await self.get(name=name)
        return record is not None and await super().release(name=name, token=record.holder)

class LeadsForever(Elections):
    async def acquire_or_renew(self, *, name, token, duration, metadata=None):
        record = await super().acquire_or_renew(name=name, token=token, duration=1e9, metadata=metadata)
        return replace(record, lease_duration=duration)

class ForgetsTransitions(Elections):
    async def acquire_or_renew(self, **kwargs):
        return replace(await super().acquire_or_renew(**kwargs), transitions=0)

class AcquiresAtEachRenewal(Elections):
    async def acquire_or_renew(self, **kwargs):
        record = await super().acquire_or_renew(**kwargs)
        return replace(record, acquired_at=record.renewed_at)

class KeepsOldMetadata(Elections):
    async def acquire_or_renew(self, *, name, token, duration, metadata=None):
        old = await self.get(name=name)
        metadata = {**(old.metadata if old else {}), **(metadata or {})}
        return await super().acquire_or_renew(name=name, token=token, duration=duration, metadata=metadata)

class NaiveTimes(Elections):
    async def acquire_or_renew(self, **kwargs):
        record = await super().acquire_or_renew(**kwargs)
        return replace(record, acquired_at=record.acquired_at.replace(tzinfo=None))

class ElectsInTwoSteps(Elections):
    async def acquire_or_renew(self, *, name, token, duration, metadata=None):
        record = await self.get(name=name)
        if record is not None and record.holder != token:
            return record
        now, at = self._store.now(), utc(wall_time())
        held = self._store.elections.get(name)
        lease = _lease.campaign(held, token, duration, now, at=at, metadata=metadata)
        await checkpoint()
        self._store.elections.put(name, lease, lease.expires_at + 3600, now)
        return lease.record

class EndsForLookalikes(Elections):
    async def release(self, *, name, token):
        record = await self.get(name=name)
        same = record is not None and token.startswith(record.holder)
        return same and await super().release(name=name, token=record.holder)


class ClaimsTwice(Schedules):
    async def claim(self, name, due):
        last = await self.last_fired(name)
        await checkpoint()
        self._store.fires[name] = due
        return last is None or last < due

class ClaimsTheSameAgain(Schedules):
    async def claim(self, name, due):
        last = await self.last_fired(name)
        return last == due or await super().claim(name, due)

class TakesZeroForNever(Schedules):
    async def last_fired(self, name):
        return await super().last_fired(name) or None

class RoundsFires(Schedules):
    async def claim(self, name, due):
        return await super().claim(name, round(due, 3))

class GoesBackwards(Schedules):
    async def claim(self, name, due):
        if await self.last_fired(name) == due:
            return False
        self._store.fires[name] = due
        return True


class ExtendsWhatLapsed(Lock):
    async def extend(self):
        hold = self._holders.get(current_owner())
        if hold is None:
            return await super().extend()
        await self.do_acquire(hold.handle.token, duration=self._config.lease_duration)
        return hold.handle

class LeavesGrantsBehind(Lock):
    def _calls(self):
        calls = super()._calls()
        calls.clean_up = lambda key, token: None
        return calls

class ForgetsToReleaseWhenCancelled(Lock):
    async def _release(self, owner):
        hold = self._require_hold(owner)
        self._holders.drop(owner, hold)
        await checkpoint()
        await self.do_release(hold.handle.token)

class OneHolderForAll(Lock):
    async def _acquire(self, owner, timeout):
        return await super()._acquire(1, timeout)
    async def _release(self, owner):
        return await super()._release(1)

class SleepsPastItsTimeout(Lock):
    async def _acquire(self, owner, timeout):
        try:
            return await super()._acquire(owner, timeout and 0.0)
        except TimeoutError:
            if timeout:
                await anyio.sleep(self._config.retry_interval)
            raise

class SwallowsCancellation(Lock):
    async def _leave(self, owner, error):
        try:
            await super()._leave(owner, error)
        except anyio.get_cancelled_exc_class():
            pass


def lock_suite_of(lock_class):
    class Planted(LockSuite):
        @pytest.fixture
        def backend(self):
            return SlowLocks()
        def lock(self, name, backend, duration=30.0, retry_interval=0.01):
            return lock_class(name, backend=backend, lease_duration=duration, retry_interval=retry_interval)
    return Planted

class SlowLocks(Locks):
    survives_cancellation = False
    async def acquire(self, **kwargs):
        fence = await super().acquire(**kwargs)
        await checkpoint()
        return fence
    async def release(self, **kwargs):
        await checkpoint()
        released = await super().release(**kwargs)
        await checkpoint()
        return released

def suite_of(backend_class):
    base = {Locks: LockBackendSuite, Elections: LeaderElectionBackendSuite, Schedules: ScheduleBackendSuite}
    class Planted(base[backend_class if backend_class in base else backend_class.__mro__[1]]):
        many, racers = 50, 20
        @pytest.fixture
        def backend(self):
            return backend_class()
    return Planted

for value in list(globals().values()):
    if isinstance(value, type) and issubclass(value, Lock):
        globals()["Test" + value.__name__] = lock_suite_of(value)
    if isinstance(value, type) and issubclass(value, (Locks, Elections, Schedules)):
        globals()["Test" + value.__name__] = suite_of(value)
"""

SOUND = {"Lock", "SlowLocks", "MemoryLockAdapter", "MemoryLeaderElectionAdapter", "MemoryScheduleAdapter"}

FOUND_BY = {
    "ReleasesForAnybody": {
        "test_release_with_a_foreign_token_does_nothing",
        "test_a_second_release_finds_nothing",
        "test_a_lapsed_token_cannot_free_the_next_holder",
        "test_of_many_tasks_one_frees_a_lock",
    },
    "ReleasesWhatLapsed": {"test_a_lapsed_token_cannot_be_released"},
    "NeverExpires": {"test_a_lapsed_lock_is_free", "test_a_very_short_lease_ends"},
    "DropsFractions": {"test_a_fraction_of_a_second_counts"},
    "AddsUp": {"test_a_repeated_request_sets_the_time_left_and_adds_nothing"},
    "RepeatsFences": {
        "test_fences_grow_strictly_over_many_cycles",
        "test_fences_grow_strictly_over_release_and_expiry",
        "test_no_update_is_lost_inside_the_lock_and_fences_follow_its_order",
    },
    "CountsFencesAnewAfterRelease": {"test_fences_grow_strictly_over_many_cycles"},
    "NewFenceForEachRequest": {
        "test_a_repeated_request_gets_the_same_fence",
        "test_repeats_sent_together_are_one_grant",
    },
    "SameFenceAfterALapse": {"test_a_lapsed_token_is_granted_anew_with_a_larger_fence"},
    "ReadsThenWrites": {
        "test_of_many_tasks_one_gets_a_free_lock",
        "test_of_many_tasks_one_takes_over_a_lapsed_lock",
        "test_no_update_is_lost_inside_the_lock_and_fences_follow_its_order",
    },
    "FoldsCase": {"test_names_that_look_alike_are_locks_of_their_own"},
    "CutsNames": {"test_names_that_look_alike_are_locks_of_their_own"},
    "ComparesStarts": {"test_tokens_that_look_alike_do_not_pass_for_each_other"},
    "StripsTokens": {"test_tokens_that_look_alike_do_not_pass_for_each_other"},
    "RefusesWhatItCannotTell": {
        "test_a_cancelled_acquire_leaves_nothing_that_its_token_cannot_release",
    },
    "GrantsBehindTheRelease": {
        "test_a_cancelled_acquire_leaves_nothing_that_its_token_cannot_release",
    },
    "FloatFences": {"test_release_frees"},
    "ExtendsWhatLapsed": {
        "test_extending_a_lapsed_lease_fails_and_leaves_the_lock_free",
        "test_extending_a_lapsed_lease_leaves_the_next_holder_alone",
    },
    "LeavesGrantsBehind": {"test_cancelled_from_the_start_nothing_stays_held"},
    "ForgetsToReleaseWhenCancelled": {
        "test_cancelled_while_releasing_nothing_stays_held",
        "test_cancelled_while_leaving_a_block_nothing_stays_held",
    },
    "OneHolderForAll": {"test_a_child_task_waits_like_anybody_else"},
    "SleepsPastItsTimeout": {"test_a_timeout_does_not_wait_for_the_next_try"},
    "SwallowsCancellation": {"test_cancelled_while_leaving_a_block_nothing_stays_held"},
    "AnybodyEndsTheLease": {
        "test_only_the_leader_can_release",
        "test_a_former_leader_cannot_release_its_successor",
    },
    "LeadsForever": {"test_a_lapsed_lease_is_taken_over"},
    "ForgetsTransitions": {"test_a_lapsed_lease_is_taken_over", "test_release_hands_over_at_once"},
    "AcquiresAtEachRenewal": {"test_a_renewal_moves_renewed_at_and_replaces_the_metadata"},
    "KeepsOldMetadata": {"test_a_renewal_moves_renewed_at_and_replaces_the_metadata"},
    "NaiveTimes": {"test_the_first_candidate_leads"},
    "ElectsInTwoSteps": {
        "test_of_many_candidates_one_leads",
        "test_of_many_candidates_one_takes_over_a_lapsed_lease",
    },
    "EndsForLookalikes": {"test_holders_that_look_alike_do_not_pass_for_each_other"},
    "ClaimsTwice": {"test_of_many_claims_for_one_fire_one_wins"},
    "ClaimsTheSameAgain": {"test_the_first_claim_of_a_fire_wins"},
    "TakesZeroForNever": {"test_the_start_of_the_epoch_is_a_time_like_any_other"},
    "RoundsFires": {"test_the_last_fire_comes_back_exactly"},
    "GoesBackwards": {"test_an_earlier_fire_comes_too_late"},
}


def test_each_planted_fault_is_found_and_a_sound_backend_passes(pytester: pytest.Pytester):
    path = pytester.makepyfile(test_planted=PLANTED)
    record = pytester.inline_run(path, "-p", "no:cacheprovider", "--tb=no", "--no-summary", "-q")
    passed, _, failed = record.listoutcomes()
    found: dict[str, set[str]] = {}
    for report in failed:
        _, suite, test = report.nodeid.split("::")
        found.setdefault(suite.removeprefix("Test"), set()).add(test.split("[")[0])
    missed = {fault: tests - found.get(fault, set()) for fault, tests in FOUND_BY.items()}
    assert {fault: tests for fault, tests in missed.items() if tests} == {}
    assert found.keys() == FOUND_BY.keys()
    ran = {report.nodeid.split("::")[1].removeprefix("Test") for report in passed}
    assert ran >= SOUND
