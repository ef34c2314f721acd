"""What a Lease lets happen to a lock in it: the pure rules of `_lease`, and those of the queue.

The queue holds the processes that wait, in the order in which they came. Giving up a lock takes the first one
out and writes down that it is its turn, which its watch tells it. One that does not come, having died
perhaps, is thereby out of the queue; the others find the lock free when they next look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grelmicro.coordination import _lease
from grelmicro.coordination.abc import Refusal, Succession
from grelmicro.providers._kubernetes.record import State

if TYPE_CHECKING:
    from grelmicro.providers._kubernetes.operation import Moment

_LONGEST_QUEUE = 200
"""More processes than that wait without a place in it."""


def acquire(
    token: str, duration: float, state: State | None, moment: Moment, _: Any
) -> tuple[State | None, int | None]:
    """Grant or renew; returns the fencing token, or None when somebody else holds it."""
    lease = _taken(state, token, duration, moment)
    if lease is None:
        return state, None
    return _granted(state, lease, duration, moment), lease.fence


def acquire_or_enqueue(
    token: str, process: str, duration: float, state: State | None, moment: Moment, _: Any
) -> tuple[State | None, int | Refusal]:
    """Grant or renew, or enter the process in the queue."""
    lease = _taken(state, token, duration, moment)
    if lease is not None:
        granted = _granted(state, lease, duration, moment)
        return replace(granted, queue=_without(granted, process)), lease.fence
    assert state is not None  # noqa: S101 - somebody holds it
    refusal = Refusal(min(state.expires_at - moment.now, state.duration))
    if process not in state.queue and len(state.queue) < _LONGEST_QUEUE:
        state = replace(state, queue=(*state.queue, process))
    return state, refusal


def hand_over(
    token: str, to: str, process: str, duration: float, state: State | None, moment: Moment, _: Any
) -> tuple[State | None, Succession]:
    """End one lease and begin the next, without a moment between them."""
    if state is not None and owned(token, state, moment, None)[1]:
        free = replace(state, holder="", queue=_without(state, process))
        lease = _taken(free, to, duration, moment)
        assert lease is not None  # noqa: S101 - it is free
        return _granted(free, lease, duration, moment), Succession(lease.fence, bool(free.queue))
    if state is not None and owned(to, state, moment, None)[1]:
        return state, Succession(state.fence, bool(_without(state, process)))
    return state, Succession(None, others_wait=False)


def release(
    token: str, process: str, state: State | None, moment: Moment, hoped: Any
) -> tuple[State | None, bool]:
    """Give up the lease, of a lock or an election, that `token` holds."""
    if state is None or state.holder != token:
        return state, hoped is True
    # One that lapsed here may still count elsewhere, where it was seen later.
    lapsed = moment.now >= state.expires_at
    free = replace(state, holder="", duration=1.0, renewed_at=moment.at)
    return _next_called(free, process), not lapsed or hoped is True


def pass_on(process: str, state: State | None, moment: Moment, _: Any) -> tuple[State | None, None]:
    """Wake the next in the queue, if the lock is free."""
    if state is None or locked(state, moment, None)[1] or not _without(state, process):
        return state, None
    return _next_called(state, process), None


def leave(process: str, state: State | None, moment: Moment, _: Any) -> tuple[State | None, None]:
    """Leave the queue; a turn that has come already goes to the next."""
    if state is None:
        return state, None
    if state.turn == process and not locked(state, moment, None)[1]:
        return _next_called(state, process), None
    queue = _without(state, process)
    return (state if queue == state.queue else replace(state, queue=queue)), None


def locked(state: State | None, moment: Moment, _: Any) -> tuple[State | None, bool]:
    """Say whether anybody holds it."""
    return state, _lease.is_live(_lease_of(state), moment.now)


def owned(token: str, state: State | None, moment: Moment, _: Any) -> tuple[State | None, bool]:
    """Say whether `token` holds it."""
    return state, _lease.is_owned(_lease_of(state), token, moment.now)


def _lease_of(state: State | None) -> _lease.Lease | None:
    if state is None or not state.holder:
        return None
    return _lease.Lease(state.holder, state.expires_at, state.fence)


def _taken(state: State | None, token: str, duration: float, moment: Moment) -> _lease.Lease | None:
    fence = _lease.next_fence(state.fence if state else 0, moment.epoch)
    return _lease.take(_lease_of(state), token, duration, moment.now, fence=fence)


def _granted(state: State | None, lease: _lease.Lease, duration: float, moment: Moment) -> State:
    before = state or State(transitions=-1)
    granted = replace(
        before,
        holder=lease.token,
        duration=duration,
        renewed_at=moment.at,
        fence=lease.fence,
        turn="",
        expires_at=lease.expires_at,
    )
    if lease.fence == before.fence:  # a renewal
        return granted
    return replace(granted, acquired_at=moment.at, transitions=before.transitions + 1)


def _next_called(state: State, process: str) -> State:
    """Take the first out of the queue, and say that it is its turn; `process` is awake, and leaves it."""
    queue = _without(state, process)
    return replace(state, queue=queue[1:], turn=queue[0] if queue else "")


def _without(state: State, process: str) -> tuple[str, ...]:
    return tuple(one for one in state.queue if one != process)
