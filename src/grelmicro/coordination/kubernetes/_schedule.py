"""Schedules on Leases."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from grelmicro.coordination import _lease
from grelmicro.coordination.abc import ScheduleBackend
from grelmicro.coordination.kubernetes._adapter import KubernetesAdapter
from grelmicro.errors import ProviderError
from grelmicro.providers._kubernetes.record import SCHEDULE, State

if TYPE_CHECKING:
    from grelmicro.providers._kubernetes.operation import Moment


class KubernetesScheduleAdapter(KubernetesAdapter, ScheduleBackend):
    """A `ScheduleBackend` on Leases: one for each schedule, kept for ever, with the last fire in it."""

    component_keyword: ClassVar[str] = "schedule"
    kind: ClassVar[str] = SCHEDULE

    @override
    async def claim(self, name: str, due: float) -> bool:
        if not math.isfinite(due):
            raise ValueError("due: must be a finite number of seconds")
        claimed: bool = await self._submit(name, partial(_claim, float(due)))
        return claimed

    @override
    async def last_fired(self, name: str) -> float | None:
        fired: float | None = await self._submit(name, _last_fired, writes=False)
        return fired


def _claim(due: float, state: State | None, moment: Moment, hoped: Any) -> tuple[State | None, bool]:
    last = state.fired if state else None
    if _lease.claims(last, due):
        before = state or State(acquired_at=moment.at)
        return replace(before, fired=due, renewed_at=moment.at), True
    if hoped is True and last != due:
        # Somebody claimed a later fire over it, so that nothing tells whether an earlier try took effect.
        raise ProviderError("a claim had no answer, and was overtaken before it could be looked up")
    return state, False


def _last_fired(state: State | None, _moment: Moment, _: Any) -> tuple[State | None, float | None]:
    return state, state.fired if state else None
