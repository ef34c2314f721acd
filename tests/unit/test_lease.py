"""The decisions about leases, for any record, token, duration and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from grelmicro.coordination._lease import (
    ElectionLease,
    Lease,
    campaign,
    claims,
    is_live,
    is_owned,
    next_fence,
    take,
)

START = datetime(2026, 1, 1, tzinfo=UTC)

tokens = st.sampled_from(["a", "a-1", "a-10", "b", ""])
times = st.floats(min_value=0, max_value=1e6)
durations = st.floats(min_value=1e-3, max_value=1e6)
fences = st.integers(min_value=1, max_value=2**53)
leases = st.builds(Lease, token=tokens, expires_at=times, fence=fences)


@given(leases, durations)
def test_a_lease_ends_exactly_when_its_time_is_up(lease, before):
    assert not is_live(lease, lease.expires_at)
    assert not is_owned(lease, lease.token, lease.expires_at)
    assert is_live(lease, lease.expires_at - before)
    assert is_owned(lease, lease.token, lease.expires_at - before)


def test_nothing_is_neither_live_nor_owned():
    assert not is_live(None, 0)
    assert not is_owned(None, "a", 0)


@given(leases, tokens, durations, times, fences)
def test_a_live_lease_refuses_every_other_token(lease, token, duration, now, fence):
    after = take(lease, token, duration, now, fence=fence)
    assert (after is None) == (is_live(lease, now) and token != lease.token)


@given(st.none() | leases, tokens, durations, times, fences)
def test_a_grant_lasts_for_its_duration_from_now(lease, token, duration, now, fence):
    after = take(lease, token, duration, now, fence=fence)
    if after is not None:
        assert after.token == token
        assert after.expires_at == now + duration


@given(st.none() | leases, tokens, durations, times, fences)
def test_only_a_new_grant_takes_the_new_fence(lease, token, duration, now, fence):
    after = take(lease, token, duration, now, fence=fence)
    if is_owned(lease, token, now):
        assert after is not None
        assert after.fence == lease.fence
    elif after is not None:
        assert after.fence == fence


@given(fences, st.floats(min_value=0, max_value=4e9))
def test_a_fence_is_larger_than_the_last_and_no_smaller_than_the_time(last, epoch):
    fence = next_fence(last, epoch)
    assert isinstance(fence, int)
    assert fence > last
    assert fence >= int(epoch * 1_000_000)
    assert next_fence(0, epoch) < 2**53


@given(times, times)
def test_a_fire_is_claimed_once_and_never_backwards(last, due):
    assert claims(None, due)
    assert claims(last, due) == (due > last)


@given(tokens, tokens, durations, times, durations)
def test_a_leader_is_replaced_only_when_its_time_is_up(holder, other, duration, now, later):
    lease = campaign(None, holder, duration, now, at=START, metadata={"k": "v"})
    again = campaign(lease, other, duration, now + later, at=START + timedelta(seconds=1))
    ended = now + later >= lease.expires_at
    if ended:
        assert again.record.holder == other
        assert again.record.transitions == lease.record.transitions + 1
        assert again.record.acquired_at == again.record.renewed_at == START + timedelta(seconds=1)
        assert again.record.metadata == {}
    elif other == holder:
        assert again.record.transitions == lease.record.transitions
        assert again.record.acquired_at == START
        assert again.record.renewed_at == START + timedelta(seconds=1)
        assert again.record.metadata == {}
    else:
        assert again is lease


def test_the_record_does_not_follow_the_callers_mapping():
    metadata = {"pod": "a"}
    lease = campaign(None, "a", 1, 0, at=START, metadata=metadata)
    metadata["pod"] = "b"
    assert lease.record.metadata == {"pod": "a"}
    assert isinstance(lease, ElectionLease)


class OneName(RuleBasedStateMachine):
    """Any history of one lock: one holder at a time, fences that only grow."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.lease = None
        self.granted = []
        self.until = {}

    @rule(seconds=durations)
    def wait(self, seconds):
        self.now += seconds

    @rule(token=tokens, duration=durations)
    def acquire(self, token, duration):
        fence = next_fence(self.granted[-1] if self.granted else 0, self.now / 1e6)
        after = take(self.lease, token, duration, self.now, fence=fence)
        if after is None:
            assert any(other != token and self.now < until for other, until in self.until.items())
            return
        assert not any(other != token and self.now < until for other, until in self.until.items())
        if after.fence not in self.granted:
            self.granted.append(after.fence)
        self.lease, self.until = after, {token: after.expires_at}

    @rule(token=tokens)
    def release(self, token):
        if is_owned(self.lease, token, self.now):
            self.lease, self.until = None, {}

    @invariant()
    def fences_only_grow(self):
        assert self.granted == sorted(set(self.granted))

    @invariant()
    def whoever_was_promised_time_has_it(self):
        for token, until in self.until.items():
            assert is_owned(self.lease, token, self.now) == (self.now < until)


TestOneName = OneName.TestCase
