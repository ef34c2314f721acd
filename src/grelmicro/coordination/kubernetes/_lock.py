"""Locks on Leases."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from grelmicro.coordination import _lease
from grelmicro.coordination.abc import LockBackend
from grelmicro.coordination.kubernetes._adapter import KubernetesAdapter, checked_lease
from grelmicro.providers._kubernetes.record import LOCK, State

if TYPE_CHECKING:
    from grelmicro.providers._kubernetes.operation import Moment


class KubernetesLockAdapter(KubernetesAdapter, LockBackend):
    """A `LockBackend` on Leases. A lease ends when its duration has passed since this process saw it begin.

    No other machine's clock takes part; a process that sees a lease for the first time waits for the whole of
    its duration, unless it is released. Released locks are deleted two minutes later. Fencing tokens count
    on from the last one, or from the API server's clock, whatever is later.
    """

    component_keyword: ClassVar[str] = "lock"
    kind: ClassVar[str] = LOCK

    @override
    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        decide = partial(_acquire, token, checked_lease(token, duration))
        fence: int | None = await self._submit(name, decide)
        return fence

    @override
    async def release(self, *, name: str, token: str) -> bool:
        # Carried through when its caller is cancelled.
        released: bool = await self._submit(name, partial(release, token), finish=True)
        return released

    @override
    async def locked(self, *, name: str) -> bool:
        locked: bool = await self._submit(name, _locked, writes=False)
        return locked

    @override
    async def owned(self, *, name: str, token: str) -> bool:
        owned: bool = await self._submit(name, partial(_owned, token), writes=False)
        return owned


def _lease_of(state: State | None) -> _lease.Lease | None:
    if state is None or not state.holder:
        return None
    return _lease.Lease(state.holder, state.expires_at, state.fence)


def _acquire(
    token: str, duration: float, state: State | None, moment: Moment, _: Any
) -> tuple[State | None, int | None]:
    held = _lease_of(state)
    fence = _lease.next_fence(state.fence if state else 0, moment.epoch)
    lease = _lease.take(held, token, duration, moment.now, fence=fence)
    if lease is None:
        return state, None
    before = state or State(transitions=-1)
    granted = replace(
        before,
        holder=token,
        duration=duration,
        renewed_at=moment.at,
        fence=lease.fence,
        expires_at=lease.expires_at,
    )
    if lease.fence == fence:  # a new grant
        granted = replace(granted, acquired_at=moment.at, transitions=before.transitions + 1)
    return granted, lease.fence


def release(token: str, state: State | None, moment: Moment, hoped: Any) -> tuple[State | None, bool]:
    """Give up the lease, of a lock or an election, that `token` holds."""
    if state is None or state.holder != token:
        return state, hoped is True
    # One that lapsed here may still count elsewhere, where it was seen later.
    lapsed = moment.now >= state.expires_at
    return replace(state, holder="", duration=1.0, renewed_at=moment.at), not lapsed or hoped is True


def _locked(state: State | None, moment: Moment, _: Any) -> tuple[State | None, bool]:
    return state, _lease.is_live(_lease_of(state), moment.now)


def _owned(token: str, state: State | None, moment: Moment, _: Any) -> tuple[State | None, bool]:
    return state, _lease.is_owned(_lease_of(state), token, moment.now)
