"""What a lease lets happen, as pure functions of the record, the token, the duration and the time.

Backends that judge leases themselves call these; Redis and Postgres express the same rules in their own
language, and the tests hold them against these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grelmicro.coordination.abc import LeaderRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["ElectionLease", "Lease", "campaign", "claims", "is_live", "is_owned", "next_fence", "take"]


@dataclass(frozen=True, slots=True)
class Lease:
    """One token's hold on a lock, in seconds of the clock of whoever judges it."""

    token: str
    expires_at: float
    """The first moment at which the lease is over."""
    fence: int


@dataclass(frozen=True, slots=True)
class ElectionLease:
    """A leader's record with the moment at which it ends, in seconds of the clock of whoever judges it."""

    record: LeaderRecord
    expires_at: float
    """The first moment at which the lease is over."""


def is_live(lease: Lease | ElectionLease | None, now: float) -> bool:
    """Say whether the lease has time left at `now`."""
    return lease is not None and now < lease.expires_at


def is_owned(lease: Lease | ElectionLease | None, token: str, now: float) -> bool:
    """Say whether `token` has the lease and it has time left at `now`; tokens are compared whole."""
    if lease is None or not is_live(lease, now):
        return False
    return token == (lease.token if isinstance(lease, Lease) else lease.record.holder)


def next_fence(last: int, epoch: float) -> int:
    """Return the fencing token after `last`: at least the time in microseconds, so losing `last` is safe."""
    return max(last + 1, int(epoch * 1_000_000))


def take(lease: Lease | None, token: str, duration: float, now: float, *, fence: int) -> Lease | None:
    """Return the lease that stands once `token` asked for `duration` seconds, or None when it is refused.

    A new grant carries `fence`. A token that is live keeps the fence it has, and gets its time left set to
    `duration`: nothing is added.
    """
    if lease is None or not is_live(lease, now):
        return Lease(token, now + duration, fence)
    if lease.token != token:
        return None
    return replace(lease, expires_at=now + duration)


def campaign(
    lease: ElectionLease | None,
    token: str,
    duration: float,
    now: float,
    *,
    at: datetime,
    metadata: Mapping[str, str] | None = None,
) -> ElectionLease:
    """Return the lease that stands once `token` campaigned for `duration` seconds; perhaps another's, as is.

    `at` is the wall time written into the record, which decides nothing. Whoever takes over what `lease` left
    behind (ended or given up, by the same holder or another) counts one transition more.
    """
    if lease is not None and is_live(lease, now):
        if lease.record.holder != token:
            return lease
        acquired_at, transitions = lease.record.acquired_at, lease.record.transitions
    else:
        acquired_at, transitions = at, 0 if lease is None else lease.record.transitions + 1
    record = LeaderRecord(
        holder=token,
        lease_duration=duration,
        acquired_at=acquired_at,
        renewed_at=at,
        transitions=transitions,
        metadata=dict(metadata or {}),
    )
    return ElectionLease(record, now + duration)


def claims(last: float | None, due: float) -> bool:
    """Say whether a fire that is due at `due` is later than the last one claimed."""
    return last is None or last < due
