"""Firing every n seconds."""

from __future__ import annotations

from datetime import datetime

import anyio
from anyio import current_time
from typing_extensions import override

from grelmicro.coordination import _clock
from grelmicro.coordination._interval_lock import IntervalLock
from grelmicro.task._fire import Fire
from grelmicro.task._info import Reason
from grelmicro.task._protocols import Trigger

_PATIENCE = 0.1
"""The share of an interval for which a replica asks again when its own last hold seems to linger."""
_FIRST_PAUSE = 0.01
"""The share of an interval between the first two of these tries; doubles each time."""


class IntervalTrigger(Trigger):
    """Plans the next fire one interval after what admitted the last one, and not before its hold ends.

    The first fire is due at once. A function that runs longer than the interval is followed at once. A
    replica that has run the last fire and finds the lock held asks again within a tenth of the interval
    before it gives the tick up: the backend's clock may be slower than ours, or round up.
    """

    def __init__(self, seconds: float, lock: IntervalLock | None) -> None:
        self._seconds = seconds
        self._lock = lock
        self._next: float | None = None
        self._next_fire_time: datetime | None = None
        self._ask_again_until = 0.0
        self._pause = 0.0

    @property
    @override
    def next_fire_time(self) -> datetime | None:
        return self._next_fire_time

    @override
    def prepare(self) -> None:
        if self._lock is not None:
            _ = self._lock.lock.backend
        self._ask_again_until = 0.0
        self._plan(current_time())

    @override
    async def wait(self) -> None:
        planned = current_time() if self._next is None else self._next
        await anyio.sleep(max(0.0, planned - current_time()))

    @override
    async def claim(self, fire: Fire) -> None:
        return

    @override
    def done(self, fire: Fire) -> None:
        now = current_time()
        if fire.ran:
            kept_until = 0.0 if self._lock is None else self._lock.kept_until
            planned = max(fire.admitted_at + self._seconds, kept_until, now)
            self._ask_again_until = planned + _PATIENCE * self._seconds
            self._pause = _FIRST_PAUSE * self._seconds
        elif fire.reason is Reason.BUSY and now < self._ask_again_until:
            planned = now + self._pause
            self._pause *= 2
        else:
            planned = now + self._seconds
        self._plan(planned)

    def _plan(self, at: float) -> None:
        self._next = at
        self._next_fire_time = _clock.utc(_clock.wall_time() + at - current_time())
