"""A task lock as one interval task uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from grelmicro.coordination._holders import LockHandle, current_owner
from grelmicro.coordination._keep_alive import check_keep_alive
from grelmicro.coordination._names import tasklock_key
from grelmicro.coordination._task_hold import HeldAround, TaskHold, Terms, held_around
from grelmicro.errors import SettingsValidationError

if TYPE_CHECKING:
    from types import TracebackType

    from grelmicro.coordination.tasklock import TaskLock

_SHORTEST_LEASE = 60.0
_LEASE_IN_INTERVALS = 1.5


class IntervalLock:
    """The settings of a `TaskLock` as they apply to one task; the lock itself stays as it is.

    Its name is the lock's, or the task's for a lock named `default`. The minimum hold is one interval and the
    lease 60 s or 1.5 intervals, whichever is longer, each unless the lock was given one of its own.

    Raises:
        SettingsValidationError: the lock was given a lease that is shorter than the interval, and no minimum
            hold, so that it could not keep other replicas out for a whole interval; or a `max_hold_duration`
            that is shorter than the lease.
    """

    def __init__(
        self,
        lock: TaskLock,
        task: str,
        interval: float,
        *,
        enter: Callable[[Callable[[], Terms]], Awaitable[TaskHold]],
        leave: Callable[[BaseException | None], Awaitable[None]],
    ) -> None:
        self._lock = lock
        self._enter = enter
        self._leave = leave
        self._interval = interval
        self._name = task if lock.name == "default" else lock.name
        self._hold: TaskHold | None = None
        self.terms()

    @property
    def lock(self) -> TaskLock:
        """The lock that was given."""
        return self._lock

    @property
    def kept_until(self) -> float:
        """When the last hold is over for certain (loop time); 0 before the first."""
        return 0.0 if self._hold is None else self._hold.kept_until

    def waive(self) -> None:
        """Give the lock back at once: the function does not run after all."""
        if self._hold is not None:
            self._hold.waive()

    async def __aenter__(self) -> LockHandle:
        hold = self._hold = await self._enter(self.terms)
        held_around.set(HeldAround(self._lock, current_owner(), hold))
        return hold.handle

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        held_around.set(None)
        await self._leave(exc)

    def terms(self) -> Terms:
        """Return what it is taken with now.

        Raises:
            SettingsValidationError: they do not go with the interval.
        """
        config = self._lock.config
        given = config.model_fields_set
        min_hold = config.min_hold_duration if "min_hold_duration" in given else self._interval
        lease = (
            config.lease_duration
            if "lease_duration" in given
            else max(_SHORTEST_LEASE, _LEASE_IN_INTERVALS * self._interval)
        )
        if min_hold > lease:
            msg = (
                f"lease_duration: must not be shorter than the interval ({self._interval:g} s) of task "
                f"{self._name!r}, which holds its lock that long; leave it out, or give min_hold_duration too"
            )
            raise SettingsValidationError(msg)
        try:
            check_keep_alive(config.auto_extend, config.max_hold_duration, lease)
        except ValueError as error:
            msg = f"{error} ({lease:g} s for task {self._name!r})"
            raise SettingsValidationError(msg) from None
        return Terms(self._name, tasklock_key(self._name), min_hold, lease)
