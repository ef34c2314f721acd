"""Elections on Leases."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from grelmicro.coordination import _lease
from grelmicro.coordination.abc import LeaderRecord, WakingElectionBackend
from grelmicro.coordination.kubernetes._adapter import KubernetesAdapter, checked_lease, is_free
from grelmicro.coordination.kubernetes._decisions import release
from grelmicro.providers._kubernetes.record import ELECTION, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grelmicro.providers._kubernetes.operation import Moment


class KubernetesLeaderElectionAdapter(KubernetesAdapter, WakingElectionBackend):
    """A `WakingElectionBackend` on Leases that client-go's candidates can read, and take part in.

    Their expiry is judged as that of locks, by the duration that the leader wrote. One Lease stays for each
    election, and counts its transitions for as long.
    """

    component_keyword: ClassVar[str] = "election"
    kind: ClassVar[str] = ELECTION

    @override
    async def acquire_or_renew(
        self, *, name: str, token: str, duration: float, metadata: Mapping[str, str] | None = None
    ) -> LeaderRecord:
        decide = partial(_campaign, token, checked_lease(token, duration), dict(metadata or {}))
        record: LeaderRecord = await self._submit(name, decide)
        return record

    @override
    async def release(self, *, name: str, token: str) -> bool:
        # Carried through when its caller is cancelled.
        released: bool = await self._submit(name, partial(release, token, ""), finish=True)
        return released

    @override
    def on_vacancy(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._listen(name, is_free, wake)

    @override
    async def get(self, *, name: str) -> LeaderRecord | None:
        record: LeaderRecord | None = await self._submit(name, _leader, writes=False)
        return record


def _lease_of(state: State | None) -> _lease.ElectionLease | None:
    if state is None:
        return None
    record = LeaderRecord(
        holder=state.holder,
        lease_duration=state.duration,
        acquired_at=state.acquired_at,
        renewed_at=state.renewed_at,
        transitions=state.transitions,
        metadata=state.metadata,
    )
    return _lease.ElectionLease(record, state.expires_at)


def _campaign(
    token: str, duration: float, metadata: Mapping[str, str], state: State | None, moment: Moment, _: Any
) -> tuple[State | None, LeaderRecord]:
    held = _lease_of(state)
    lease = _lease.campaign(held, token, duration, moment.now, at=moment.at, metadata=metadata)
    if lease is held:
        return state, lease.record
    led = replace(
        state or State(),
        holder=token,
        duration=duration,
        acquired_at=lease.record.acquired_at,
        renewed_at=lease.record.renewed_at,
        transitions=lease.record.transitions,
        metadata=metadata,
        expires_at=lease.expires_at,
    )
    return led, lease.record


def _leader(state: State | None, moment: Moment, _: Any) -> tuple[State | None, LeaderRecord | None]:
    lease = _lease_of(state)
    return state, lease.record if lease is not None and _lease.is_live(lease, moment.now) else None
