"""A lock for scheduled work: taken or left in one try, and kept for a minimum time when the work is quick.

States of a holder (a task, or a thread through `from_thread`):

free -> asking -> held -> ending -> kept -> free

- asking: cancelled, failed or out of time goes back to free, and what was perhaps granted is given back.
- held: ends by itself when the lease does; `refresh` and leaving the block find it lapsed.
- ending: see `_task_hold`. The holder holds nothing any more, whatever the backend answers.
- kept: nobody holds it and nobody gets it, until the minimum hold is over by the backend's clock.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Self, cast
from weakref import WeakSet

from anyio import current_time
from pydantic import model_validator
from typing_extensions import override

from grelmicro.coordination._calls import LockCalls
from grelmicro.coordination._holders import Holders, Lease, LockHandle, current_clock, current_owner
from grelmicro.coordination._identity import Identity, random_uuid1
from grelmicro.coordination._interval_lock import IntervalLock
from grelmicro.coordination._leased import LeasedLock, LeasedLockConfig
from grelmicro.coordination._lock_threads import loop_of
from grelmicro.coordination._names import tasklock_key
from grelmicro.coordination._task_hold import TaskHold, TaskLockCalls, Terms, held_around
from grelmicro.coordination._tasklock_threads import ThreadTaskLockAdapter
from grelmicro.coordination.errors import (
    LockBackendError,
    LockLockedCheckError,
    LockNotOwnedError,
    LockReleaseError,
    WouldBlockError,
)
from grelmicro.types import NonNegativeSeconds, Seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from uuid import UUID

    from grelmicro.coordination.abc import LockBackend

__all__ = ["TaskLock", "TaskLockConfig"]

logger = logging.getLogger("grelmicro.coordination")


class TaskLockConfig(LeasedLockConfig):
    """Settings of a `TaskLock`."""

    min_hold_duration: NonNegativeSeconds = 1
    """Seconds for which the lock is held at least, counted from when it was taken; 0 releases it at once. At
    most a lease."""

    @model_validator(mode="after")
    def _relation(self) -> Self:
        if self.min_hold_duration > self.lease_duration:
            msg = "min_hold_duration must not be longer than lease_duration"
            raise ValueError(msg)
        return self


class TaskLock(LeasedLock[TaskLockConfig]):
    """A lock that lets one of many replicas do a piece of scheduled work.

    Entering it is one try. Leaving it releases it, but no earlier than `min_hold_duration` after it was
    taken, so that a replica whose clock or loop is a little late finds it held; this holds too when the
    block raised or was cancelled. A block that outlasts `lease_duration` has lost the lock, which leaving it
    reports as `LockNotOwnedError`; call `refresh` on the way, raise `lease_duration`, or have the lease
    extended while the block runs, by `auto_extend`.

    As the `lock=` of an interval task it works with a copy of its settings that belongs to the task: there,
    the name `default` becomes the task's, and what was given neither by keyword nor by environment follows
    from the interval.
    """

    _config_class: ClassVar[type[TaskLockConfig]] = TaskLockConfig
    _env_kind: ClassVar[str] = "TASKLOCK"
    _noun: ClassVar[str] = "task lock"
    _calls_class: ClassVar[type[LockCalls]] = TaskLockCalls

    def __init__(
        self,
        name: str = "default",
        *,
        backend: LockBackend | str | None = None,
        worker: str | UUID | None = None,
        min_hold_duration: float | None = None,
        lease_duration: float | None = None,
        env_prefix: str | None = None,
        env_load: bool | None = None,
        auto_extend: bool | None = None,
        max_hold_duration: Seconds | None = None,
    ) -> None:
        """Make a task lock; neither the event loop nor the backend is touched.

        A setting that is left out comes from the environment (`GREL_TASKLOCK_REPORT_LEASE_DURATION` for the
        lock `report`, `GREL_TASKLOCK_LEASE_DURATION` for the one named `default`), else from
        `TaskLockConfig`. `backend` is an instance, or the name of a `Coordination` component of the active
        app.

        Raises:
            SettingsValidationError: the name or a setting breaks a rule (also a ValueError).
        """
        super().__init__(
            name,
            backend=backend,
            env_prefix=env_prefix,
            env_load=env_load,
            worker=worker,
            min_hold_duration=min_hold_duration,
            lease_duration=lease_duration,
            auto_extend=auto_extend,
            max_hold_duration=max_hold_duration,
        )

    @override
    def _bind(self, name: str, config: TaskLockConfig, backend: LockBackend | str | None) -> None:
        super()._bind(name, config, backend)
        self._key = tasklock_key(name)
        self._holders = Holders(Identity(config.worker, random_uuid1))
        self._unfinished: list[TaskHold] = []
        self._granted_at: dict[str, float] = {}
        self._copies: WeakSet[IntervalLock] = WeakSet()

    @override
    async def _on_reconfigured(self, old: TaskLockConfig, new: TaskLockConfig) -> None:
        for copy in self._copies:
            copy.terms()  # raises if its interval does not go with them

    @property
    def from_thread(self) -> ThreadTaskLockAdapter:
        """The same lock for a worker thread, blocking; the thread is the holder.

        Raises:
            SettingsValidationError: the lock has `auto_extend`; a thread cannot be stopped when it is lost.
        """
        self._refuse_threads()
        return ThreadTaskLockAdapter(self, lambda: loop_of(self.backend, self._cached_calls))

    def for_task(self, name: str, *, interval: float) -> IntervalLock:
        """Return this lock as the interval task `name` uses it.

        Raises:
            SettingsValidationError: its lease is shorter than the interval, and it has no minimum hold.
        """
        copy = IntervalLock(self, name, interval, enter=self._enter, leave=self._leave)
        self._copies.add(copy)
        return copy

    async def refresh(self) -> None:
        """Set the lease to end `lease_duration` seconds from now. The minimum hold stays as it is.

        Raises:
            LockNotOwnedError: this task does not hold it, or no longer.
            LockAcquireError: the backend failed; the lock is still held until its lease ends.
        """
        owner = current_owner()
        shared = held_around.get()
        if shared is not None and shared.lock is self and not shared.hold.left:
            owner, hold = shared.owner, shared.hold
        else:
            hold = self._hold_of(owner)
        await self._renew(owner, hold, hold.terms.key, hold.current_terms().lease_duration)

    async def locked(self) -> bool:
        """Say whether anybody holds it, or a minimum hold keeps it.

        Raises:
            LockLockedCheckError: the backend failed; the cause is attached.
        """
        return await self._calls().locked(self._key, LockLockedCheckError)

    async def __aenter__(self) -> LockHandle:
        """Take the lock in one try.

        Raises:
            LockReentrantError: this task holds it already.
            WouldBlockError: somebody else holds it, or a minimum hold keeps it.
            LockAcquireError: the backend failed; the cause is attached.
        """
        return (await self._enter(self._terms)).handle

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Let go. Started once, it finishes even when the caller is cancelled.

        Raises:
            LockNotOwnedError: the lease had ended, and the block raised nothing.
            LockReleaseError: the backend failed, and the block raised nothing.
        """
        await self._leave(exc)

    async def do_acquire(self, token: str, *, duration: Seconds) -> bool:
        """Ask the backend once for `token`, and say whether it was granted.

        Raises:
            LockAcquireError: the backend failed.
        """
        granted = await self._calls().acquire(self._key, token, duration) is not None
        if granted:
            self._granted_at[token] = current_time()
        return granted

    async def do_release(self, token: str) -> bool:
        """Ask the backend to release `token`, and say whether it held the lock.

        Raises:
            LockReleaseError: the backend failed.
        """
        self._granted_at.pop(token, None)
        return await self._calls().release(self._key, token, within=math.inf)

    async def do_reacquire(self, token: str, duration: float) -> bool:
        """Ask the backend to hold the lock for `token` for `duration` seconds more, and say whether it does.

        Raises:
            LockReleaseError: the backend failed.
        """
        return await self._calls().keep(self._key, token, duration, within=math.inf) is not None

    async def do_exit(self, token: str, *, min_hold_duration: float) -> None:
        """Release `token`, or hold the lock on until `min_hold_duration` after `do_acquire` took it.

        Raises:
            LockReleaseError: the backend failed.
        """
        rest = self._granted_at.pop(token, current_time()) + min_hold_duration - current_time()
        if rest > 0:
            await self.do_reacquire(token, rest)
        else:
            await self.do_release(token)

    async def do_thread_enter(self) -> None:
        """Run `__aenter__` on the event loop, with the calling thread as the holder."""
        await self._enter(self._terms)

    async def do_thread_exit(self) -> None:
        """Run `__aexit__` on the event loop, with the calling thread as the holder."""
        await self._leave(None)

    def _terms(self) -> Terms:
        config = self._config
        return Terms(self._name, self._key, config.min_hold_duration, config.lease_duration)

    async def _enter(self, current_terms: Callable[[], Terms]) -> TaskHold:
        owner, terms = current_owner(), current_terms()
        self._refuse_reentry(owner)
        await self._finish_ends()
        calls, token = self._calls(), self._holders.identity.new_token()
        grant = await calls.acquire(terms.key, token, terms.lease_duration)
        if grant is None:
            msg = f"task lock {terms.name!r} is held by somebody else, or kept for its minimum hold"
            raise WouldBlockError(msg)
        lease = Lease(grant.deadline, current_clock())
        handle = LockHandle(terms.name, token, grant.fencing_token, lease)
        hold = TaskHold(handle, lease, calls, current_terms)
        self._holders.add(owner, hold)
        config = self._config
        if config.auto_extend and not isinstance(owner, int):
            self._keep_alive(
                owner,
                hold,
                terms.key,
                duration=lambda: hold.current_terms().lease_duration,
                longest=config.max_hold_duration,
            )
        return hold

    async def _leave(self, error: BaseException | None) -> None:
        owner = current_owner()
        if self._stop_keep_alive(owner, error):
            with suppress(LockNotOwnedError, LockReleaseError):
                await self._end_hold_of(owner)
            raise self._lost()
        try:
            await self._end_hold_of(owner)
        except (LockNotOwnedError, LockBackendError) as problem:
            if error is None:
                raise
            error.add_note(f"Leaving the block of task lock {self._name!r} failed too: {problem}")
            logger.warning("Leaving the block of task lock %r after an error: %s", self._name, problem)

    async def _end_hold_of(self, owner: object) -> None:
        hold = self._hold_of(owner)
        self._holders.drop(owner, hold)
        hold.left = True
        if hold.lease.left() <= 0:
            raise self._lapsed(owner, hold, hold.terms.key)
        await self._end(hold)

    async def _end(self, hold: TaskHold) -> None:
        try:
            held = await hold.end()
        except LockReleaseError:
            self._unfinished.append(hold)
            hold.end_later()
            raise
        if not held:
            raise self._lost()

    async def _finish_ends(self) -> None:
        """End what an earlier exit could not, before it stands in our own way."""
        unfinished, self._unfinished = self._unfinished, []
        for hold in unfinished:
            if hold.ended or hold.lease.left() <= 0:
                continue
            try:
                await hold.end()
            except LockReleaseError:
                self._unfinished.append(hold)

    def _hold_of(self, owner: object) -> TaskHold:
        return cast("TaskHold", self._require_hold(owner))

    @override
    def _calls(self) -> TaskLockCalls:
        return cast("TaskLockCalls", super()._calls())
