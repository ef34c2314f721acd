"""Firing when a cron expression matches the wall clock, once over all replicas.

What a trigger knows is its baseline: the latest match that it has dealt with. A match later than that and
not later than now is due; of several, the latest is, and the others are superseded. At start, and whenever
more than one match has passed, the baseline is first read from the backend, since other replicas may have
run them.

- The clock steps back: nothing is due until it has passed the baseline again.
- The clock steps forward, or the process stood still: noticed within `_LOOK_EVERY`, then as above.
- The backend fails while reading or claiming: the fire is not run, and tried again until it is claimed or a
  later match takes its place. Each try counts as a skip.
- A claim is sent: from here on only a hard stop keeps the function from running, and then the fire is lost,
  as it is when the process dies or the claim's answer gets lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import anyio
from anyio import current_time
from typing_extensions import override

from grelmicro import _ambient
from grelmicro.coordination import _clock
from grelmicro.coordination.abc import ScheduleBackend
from grelmicro.coordination.errors import ScheduleBackendError
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT
from grelmicro.task._cron_expression import CronExpression
from grelmicro.task._fire import Fire
from grelmicro.task._info import FireLedger, Outcome, Reason
from grelmicro.task._protocols import Trigger
from grelmicro.task.errors import TaskDeclarationError

T = TypeVar("T")

logger = logging.getLogger("grelmicro.task")

_LOOK_EVERY = 60.0
"""Seconds after which the wall clock is looked at again, however far away the next match is."""
_SHORTEST_SLEEP = 0.001
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
"""Seconds between tries while the backend fails; the pause doubles up to the longest."""
_COUNT_UP_TO = 1000
"""How many superseded matches are counted at most, since counting takes time."""


class CronTrigger(Trigger):
    """The schedule of one task."""

    def __init__(
        self,
        name: str,
        expression: CronExpression,
        *,
        grace: float | None,
        backend: ScheduleBackend | str | None,
        ledger: FireLedger,
    ) -> None:
        self._name = name
        self._expression = expression
        self._grace = grace
        self._backend = backend
        self._ledger = ledger
        self._next: float | None = None
        self._due = 0.0
        self._baseline = 0.0
        self._fresh = True
        self._read = False
        self._problem: ScheduleBackendError | None = None
        self._retry_at = 0.0
        self._pause = _FIRST_PAUSE

    @property
    @override
    def next_fire_time(self) -> datetime | None:
        return None if self._next is None else _clock.utc(self._next)

    @override
    def prepare(self) -> None:
        _ = self._schedule_backend()
        self._fresh, self._read = True, False
        self._baseline = _clock.wall_time()
        self._next = self._expression.next(self._baseline)
        self._recovered()

    @override
    async def wait(self) -> None:
        while True:
            now = _clock.wall_time()
            due = self._expression.latest(self._baseline, now)
            left = self._retry_at - current_time()
            self._problem = None
            if left <= 0 and not self._read and (self._fresh or self._several_until(due)):
                self._problem = await self._catch_up()
                if self._problem is None:
                    continue
                if due is None:
                    logger.warning("Task %r cannot tell which fires it missed: %s", self._name, self._problem)
                    self._back_off()
                    continue
            if due is None:
                self._next = self._expression.next(self._baseline)
                left = min(left, self._next - now) if self._fresh else self._next - now
            else:
                self._next = self._due = due
                if left <= 0:
                    return
            await anyio.sleep(min(max(left, _SHORTEST_SLEEP), _LOOK_EVERY))

    @override
    async def claim(self, fire: Fire) -> None:
        late = _clock.wall_time() - self._due
        if self._grace is not None and late > self._grace:
            why = f"due {late:.1f} s ago, more than the misfire_grace_seconds of {self._grace:g}"
            raise fire.skip(Reason.MISFIRE, why)
        try:
            if self._problem is not None:
                raise self._problem
            claimed = await self._ask("claim a fire", lambda backend: backend.claim(self._name, self._due))
            if type(claimed) is not bool:
                raise _bad_reply("claim a fire", "a boolean", claimed)
        except ScheduleBackendError as error:
            raise fire.skip(Reason.BACKEND_ERROR, str(error)) from error
        if not claimed:
            raise fire.skip(Reason.CLAIMED, "another replica has run it, or one due later")

    @override
    def done(self, fire: Fire) -> None:
        self._read = False
        if fire.reason is Reason.BACKEND_ERROR:
            self._back_off()
            return
        self._recovered()
        if fire.reason is Reason.STOPPED and not fire.ran:
            return
        passed = self._expression.count(self._baseline, self._due, limit=_COUNT_UP_TO)
        if passed:
            self._ledger.count(Outcome.SKIPPED, Reason.SUPERSEDED, passed)
            logger.warning(
                "Task %r was skipped (%s): %s%d fires that were missed before the one due at %s",
                self._name,
                Reason.SUPERSEDED,
                "at least " if passed == _COUNT_UP_TO else "",
                passed,
                _clock.utc(self._due).isoformat(),
            )
        self._baseline = self._due

    def _several_until(self, due: float | None) -> bool:
        return due is not None and self._expression.next(self._baseline) < due

    async def _catch_up(self) -> ScheduleBackendError | None:
        """Move the baseline to the last fire that any replica claimed; returns what went wrong."""
        try:
            stored = await self._ask("read the last fire", lambda backend: backend.last_fired(self._name))
            if stored is not None and (type(stored) not in (int, float) or not math.isfinite(stored)):
                raise _bad_reply("read the last fire", "a finite number or None", stored)
        except ScheduleBackendError as error:
            return error
        if stored is not None:
            self._baseline = stored if self._fresh else max(self._baseline, stored)
            ahead = stored - _clock.wall_time()
            if ahead > _LOOK_EVERY:
                logger.warning(
                    "Task %r last fired %.0f s ahead of this clock, and fires again when that has passed",
                    self._name,
                    ahead,
                )
        self._fresh, self._read = False, True
        self._recovered()
        return None

    def _schedule_backend(self) -> ScheduleBackend:
        if self._backend is not None and not isinstance(self._backend, str):
            return self._backend
        wanted_by = f"The cron task {self._name!r}"
        component = _ambient.component("coordination", self._backend or "default", wanted_by=wanted_by)
        backend: ScheduleBackend = component.schedule_backend
        return backend

    async def _ask(self, what: str, call: Callable[[ScheduleBackend], Awaitable[T]]) -> T:
        try:
            backend = self._schedule_backend()
            with anyio.fail_after(getattr(backend, "call_timeout", DEFAULT_CALL_TIMEOUT)):
                return await call(backend)
        except Exception as error:
            msg = f"cannot {what}: {type(error).__name__}: {error}"
            raise ScheduleBackendError(msg) from error

    def _back_off(self) -> None:
        self._retry_at = current_time() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _recovered(self) -> None:
        self._retry_at, self._pause = 0.0, _FIRST_PAUSE


def check_backend(backend: Any) -> ScheduleBackend | str | None:
    """Return what `backend=` of a cron task may be.

    Raises:
        TaskDeclarationError: it is neither a backend, nor the name of a component, nor None.
    """
    if backend is None or isinstance(backend, str):
        return backend
    if isinstance(backend, ScheduleBackend) and not isinstance(backend, type):
        return backend
    msg = (
        f"backend: a {type(backend).__name__} has no claim() and last_fired(); pass an instance of a "
        "schedule backend, the name of a registered component, or nothing to use the active app's"
    )
    raise TaskDeclarationError(msg)


def _bad_reply(what: str, expected: str, reply: object) -> ScheduleBackendError:
    return ScheduleBackendError(f"cannot {what}: expected {expected}, not {type(reply).__name__}")
